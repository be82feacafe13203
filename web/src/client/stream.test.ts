import { afterEach, beforeEach, expect, it, vi } from 'vitest';

import { Stream, type StreamState } from './stream';

/** An event source that the test controls. */
class ControlledSource extends EventTarget {
  static readonly CLOSED = 2;
  static all: ControlledSource[] = [];
  readyState = 0;
  onopen: (() => void) | null = null;
  onerror: (() => void) | null = null;
  readonly url: string;
  constructor(url: string) {
    super();
    this.url = url;
    ControlledSource.all.push(this);
  }
  close(): void { this.readyState = 2; }
}

beforeEach(() => {
  vi.useFakeTimers();
  ControlledSource.all = [];
  vi.stubGlobal('EventSource', ControlledSource);
  vi.stubGlobal('fetch', vi.fn(() => Promise.resolve(new Response('{}'))));
});
afterEach(() => {
  vi.useRealTimers();
  vi.unstubAllGlobals();
});

it('hands over events, and reconnects after a refusal', async () => {
  const states: StreamState[] = [];
  const got: unknown[] = [];
  const stream = new Stream('/api/v2/events?follow=true', { on: { change: data => got.push(data) }, changed: state => states.push(state) });
  const [first] = ControlledSource.all;
  first!.onopen?.();
  first!.dispatchEvent(new MessageEvent('change', { data: '{"a":1}' }));
  expect(got).toEqual([{ a: 1 }]);
  first!.readyState = 2;
  first!.onerror?.();
  expect(states.at(-1)).toBe('waiting');
  await vi.advanceTimersByTimeAsync(1500);
  expect(ControlledSource.all).toHaveLength(2);
  stream.close();
  expect(states.at(-1)).toBe('closed');
  await vi.advanceTimersByTimeAsync(60_000);
  expect(ControlledSource.all).toHaveLength(2);
});
