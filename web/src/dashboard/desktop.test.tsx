import { signal } from '@preact/signals';
import { cleanup, fireEvent, render, screen } from '@testing-library/preact';
import { afterEach, expect, it, vi } from 'vitest';

import type { Step } from '../steps';
import { Desktop } from './desktop';
import type { Feed } from './feed';

afterEach(cleanup);

function shown(steps: Step[] = []) {
  const feed = { steps: signal<ReadonlyMap<number, Step>>(new Map(steps.map(one => [one.step, one]))) } as unknown as Feed;
  const result = render(<Desktop name="Desktop" feed={feed} shown onKey={() => {}} />);
  const frame = screen.getByTitle('Desktop') as HTMLIFrameElement;
  const sent = vi.fn();
  Object.defineProperty(frame, 'contentWindow', { value: { postMessage: sent, addEventListener: () => {} }, configurable: true });
  return { ...result, feed, frame, sent };
}

it('is only watched at first, and handed over and back', async () => {
  const { frame, sent, rerender, feed } = shown();
  expect(frame.getAttribute('src')).toContain('view_only=true');
  expect(screen.getByText('You only watch')).toBeTruthy();
  fireEvent.click(screen.getByRole('button', { name: 'Take control' }));
  expect(screen.getByText('You control the desktop')).toBeTruthy();
  expect(sent).toHaveBeenLastCalledWith({ type: 'arenite-desktop', watching: false }, location.origin);
  fireEvent.keyDown(document, { altKey: true, code: 'KeyH', key: 'h' });
  expect(screen.getByText('You only watch')).toBeTruthy();
  expect(sent).toHaveBeenLastCalledWith({ type: 'arenite-desktop', watching: true }, location.origin);
  // In another tab, nobody sees where keys go.
  fireEvent.click(screen.getByRole('button', { name: 'Take control' }));
  rerender(<Desktop name="Desktop" feed={feed} shown={false} onKey={() => {}} />);
  expect(await screen.findByText('You only watch')).toBeTruthy();
  expect(sent).toHaveBeenLastCalledWith({ type: 'arenite-desktop', watching: true }, location.origin);
});

it('follows the button of the desktop\'s own page, and no other window', async () => {
  const { frame } = shown();
  const said = (source: unknown, origin: string): void => {
    const event = new MessageEvent('message', { data: { type: 'arenite-desktop', watching: false } });
    Object.defineProperties(event, { source: { value: source }, origin: { value: origin } });
    dispatchEvent(event);
  };
  said({}, location.origin);
  said(frame.contentWindow, 'https://elsewhere.example');
  expect(screen.getByText('You only watch')).toBeTruthy();
  said(frame.contentWindow, location.origin);
  expect(await screen.findByText('You control the desktop')).toBeTruthy();
});

it('shows what the agent does', () => {
  shown([{ step: 3, origin: 'agent', action: 'POST /v1/display/actions', outcome: null, started_at: new Date().toISOString(), ended_at: null } as Step]);
  expect(screen.getByText('Agent: display actions')).toBeTruthy();
});
