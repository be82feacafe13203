// Server-sent events that reconnect, and stop while the page is hidden: a browser has six connections to a host.

import { address, request } from './api';

export type StreamState = 'connecting' | 'live' | 'waiting' | 'closed';

export interface StreamOptions {
  /** Handlers by the name of the event. `data` is parsed JSON. */
  on: Record<string, (data: unknown) => void>;
  /** Called when the connection opens, and each time it opens again. */
  opened?: () => void;
  changed?: (state: StreamState) => void;
  /** Keeps the connection while the page is hidden. */
  whileHidden?: boolean;
}

const FIRST_WAIT = 1000;
const LONGEST_WAIT = 30_000;

/** Follows the events of a path until `close` is called. */
export class Stream {
  private source: EventSource | null = null;
  private timer: ReturnType<typeof setTimeout> | undefined;
  private wait = FIRST_WAIT;
  private readonly path: string;
  private readonly options: StreamOptions;
  private readonly visibility = (): void => {
    if (document.hidden) this.disconnect('waiting');
    else if (!this.source) this.connect();
  };

  constructor(path: string, options: StreamOptions) {
    this.path = path;
    this.options = options;
    if (!options.whileHidden) document.addEventListener('visibilitychange', this.visibility);
    if (options.whileHidden || !document.hidden) this.connect();
  }

  close(): void {
    document.removeEventListener('visibilitychange', this.visibility);
    this.disconnect('closed');
  }

  private disconnect(state: StreamState): void {
    clearTimeout(this.timer);
    this.source?.close();
    this.source = null;
    this.options.changed?.(state);
  }

  private connect(): void {
    clearTimeout(this.timer);
    this.options.changed?.('connecting');
    const source = new EventSource(address(this.path));
    this.source = source;
    source.onopen = () => {
      this.wait = FIRST_WAIT;
      this.options.changed?.('live');
      this.options.opened?.();
    };
    source.onerror = () => {
      if (this.source !== source) return;
      // The browser reconnects by itself, except after a refusal.
      if (source.readyState !== EventSource.CLOSED) {
        this.options.changed?.('connecting');
        return;
      }
      this.source = null;
      this.options.changed?.('waiting');
      this.timer = setTimeout(() => void this.retry(), this.wait);
      this.wait = Math.min(this.wait * 2, LONGEST_WAIT);
    };
    for (const [name, handle] of Object.entries(this.options.on)) {
      source.addEventListener(name, event => {
        let data: unknown;
        try {
          data = JSON.parse((event as MessageEvent<string>).data);
        } catch {
          data = (event as MessageEvent<string>).data;
        }
        handle(data);
      });
    }
  }

  /** An event source does not say why it was refused; a call that asks to sign in does. */
  private async retry(): Promise<void> {
    await request('/api/v2/me').catch(() => null);
    if (!this.source) this.connect();
  }
}
