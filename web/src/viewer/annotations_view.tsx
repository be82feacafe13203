// The annotations of a step, or of the whole run: shown to all, and edited by those who may.

import { useEffect, useId, useLayoutEffect, useRef, useState } from 'preact/hooks';

import { ApiError } from '../client/errors';
import { AreaField, Badge, Button, Dialog, FieldReader, FieldsWrong, Icon, IconButton, Problem, TextField, Time, confirm, failed, fieldState, useFields } from '../ui';
import { type Annotation, MOST_TEXT, RATINGS, WHOLE, addAnnotation, authorText, changeAnnotation, labelsOf, mayAnnotate, parseLabels, ratingText, removeAnnotation } from './annotations';

export interface AnnotationsProps {
  /** The trajectory. */
  id: string;
  /** The step's number, or `WHOLE`. */
  step: number;
  annotations: readonly Annotation[];
  /** All labels of the run, as suggestions. */
  labels: readonly string[];
  /** Reads them again. */
  reload: () => Promise<void>;
  /** Counts requests to open the form. */
  asked?: number;
}

export function AnnotationSection({ id, step, annotations, labels, reload, asked = 0 }: AnnotationsProps) {
  const [editing, setEditing] = useState<string | null>(null);
  const handled = useRef(asked);
  const box = useRef<HTMLElement>(null);
  const mayEdit = mayAnnotate();
  useEffect(() => {
    if (asked === handled.current) return;
    handled.current = asked;
    if (mayEdit) setEditing('new');
  }, [asked]);
  if (annotations.length === 0 && !mayEdit) return null;
  const about = step === WHOLE ? 'the whole run' : `step ${step}`;
  const close = (): void => {
    setEditing(null);
    // The form had the focus.
    requestAnimationFrame(() => box.current?.querySelector<HTMLElement>('.body-head .button')?.focus());
  };
  const shared = { id, step, labels, reload, close };
  const remove = async (one: Annotation): Promise<void> => {
    if (!(await confirm({ title: 'Delete the annotation?', text: 'Its note, labels and rating are removed for everyone.', yes: 'Delete' }))) return;
    await removeAnnotation(id, one).catch(failed);
    await reload();
  };
  return (
    <section ref={box} class="body annotations" aria-label={`Notes on ${about}`}>
      <div class="body-head">
        <h3>Notes</h3>
        {mayEdit && editing === null && <Button small icon="plus" label={`Add a note, labels or a rating to ${about}`} onPress={() => setEditing('new')}>Add</Button>}
      </div>
      {annotations.map(one => (editing === one.id
        ? <AnnotationForm key={one.id} {...shared} before={one} current={one} />
        : <AnnotationCard key={one.id} annotation={one} mayEdit={mayEdit && editing === null} onEdit={() => setEditing(one.id)} onRemove={() => void remove(one)} />))}
      {editing === 'new' && <AnnotationForm key={step} {...shared} before={null} current={null} />}
      {editing !== null && editing !== 'new' && !annotations.some(one => one.id === editing) && <p class="problem" role="alert">Someone deleted this annotation. <Button small onPress={close}>Close</Button></p>}
    </section>
  );
}

function AnnotationCard({ annotation, mayEdit, onEdit, onRemove }: { annotation: Annotation; mayEdit: boolean; onEdit: () => void; onRemove: () => void }) {
  const { rating, labels, text, author, changed_by: changedBy, changed_at: changedAt, created_at: createdAt, revision } = annotation;
  const name = text ? text.replace(/\s+/g, ' ').slice(0, 40) : [rating == null ? '' : ratingText(rating), ...labels].filter(Boolean).join(' ');
  return (
    <article class="annotation" aria-label={`Annotation: ${name}`}>
      <div class="annotation-head">
        {rating != null && <Stars rating={rating} />}
        {labels.map(label => <Badge key={label} tone="accent">{label}</Badge>)}
        <span class="quiet grow">{authorText(author)} <Time at={createdAt} />{revision > 1 && <> · changed {authorText(changedBy) && `by ${authorText(changedBy)} `}<Time at={changedAt} /></>}</span>
        {mayEdit && <IconButton small kind="plain" icon="edit" label={`Edit the annotation: ${name}`} onPress={onEdit} />}
        {mayEdit && <IconButton small kind="plain" icon="trash" label={`Delete the annotation: ${name}`} onPress={onRemove} />}
      </div>
      {text && <p class="annotation-text">{text}</p>}
    </article>
  );
}

export function Stars({ rating }: { rating: number }) {
  return <span class="stars" role="img" aria-label={`Rated ${ratingText(rating)}`} title={ratingText(rating)}>{RATINGS.map(one => <i key={one} data-on={one <= Math.round(rating) ? '' : undefined}>★</i>)}</span>;
}

interface FormProps {
  id: string;
  step: number;
  labels: readonly string[];
  reload: () => Promise<void>;
  close: () => void;
  /** As it was when the form was opened; null: a new one. */
  before: Annotation | null;
  /** As it is now. */
  current: Annotation | null;
}

