// The steps of one sandbox in a window of their own: the newest first, live, and back to the first.

import { call } from './api';
import { byId } from './dom';
import { Feed, type Step, StepList } from './steps';

const PAGE = 100;
/** Beyond it the oldest leave the list; the export has all. */
const MOST = 2000;

export class Trajectory {
  private feed: Feed | null = null;
  private list: StepList | null = null;
  private address = '';
  private readonly dialog = byId<HTMLDialogElement>('steps');

  constructor() {
    byId('close').addEventListener('click', () => this.dialog.close());
    this.dialog.addEventListener('close', () => {
      this.feed?.close();
      this.feed = null;
      this.list = null;
      byId('step-list').replaceChildren();
    });
    byId('older').addEventListener('click', () => void this.older());
  }

  /** `address`: where its steps are, and below it each by its number. */
  open(name: string, id: string, address: string): void {
    this.address = address;
    byId('steps-title').textContent = `Steps of ${name}`;
    const save = byId<HTMLAnchorElement>('export');
    save.href = `api/v1/trajectories/${encodeURIComponent(id)}?format=jsonl&bodies=inline`;
    save.download = `${name}-${id}.jsonl`;
    byId<HTMLAnchorElement>('whole').href = `trajectory/${encodeURIComponent(id)}`;
    byId('step-end').textContent = '';
    byId('older').hidden = true;
    const list = new StepList(byId<HTMLOListElement>('step-list'), `${address}/`, MOST);
    this.list = list;
    const began = Date.now();
    this.feed = new Feed(`${address}?follow=true&tail=${PAGE}`, step => {
      if (this.list !== list) return;
      list.put(step, Date.parse(step.started_at) >= began);
      this.bounds();
    }, (state, why) => {
      byId('live').textContent = state === 'live' ? 'live' : why;
      if (state === 'live' && list.size === 0) byId('step-end').textContent = 'No steps yet.';
    });
    this.dialog.showModal();
    byId('step-scroll').focus();
  }

  private bounds(): void {
    if (!this.list || this.list.size === 0) return;
    byId('step-end').textContent = '';
    byId('older').hidden = this.list.oldest <= 1 || this.list.size >= MOST;
  }

  private async older(): Promise<void> {
    const list = this.list;
    if (!list) return;
    const before = list.oldest;
    const after = Math.max(0, before - 1 - PAGE);
    try {
      const page = await call<{ steps: Step[] }>('GET', `${this.address}?after=${after}&limit=${Math.min(PAGE, before - 1)}`);
      if (this.list !== list) return;
      for (const step of page.steps) list.put(step, false);
      this.bounds();
    } catch (error) {
      byId('step-end').textContent = (error as Error).message;
    }
  }
}
