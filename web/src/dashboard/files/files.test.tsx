import { signal } from '@preact/signals';
import { cleanup, fireEvent, render, screen, waitFor, within } from '@testing-library/preact';
import { afterEach, beforeEach, describe, expect, it, vi } from 'vitest';

import { Dialogs, closeDialogs } from '../../ui/dialog';
import { type Call, answering, data, json } from '../testing';
import { download, findNames, join, makeFolder, nameError, parent, rename } from './calls';
import { contentOf, encoded } from './content';
import { Editor } from './editor';
import { Files } from './files';
import { dropped, uploadAll } from './uploads';

afterEach(() => {
  closeDialogs();
  cleanup();
  vi.unstubAllGlobals();
});

const bytesOf = (text: string): Uint8Array<ArrayBuffer> => new TextEncoder().encode(text) as Uint8Array<ArrayBuffer>;

describe('content', () => {
  it('is edited only if that changes nothing else', () => {
    expect(contentOf(bytesOf('a\nb'))).toEqual({ kind: 'text', text: 'a\nb', ending: '\n' });
    const windows = contentOf(bytesOf('\ufeffa\r\nb\r\n'));
    expect(windows).toEqual({ kind: 'text', text: '\ufeffa\nb\n', ending: '\r\n' });
    expect(encoded('\ufeffa\nb\n', '\r\n')).toBe('\ufeffa\r\nb\r\n');
    expect(contentOf(bytesOf('a\r\nb\n')).kind).toBe('shown');
    expect(contentOf(bytesOf('a\rb')).kind).toBe('shown');
    expect(contentOf(new Uint8Array([0x61, 0xff])).kind).toBe('shown');
    expect(contentOf(new Uint8Array([0x61, 0])).kind).toBe('binary');
    expect(contentOf(bytesOf('x'.repeat((1 << 20) + 1)))).toMatchObject({ kind: 'shown' });
    expect(contentOf(bytesOf(''))).toMatchObject({ kind: 'text', text: '' });
  });
});

describe('names', () => {
  it('may have any character but a slash', () => {
    expect(nameError('a b\'c"$(x)\n;.txt')).toBe('');
    for (const bad of ['', '.', '..', 'a/b', 'ä'.repeat(128)]) expect(nameError(bad)).not.toBe('');
    expect([parent('/a/b'), parent('/a'), parent('/'), join('/', 'x'), join('/a', 'x')]).toEqual(['/a', '/', '/', '/x', '/a/x']);
    expect(download('/a b/?#%.txt')).toBe('v1/file/download?path=%2Fa%20b%2F%3F%23%25.txt');
  });

  it('reach commands by their environment, never as a part of these', async () => {
    const calls = answering({ 'POST /v1/bash/exec': () => data({ session_id: 'one', exit_code: 0, stderr: null }) });
    await rename('/x/$(reboot)', '/x/`id`; "\n');
    await makeFolder('/x/-rf');
    const [first, second] = calls.map(call => call.body as { command: string; env: Record<string, string>; session_id?: string });
    expect(first!.env).toEqual({ FROM: '/x/$(reboot)', TO: '/x/`id`; "\n' });
    expect(first!.command).not.toContain('reboot');
    expect(first!.command).toContain('mv -- "$FROM" "$TO"');
    expect([first!.session_id, second!.session_id]).toEqual([undefined, 'one']);
    // The session ended: another one is begun, once.
    let tried = 0;
    answering({ 'POST /v1/bash/exec': (_, { body }) => (++tried === 1 && body!.includes('session_id') ? json({ message: 'no such session' }, 404) : data({ session_id: 'two', exit_code: 1, stderr: 'mkdir: no space left\nmore' })) });
    await expect(makeFolder('/x/y')).rejects.toThrow('mkdir: no space left');
    expect(tried).toBe(2);
  });

  it('are searched as text', async () => {
    const calls = answering({ 'POST /v1/file/glob': () => data({ files: [], truncated: false }) });
    await findNames('/x', 'a[1]*', false);
    expect((calls[0]!.body as { pattern: string }).pattern).toBe('**/*a?1??*');
  });
});

