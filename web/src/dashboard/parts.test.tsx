import { expect, it } from 'vitest';

import type { Step } from '../steps';
import { actors } from './desktop';
import { endOf } from './gone';
import { timeLeft } from './head';
import { addressOf } from './ports';
import { linkTo } from './share';
import type { OwnState } from './state';
import { isTab, tabStates } from './tabs';

const AT = Date.parse('2026-01-01T12:00:00Z');

function own(part: Partial<OwnState>): OwnState {
  return {
    id: 's1', name: 'demo', state: 'running', reason: null, image: 'base', created_at: '', state_since: '', expires_at: null, deadline: null,
    idle_timeout_seconds: null, idle_policy: 'pause', limits: { memory_bytes: 1, cpu_millis: 1000 }, usage: null, keys: false, ...part,
  };
}

function step(part: Partial<Step>): Step {
  return { step: 1, origin: 'agent', action: 'POST /v1/browser/page/click', outcome: 'ok', started_at: '2026-01-01T11:59:50Z', ended_at: '2026-01-01T11:59:55Z', ...part } as Step;
}

it('says what ends the sandbox, and when', () => {
  expect(timeLeft(own({}), AT)).toBeNull();
  expect(timeLeft(own({ deadline: { at: '2026-01-01T13:00:00Z', reason: 'timeout', action: 'delete' } }), AT)).toMatchObject({ short: '1 h left' });
  expect(timeLeft(own({ deadline: { at: '2026-01-01T13:59:30Z', reason: 'timeout', action: 'delete' } }), AT)?.short).toBe('1 h 59 min left');
  expect(timeLeft(own({ deadline: { at: '2026-01-03T15:20:00Z', reason: 'timeout', action: 'delete' } }), AT)?.short).toBe('2 d 3 h left');
  // The page uses the sandbox, so an end for want of use is no time of day.
  const idle = own({ deadline: { at: '2026-01-01T12:10:00Z', reason: 'idle', action: 'pause' }, idle_timeout_seconds: 600 });
  expect(timeLeft(idle, AT)?.short).toBe('paused after 10 min idle');
});

it('says why a sandbox is gone, as far as it is known', () => {
  expect(endOf(own({ deadline: { at: '2026-01-01T12:00:05Z', reason: 'timeout', action: 'delete' } }), AT)).toContain('lifetime was over');
  expect(endOf(own({ deadline: { at: '2026-01-01T12:00:05Z', reason: 'idle', action: 'delete' } }), AT)).toContain('nobody used it');
  expect(endOf(own({ deadline: { at: '2026-01-01T18:00:00Z', reason: 'timeout', action: 'delete' } }), AT)).toContain('It was deleted');
  expect(endOf(undefined, AT)).toContain('It was deleted');
});

it('offers tabs for what the image has, and says what brings the others', () => {
  const tabs = tabStates([
    { name: 'shell', available: true }, { name: 'display', available: true }, { name: 'browser', available: true },
    { name: 'code-server', available: false, missing: 'VS Code is not installed', hint: 'the image `aio` has it' },
  ]);
  expect(tabs.filter(tab => tab.available).map(tab => tab.title)).toEqual(['Terminal', 'Browser', 'Jupyter', 'Files', 'Ports', 'Logs', 'Processes']);
  expect(tabs.find(tab => tab.id === 'code')).toMatchObject({ available: false, missing: 'VS Code is not installed', hint: 'the image `aio` has it' });
  expect(tabStates([{ name: 'browser', available: false }, { name: 'display', available: true }]).find(tab => tab.id === 'browser')?.title).toBe('Desktop');
  // Before they are known, each tab finds out by itself.
  expect(tabStates(undefined).every(tab => tab.available)).toBe(true);
  expect([isTab('files'), isTab('nothing'), isTab('')]).toEqual([true, false, false]);
});

it('says who acts on the desktop', () => {
  const who = (...steps: Step[]) => actors(new Map(steps.map(one => [one.step, one])), AT);
  expect(who(step({}))).toEqual({ agent: 'browser page click', person: false });
  expect(who(step({ outcome: null, ended_at: null, started_at: '2026-01-01T10:00:00Z' })).agent).toBe('browser page click');
  // Long ago, elsewhere, or by a person.
  expect(who(step({ ended_at: '2026-01-01T11:00:00Z' })).agent).toBe('');
  expect(who(step({ action: 'POST /v1/bash/exec' })).agent).toBe('');
  expect(who(step({ origin: 'person' })).agent).toBe('');
  expect(who(step({ origin: 'person', action: 'GET /websockify', outcome: null })).person).toBe(true);
  expect(who(step({ origin: 'person', action: 'GET /websockify' })).person).toBe(false);
});

it('names addresses of ports and of this page', () => {
  expect(addressOf('3000', true, new URL('http://s1.localhost:8080/index.html#ports'))).toBe('http://3000-s1.localhost:8080/');
  expect(addressOf('3000', false, new URL('http://10.0.0.1:8080/sandbox/demo/index.html'))).toBe('http://10.0.0.1:8080/sandbox/demo/proxy/3000/');
  const page = new URL('http://s1.localhost:8080/index.html?ticket=old#files');
  expect(linkTo(page, 'a b')).toBe('http://s1.localhost:8080/index.html?ticket=a%20b#files');
  expect(linkTo(page)).toBe('http://s1.localhost:8080/index.html#files');
});
