// States and small labels. A state has a shape and a text, so its colour is not needed to read it.

import type { ComponentChildren } from 'preact';

export type Tone = 'good' | 'wait' | 'bad' | 'busy' | 'none';

const TONES: Record<string, Tone> = {
  running: 'good', live: 'good', valid: 'good', enabled: 'good', ready: 'good', delivered: 'good', ok: 'good', allowed: 'good', up: 'good',
  paused: 'wait', pending: 'wait', ending: 'busy', creating: 'busy', deleting: 'busy', starting: 'busy', pausing: 'busy', resuming: 'busy',
  failed: 'bad', lost: 'bad', expired: 'bad', revoked: 'bad', disabled: 'bad', refused: 'bad', forbidden: 'bad', down: 'bad',
};

/** A state by its name; `text` is shown instead of the name. */
export function State({ name, text, tone }: { name: string; text?: string | undefined; tone?: Tone }) {
  return <span class="state" data-state={name} data-tone={tone ?? TONES[name] ?? 'none'}>{text ?? name}</span>;
}

export function Badge({ children, tone = 'none', title }: { children: ComponentChildren; tone?: Tone | 'accent'; title?: string }) {
  return <span class="badge" data-tone={tone} title={title}>{children}</span>;
}

/** Names and values. Those without a value are left out. */
export function Facts({ facts }: { facts: readonly (readonly [label: string, value: ComponentChildren])[] }) {
  return <dl class="facts">{facts.filter(([, value]) => value).map(([label, value]) => <div key={label}><dt>{label}</dt><dd>{value}</dd></div>)}</dl>;
}

/** Where something is used: its text, and a bar. `share` is from 0 to 1. `busy`: it is how far something is, so full is no warning. */
export function Meter({ share, children, label, busy = false }: { share: number; children: ComponentChildren; label: string; busy?: boolean }) {
  const percent = Math.round(Math.min(1, Math.max(0, share)) * 100);
  return (
    <div class="meter" data-tone={busy ? 'busy' : share >= 0.92 ? 'bad' : share >= 0.75 ? 'wait' : 'good'}>
      <span>{children}</span>
      <i role={busy ? 'progressbar' : 'meter'} aria-label={label} aria-valuemin={0} aria-valuemax={100} aria-valuenow={percent}><i style={{ width: `${percent}%` }} /></i>
    </div>
  );
}
