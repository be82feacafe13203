// Parts of a step as they are shown: terminals, pictures, differences, conversations, JSON.

import type { ComponentChildren } from 'preact';
import { useEffect, useMemo, useState } from 'preact/hooks';

import { bytes } from '../format';
import { plural } from '../quantities';
import { Button, Dialog, openDialog } from '../ui';
import { pictureBytes } from './bodies';
import { type Piece, type Shown, partOf, plain } from './content';
import type { Message } from './conversation';
import { type Line, diff } from './diff';
import { pictureAddress } from './step';

const MOST_TEXT = 200_000;
const MOST_MESSAGE = 50_000;
/** Messages at the end of a request that are shown at once: what the call adds to the conversation. */
const LAST_MESSAGES = 2;
const MARKS: Record<Line['kind'], string> = { same: ' ', gone: '−', new: '+', gap: '⋯' };

export function Terminal({ pieces, label }: { pieces: readonly Piece[]; label: string }) {
  let room = MOST_TEXT;
  const drawn: ComponentChildren[] = [];
  for (const [text, kind] of pieces) {
    if (!text || room <= 0) continue;
    drawn.push(<span key={drawn.length} class={kind}>{plain(text.slice(0, room))}</span>);
    if (text.length > room) drawn.push(<span key={drawn.length} class="exit">{`\n… ${text.length - room} more characters`}</span>);
    room -= text.length;
  }
  return <pre class="terminal" tabIndex={0} role="group" aria-label={label}>{drawn.length > 0 ? drawn : <span class="quiet">nothing was printed</span>}</pre>;
}

/** A picture by its address; a press enlarges it. */
export function Picture({ address, about }: { address: string; about: string }) {
  return (
    <button type="button" class="picture" title="Enlarge" onClick={() => openDialog(close => (
      <Dialog title={about} className="shown" onClose={close}><img src={address} alt={about} /></Dialog>
    ))}><img src={address} alt={about} /></button>
  );
}

/** A picture in Base64. */
export function InlinePicture({ text, about }: { text: string; about: string }) {
  const [address, setAddress] = useState<string | null>(null);
  useEffect(() => {
    const content = pictureBytes(text);
    const made = content && pictureAddress(content);
    setAddress(made);
    return () => { if (made) URL.revokeObjectURL(made); };
  }, [text]);
  return address ? <Picture address={address} about={about} /> : <p class="quiet">{`${bytes(text.length)} in Base64`}</p>;
}

export function ShownBody({ shown, label }: { shown: Shown; label: string }) {
  if ('terminal' in shown) return <Terminal pieces={shown.terminal} label={label} />;
  if ('picture' in shown) return <InlinePicture text={shown.picture} about={label} />;
  return <div class="parts">{shown.parts.map((part, n) => {
    const found = partOf(part);
    return found ? <ShownBody key={n} shown={found} label={`${label}, part ${n + 1}`} /> : <JsonTree key={n} value={part} />;
  })}</div>;
}

export function DiffView({ path, before, after, whole = false }: { path: string; before: string; after: string; whole?: boolean }) {
  const lines = useMemo<Line[]>(() => (whole ? after.slice(0, MOST_TEXT).split('\n').map(text => ({ kind: 'new' as const, text })) : diff(before.slice(0, MOST_TEXT), after.slice(0, MOST_TEXT))), [before, after, whole]);
  return (
    <div class="diff" tabIndex={0} role="group" aria-label={`Changes of ${path}`}>
      <p class="quiet">{path}</p>
      {lines.map((line, n) => <div key={n} class={line.kind}><i>{MARKS[line.kind]}</i><span>{line.text}</span></div>)}
    </div>
  );
}

function MessageBox({ role, text }: Message) {
  const shown = text.length > MOST_MESSAGE ? `${text.slice(0, MOST_MESSAGE)}\n… ${text.length - MOST_MESSAGE} more characters` : text;
  return <div class="message" data-role={role}><b>{role === 'call' ? 'tool call' : role}</b><pre>{plain(shown)}</pre></div>;
}

/** `last`: of a request, only what the call adds is open. */
export function Conversation({ messages, last = false }: { messages: readonly Message[]; last?: boolean }) {
  const at = last ? Math.max(0, messages.length - LAST_MESSAGES) : 0;
  return (
    <div class="messages">
      {at > 0 && <Folded summary={plural(at, 'earlier message')}>{() => messages.slice(0, at).map((message, n) => <MessageBox key={n} {...message} />)}</Folded>}
      {messages.slice(at).map((message, n) => <MessageBox key={n} {...message} />)}
    </div>
  );
}

/** Its content is drawn when it is opened. */
export function Folded({ summary, open: opened = false, children, className = 'folded' }: { summary: ComponentChildren; open?: boolean; children: () => ComponentChildren; className?: string }) {
  const [open, setOpen] = useState(opened);
  return <details class={className} open={open} onToggle={event => setOpen(event.currentTarget.open)}><summary>{summary}</summary>{open && children()}</details>;
}

const OPEN_DEPTH = 2;
const MOST_CHARACTERS = 4000;
/** Parts of one level that are drawn at first, and with each press of the button. */
const MOST_PARTS = 200;

/** JSON with its parts folded. */
export function JsonTree({ value, depth = 0 }: { value: unknown; depth?: number }) {
  if (typeof value === 'string') return <JsonText text={value} />;
  if (typeof value !== 'object' || value === null) return <span class={`json ${value === null ? 'null' : typeof value}`}>{String(value)}</span>;
  const isList = Array.isArray(value);
  const parts: [string, unknown][] = isList ? value.map((item, at) => [String(at), item]) : Object.entries(value);
  const [begin, end] = isList ? ['[', ']'] : ['{', '}'];
  if (parts.length === 0) return <span class="json">{begin + end}</span>;
  const count = plural(parts.length, isList ? 'item' : 'field');
  return (
    <Folded className="json" open={depth < OPEN_DEPTH && parts.length <= MOST_PARTS} summary={<>{begin} <small>{count}</small> {end}</>}>
      {() => <JsonParts parts={parts} depth={depth} numbered={isList} />}
    </Folded>
  );
}

function JsonParts({ parts, depth, numbered }: { parts: readonly [string, unknown][]; depth: number; numbered: boolean }) {
  const [most, setMost] = useState(MOST_PARTS);
  return (
    <>
      <dl class="json">{parts.slice(0, most).map(([name, part]) => <div key={name}><dt class={numbered ? 'quiet' : ''}>{name}</dt><dd><JsonTree value={part} depth={depth + 1} /></dd></div>)}</dl>
      {parts.length > most && <Button small onPress={() => setMost(most + MOST_PARTS)}>{`${parts.length - most} more`}</Button>}
    </>
  );
}

function JsonText({ text }: { text: string }) {
  const [all, setAll] = useState(false);
  if (pictureBytes(text)) return <InlinePicture text={text} about="Picture" />;
  const cut = !all && text.length > MOST_CHARACTERS;
  return (
    <span class={`json string${text.includes('\n') ? ' lines' : ''}`}>
      {cut ? text.slice(0, MOST_CHARACTERS) : text}
      {cut && <Button small onPress={() => setAll(true)}>{`${text.length - MOST_CHARACTERS} more characters`}</Button>}
    </span>
  );
}
