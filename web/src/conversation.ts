// The messages of a call of a model, in the forms of chat completions, responses, and Anthropic's messages.

import { make } from './dom';

const MOST_TEXT = 50_000;
/** Messages at the end of a request that are shown at once: what the call adds to the conversation. */
const LAST = 2;

type Fields = Record<string, unknown>;
interface Message { role: string; text: string; }

/** The messages of a request; null if it has none. */
export function asked(body: unknown): HTMLElement | null {
  if (!isFields(body)) return null;
  const all: Message[] = [];
  const system = textOf(body.system ?? body.instructions);
  if (system) all.push({ role: 'system', text: system });
  for (const one of [body.messages, body.input]) if (Array.isArray(one)) all.push(...one.flatMap(read));
  for (const one of [body.input, body.prompt]) if (typeof one === 'string') all.push({ role: 'user', text: one });
  if (all.length === 0) return null;
  const earlier = all.slice(0, -LAST);
  const box = make('div', { className: 'messages' });
  if (earlier.length > 0) box.append(make('details', {}, make('summary', { textContent: earlier.length === 1 ? '1 earlier message' : `${earlier.length} earlier messages` }), ...earlier.map(draw)));
  box.append(...all.slice(-LAST).map(draw));
  return box;
}

/** What the model said; null if the answer is none of a model. */
export function said(body: unknown): HTMLElement | null {
  if (!isFields(body)) return null;
  const choice: unknown = Array.isArray(body.choices) ? body.choices[0] : null;
  const all = isFields(choice) ? (isFields(choice.message) ? read(choice.message) : [{ role: 'assistant', text: textOf(choice.text) }])
    : Array.isArray(body.output) ? body.output.flatMap(read)
    : Array.isArray(body.content) ? read({ role: 'assistant', content: body.content }) : [];
  return all.length === 0 ? null : make('div', { className: 'messages' }, ...all.map(draw));
}

function read(message: unknown): Message[] {
  if (!isFields(message)) return [];
  const type = typeof message.type === 'string' ? message.type : '';
  const role = typeof message.role === 'string' ? message.role : '';
  if (type === 'function_call') return [{ role: 'call', text: `${String(message.name)}(${String(message.arguments)})` }];
  if (type === 'function_call_output') return [{ role: 'tool', text: textOf(message.output) }];
  if (type === 'reasoning') return some('reasoning', textOf(message.summary));
  const found = [...some('reasoning', textOf(message.reasoning_content ?? message.reasoning))];
  const blocks = Array.isArray(message.content) ? message.content : [{ type: 'text', text: textOf(message.content) }];
  for (const block of blocks) {
    if (!isFields(block)) found.push(...some(role, String(block)));
    else if (block.type === 'thinking') found.push(...some('reasoning', textOf(block.thinking)));
    else if (block.type === 'tool_use') found.push({ role: 'call', text: `${String(block.name)}(${JSON.stringify(block.input)})` });
    else if (block.type === 'tool_result') found.push({ role: 'tool', text: textOf(block.content) });
    else found.push(...some(role, textOf([block])));
  }
  for (const call of Array.isArray(message.tool_calls) ? message.tool_calls : []) {
    const called = isFields(call) && isFields(call.function) ? call.function : {};
    found.push({ role: 'call', text: `${String(called.name)}(${String(called.arguments)})` });
  }
  return found;
}

function some(role: string, text: string): Message[] {
  return text ? [{ role, text }] : [];
}

function textOf(content: unknown): string {
  if (content === null || content === undefined) return '';
  if (typeof content === 'string') return content;
  if (!Array.isArray(content)) return JSON.stringify(content);
  const text = (part: unknown): string => (isFields(part) && typeof part.text === 'string' ? part.text : typeof part === 'string' ? part : JSON.stringify(part));
  return content.map(text).join('\n');
}

function draw({ role, text }: Message): HTMLElement {
  const shown = text.length > MOST_TEXT ? `${text.slice(0, MOST_TEXT)}\n… ${text.length - MOST_TEXT} more characters` : text;
  const node = make('div', { className: 'message' }, make('b', { textContent: role }), make('pre', { textContent: shown }));
  node.dataset.role = role;
  return node;
}

function isFields(value: unknown): value is Fields {
  return typeof value === 'object' && value !== null && !Array.isArray(value);
}