describe('the editor', () => {
  let tag = '"1"';
  let calls: Call[] = [];
  beforeEach(() => {
    tag = '"1"';
    const head = (): Response => new Response(null, { headers: { etag: tag } });
    calls = answering({
      'GET /v1/file/download': () => new Response('old\r\ntext\r\n', { headers: { etag: tag } }),
      'HEAD /v1/file/download': head,
      'POST /v1/file/write': () => { tag = '"2"'; return data({ file: '/x/a.txt', bytes_written: 1 }); },
    });
  });
  const written = (): unknown[] => calls.filter(call => call.path === '/v1/file/write').map(call => call.body);
  const opened = async (): Promise<{ area: HTMLTextAreaElement; dirty: { value: boolean } }> => {
    const dirty = signal(false);
    render(<><Editor path="/x/a.txt" size={11} dirty={dirty} onClose={() => {}} onSaved={() => {}} /><Dialogs /></>);
    return { area: await screen.findByRole('textbox', { name: 'Content of a.txt' }) as HTMLTextAreaElement, dirty };
  };

  it('saves by key, with the line ends that the file had', async () => {
    const { area, dirty } = await opened();
    expect(dirty.value).toBe(false);
    fireEvent.input(area, { target: { value: 'new\ntext\n' } });
    expect(await screen.findByText('not saved')).toBeTruthy();
    expect(dirty.value).toBe(true);
    fireEvent.keyDown(area, { key: 's', ctrlKey: true });
    await waitFor(() => expect(written()).toEqual([{ file: '/x/a.txt', content: 'new\r\ntext\r\n' }]));
    await waitFor(() => expect(screen.queryByText('not saved')).toBeNull());
    // What was saved is no change by others.
    fireEvent.input(area, { target: { value: 'newer\n' } });
    fireEvent.click(screen.getByRole('button', { name: 'Save' }));
    await waitFor(() => expect(written()).toHaveLength(2));
  });

  it('asks before it replaces what others wrote meanwhile', async () => {
    const { area } = await opened();
    fireEvent.input(area, { target: { value: 'mine' } });
    tag = '"other"';
    fireEvent.click(screen.getByRole('button', { name: 'Save' }));
    const question = await screen.findByRole('dialog', { name: 'a.txt has changed meanwhile' });
    fireEvent.click(within(question).getByRole('button', { name: 'Keep editing' }));
    await waitFor(() => expect(screen.queryByRole('dialog')).toBeNull());
    expect(written()).toEqual([]);
    expect(area.value).toBe('mine');
    fireEvent.click(screen.getByRole('button', { name: 'Save' }));
    fireEvent.click(await screen.findByRole('button', { name: 'Replace it' }));
    await waitFor(() => expect(written()).toHaveLength(1));
  });
});

