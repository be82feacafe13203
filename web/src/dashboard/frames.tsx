// Tabs that show a page of the sandbox's host in a frame.

import { useEffect, useRef, useState } from 'preact/hooks';

import { address, request } from '../client/api';
import { ApiError, isAbort } from '../client/errors';
import { sentence } from '../format';
import { Button, EmptyState, type IconName, Inline } from '../ui';
import type { TabState } from './tabs';

/** Remembers the terminal's session when the page is loaded again. */
const SESSION = 'terminal';

export const PAGES = { terminal: 'terminal', browser: 'vnc/index.html?autoconnect=true&view_only=true', code: 'code-server/', jupyter: 'jupyter' } as const;

let kept = '';

/** Who moves among the tabs by keyboard stays there, though a page that has loaded takes the focus. Empty: it may. */
export function keepFocus(id: string): void {
  kept = id;
}

export interface FrameProps {
  title: string;
  page: string;
  /** Keys that are the dashboard's, from within the frame, too. */
  onKey: (event: KeyboardEvent) => void;
  frame?: (node: HTMLIFrameElement | null) => void;
}

export function Frame({ title, page, onKey, frame }: FrameProps) {
  const node = useRef<HTMLIFrameElement>(null);
  const key = useRef(onKey);
  key.current = onKey;
  useEffect(() => {
    frame?.(node.current);
    return () => frame?.(null);
  }, []);
  // What has the focus in there is of this origin, too, unless the server has no hosts for sandboxes.
  const loaded = (): void => {
    if (kept && document.activeElement === node.current) document.getElementById(kept)?.focus();
    try {
      node.current?.contentWindow?.addEventListener('keydown', event => key.current(event), true);
    } catch { /* Its keys are its own then. */ }
  };
  return <iframe ref={node} title={title} allow="clipboard-read; clipboard-write; fullscreen" src={address(page)} onLoad={loaded} />;
}

export function Terminal({ onKey }: { onKey: (event: KeyboardEvent) => void }) {
  const node = useRef<HTMLIFrameElement | null>(null);
  const [page] = useState(() => PAGES.terminal + remembered());
  useEffect(() => {
    const remember = (): void => {
      try {
        const search = node.current?.contentWindow?.location.search;
        if (search?.startsWith('?session_id=')) sessionStorage.setItem(SESSION, search);
      } catch { /* Of another origin: a new session is made. */ }
    };
    addEventListener('pagehide', remember);
    return () => removeEventListener('pagehide', remember);
  }, []);
  return <Frame title="Terminal" page={page} onKey={onKey} frame={found => { node.current = found; }} />;
}

function remembered(): string {
  try {
    return sessionStorage.getItem(SESSION) ?? '';
  } catch {
    return '';
  }
}

/** A program that the sandbox itself serves. It is on the sandbox's own host only, and starts at the first request. */
export function Program({ tab, page, ownHost, onKey }: { tab: TabState; page: string; ownHost: boolean; onKey: (event: KeyboardEvent) => void }) {
  const [attempt, setAttempt] = useState(0);
  const [found, setFound] = useState<'asking' | 'ready' | Error>('asking');
  useEffect(() => {
    if (!ownHost) {
      setFound(new ApiError(421, {
        message: 'it is shown on the sandbox\'s own host, and there is none at this address',
        hint: 'open this page by localhost, or start the server with --domain and a name with subdomains that lead here',
      }));
      return;
    }
    const controller = new AbortController();
    setFound('asking');
    // The status of its answer says what it lacks; its body is for the frame.
    request(page, { headers: { accept: 'application/json' }, signal: controller.signal }).then(answer => {
      void answer.body?.cancel();
      setFound('ready');
    }, (error: Error) => { if (!isAbort(error)) setFound(error); });
    return () => controller.abort();
  }, [attempt, page, ownHost]);
  if (found === 'ready') return <Frame title={tab.title} page={page} onKey={onKey} />;
  if (found === 'asking') return <div class="notice-box"><span class="spinner" /><p class="quiet" role="status">Starting {tab.title} …</p></div>;
  return <Missing tab={tab} error={found} retry={() => setAttempt(attempt + 1)} />;
}

/** What is not there, and what would bring it. */
export function Missing({ tab, error, retry }: { tab: TabState; error?: Error; retry?: () => unknown }) {
  const lacking = !error || (error instanceof ApiError && (error.status === 404 || error.status === 424));
  const reason = error instanceof ApiError ? error.reason : error?.message ?? tab.missing;
  const hint = error instanceof ApiError && error.hint ? error.hint : tab.hint;
  const icon: IconName = tab.icon;
  return (
    <div class="notice-box" role="alert">
      <EmptyState icon={icon} title={lacking ? `${tab.title} is not in this sandbox` : `${tab.title} can't be shown`}
        actions={retry && <Button icon="refresh" onPress={() => retry()}>Try again</Button>}>
        <Inline text={[reason, hint].filter(Boolean).map(sentence).join(' ')} />
      </EmptyState>
    </div>
  );
}
