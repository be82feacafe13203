// The sandbox's files, by its API. What changes them is a step.

import { useSignal } from '@preact/signals';
import { useEffect, useLayoutEffect, useMemo, useRef, useState } from 'preact/hooks';

import { isAbort } from '../../client/errors';
import { stored } from '../../shell/storage';
import { Button, Bytes, Check, type Column, EmptyState, ErrorState, FieldReader, FieldsWrong, FormDialog, Icon, IconButton, LinkButton, Loading, Menu, SearchField, type Sort, Table, TextField, Time, confirm, failed, fieldState, notify, openDialog, useFields } from '../../ui';
import { readSandbox } from '../calls';
import { type Entry, type Listing, download, join, lastPart, list, makeFile, makeFolder, nameError, parent, remove, rename } from './calls';
import { Editor } from './editor';
import { Search, type SearchKind } from './search';
import { Uploads, dropped, uploadAll } from './uploads';

const showHidden = stored<boolean>('files-hidden', false, (value): value is boolean => typeof value === 'boolean');
const byName: Sort = { column: 'name', down: false };

/** Folders are before files, whatever rows are sorted by. */
function ordered(entries: readonly Entry[]): Entry[] {
  return [...entries].sort((a, b) => Number(b.is_directory) - Number(a.is_directory) || a.name.localeCompare(b.name));
}

interface Opened {
  path: string;
  size: number | null | undefined;
}