describe('the list', () => {
  const entry = (name: string, is_directory = false) => ({ name, path: `/home/${name}`, is_directory, size: is_directory ? null : 5, modified_time: null, is_hidden: false });
  let calls: Call[] = [];
  let names = ['b.txt', '<img src=x>'];
  beforeEach(() => {
    names = ['b.txt', '<img src=x>'];
    calls = answering({
      'GET /v1/sandbox': () => ({ success: true, home_dir: '/home', detail: {} }),
      'POST /v1/file/list': (_, { body }) => {
        const { path } = JSON.parse(body!) as { path: string };
        return path === '/home' ? data({ path, files: [...names.map(name => entry(name)), entry('folder', true)], truncated: false }) : json({ message: `there is no ${path}` }, 404);
      },
      'POST /v1/bash/exec': (_, { body }) => {
        names = names.filter(name => !body!.includes(name));
        return data({ session_id: 's', exit_code: 0 });
      },
      'GET /v1/file/download': () => new Response('text', { headers: { etag: '"1"' } }),
    });
  });
  const list = async () => {
    const result = render(<><Files canRun /><Dialogs /></>);
    await screen.findByRole('table', { name: 'Files in /home' });
    return result;
  };
  const executed = (): Call[] => calls.filter(call => call.path === '/v1/bash/exec');

  it('has folders first, and names as text', async () => {
    const { container } = await list();
    expect([...container.querySelectorAll('button.name')].map(button => button.textContent)).toEqual(['folder/', '<img src=x>', 'b.txt']);
    expect(container.querySelector('td img')).toBeNull();
    fireEvent.input(screen.getByRole('searchbox', { name: 'Filter this folder' }), { target: { value: 'B.T' } });
    await waitFor(() => expect(container.querySelectorAll('button.name')).toHaveLength(1));
  });

  it('leaves the field of the folder to who is about to type in it', async () => {
    render(<Files canRun />);
    const field = screen.getByRole('textbox', { name: 'Folder' }) as HTMLInputElement;
    field.focus();
    await screen.findByRole('table', { name: 'Files in /home' });
    expect(field.value).toBe('');
    field.blur();
    await waitFor(() => expect(field.value).toBe('/home'));
  });

  it('deletes by key, after a question', async () => {
    await list();
    const button = screen.getByRole('button', { name: 'b.txt' });
    button.focus();
    fireEvent.keyDown(button, { key: 'Delete' });
    fireEvent.click(within(await screen.findByRole('dialog', { name: 'Delete b.txt?' })).getByRole('button', { name: 'Cancel' }));
    await waitFor(() => expect(screen.queryByRole('dialog')).toBeNull());
    expect(executed()).toEqual([]);
    fireEvent.keyDown(button, { key: 'Delete' });
    fireEvent.click(within(await screen.findByRole('dialog')).getByRole('button', { name: 'Delete' }));
    await waitFor(() => expect(screen.queryByRole('button', { name: 'b.txt' })).toBeNull());
    expect(executed()[0]!.body).toMatchObject({ command: 'rm -r -- "$TARGET"', env: { TARGET: '/home/b.txt' } });
  });

  it('renames by key, and refuses names with a slash', async () => {
    await list();
    fireEvent.keyDown(screen.getByRole('button', { name: 'b.txt' }), { key: 'F2' });
    const name = await screen.findByRole('textbox', { name: 'Name' });
    fireEvent.input(name, { target: { value: 'a/b' } });
    fireEvent.click(screen.getByRole('button', { name: 'Rename' }));
    expect(await screen.findByText('A name has no slash.')).toBeTruthy();
    fireEvent.input(name, { target: { value: ' c.txt' } });
    fireEvent.click(screen.getByRole('button', { name: 'Rename' }));
    await waitFor(() => expect(executed()[0]?.body).toMatchObject({ env: { FROM: '/home/b.txt', TO: '/home/ c.txt' } }));
  });

  it('stays as it was if another folder can\'t be read', async () => {
    const { container } = await list();
    fireEvent.click(screen.getByRole('button', { name: 'folder/' }));
    expect((await screen.findByRole('alert')).textContent).toContain('There is no /home/folder');
    expect(container.querySelectorAll('button.name')).toHaveLength(3);
  });
});

describe('uploads', () => {
  it('replace files only after a question', async () => {
    const sent = vi.fn();
    vi.stubGlobal('XMLHttpRequest', class { constructor() { sent(); } });
    render(<Dialogs />);
    const work = uploadAll('/home', [new File(['x'], 'b.txt')], new Set(['b.txt']), () => {});
    fireEvent.click(within(await screen.findByRole('dialog', { name: 'Replace b.txt?' })).getByRole('button', { name: 'Keep them' }));
    await work;
    expect(sent).not.toHaveBeenCalled();
  });

  it('leave folders out', () => {
    const file = new File(['x'], 'a');
    const items = [{ kind: 'file', webkitGetAsEntry: () => ({ isDirectory: true }), getAsFile: () => file }, { kind: 'file', webkitGetAsEntry: () => ({ isDirectory: false }), getAsFile: () => file }, { kind: 'string' }];
    expect(dropped({ items } as unknown as DataTransfer)).toEqual({ files: [file], folders: 1 });
  });
});
