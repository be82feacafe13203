import { act, cleanup, fireEvent, render, screen } from '@testing-library/preact';
import { useState } from 'preact/hooks';
import { afterEach, beforeEach, describe, expect, it, vi } from 'vitest';

import { ApiError } from '../client/errors';
import { Boundary } from './boundary';
import { Button } from './button';
import { LineChart, describe as describePoints } from './chart';
import { CodeTabs } from './code';
import { ErrorState } from './empty';
import { Menu } from './menu';
import { Meter, State } from './state';
import { Tabs } from './tabs';
import { Time, now, relativeTime } from './time';
import { Toasts, failed, notify, toasts } from './toast';

beforeEach(() => { toasts.value = []; });
afterEach(() => {
  cleanup();
  vi.useRealTimers();
});

describe('notifications', () => {
  it('are announced; successes leave, failures stay', () => {
    vi.useFakeTimers();
    render(<Toasts />);
    act(() => {
      notify('Created one.');
      failed(new ApiError(403, { detail: 'the role does not allow this', hint: 'ask an admin' }));
    });
    const status = screen.getByRole('status');
    expect(status.textContent).toContain('Created one.');
    expect(status.textContent).toContain('Ask an admin');
    act(() => { vi.advanceTimersByTime(10_000); });
    expect(status.textContent).not.toContain('Created one.');
    expect(status.textContent).toContain('The role does not allow this');
    fireEvent.click(screen.getByRole('button', { name: 'Dismiss' }));
    expect(status.textContent).toBe('');
  });

  it('stay while the pointer is on them', () => {
    vi.useFakeTimers();
    render(<Toasts />);
    act(() => notify('Created one.'));
    fireEvent.pointerEnter(screen.getByText('Created one.').closest('.toast')!);
    act(() => { vi.advanceTimersByTime(60_000); });
    expect(screen.getByRole('status').textContent).toContain('Created one.');
  });
});

it('a button is busy while its work runs, and reports its failure', async () => {
  let fail: (error: Error) => void = () => {};
  const work = vi.fn(() => new Promise((_, reject) => { fail = reject; }));
  render(<><Button onPress={work}>Pause</Button><Toasts /></>);
  const button = screen.getByRole('button', { name: 'Pause' });
  fireEvent.click(button);
  await screen.findByRole('button', { name: 'Pause' });
  fireEvent.click(button);
  expect(work).toHaveBeenCalledTimes(1);
  await act(async () => { fail(new Error('it is not running')); await Promise.resolve(); });
  await vi.waitFor(() => expect(button.getAttribute('aria-busy')).toBeNull());
  expect(button.getAttribute('aria-busy')).toBeNull();
  expect(screen.getByRole('status').textContent).toContain('it is not running');
});

it('a menu opens on its first item, is walked by keys, and returns the focus', () => {
  const pick = vi.fn();
  render(<Menu label="More of one" items={[{ text: 'Copy', onPress: pick }, null, { text: 'Delete', danger: true, onPress: pick }]}>More</Menu>);
  const anchor = screen.getByRole('button', { name: 'More of one' });
  fireEvent.click(anchor);
  expect(anchor.getAttribute('aria-expanded')).toBe('true');
  const [copy, remove] = screen.getAllByRole('menuitem');
  expect(document.activeElement).toBe(copy);
  fireEvent.keyDown(copy!, { key: 'ArrowUp' });
  expect(document.activeElement).toBe(remove);
  fireEvent.keyDown(remove!, { key: 'c' });
  expect(document.activeElement).toBe(copy);
  fireEvent.click(copy!);
  expect(pick).toHaveBeenCalledTimes(1);
  expect(document.activeElement).toBe(anchor);
  fireEvent.click(anchor);
  fireEvent.keyDown(screen.getAllByRole('menuitem')[0]!, { key: 'Escape' });
  expect(screen.queryByRole('menu')).toBeNull();
});

it('tabs are walked by the arrow keys', () => {
  function Both() {
    const [chosen, setChosen] = useState('a');
    return <Tabs label="Parts" chosen={chosen} onChoose={setChosen} tabs={[{ id: 'a', title: 'First', content: () => 'one' }, { id: 'b', title: 'Second', content: () => 'two' }]} />;
  }
  render(<Both />);
  fireEvent.keyDown(screen.getByRole('tab', { name: 'First' }), { key: 'ArrowRight' });
  expect(screen.getByRole('tab', { name: 'Second' }).getAttribute('aria-selected')).toBe('true');
  expect(screen.getByRole('tabpanel', { name: 'Second' }).textContent).toBe('two');
});

it('a chart has a text alternative', () => {
  const points = [{ label: '10:00', value: 1 }, { label: '10:05', value: 4 }, { label: '10:10', value: 2 }];
  render(<LineChart title="CPU" series={[{ name: 'CPU', points }]} format={value => `${value} cores`} />);
  expect(screen.getByRole('img').getAttribute('aria-label')).toBe('CPU from 10:00 to 10:10: highest 4 cores (10:05), last 2 cores');
  expect(describePoints('CPU', [], String)).toBe('CPU: no values yet');
});

it('states, meters and errors have names', () => {
  render(<><State name="running" /><Meter share={0.5} label="CPU used">half</Meter><ErrorState error={new ApiError(503, { detail: 'busy', hint: 'wait' })} retry={() => {}} /></>);
  expect(screen.getByText('running').dataset.tone).toBe('good');
  expect(screen.getByRole('meter', { name: 'CPU used' }).getAttribute('aria-valuenow')).toBe('50');
  expect(screen.getByRole('alert').textContent).toContain('Wait');
});

it('code is shown in the chosen language', () => {
  render(<CodeTabs label="The same as code" codes={{ curl: 'curl x', Python: 'import arenite' }} />);
  fireEvent.click(screen.getByRole('button', { name: 'Python' }));
  expect(screen.getByRole('group', { name: 'The same as code' }).textContent).toBe('import arenite');
});

it('times are relative', () => {
  const at = Date.parse('2026-01-01T12:00:00Z');
  expect(relativeTime('2026-01-01T11:55:00Z', at)).toBe('5 min ago');
  expect(relativeTime('2026-01-01T14:00:00Z', at)).toBe('in 2 h');
});

it('what has just happened is not in the future', () => {
  now.value = Date.now() - 4000;
  render(<><Time at={new Date(Date.now() - 500).toISOString()} /> <Time at={new Date(Date.now() + 60_000).toISOString()} /></>);
  expect(document.body.textContent).toMatch(/^0 s ago in 1 min$/);
});

it('a failure of one part leaves the rest', () => {
  vi.stubGlobal('reportError', vi.fn());
  function Broken(): never {
    throw new Error('no such field');
  }
  render(<><h1>Page</h1><Boundary><Broken /></Boundary></>);
  expect(screen.getByRole('heading', { name: 'Page' })).toBeTruthy();
  expect(screen.getByRole('alert').textContent).toContain('no such field');
  vi.unstubAllGlobals();
});
