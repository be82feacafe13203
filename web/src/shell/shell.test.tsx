import { act, cleanup, fireEvent, render, screen, waitFor, within } from '@testing-library/preact';
import { afterEach, beforeEach, describe, expect, it, vi } from 'vitest';

import { request } from '../client/api';
import { closeDialogs } from '../ui/dialog';
import { findCommands, matchScore, paletteOpen } from './palette';
import { type Me, Rights } from './rights';
import { pageAddress, parseRoute } from './router';
import { Shell } from './shell';
import { singleKeys, useShortcut } from './shortcuts';
import { watchSession } from './sign_in';
import { contrast, applyTheme, theme } from './theme';

const ME: Me = { tenant: 'acme', key: 'k1', name: '<b>ci</b>', role: 'admin', operator: false, bound: [], tenants: true, quotas: [] };

function shell(me: Partial<Me> = {}, child = <h1>Page</h1>) {
  return render(<Shell rights={new Rights({ ...ME, ...me })} base="" current="" commands={[{ id: 'x', text: 'demo-box', group: 'Sandboxes', icon: 'sandbox', run: () => { location.hash = '#/sandboxes/demo-box'; } }]}>{child}</Shell>);
}

beforeEach(() => {
  document.documentElement.dataset.keys = 'required';
  location.hash = '';
  singleKeys.value = true;
});
afterEach(() => {
  closeDialogs();
  paletteOpen.value = false;
  cleanup();
});

describe('the shell', () => {
  it('offers the pages that the role may see', () => {
    shell();
    const links = () => within(screen.getByRole('navigation', { name: 'Main' })).getAllByRole('link').map(link => link.textContent);
    expect(links()).toEqual(['Overview', 'Sandboxes', 'Trajectories', 'Rollouts', 'Workers', 'Corpora', 'Images', 'Templates', 'Snapshots', 'Volumes', 'Groups', 'Usage', 'Secrets', 'Models', 'Keys', 'Webhooks', 'Audit log', 'API docs', 'Settings']);
    cleanup();
    shell({ role: 'read', bound: ['one'] });
    expect(links()).toEqual(['Sandboxes', 'Trajectories', 'API docs', 'Settings']);
  });

  it('marks the present page, and shows who is signed in as text', () => {
    shell();
    const nav = screen.getByRole('navigation', { name: 'Main' });
    expect(within(nav).getByRole('link', { current: 'page' }).textContent).toBe('Sandboxes');
    expect(screen.getByRole('group', { name: 'Account' }).textContent).toContain('<b>ci</b>');
  });

  it('opens the palette with Ctrl K, and runs what is chosen by keyboard', async () => {
    shell();
    fireEvent.keyDown(document.body, { key: 'k', ctrlKey: true });
    const input = await screen.findByRole('combobox', { name: /Search pages/ });
    expect(document.activeElement).toBe(input);
    fireEvent.input(input, { target: { value: 'demo' } });
    await waitFor(() => expect(screen.getAllByRole('option')).toHaveLength(1));
    expect(input.getAttribute('aria-activedescendant')).toBe(screen.getByRole('option').id);
    fireEvent.keyDown(input, { key: 'Enter' });
    expect(location.hash).toBe('#/sandboxes/demo-box');
    await waitFor(() => expect(screen.queryByRole('combobox')).toBeNull());
  });

  it('lists shortcuts with a question mark, and lets single keys be switched off', async () => {
    const run = vi.fn();
    function Child() {
      useShortcut('c', 'Create a sandbox', 'Sandboxes', run);
      return <input aria-label="typed" />;
    }
    shell({}, <Child />);
    fireEvent.keyDown(document.body, { key: 'c' });
    fireEvent.keyDown(screen.getByLabelText('typed'), { key: 'c' });
    expect(run).toHaveBeenCalledTimes(1);
    fireEvent.keyDown(document.body, { key: 'g' });
    fireEvent.keyDown(document.body, { key: 'v' });
    expect(location.hash).toBe('#/volumes');
    fireEvent.keyDown(document.body, { key: '?' });
    const dialog = await screen.findByRole('dialog', { name: 'Keyboard shortcuts' });
    expect(dialog.textContent).toContain('Create a sandbox');
    fireEvent.click(within(dialog).getByRole('checkbox', { name: /Single keys/ }));
    fireEvent.click(within(dialog).getAllByRole('button', { name: 'Close' })[0]!);
    await waitFor(() => expect(screen.queryByRole('dialog')).toBeNull());
    fireEvent.keyDown(document.body, { key: 'c' });
    expect(run).toHaveBeenCalledTimes(1);
  });

  it('takes a key that comes right after a dialog was closed, when its field still has the focus', () => {
    const run = vi.fn();
    function Child() {
      useShortcut('c', 'Create a sandbox', 'Sandboxes', run);
      return <dialog><input aria-label="typed" /></dialog>;
    }
    shell({}, <Child />);
    fireEvent.keyDown(screen.getByLabelText('typed'), { key: 'c' });
    expect(run).toHaveBeenCalledTimes(1);
  });

  it('asks for a key when the session has ended, and makes the call again', async () => {
    const answers = [new Response('{}', { status: 401 }), new Response('{}', { status: 401 }), new Response('{}', { status: 200 }), new Response('{"ok":1}', { status: 200 })];
    const fetched = vi.fn((_: string, _options?: RequestInit) => Promise.resolve(answers.shift()!));
    vi.stubGlobal('fetch', fetched);
    const signedIn = vi.fn();
    watchSession(signedIn);
    shell();
    const call = request('/api/v2/info');
    const key = await screen.findByLabelText('API key, token or ticket');
    fireEvent.input(key, { target: { value: 'arn_wrong' } });
    fireEvent.click(screen.getByRole('button', { name: 'Sign in' }));
    await screen.findByText('Invalid key, token or ticket.');
    fireEvent.click(screen.getByRole('button', { name: 'Sign in' }));
    expect(await (await call).json()).toEqual({ ok: 1 });
    expect(signedIn).toHaveBeenCalledTimes(1);
    expect(fetched.mock.calls[2]![1]!.body).toBe('{"key":"arn_wrong"}');
    vi.unstubAllGlobals();
  });
});

