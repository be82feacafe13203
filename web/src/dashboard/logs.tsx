// The output of the main command: its end, followed, and searched by lines.

import { useEffect, useRef, useState } from 'preact/hooks';

import { request } from '../client/api';
import { ApiError, isAbort } from '../client/errors';
import { plain } from '../log';
import { Check, EmptyState, ErrorState, LinkButton, Loading, SearchField } from '../ui';
import { download } from './files/calls';

const LOG = '/var/log/arenite/main.log';
/** Bytes that are read at first, and characters that are kept. */
export const MOST_KEPT = 256 << 10;
const EVERY = 2000;

export interface Log {
  text: string;
  /** Bytes up to which it was read. */
  end: number;
  /** The beginning is left out. */
  cut: boolean;
}

/** Reads what follows after `log`, or the end of the whole log. Null: there is none. */
export async function readLog(log: Log | null, signal: AbortSignal): Promise<Log | null> {
  const range = log ? `bytes=${log.end}-` : `bytes=-${MOST_KEPT}`;
  let answer: Response;
  try {
    answer = await request(download(LOG), { headers: { range }, signal });
  } catch (error) {
    if (!(error instanceof ApiError)) throw error;
    if (error.status === 404) return null;
    // Nothing follows, or the file is empty. A shorter file is a new one.
    if (error.status === 416) return log ?? { text: '', end: 0, cut: false };
    throw error;
  }
  const content = whole(new Uint8Array(await answer.arrayBuffer()));
  const [, from] = /^bytes (\d+)-/.exec(answer.headers.get('content-range') ?? '') ?? [];
  const start = Number(from ?? 0);
  const added = new TextDecoder().decode(content);
  const before = log && start === log.end ? log : { text: '', end: 0, cut: start > 0 };
  let text = before.text + added;
  let cut = before.cut;
  if (text.length > MOST_KEPT) {
    text = text.slice(-MOST_KEPT);
    cut = true;
  }
  if (cut) text = text.slice(text.indexOf('\n') + 1);
  return { text, end: start + content.length, cut };
}

/** Without the beginning of a character at its end: the rest of it follows later. */
function whole(content: Uint8Array): Uint8Array {
  for (let n = 1; n <= Math.min(3, content.length); n++) {
    const byte = content[content.length - n]!;
    if (byte < 0x80) break;
    if (byte >= 0xc0) {
      const needed = byte >= 0xf0 ? 4 : byte >= 0xe0 ? 3 : 2;
      return needed > n ? content.subarray(0, content.length - n) : content;
    }
  }
  return content;
}

export function Logs({ shown }: { shown: boolean }) {
  const [log, setLog] = useState<Log | null | undefined>(undefined);
  const [error, setError] = useState<Error | null>(null);
  const [follow, setFollow] = useState(true);
  const [search, setSearch] = useState('');
  const [attempt, setAttempt] = useState(0);
  const known = useRef<Log | null>(null);
  const box = useRef<HTMLPreElement>(null);
  useEffect(() => {
    if (!shown) return;
    const controller = new AbortController();
    let timer: ReturnType<typeof setTimeout> | undefined;
    const turn = async (): Promise<void> => {
      try {
        if (!document.hidden) {
          known.current = await readLog(known.current, controller.signal);
          setLog(known.current);
          setError(null);
        }
      } catch (failure) {
        if (isAbort(failure)) return;
        setError(failure as Error);
      }
      if (follow && !controller.signal.aborted) timer = setTimeout(() => void turn(), EVERY);
    };
    void turn();
    return () => {
      controller.abort();
      clearTimeout(timer);
    };
  }, [shown, follow, attempt]);
  const lines = log ? plain(log.text).split('\n') : [];
  const wanted = search.toLowerCase();
  const found = wanted ? lines.filter(line => line.toLowerCase().includes(wanted)) : lines;
  useEffect(() => {
    if (follow && box.current) box.current.scrollTop = box.current.scrollHeight;
  }, [log?.end, follow, wanted, shown]);
  return (
    <div class="pane log">
      <div class="toolbar">
        <h2>Log of the main command</h2>
        <SearchField label="Search in the log" placeholder="Only lines with …" value={search} onInput={setSearch} />
        <Check label="Follow" checked={follow} onChange={setFollow} note="Following it counts as use of the sandbox" />
        <span class="quiet" role="status">{wanted ? `${found.length} ${found.length === 1 ? 'line' : 'lines'}` : log?.cut ? 'the end of it' : ''}</span>
        {log && <LinkButton small icon="download" href={download(LOG)} download="main.log">Download</LinkButton>}
      </div>
      {error ? <ErrorState error={error} retry={() => setAttempt(attempt + 1)} /> : log === undefined ? <Loading label="Reading the log" />
        : log === null || log.text === '' ? <EmptyState icon="audit" title="No output">The main command is what the image or the creator of the sandbox starts, such as <code>arenite create web -- npm start</code>. Its output appears here.</EmptyState>
          : <pre ref={box} tabIndex={0} role="log" aria-label="Output of the main command" aria-live="off">{wanted ? found.map((line, n) => <Line key={n} text={line} wanted={wanted} />) : found.join('\n')}</pre>}
    </div>
  );
}

function Line({ text, wanted }: { text: string; wanted: string }) {
  const parts: preact.ComponentChildren[] = [];
  const lower = text.toLowerCase();
  let from = 0;
  // Lower case can have another length than the text; then nothing is marked.
  for (let at = lower.length === text.length ? lower.indexOf(wanted) : -1; at >= 0; at = lower.indexOf(wanted, from)) {
    parts.push(text.slice(from, at), <mark key={at}>{text.slice(at, at + wanted.length)}</mark>);
    from = at + wanted.length;
  }
  parts.push(text.slice(from), '\n');
  return <>{parts}</>;
}
