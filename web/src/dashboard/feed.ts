// Follows the steps of the sandbox. Not while nobody looks at the page: a browser has six connections to a host.

import { type Signal, signal } from '@preact/signals';

import { address, request } from '../client/api';
import { ApiError } from '../client/errors';
import type { Step } from '../steps';

export type Liveness = 'waiting' | 'live' | 'over';

const PAST = 100;
/** Older ones leave the list. */
export const MOST_STEPS = 300;
const PAUSE = 3000;

export class Feed {
  readonly steps: Signal<ReadonlyMap<number, Step>> = signal(new Map());
  readonly live: Signal<{ state: Liveness; why: string }> = signal({ state: 'waiting', why: 'connecting …' });
  private source: EventSource | null = null;
  private timer: ReturnType<typeof setTimeout> | undefined;
  private complete = '';
  private over = false;
  private readonly looked = (): void => (document.hidden ? this.pause() : this.open());

  constructor() {
    document.addEventListener('visibilitychange', this.looked);
    this.looked();
  }

  close(): void {
    this.over = true;
    this.pause();
    document.removeEventListener('visibilitychange', this.looked);
  }

  private pause(): void {
    this.source?.close();
    this.source = null;
    clearTimeout(this.timer);
  }

  /** From where it was. */
  private open(): void {
    if (this.over || this.source) return;
    const path = `steps?follow=true&tail=${PAST}${this.complete ? `&after=${this.complete}` : ''}`;
    const source = new EventSource(address(path));
    this.source = source;
    source.onopen = () => { this.live.value = { state: 'live', why: '' }; };
    source.addEventListener('step', event => {
      const { data, lastEventId } = event as MessageEvent<string>;
      this.complete = lastEventId;
      this.put(JSON.parse(data) as Step);
    });
    source.addEventListener('end', () => this.end('the sandbox is gone'));
    source.onerror = () => {
      this.live.value = { state: 'waiting', why: 'connecting …' };
      // It tries again by itself, but not after a refusal.
      if (source.readyState === EventSource.CLOSED && source === this.source) void this.refused(path);
    };
  }

  private put(step: Step): void {
    const next = new Map(this.steps.value);
    next.set(step.step, step);
    while (next.size > MOST_STEPS) next.delete(Math.min(...next.keys()));
    this.steps.value = next;
  }

  private end(why: string): void {
    this.close();
    this.live.value = { state: 'over', why };
  }

  /** Finds out why, and tries again. */
  private async refused(path: string): Promise<void> {
    const mine = this.source;
    let why = 'connecting …';
    const controller = new AbortController();
    try {
      await request(path, { signal: controller.signal });
    } catch (error) {
      why = (error as Error).message;
      if (error instanceof ApiError && error.status === 404) return this.end(why);
    } finally {
      // Its body is a stream.
      controller.abort();
    }
    if (this.over || mine !== this.source) return;
    this.source = null;
    this.live.value = { state: 'waiting', why };
    this.timer = setTimeout(() => this.open(), PAUSE);
  }
}

/** The newest first. */
export function newest(steps: ReadonlyMap<number, Step>): Step[] {
  return [...steps.values()].sort((a, b) => b.step - a.step);
}
