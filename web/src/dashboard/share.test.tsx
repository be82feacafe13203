import { cleanup, fireEvent, render, screen } from '@testing-library/preact';
import { afterEach, expect, it, vi } from 'vitest';

import { ShareDialog } from './share';
import { answering, json } from './testing';

afterEach(() => {
  cleanup();
  vi.unstubAllGlobals();
});

it('creates a link with an end', async () => {
  const calls = answering({ 'POST /tickets': () => ({ ticket: 'secret-1', expires_in: 300 }) });
  render(<ShareDialog name="demo" keys console="http://box.example/" close={() => {}} />);
  expect(calls).toEqual([]);
  fireEvent.click(screen.getByRole('button', { name: 'Create a link' }));
  const link = await screen.findByRole('textbox', { name: 'Link' }) as HTMLInputElement;
  expect(link.value).toContain('?ticket=secret-1');
  expect(screen.getByText(/It ends in 5 min/)).toBeTruthy();
  expect(screen.queryByText('ticket_ttl_seconds')).toBeNull();
  cleanup();
  // By default, tickets are for redirects.
  answering({ 'POST /tickets': () => ({ ticket: 'secret-2', expires_in: 30 }) });
  render(<ShareDialog name="demo" keys console="http://box.example/" close={() => {}} />);
  fireEvent.click(screen.getByRole('button', { name: 'Create a link' }));
  expect(await screen.findByText('ticket_ttl_seconds')).toBeTruthy();
});

it('leads to the console if this session makes no tickets', async () => {
  answering({ 'POST /tickets': () => json({ message: 'a ticket can\'t be used to make another', code: 'forbidden' }, 403) });
  render(<ShareDialog name="demo" keys console="http://box.example/" close={() => {}} />);
  fireEvent.click(screen.getByRole('button', { name: 'Create a link' }));
  expect((await screen.findByRole('alert')).textContent).toContain('A ticket can\'t be used');
  expect(screen.getByRole('link', { name: 'Open the keys' }).getAttribute('href')).toBe('http://box.example/#/keys');
});

it('offers the address alone where no key is required', () => {
  render(<ShareDialog name="demo" keys={false} console="/" close={() => {}} />);
  expect(screen.getByText(/requires no key/)).toBeTruthy();
  expect(screen.queryByRole('button', { name: 'Create a link' })).toBeNull();
});
