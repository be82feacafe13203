// The sandbox's files: listed, shown, downloaded, uploaded, all by its API. So each of these is a step, too.

import { call, request } from './api';
import { age, bytes, byId, make } from './dom';
import { pictureAddress } from './steps';

interface Entry {
  name: string;
  path: string;
  is_directory: boolean;
  size: number | null;
  modified_time: string | null;
}

interface Listed {
  data: { path: string; files: Entry[]; truncated: boolean };
}

/** A larger file is for downloading. */
const MOST_BYTES = 8 << 20;
const MOST_TEXT = 1 << 20;

export class Files {
  private at = '';
  private picture = '';
  private readonly path = byId<HTMLInputElement>('path');
  private readonly hiddenToo = byId<HTMLInputElement>('hidden-too');

  constructor() {
    const chosen = byId<HTMLInputElement>('chosen');
    byId('place').addEventListener('submit', event => {
      event.preventDefault();
      void this.open(this.path.value.trim());
    });
    this.hiddenToo.addEventListener('change', () => void this.open());
    byId('up').addEventListener('click', () => void this.open(parent(this.at)));
    byId('upload').addEventListener('click', () => chosen.click());
    chosen.addEventListener('change', () => {
      void this.upload([...(chosen.files ?? [])]);
      chosen.value = '';
    });
    byId('shown-close').addEventListener('click', () => this.close());
    const panel = byId('panel-files');
    panel.addEventListener('dragover', event => {
      event.preventDefault();
      panel.classList.add('dropping');
    });
    panel.addEventListener('dragleave', () => panel.classList.remove('dropping'));
    panel.addEventListener('drop', event => {
      event.preventDefault();
      panel.classList.remove('dropping');
      void this.upload([...(event.dataTransfer?.files ?? [])]);
    });
  }

  /** Lists a directory; the sandbox's home at first. */
  async open(path = this.at): Promise<void> {
    this.say('reading …');
    try {
      const directory = path || (await call<{ home_dir: string }>('GET', 'v1/sandbox')).home_dir || '/';
      const { data } = await call<Listed>('POST', 'v1/file/list', { path: directory, show_hidden: this.hiddenToo.checked, include_size: true });
      this.at = data.path;
      this.path.value = data.path;
      byId<HTMLButtonElement>('up').disabled = data.path === '/';
      const sorted = data.files.sort((a, b) => Number(b.is_directory) - Number(a.is_directory) || a.name.localeCompare(b.name));
      byId<HTMLTableElement>('files').tBodies[0]!.replaceChildren(...sorted.map(entry => this.row(entry)));
      this.say(data.truncated ? 'Not all entries are shown.' : data.files.length === 0 ? 'No files to show.' : '');
    } catch (error) {
      this.say((error as Error).message, true);
    }
  }

  private row(entry: Entry): HTMLTableRowElement {
    const name = make('button', { type: 'button', textContent: entry.is_directory ? `${entry.name}/` : entry.name, title: entry.name });
    name.classList.toggle('directory', entry.is_directory);
    name.addEventListener('click', () => void (entry.is_directory ? this.enter(entry.path) : this.show(entry)));
    const actions = make('td');
    if (!entry.is_directory) {
      const save = make('a', { href: download(entry.path), textContent: 'Download' });
      save.download = entry.name;
      save.setAttribute('aria-label', `Download ${entry.name}`);
      actions.append(save);
    }
    const changed = entry.modified_time;
    return make('tr', {},
      make('td', {}, name),
      make('td', { className: 'number', textContent: entry.is_directory || entry.size === null ? '' : bytes(entry.size) }),
      make('td', { className: 'quiet', textContent: changed ? `${age(changed)} ago` : '', title: changed ?? '' }),
      actions);
  }

  private async enter(path: string): Promise<void> {
    await this.open(path);
    // Whoever came by keyboard goes on in the list.
    byId('files').querySelector<HTMLElement>('tbody button')?.focus();
  }

  private async show(entry: Entry): Promise<void> {
    this.close();
    const body = byId('shown-body');
    byId('shown-name').textContent = entry.name;
    const save = byId<HTMLAnchorElement>('shown-save');
    save.href = download(entry.path);
    save.download = entry.name;
    byId('shown').hidden = false;
    if ((entry.size ?? 0) > MOST_BYTES) {
      body.replaceChildren(make('p', { className: 'quiet', textContent: `${bytes(entry.size ?? 0)} are too many to show here: download it.` }));
      return;
    }
    body.replaceChildren(make('p', { className: 'quiet', textContent: 'reading …' }));
    try {
      const content = new Uint8Array(await (await request(download(entry.path))).arrayBuffer());
      body.replaceChildren(this.drawn(entry, content));
      body.focus();
    } catch (error) {
      body.replaceChildren(make('p', { className: 'bad', textContent: (error as Error).message }));
    }
  }

  private drawn(entry: Entry, content: Uint8Array<ArrayBuffer>): HTMLElement {
    const address = pictureAddress(content);
    if (address) {
      this.picture = address;
      const image = make('img', { alt: entry.name });
      image.setAttribute('src', address);
      return image;
    }
    if (content.subarray(0, 8192).includes(0)) {
      return make('p', { className: 'quiet', textContent: `${bytes(content.length)}, neither text nor a picture: download it.` });
    }
    const text = new TextDecoder().decode(content.subarray(0, MOST_TEXT));
    const rest = content.length - MOST_TEXT;
    return make('pre', { textContent: rest > 0 ? `${text}\n… ${bytes(rest)} more: download it` : text });
  }

  private close(): void {
    byId('shown').hidden = true;
    byId('shown-body').replaceChildren();
    if (this.picture) URL.revokeObjectURL(this.picture);
    this.picture = '';
  }

  private async upload(chosen: File[]): Promise<void> {
    for (const [n, file] of chosen.entries()) {
      this.say(`uploading ${file.name}${chosen.length > 1 ? ` (${n + 1} of ${chosen.length})` : ''} …`);
      const form = new FormData();
      form.append('path', this.at.endsWith('/') ? `${this.at}${file.name}` : `${this.at}/${file.name}`);
      form.append('file', file);
      try {
        await request('v1/file/upload', { method: 'POST', body: form });
      } catch (error) {
        this.say(`${file.name}: ${(error as Error).message}`, true);
        return;
      }
    }
    if (chosen.length > 0) await this.open();
  }

  private say(text: string, bad = false): void {
    const message = byId('file-message');
    message.textContent = text;
    message.classList.toggle('bad', bad);
  }
}

function parent(path: string): string {
  return path.replace(/\/[^/]+\/?$/, '') || '/';
}

function download(path: string): string {
  return `v1/file/download?path=${encodeURIComponent(path)}`;
}