function AnnotationForm({ id, step, labels, reload, close, before, current }: FormProps) {
  const fields = useFields(() => ({ text: fieldState(before?.text), labels: fieldState(before?.labels.join(' ')) }));
  const [rating, setRating] = useState<number | null>(before?.rating ?? null);
  const [base, setBase] = useState(before);
  const [error, setError] = useState<Error | null>(null);
  const [busy, setBusy] = useState(false);
  const form = useRef<HTMLFormElement>(null);
  const options = useId();
  useLayoutEffect(() => form.current?.querySelector('textarea')?.focus(), []);
  const save = async (): Promise<void> => {
    const reader = new FieldReader();
    const text = reader.text(fields.text);
    const parsed = parseLabels(fields.labels.value.value);
    if ('error' in parsed) reader.fail(fields.labels, parsed.error);
    const size = new TextEncoder().encode(text).length;
    if (size > MOST_TEXT) reader.fail(fields.text, `The note has ${size.toLocaleString('en')} bytes, and the most is ${MOST_TEXT.toLocaleString('en')}.`);
    if (!('error' in parsed) && !text && parsed.labels.length === 0 && rating === null) reader.fail(fields.text, 'Write a note, add a label, or choose a rating.');
    reader.done();
    const written = { text, labels: 'labels' in parsed ? parsed.labels : [], rating };
    await (base ? changeAnnotation(id, base, written) : addAnnotation(id, step, written));
    await reload();
  };
  const submit = (event: Event): void => {
    event.preventDefault();
    if (busy) return;
    setBusy(true);
    setError(null);
    save().then(close, async (refused: Error) => {
      setBusy(false);
      if (refused instanceof FieldsWrong) return form.current?.querySelector<HTMLElement>('[aria-invalid="true"]')?.focus();
      setError(refused);
      if (refused instanceof ApiError && refused.status === 412) await reload();
    });
  };
  const key = (event: KeyboardEvent): void => {
    // Shortcuts of the page are for what is outside of the form.
    event.stopPropagation();
    const isRating = event.target instanceof HTMLInputElement && event.target.type === 'radio';
    if (event.key === 'Escape') {
      event.preventDefault();
      close();
    } else if (isRating && RATINGS.some(one => String(one) === event.key)) setRating(Number(event.key));
    else if (event.key === 'Enter' && (event.ctrlKey || event.metaKey)) submit(event);
  };
  const overtaken = base && current && current.revision !== base.revision;
  return (
    <form ref={form} class="fields annotation-form" noValidate aria-label={before ? 'Edit the annotation' : 'New annotation'} onSubmit={submit} onKeyDown={key}>
      <fieldset class="rating">
        <legend>Rating</legend>
        {RATINGS.map(one => <label key={one}><input type="radio" name={options} checked={rating === one} onChange={() => setRating(one)} aria-label={`${one} of 5`} /><span aria-hidden="true">{one}</span></label>)}
        <Button small kind="plain" disabled={rating === null} onPress={() => setRating(null)}>No rating</Button>
        <span class="quiet">1 is the worst, 5 the best</span>
      </fieldset>
      <TextField label="Labels" state={fields.labels} note={labels.length > 0 ? `In use: ${labels.slice(0, 12).join(', ')}` : 'Between spaces'} />
      <AreaField label="Note" state={fields.text} rows={3} note="Ctrl Enter saves, Esc cancels" />
      {overtaken ? (
        <div class="problem" role="alert">
          <p>Someone changed this annotation meanwhile. It is now:</p>
          <p class="annotation-text">{[current.rating == null ? '' : ratingText(current.rating), current.labels.join(' '), current.text].filter(Boolean).join('\n')}</p>
          <Button small onPress={() => { setBase(current); setError(null); }}>Replace it with mine</Button>
        </div>
      ) : <Problem error={error} />}
      <div class="annotation-buttons">
        <Button kind="primary" small type="submit" busy={busy} disabled={Boolean(overtaken)}>Save</Button>
        <Button small onPress={close}>Cancel</Button>
      </div>
    </form>
  );
}

/** Notes, labels and ratings of the whole run. */
export function RunNotes({ name, close, ...section }: Omit<AnnotationsProps, 'step'> & { name: string; close: () => void }) {
  return (
    <Dialog title={`Notes on ${name}`} className="wide" onClose={close}>
      <AnnotationSection {...section} step={WHOLE} />
      {section.annotations.length === 0 && !mayAnnotate() && <p class="quiet">There are no notes on the whole run.</p>}
    </Dialog>
  );
}

/** What a row of the list shows of a step's annotations. */
export function RowNote({ annotations, text, rating }: { annotations: readonly Annotation[]; text: string; rating: number | null }) {
  if (annotations.length === 0) return null;
  return <span class="row-note" title={text}><Icon name="note" /><span class="unseen">, annotated: {text}</span>{rating !== null && <small aria-hidden="true">{Number.isInteger(rating) ? rating : rating.toFixed(1)}★</small>}{labelsOf(annotations).slice(0, 2).map(label => <small key={label} aria-hidden="true">{label}</small>)}</span>;
}
