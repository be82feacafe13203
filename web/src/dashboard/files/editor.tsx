// One file: shown, and edited if it is text of a moderate length.

import { type Signal } from '@preact/signals';
import { useEffect, useLayoutEffect, useRef, useState } from 'preact/hooks';

import { request } from '../../client/api';
import { isAbort } from '../../client/errors';
import { bytes } from '../../format';
import { Badge, Button, LinkButton, Loading, Problem, confirm, notify } from '../../ui';
import { download, lastPart, version, write } from './calls';
import { type Content, MOST_BYTES, MOST_TEXT, contentOf, encoded } from './content';

export interface EditorProps {
  path: string;
  size: number | null | undefined;
  /** Whether there is something that is not saved. */
  dirty: Signal<boolean>;
  onClose: () => void;
  onSaved: () => void;
}

export function Editor({ path, size, dirty, onClose, onSaved }: EditorProps) {
  const name = lastPart(path);
  const [content, setContent] = useState<Content | null>(null);
  const [error, setError] = useState<Error | null>(null);
  const [draft, setDraft] = useState('');
  const [saving, setSaving] = useState(false);
  const [attempt, setAttempt] = useState(0);
  const tag = useRef<string | null>('');
  const heading = useRef<HTMLHeadingElement>(null);
  const tooLarge = (size ?? 0) > MOST_BYTES;
  useLayoutEffect(() => heading.current?.focus(), []);
  useEffect(() => {
    if (tooLarge) return;
    const controller = new AbortController();
    let picture = '';
    const load = async (): Promise<void> => {
      const answer = await request(download(path), { signal: controller.signal });
      if (Number(answer.headers.get('content-length') ?? 0) > MOST_BYTES) {
        controller.abort();
        return setError(new Error('it has grown too large to show here'));
      }
      const read = contentOf(new Uint8Array(await answer.arrayBuffer()));
      if (read.kind === 'picture') picture = read.address;
      tag.current = answer.headers.get('etag');
      setContent(read);
      if (read.kind === 'text') setDraft(read.text);
    };
    load().catch((failure: Error) => { if (!isAbort(failure)) setError(failure); });
    return () => {
      controller.abort();
      if (picture) URL.revokeObjectURL(picture);
    };
  }, [path, attempt]);
  const isText = content?.kind === 'text';
  const isDirty = isText && draft !== content.text;
  useEffect(() => {
    dirty.value = isDirty;
    return () => { dirty.value = false; };
  }, [isDirty]);
  const tooLong = isDirty && new Blob([draft]).size > MOST_TEXT;

  const save = async (): Promise<void> => {
    if (!isText || !isDirty || saving || tooLong) return;
    setSaving(true);
    setError(null);
    try {
      const present = await version(path);
      if (present !== tag.current) {
        const isGone = present === null;
        const yes = await confirm({
          title: isGone ? `${name} was deleted meanwhile` : `${name} has changed meanwhile`,
          text: isGone ? 'Saving creates it again.' : 'The agent, a program or another person wrote to it after you opened it. Saving replaces what they wrote.',
          yes: isGone ? 'Create it again' : 'Replace it', no: 'Keep editing',
        });
        if (!yes) return;
      }
      await write(path, encoded(draft, content.ending));
      tag.current = await version(path);
      setContent({ ...content, text: draft });
      notify(`${name} is saved.`);
      onSaved();
    } catch (failure) {
      setError(failure as Error);
    } finally {
      setSaving(false);
    }
  };
  const reload = async (): Promise<void> => {
    if (isDirty && !await confirm({ title: 'Read it again?', text: `What you changed in ${name} is lost.`, yes: 'Read it again', no: 'Keep editing' })) return;
    setError(null);
    setAttempt(attempt + 1);
  };
  const key = (event: KeyboardEvent): void => {
    if ((event.ctrlKey || event.metaKey) && !event.altKey && event.key.toLowerCase() === 's') {
      event.preventDefault();
      void save();
    }
  };
  return (
    <article class="shown" aria-labelledby="shown-name" onKeyDown={key}>
      <div class="shown-head">
        <h3 id="shown-name" ref={heading} tabIndex={-1} title={path}>{name}</h3>
        {isDirty && <Badge tone="wait">not saved</Badge>}
        <div class="row">
          {isText && <Button small kind="primary" disabled={!isDirty || tooLong} busy={saving} title="Save (Ctrl S)" onPress={save}>Save</Button>}
          {content && <Button small kind="plain" icon="refresh" title="Read it again" label={`Read ${name} again`} onPress={reload} />}
          <LinkButton small kind="plain" icon="download" href={download(path)} download={name} label={`Download ${name}, which is shown`} />
          <Button small kind="plain" icon="close" title="Close" label={`Close ${name}`} onPress={onClose} />
        </div>
      </div>
      {error && <div class="shown-note"><Problem error={error} /></div>}
      {tooLong && <p class="shown-note problem" role="alert">{`More than ${bytes(MOST_TEXT)} can't be saved here.`}</p>}
      {tooLarge ? <p class="shown-note quiet">{bytes(size ?? 0)} are too many to show here: download it.</p>
        : content === null ? !error && <div class="shown-note"><Loading label={`Reading ${name}`} /></div>
          : <Body name={name} content={content} draft={draft} setDraft={setDraft} size={size} />}
    </article>
  );
}

function Body({ name, content, draft, setDraft, size }: { name: string; content: Content; draft: string; setDraft: (text: string) => void; size: number | null | undefined }) {
  switch (content.kind) {
    case 'picture': return <div class="shown-body" tabIndex={0} role="group" aria-label={name}><img class="opened" src={content.address} alt={name} /></div>;
    case 'binary': return <p class="shown-note quiet">{size ? `${bytes(size)}, neither text nor a picture: download it.` : 'This is neither text nor a picture: download it.'}</p>;
    case 'shown': return <><p class="shown-note quiet">{content.why}</p><pre class="shown-body" tabIndex={0} role="group" aria-label={`Content of ${name}`}>{content.text}</pre></>;
    case 'text': return <textarea class="shown-body" aria-label={`Content of ${name}`} spellcheck={false} autocomplete="off" wrap="off" value={draft} onInput={event => setDraft(event.currentTarget.value)} />;
  }
}
