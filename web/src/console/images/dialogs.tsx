// The dialogs that pull and build images. What they start is shown by the panel of jobs.

import { useRef, useState } from 'preact/hooks';

import { bytes } from '../../format';
import { AreaField, Check, FieldReader, FormDialog, PairsField, SelectField, TextField, fieldState, openDialog, pairsState, useFields } from '../../ui';
import { startBuild, startPull } from './jobs';
import { folderFiles, tar } from './tar';

/** The server's bound of a context. */
const MOST_CONTEXT = 4 * 2 ** 30;
const EXAMPLE = 'FROM base\nRUN pip install requests\n';

export function openPull(): void {
  openDialog(close => <PullDialog close={close} />);
}

export function openBuild(): void {
  openDialog(close => <BuildDialog close={close} />);
}

function PullDialog({ close }: { close: () => void }) {
  const image = useFields(() => fieldState());
  const submit = async (): Promise<void> => {
    const reader = new FieldReader();
    const name = reader.text(image, 'Enter the reference of an image.');
    if (/\s/.test(name)) reader.fail(image, 'A reference has no spaces.');
    reader.done();
    startPull(name);
  };
  return (
    <FormDialog title="Pull an image" submitText="Pull" onSubmit={submit} onClose={close}>
      <TextField label="Reference" state={image} placeholder="python:3.12" note="As in Docker, such as python:3.12 or ghcr.io/team/app@sha256:…" autofocus />
    </FormDialog>
  );
}

type Source = 'text' | 'folder' | 'archive';

function BuildDialog({ close }: { close: () => void }) {
  const fields = useFields(() => ({ image: fieldState(), source: fieldState('text'), text: fieldState(EXAMPLE), files: fieldState(), dockerfile: fieldState(), target: fieldState(), network: fieldState(), args: pairsState() }));
  const [noCache, setNoCache] = useState(false);
  const [chosen, setChosen] = useState<readonly File[]>([]);
  const source = fields.source.value.value as Source;
  const context = (reader: FieldReader): Blob => {
    if (source === 'text') {
      const text = fields.text.value.value;
      if (!text.trim()) reader.fail(fields.text, 'Write a Dockerfile.');
      return tar([{ path: 'Dockerfile', content: text }]);
    }
    if (chosen.length === 0) reader.fail(fields.files, source === 'folder' ? 'Choose a folder.' : 'Choose a file.');
    const made = source === 'folder' ? tar(folderFiles(chosen)) : chosen[0] ?? new Blob();
    if (made.size > MOST_CONTEXT) reader.fail(fields.files, `It has ${bytes(made.size)}; a context has at most ${bytes(MOST_CONTEXT)}.`);
    return made;
  };
  const submit = async (): Promise<void> => {
    const reader = new FieldReader();
    const image = reader.text(fields.image, 'Give the image a name.');
    const pairs = fields.args.rows.value.filter(({ key, value }) => key.trim() || value);
    if (pairs.some(({ key }) => !key.trim())) {
      fields.args.error.value = 'An argument has no name.';
      reader.fail(fieldState(), '');
    }
    const body = context(reader);
    reader.done();
    const text = (field: typeof fields.image): string | undefined => field.value.value.trim() || undefined;
    startBuild({
      image, dockerfile: source === 'text' ? undefined : text(fields.dockerfile), target: text(fields.target), build_arg: pairs.map(({ key, value }) => `${key.trim()}=${value}`),
      network: text(fields.network) as 'open' | 'none' | undefined, no_cache: noCache || undefined,
    }, body);
  };
  const choose = (files: FileList | null): void => {
    fields.files.error.value = '';
    setChosen([...(files ?? [])]);
  };
  return (
    <FormDialog title="Build an image" submitText="Build" className="wide build" onSubmit={submit} onClose={close}>
      <div class="grid">
        <TextField label="Name" state={fields.image} placeholder="team/app:1" autofocus />
        <SelectField label="Context" state={fields.source} options={[['text', 'the text below'], ['folder', 'a folder'], ['archive', 'a tar archive']]} onChange={() => { fields.files.error.value = ''; setChosen([]); }} />
      </div>
      {source === 'text'
        ? <AreaField label="Dockerfile" state={fields.text} rows={10} note="Without files to COPY; choose a folder for those" />
        : <FilesField key={source} isFolder={source === 'folder'} chosen={chosen} error={fields.files.error.value} choose={choose} />}
      <details>
        <summary>More settings</summary>
        <div class="fields">
          <div class="grid">
            {source !== 'text' && <TextField label="Path of the Dockerfile" state={fields.dockerfile} placeholder="Imagefile or Dockerfile" note="In the context" />}
            <TextField label="Target" state={fields.target} placeholder="the last stage" />
            <SelectField label="Network of steps" state={fields.network} options={[['', 'as new sandboxes'], ['open', 'internet'], ['none', 'none']]} />
          </div>
          <PairsField legend="Arguments" what="argument" state={fields.args} />
          <Check label="Run all steps, also those with a result of an earlier build" checked={noCache} onChange={setNoCache} />
        </div>
      </details>
    </FormDialog>
  );
}

function FilesField({ isFolder, chosen, error, choose }: { isFolder: boolean; chosen: readonly File[]; error: string; choose: (files: FileList | null) => void }) {
  const size = chosen.reduce((sum, file) => sum + file.size, 0);
  const input = useRef<HTMLInputElement>(null);
  const label = isFolder ? 'Folder' : 'Archive';
  const note = chosen.length === 0 ? (isFolder ? 'All of its files are sent, and can be run: a browser does not know their modes' : 'Plain or compressed') : `${chosen.length === 1 ? chosen[0]!.name : `${chosen.length} files`}, ${bytes(size)}`;
  return (
    <div class="field">
      <label for="context-files">{label}</label>
      <input ref={input} id="context-files" class="input" type="file" multiple={isFolder} {...(isFolder ? { webkitdirectory: true } : { accept: '.tar,.tgz,.gz,.zst,.bz2,.xz' })}
        aria-describedby="context-note" aria-invalid={error ? 'true' : undefined} onChange={event => choose(event.currentTarget.files)} />
      <p class="note" id="context-note">{note}</p>
      {error && <p class="problem">{error}</p>}
    </div>
  );
}
