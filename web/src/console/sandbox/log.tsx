// The log of a main command: its end, read again while it is followed.

import { useEffect, useLayoutEffect, useRef, useState } from 'preact/hooks';

import { ApiError, isAbort } from '../../client/errors';
import { fill } from '../../client/api';
import { bytes } from '../../format';
import { type LogPart, plain, readLog } from '../../log';
import type { Sandbox } from '../sandboxes/store';

const PERIOD = 2000;

/** Reading it wakes a paused sandbox, so only the log of a running one is read. */
export function LogSection({ sandbox }: { sandbox: Sandbox }) {
  const { name, state } = sandbox;
  const [part, setPart] = useState<LogPart | null>(null);
  const [problem, setProblem] = useState('');
  const [follow, setFollow] = useState(true);
  const pre = useRef<HTMLPreElement>(null);
  const atEnd = useRef(true);
  useEffect(() => {
    if (state !== 'running') return;
    const controller = new AbortController();
    let timer: ReturnType<typeof setTimeout> | undefined;
    const read = async (): Promise<void> => {
      if (!document.hidden) {
        try {
          const found = await readLog(fill('/api/v2/sandboxes/{name}/logs', { path: { name } }), controller.signal);
          const node = pre.current;
          atEnd.current = !node || node.scrollTop + node.clientHeight >= node.scrollHeight - 4;
          setPart(found);
          setProblem('');
          if (!found.mayFollow) setFollow(false);
        } catch (error) {
          if (isAbort(error) || controller.signal.aborted) return;
          setProblem(error instanceof ApiError ? error.message : 'The log could not be read.');
        }
      }
      if (follow && !controller.signal.aborted) timer = setTimeout(() => void read(), PERIOD);
    };
    void read();
    return () => {
      clearTimeout(timer);
      controller.abort();
    };
  }, [name, state, follow]);
  useLayoutEffect(() => {
    if (pre.current && atEnd.current) pre.current.scrollTop = pre.current.scrollHeight;
  }, [part?.text]);
  const status = state === 'paused' ? 'The sandbox is paused. Resume it to read its log.' : state !== 'running' ? `The sandbox is ${state}.`
    : problem || (part ? [bytes(part.length), part.cut ? 'only its end is shown' : '', part.mayFollow ? '' : 'too long to be followed'].filter(Boolean).join(', ') : '');
  return (
    <section class="panel log-box" aria-label="Log">
      <div class="panel-head">
        <h2>Log</h2>
        <span class="quiet">{status}</span>
        <label class="check" title="Reading the log counts as use, so the sandbox does not become idle"><input type="checkbox" checked={follow} onChange={event => setFollow(event.currentTarget.checked)} />Follow</label>
      </div>
      <div class="code wrap"><pre ref={pre} class="log" role="log" aria-label="Log of the main command" tabIndex={0}>{plain(part?.text ?? '')}</pre></div>
    </section>
  );
}