export function Files({ canRun }: { canRun: boolean }) {
  const [listing, setListing] = useState<Listing | null>(null);
  const [error, setError] = useState<Error | null>(null);
  const [busy, setBusy] = useState(false);
  const [typed, setTyped] = useState('');
  const [filter, setFilter] = useState('');
  const [kind, setKind] = useState<SearchKind>('names');
  const [search, setSearch] = useState('');
  const [opened, setOpened] = useState<Opened | null>(null);
  const [dropping, setDropping] = useState(false);
  const dirty = useSignal(false);
  const home = useRef('');
  const reading = useRef<AbortController | null>(null);
  const panel = useRef<HTMLDivElement>(null);
  const chooser = useRef<HTMLInputElement>(null);
  const focusList = useRef<string | true | null>(null);
  const at = listing?.path ?? '';
  const typedNow = useRef(typed);
  typedNow.current = typed;
  const hidden = showHidden.value;

  const open = async (path?: string, focus: string | boolean = false): Promise<void> => {
    reading.current?.abort();
    const controller = new AbortController();
    reading.current = controller;
    const before = typedNow.current;
    setBusy(true);
    try {
      if (!path && !home.current) home.current = (await readSandbox(controller.signal)).home_dir || '/';
      const read = await list(path || home.current, showHidden.value, controller.signal);
      setListing({ ...read, files: ordered(read.files) });
      // What was typed while the folder was read stays, and so does a field that somebody is about to type in.
      const isTyping = !focus && document.activeElement?.id === 'path';
      setTyped(now => (now === before && !isTyping ? read.path : now));
      setError(null);
      if (read.path !== at) {
        setFilter('');
        setSearch('');
      }
      if (focus) focusList.current = focus;
    } catch (failure) {
      if (!isAbort(failure)) setError(failure as Error);
    } finally {
      if (reading.current === controller) setBusy(false);
    }
  };
  useEffect(() => {
    void open();
    return () => reading.current?.abort();
  }, []);
  const focusRow = (wanted: string | true): void => {
    const buttons = [...(panel.current?.querySelectorAll<HTMLElement>('tbody button.name') ?? [])];
    (buttons.find(button => button.dataset.path === wanted) ?? buttons[0] ?? panel.current?.querySelector<HTMLElement>('#path'))?.focus();
  };
  // Who came by keyboard continues in the list.
  useLayoutEffect(() => {
    const wanted = focusList.current;
    focusList.current = null;
    if (wanted) focusRow(wanted);
  });
  useEffect(() => {
    const leave = (event: BeforeUnloadEvent): void => { if (dirty.value) event.preventDefault(); };
    addEventListener('beforeunload', leave);
    return () => removeEventListener('beforeunload', leave);
  }, []);

  const mayClose = async (): Promise<boolean> => !dirty.value || confirm({ title: 'Close without saving?', text: `What you changed in ${lastPart(opened?.path ?? '')} is lost.`, yes: 'Close without saving', no: 'Keep editing' });
  const show = async (path: string, size?: number | null): Promise<void> => {
    if (await mayClose()) setOpened({ path, size });
  };
  const close = async (): Promise<void> => {
    if (!await mayClose()) return;
    focusList.current = opened?.path ?? true;
    setOpened(null);
  };
  const send = (files: readonly File[]): void => {
    if (!listing || files.length === 0) return;
    const directory = listing.path;
    const present = new Set(listing.files.map(entry => entry.name));
    uploadAll(directory, files, present, () => {
      if (latest.current === directory) void open(directory);
    }).catch(failed);
  };
  const latest = useRef(at);
  latest.current = at;

  const askName = (title: string, submitText: string, initial: string, act: (name: string) => Promise<string>): void => {
    let named = '';
    const close = (done: () => void): void => {
      done();
      // The dialog gives the focus back when it is gone.
      if (named) requestAnimationFrame(() => focusRow(named));
    };
    openDialog(done => <NameDialog title={title} submitText={submitText} initial={initial} close={() => close(done)} act={async name => {
      const path = await act(name);
      await open(at);
      named = path;
    }} />);
  };
  const create = (isFolder: boolean): void => askName(isFolder ? 'New folder' : 'New file', 'Create', '', async name => {
    const path = join(at, name);
    await (isFolder ? makeFolder(path) : makeFile(path));
    if (!isFolder) await show(path, 0);
    return path;
  });
  const renameEntry = (entry: Entry): void => askName(`Rename ${entry.name}`, 'Rename', entry.name, async name => {
    const path = join(parent(entry.path), name);
    if (name === entry.name) return entry.path;
    await rename(entry.path, path);
    if (opened?.path === entry.path) setOpened({ ...opened, path });
    return path;
  });
  const removeEntry = async (entry: Entry): Promise<void> => {
    const yes = await confirm({ title: `Delete ${entry.name}?`, text: entry.is_directory ? 'The folder is deleted with everything in it. This can\'t be undone.' : 'This can\'t be undone.', yes: 'Delete' });
    if (!yes) return;
    await remove(entry.path);
    if (opened && (opened.path === entry.path || opened.path.startsWith(`${entry.path}/`))) setOpened(null);
    notify(`${entry.name} is deleted.`);
    await open(at, true);
  };
  const rowKey = (event: KeyboardEvent, entry: Entry): void => {
    if (event.key === 'Delete' && canRun) void removeEntry(entry).catch(failed);
    else if (event.key === 'F2' && canRun) renameEntry(entry);
    else if (event.key === 'Backspace' && at !== '/') void open(parent(at), at);
    else return;
    event.preventDefault();
  };

  const columns: Column<Entry>[] = [
    { id: 'name', title: 'Name', main: true, className: 'file-name', sort: entry => `${entry.is_directory ? 0 : 1}${entry.name.toLowerCase()}`, cell: entry => (
      <button type="button" class={entry.is_directory ? 'name directory' : 'name'} data-path={entry.path} title={entry.name} aria-current={opened?.path === entry.path || undefined}
        onClick={() => void (entry.is_directory ? open(entry.path, true) : show(entry.path, entry.size))}>
        <Icon name={entry.is_directory ? 'folder' : 'file'} /><span>{entry.is_directory ? `${entry.name}/` : entry.name}</span>
      </button>
    ) },
    { id: 'size', title: 'Size', number: true, sort: entry => (entry.is_directory ? -1 : entry.size ?? 0), cell: entry => (entry.is_directory ? '' : <Bytes value={entry.size} />) },
    { id: 'changed', title: 'Changed', low: true, sort: entry => entry.modified_time ?? '', cell: entry => entry.modified_time && <Time at={entry.modified_time} /> },
    { id: 'actions', title: '', cell: entry => (
      <div class="row">
        {!entry.is_directory && <LinkButton small kind="plain" icon="download" href={download(entry.path)} download={entry.name} label={`Download ${entry.name}`} />}
        {canRun && <Menu small kind="plain" icon="more" className="icon-only" label={`Actions for ${entry.name}`} items={[
          { text: 'Rename', label: `Rename ${entry.name}`, onPress: () => renameEntry(entry) },
          { text: 'Delete', label: `Delete ${entry.name}`, danger: true, icon: 'trash', onPress: () => removeEntry(entry) },
        ]} />}
      </div>
    ) },
  ];
  const wanted = filter.trim().toLowerCase();
  const rows = useMemo(() => (listing?.files ?? []).filter(entry => !wanted || entry.name.toLowerCase().includes(wanted)), [listing, wanted]);
  const beginSearch = (event: SubmitEvent): void => {
    event.preventDefault();
    setSearch(filter.trim());
  };
  const drop = (event: DragEvent): void => {
    event.preventDefault();
    setDropping(false);
    const { files, folders } = dropped(event.dataTransfer);
    if (folders > 0) failed(new Error(`${folders === 1 ? 'a folder was' : 'folders were'} left out: upload files, or an archive`));
    send(files);
  };

  return (
    <div ref={panel} class="files pane" data-dropping={dropping || undefined} onDragOver={event => { event.preventDefault(); setDropping(true); }}
      onDragLeave={event => { if (!panel.current?.contains(event.relatedTarget as Node | null)) setDropping(false); }} onDrop={drop}>
      <div class="files-head">
        <form class="row place" onSubmit={event => { event.preventDefault(); void open(typed.trim(), true); }}>
          <IconButton icon="up" label="Up to the folder above" disabled={!listing || at === '/'} onPress={() => void open(parent(at), at)} />
          <IconButton icon="home" label="To the home folder" onPress={() => void open(undefined, true)} />
          <input id="path" class="input mono" aria-label="Folder" autocomplete="off" spellcheck={false} value={typed} onInput={event => setTyped(event.currentTarget.value)} onBlur={() => setTyped(now => now.trim() || at)} />
          <IconButton icon="refresh" label="Read the folder again" busy={busy} onPress={() => void open(at || undefined)} />
        </form>
        <div class="row">
          <Button kind="primary" icon="upload" disabled={!listing} onPress={() => chooser.current?.click()}>Upload</Button>
          <input ref={chooser} id="chosen" type="file" multiple hidden onChange={event => { send([...(event.currentTarget.files ?? [])]); event.currentTarget.value = ''; }} />
          {canRun && listing && <Menu icon="plus" items={[{ text: 'File', label: 'New file', icon: 'file', onPress: () => create(false) }, { text: 'Folder', label: 'New folder', icon: 'folder', onPress: () => create(true) }]}>New</Menu>}
        </div>
        <form class="row find" role="search" onSubmit={beginSearch}>
          <SearchField label="Filter this folder" placeholder="Filter; Enter searches below" value={filter} onInput={text => { setFilter(text); if (!text) setSearch(''); }} />
          <select class="input" aria-label="Search for" value={kind} onChange={event => setKind(event.currentTarget.value as SearchKind)}><option value="names">names</option><option value="contents">contents</option></select>
          <Button type="submit" icon="search" disabled={!filter.trim() || !listing}>Search below</Button>
          <Check label="hidden" checked={hidden} onChange={value => { showHidden.value = value; void open(at || undefined); }} />
        </form>
      </div>
      <Uploads />
      {listing && error && <p class="notice bad" role="alert" id="file-message">{error.message}</p>}
      <div class={opened ? 'file-view split' : 'file-view'}>
        <div class="listed">
          {!listing ? error ? <ErrorState error={error} retry={() => open(typed.trim() || undefined)} /> : <Loading label="Reading the folder" />
            : search ? <Search directory={at} text={search} kind={kind} hidden={hidden} onClose={() => { setSearch(''); focusList.current = true; }}
              onOpen={(path, isDirectory, size) => void (isDirectory ? open(path, true) : show(path, size))} />
              : <>
                {listing.truncated && <p class="notice" role="status">This folder has more than is shown. Search below it to find the rest.</p>}
                <Table label={`Files in ${at}`} columns={columns} rows={rows} rowKey={entry => entry.path} sort={byName} onRowKey={rowKey}
                  empty={<EmptyState icon="folder" title={wanted ? 'Nothing here has this in its name' : 'This folder is empty'}>{wanted ? 'Enter searches the folders below, too.' : 'Drop files here, or upload them.'}</EmptyState>} />
              </>}
        </div>
        {opened && <Editor key={opened.path} path={opened.path} size={opened.size} dirty={dirty} onClose={() => void close()} onSaved={() => void open(at)} />}
      </div>
      {dropping && <p class="drop-note" aria-hidden="true">Drop to upload to {at}</p>}
    </div>
  );
}

function NameDialog({ title, submitText, initial, act, close }: { title: string; submitText: string; initial: string; act: (name: string) => Promise<void>; close: () => void }) {
  const name = useFields(() => fieldState(initial));
  return (
    <FormDialog title={title} submitText={submitText} onClose={close} onSubmit={async () => {
      // Spaces around a name belong to it.
      const text = name.value.value;
      const wrong = nameError(text);
      if (wrong) {
        const reader = new FieldReader();
        reader.fail(name, wrong);
        reader.done();
        throw new FieldsWrong();
      }
      await act(text);
    }}>
      <TextField label="Name" state={name} mono autofocus />
    </FormDialog>
  );
}
