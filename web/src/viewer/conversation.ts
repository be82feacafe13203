// The messages of a call of a model, in the forms of chat completions, responses, and Anthropic's messages.

import { isFields } from './content';

export interface Message {
  /** Such as `user` or `assistant`; `call` is a tool call, `reasoning` what the model thought. */
  role: string;
  text: string;
}

/** The messages of a request; null if it has none. */
export function askedMessages(body: unknown): Message[] | null {
  if (!isFields(body)) return null;
  const all: Message[] = [];
  const system = textOf(body.system ?? body.instructions);
  if (system) all.push({ role: 'system', text: system });
  for (const one of [body.messages, body.input]) if (Array.isArray(one)) all.push(...one.flatMap(read));
  for (const one of [body.input, body.prompt]) if (typeof one === 'string') all.push({ role: 'user', text: one });
  return all.length === 0 ? null : all;
}

/** What the model said; null if it is not an answer of a model. */
export function saidMessages(body: unknown): Message[] | null {
  if (!isFields(body)) return null;
  const choice: unknown = Array.isArray(body.choices) ? body.choices[0] : null;
  const all = isFields(choice) ? (isFields(choice.message) ? read(choice.message) : [{ role: 'assistant', text: textOf(choice.text) }])
    : Array.isArray(body.output) ? body.output.flatMap(read)
    : Array.isArray(body.content) ? read({ role: 'assistant', content: body.content }) : [];
  return all.length === 0 ? null : all;
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
