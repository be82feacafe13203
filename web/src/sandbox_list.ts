// The sandboxes of the server, kept fresh by events and by measurements.

import { call, entries } from './api';
import type { Spec } from './create_dialog';
import type { Deadline } from './dom';
import { type LiveUsage, Loads } from './load';

/** Why a sandbox ended. */
export interface Death {
  reason: string;
  at: string;
  /** The same for people. */
  message: string;
}

export interface Sandbox {
  name: string;
  id: string;
  state: string;
  reason: string | null;
  died?: Death | null;
  template: string | null;
  group: string | null;
  parent: string | null;
  client_tag: string | null;
  origin: string;
  tier: string;
  isolation: string[];
  created_at: string;
  last_used_at: string;
  expires_at: string | null;
  deadline: Deadline | null;
  spec: Spec;
  urls: { path: string; host: string };
}

/** A trajectory in the list of all. */
export interface Recorded {
  trajectory: string;
  sandbox_name: string;
  worker?: string;
  task?: string;
  steps: number;
  last_at: string;
  ended: boolean;
}

/** Interval of measurements, which no event reports. */
const PERIOD = 5000;
/** Changes that come together are read together. */
const TOGETHER = 60;

export function sandboxPath(name: string, more = ''): string {
  return `api/v2/sandboxes/${encodeURIComponent(name)}${more}`;
}

export function dashboardPath(name: string): string {
  return `sandbox/${encodeURIComponent(name)}/index.html`;
}

export function sandboxPage(name: string): string {
  return `#/sandboxes/${encodeURIComponent(name)}`;
}

/** The reason of a state, for people. */
export function reasonText({ died, reason }: Pick<Sandbox, 'died' | 'reason'>): string {
  return died?.message || reason || '';
}

/** Whether a sandbox matches what was typed: its name, id, image, state, group, or a label. */
export function matches(sandbox: Sandbox, typed: string): boolean {
  const labels = Object.entries(sandbox.spec.labels).map(([key, value]) => `${key}=${value}`);
  const texts = [sandbox.name, sandbox.id, sandbox.spec.image, sandbox.state, sandbox.template ?? '', sandbox.group ?? '', ...labels];
  return typed.toLowerCase().split(/\s+/).every(word => texts.some(text => text.toLowerCase().includes(word)));
}

/** Reads sandboxes while the page is visible, and reports changes. */
export class SandboxList {
  sandboxes: Sandbox[] = [];
  readonly loads = new Loads();
  counts = new Map<string, Recorded>();
  /** The first list was read. */
  ready = false;
  private readonly changed: (error: Error | null) => void;
  private events: EventSource | null = null;
  private soon = 0;
  private timer = 0;
  private reading = false;
  private again = false;
  private failed: Error | null = null;

  /** `changed` is called after each read, with its error if it failed. */
  constructor(changed: (error: Error | null) => void) {
    this.changed = changed;
    document.addEventListener('visibilitychange', () => void this.keepFresh());
  }

  async refresh(): Promise<void> {
    // Only one read at a time: a large list takes longer than the events that ask for it.
    if (this.reading) {
      this.again = true;
      return;
    }
    this.reading = true;
    try {
      this.sandboxes = await entries<Sandbox>('api/v2/sandboxes', 'sandboxes');
      this.ready = true;
      this.failed = null;
    } catch (error) {
      this.failed = error as Error;
    }
    this.changed(this.failed);
    this.reading = false;
    if (this.again) {
      this.again = false;
      this.refreshSoon();
    }
  }

  async keepFresh(): Promise<void> {
    clearTimeout(this.timer);
    this.follow();
    if (document.hidden) return;
    await Promise.all([this.refresh(), this.measure(), this.count()]);
    this.changed(this.failed);
    clearTimeout(this.timer);
    this.timer = window.setTimeout(() => void this.keepFresh(), PERIOD);
  }

  private async measure(): Promise<void> {
    const live = await call<LiveUsage>('GET', 'api/v2/usage/live').catch(() => null);
    if (live) this.loads.take(live.sandboxes, performance.now());
  }

  private async count(): Promise<void> {
    const all = await entries<Recorded>('api/v1/trajectories', 'trajectories').catch(() => null);
    if (all) this.counts = new Map(all.map(one => [one.trajectory, one]));
  }

  private refreshSoon(): void {
    clearTimeout(this.soon);
    this.soon = window.setTimeout(() => void this.refresh(), TOGETHER);
  }

  /** Follows events while the page is visible: a browser has six connections to a host, for all its windows. */
  private follow(): void {
    if (document.hidden) {
      this.events?.close();
      this.events = null;
    } else if (!this.events || this.events.readyState === EventSource.CLOSED) {
      this.events = new EventSource('api/v2/sandboxes?follow=true');
      this.events.onopen = () => this.refreshSoon();
      this.events.addEventListener('change', () => this.refreshSoon());
    }
  }
}
