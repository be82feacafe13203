// Values as source code.

/** A word of a shell command. */
export function shellWord(text: string): string {
  return /^[\w@%+=:,./-]+$/.test(text) ? text : `'${text.replaceAll('\'', '\'\\\'\'')}'`;
}

/** What is longer than this is broken into lines. */
const LONGEST_LINE = 72;

interface Style {
  word: (value: boolean | null) => string;
  name: (name: string) => string;
  step: number;
  /** Around the entries of an object on one line. */
  gap: string;
}

const PYTHON: Style = { word: value => (value === null ? 'None' : value ? 'True' : 'False'), name: name => JSON.stringify(name), step: 4, gap: '' };
const TYPE_SCRIPT: Style = { word: String, name: name => (/^[A-Za-z_$][\w$]*$/.test(name) ? name : JSON.stringify(name)), step: 2, gap: ' ' };

/** A JSON value as Python. Its first line is indented by `indent` spaces. */
export function python(value: unknown, indent = 0): string {
  return written(value, PYTHON, indent);
}

export function typeScript(value: unknown, indent = 0): string {
  return written(value, TYPE_SCRIPT, indent);
}

function written(value: unknown, style: Style, indent: number): string {
  if (value === null || typeof value === 'boolean') return style.word(value);
  if (typeof value !== 'object') return JSON.stringify(value) ?? style.word(null);
  const inner = (one: unknown): string => written(one, style, indent + style.step);
  const isArray = Array.isArray(value);
  const parts = isArray ? value.map(inner) : Object.entries(value).map(([name, one]) => `${style.name(name)}: ${inner(one)}`);
  const [open, close] = isArray ? '[]' : '{}';
  if (parts.length === 0) return `${open}${close}`;
  const gap = isArray ? '' : style.gap;
  const line = `${open}${gap}${parts.join(', ')}${gap}${close}`;
  if (line.length + indent <= LONGEST_LINE && !line.includes('\n')) return line;
  const margin = ' '.repeat(indent + style.step);
  return `${open}\n${parts.map(part => `${margin}${part},\n`).join('')}${' '.repeat(indent)}${close}`;
}

/** Each line after so many spaces. */
export function indented(text: string, spaces: number): string {
  return ' '.repeat(spaces) + text;
}
