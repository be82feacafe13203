// The states of a sandbox's disk as a line: its beginning, its checkpoints, and now. One can return to each, or fork from it.

import { Refused, call, entries } from './api';
import { age, bytes, make } from './dom';
import { Field, type Message, ask, button, formDialog, textInput, workButton } from './forms';
import type { Rights } from './rights';
import { type Sandbox, sandboxPage, sandboxPath } from './sandbox_list';

interface Checkpoint {
  id: string;
  number: number;
  parent: string | null;
  note: string | null;
  disk_bytes: number | null;
  created_at: string;
  auto: boolean;
  hash: string | null;
}

interface HistoryAnswer {
  checkpoints: Checkpoint[];
  head: string | null;
}

interface ChangedPath {
  path: string;
  change: string;
  kind: string;
  size: number;
}

/** Changed paths that are shown of one comparison. */
const MOST_PATHS = 200;
/** Checkpoints that are shown, the newest; others are in the API. */
const MOST_CHECKPOINTS = 200;
const SIGNS: Record<string, string> = { added: '+', removed: '−', modified: '~', attributes: 'a' };

export class History {
  readonly box = make('section', { className: 'history', hidden: true, ariaLabel: 'Checkpoints' });
  private readonly line = make('ol');
  private readonly rights: Rights;
  private readonly message: Message;
  private name = '';

  constructor(rights: Rights, message: Message) {
    this.rights = rights;
    this.message = message;
    const head = make('div', { className: 'head' }, make('h3', { textContent: 'Checkpoints' }));
    if (rights.may('manage')) head.append(button('Take a checkpoint', () => this.take()));
    this.box.append(head, this.line);
  }

  async open(name: string): Promise<void> {
    this.name = name;
    try {
      const answer = await call<HistoryAnswer>('GET', sandboxPath(name, '/history?limit=1'));
      const checkpoints = answer.checkpoints.length > 0 ? await entries<Checkpoint>(sandboxPath(name, '/history'), 'checkpoints') : [];
      if (this.name !== name) return;
      this.draw(checkpoints, answer.head);
      this.box.hidden = false;
    } catch (error) {
      // The server can't seal disks, or the sandbox is gone.
      if (!(error instanceof Refused)) throw error;
      this.box.hidden = true;
    }
  }

  private draw(all: Checkpoint[], head: string | null): void {
    const checkpoints = all.slice(-MOST_CHECKPOINTS);
    const left = all.length - checkpoints.length;
    const numbers = new Map(all.map(checkpoint => [checkpoint.id, checkpoint.number]));
    const first = this.item('beginning', 'Beginning', 'as it was created', head === null, null);
    const items = checkpoints.map(checkpoint => {
      const { number, note, auto, hash, disk_bytes, created_at, parent } = checkpoint;
      const from = parent === null ? 'beginning' : String(numbers.get(parent) ?? parent);
      const facts = [`${age(created_at)} ago`, disk_bytes === null ? '' : bytes(disk_bytes), auto ? 'auto' : '', hash ? hash.slice(0, 12) : '', note ?? ''];
      return this.item(String(number), `#${number}`, facts.filter(Boolean).join(', '), checkpoint.id === head, from);
    });
    const now = head === null ? 'beginning' : String(numbers.get(head) ?? head);
    this.line.replaceChildren(first, ...(left > 0 ? [make('li', { className: 'quiet', textContent: `${left} more` })] : []), ...items,
      this.item('current', 'Now', '', false, now));
  }

  /** `before`: the state that its changes are compared with. */
  private item(state: string, label: string, facts: string, isHead: boolean, before: string | null): HTMLElement {
    const changes = make('div', { className: 'changes', hidden: true });
    const tools = make('span', { className: 'buttons-inline' });
    const of = label === 'Now' ? 'the disk as it is' : label;
    if (before !== null) {
      tools.append(workButton('Changes', () => this.compare(before, state, changes), this.message.fail, { label: `Changes of ${of}` }));
    }
    if (state !== 'current' && this.rights.may('manage')) {
      tools.append(button('Roll back', () => void this.rollBack(state, label), { label: `Roll back to ${label}` }));
      if (state !== 'beginning') tools.append(workButton('Fork', () => this.fork(state), this.message.fail, { label: `Fork from ${label}` }));
    }
    const item = make('li', {}, make('b', { textContent: label }), make('span', { className: 'quiet', textContent: facts }), tools, changes);
    if (isHead) {
      item.ariaCurrent = 'step';
      item.insertBefore(make('span', { className: 'chip', textContent: 'the disk comes from here' }), tools);
    }
    return item;
  }

  private async compare(before: string, after: string, into: HTMLElement): Promise<void> {
    if (!into.hidden) {
      into.hidden = true;
      return;
    }
    const query = new URLSearchParams({ before, after, limit: String(MOST_PATHS) });
    const found = await call<{ paths: ChangedPath[]; truncated: boolean }>('GET', sandboxPath(this.name, `/diff?${query}`));
    const rows = found.paths.map(({ path, change, kind, size }) => make('li', { title: change },
      make('span', { className: `sign ${change}`, textContent: SIGNS[change] ?? change }), make('code', { textContent: path }),
      make('span', { className: 'quiet', textContent: kind === 'file' && change !== 'removed' ? bytes(size) : kind === 'directory' ? 'directory' : '' })));
    into.replaceChildren(rows.length > 0 ? make('ul', {}, ...rows) : make('p', { className: 'quiet', textContent: 'Nothing differs.' }));
    if (found.truncated) into.append(make('p', { className: 'quiet', textContent: 'There are more.' }));
    into.hidden = false;
  }

  private take(): void {
    const note = new Field('Note', textInput({ name: 'note', maxLength: 1000, autofocus: true }), 'What this state is; it may be empty');
    formDialog(`Take a checkpoint of ${this.name}`, [note.box], 'Take it', async () => {
      const taken = await call<Checkpoint>('POST', sandboxPath(this.name, '/checkpoints'), { note: note.value.trim() || null });
      this.message.say(`Took checkpoint #${taken.number}.`);
      await this.open(this.name);
    });
  }

  private async rollBack(state: string, label: string): Promise<void> {
    const yes = await ask({
      title: `Roll ${this.name} back to ${label}?`, yes: 'Roll back',
      text: 'This ends its processes, and starts its main command again. Later checkpoints stay, so it can be taken back; changes since the last one are lost.',
    });
    if (!yes) return;
    try {
      const answer = await call<{ ended: string[] }>('POST', sandboxPath(this.name, '/rollback'), { to: state });
      this.message.say(`Rolled back to ${label}.` + (answer.ended.length > 0 ? ` Ended: ${[...new Set(answer.ended)].join(', ')}.` : ''));
    } catch (error) {
      this.message.fail(error as Error);
    }
    await this.open(this.name);
  }

  private async fork(state: string): Promise<void> {
    const forked = await call<{ sandboxes: Sandbox[] }>('POST', sandboxPath(this.name, '/fork'), { from_checkpoint: state });
    const name = forked.sandboxes[0]?.name;
    if (name) location.hash = sandboxPage(name);
  }
}