it('routes are read from addresses, and malformed ones name nothing', () => {
  expect(parseRoute('#/sandboxes/a%2Fb?tab=log')).toMatchObject({ page: 'sandboxes', parts: ['a/b'] });
  expect(parseRoute('#/sandboxes/a?tab=log').query.get('tab')).toBe('log');
  expect(parseRoute('')).toMatchObject({ page: '', parts: [] });
  expect(parseRoute('#/%E0%A4%A')).toMatchObject({ page: '' });
  expect(pageAddress(['sandboxes', 'a/b'], { tab: 'log', x: '' })).toBe('#/sandboxes/a%2Fb?tab=log');
});

it('the palette ranks beginnings of words first, and finds letters in order', () => {
  expect(matchScore('Trajectories', 'trj')).toBeGreaterThan(0);
  expect(matchScore('Volumes', 'xyz')).toBe(0);
  const command = (text: string) => ({ id: text, text, group: 'g', icon: 'sandbox' as const, run: () => {} });
  expect(findCommands([command('old-web'), command('swebx'), command('web-1')], 'web').map(one => one.text)).toEqual(['web-1', 'old-web', 'swebx']);
});

it('a chosen theme is applied and remembered', () => {
  applyTheme();
  act(() => {
    theme.value = 'dark';
    contrast.value = 'more';
  });
  expect(document.documentElement.dataset).toMatchObject({ theme: 'dark', contrast: 'more' });
  expect(localStorage.getItem('arenite.theme')).toBe('"dark"');
  theme.value = 'system';
  contrast.value = 'system';
  expect(document.documentElement.dataset.theme).toBeUndefined();
});
