// Data of a component: read when it appears and when its key changes, again at an interval, never while the page is hidden.

import { useCallback, useEffect, useRef, useState } from 'preact/hooks';

import { isAbort } from './errors';

export interface Resource<T> {
  /** The newest data; kept while it is read again, and when that fails. */
  data: T | undefined;
  error: Error | null;
  /** Nothing was read yet. */
  loading: boolean;
  reload: () => Promise<void>;
}

/** `key` identifies what is read: a change drops the data. `every`: the interval in milliseconds. */
export function useResource<T>(key: string, read: (signal: AbortSignal) => Promise<T>, every?: number): Resource<T> {
  const [state, setState] = useState<{ key: string; data: T | undefined; error: Error | null }>({ key, data: undefined, error: null });
  const latest = useRef(read);
  latest.current = read;
  const running = useRef<AbortController | null>(null);
  const reload = useCallback(async (): Promise<void> => {
    running.current?.abort();
    const controller = new AbortController();
    running.current = controller;
    try {
      const data = await latest.current(controller.signal);
      if (running.current === controller) setState({ key, data, error: null });
    } catch (error) {
      if (running.current === controller && !isAbort(error)) setState(before => ({ key, data: before.key === key ? before.data : undefined, error: error as Error }));
    }
  }, [key]);
  useEffect(() => {
    let timer: ReturnType<typeof setTimeout> | undefined;
    let ended = false;
    const turn = async (): Promise<void> => {
      clearTimeout(timer);
      if (!document.hidden) await reload();
      clearTimeout(timer);
      if (every !== undefined && !ended) timer = setTimeout(() => void turn(), every);
    };
    const visible = (): void => { if (!document.hidden && every !== undefined) void turn(); };
    document.addEventListener('visibilitychange', visible);
    void turn();
    return () => {
      ended = true;
      clearTimeout(timer);
      document.removeEventListener('visibilitychange', visible);
      running.current?.abort();
      running.current = null;
    };
  }, [reload, every]);
  const current = state.key === key;
  const data = current ? state.data : undefined;
  const error = current ? state.error : null;
  return { data, error, loading: data === undefined && error === null, reload };
}
