// JSON with its parts folded. What it says is hostile: all of it becomes text nodes.

import { bytes, make } from './dom';
import { pictureAddress } from './steps';

const OPEN_DEPTH = 2;
const MOST_CHARACTERS = 4000;
/** Parts of one level that are drawn at first, and with each press of the button. */
const MOST_PARTS = 200;
const MIN_PICTURE = 256;

export function jsonTree(value: unknown, depth = 0): HTMLElement {
  if (typeof value === 'string') return string(value);
  if (typeof value !== 'object' || value === null) return make('span', { className: `json ${value === null ? 'null' : typeof value}`, textContent: String(value) });
  const parts: [string, unknown][] = Array.isArray(value) ? value.map((item, at) => [String(at), item]) : Object.entries(value);
  const [begin, end] = Array.isArray(value) ? ['[', ']'] : ['{', '}'];
  if (parts.length === 0) return make('span', { className: 'json', textContent: begin + end });
  const words = Array.isArray(value) ? 'items' : 'fields';
  const box = make('details', { className: 'json' }, make('summary', {}, `${begin} `, make('small', { textContent: `${parts.length} ${parts.length === 1 ? words.slice(0, -1) : words}` }), ` ${end}`));
  box.addEventListener('toggle', () => {
    // Parts are drawn when someone looks.
    if (box.open && box.childElementCount === 1) box.append(list(parts, depth, Array.isArray(value)));
  });
  box.open = depth < OPEN_DEPTH && parts.length <= MOST_PARTS;
  if (box.open) box.append(list(parts, depth, Array.isArray(value)));
  return box;
}

function list(parts: [string, unknown][], depth: number, numbered: boolean): HTMLElement {
  const node = make('dl', { className: 'json' });
  let drawn = 0;
  const more = make('button', { type: 'button' });
  const draw = (): void => {
    for (const [name, part] of parts.slice(drawn, drawn + MOST_PARTS)) {
      node.append(make('div', {}, make('dt', { className: numbered ? 'quiet' : '', textContent: name }), make('dd', {}, jsonTree(part, depth + 1))));
    }
    drawn += MOST_PARTS;
    more.remove();
    more.textContent = `${parts.length - drawn} more`;
    if (drawn < parts.length) node.append(more);
  };
  more.addEventListener('click', draw);
  draw();
  return node;
}

function string(text: string): HTMLElement {
  const picture = pictureIn(text);
  if (picture) return picture;
  const node = make('span', { className: `json string${text.includes('\n') ? ' lines' : ''}` });
  if (text.length <= MOST_CHARACTERS) {
    node.textContent = text;
    return node;
  }
  const more = make('button', { type: 'button', textContent: `${text.length - MOST_CHARACTERS} more characters` });
  more.addEventListener('click', () => { node.textContent = text; });
  node.append(text.slice(0, MOST_CHARACTERS), ' ', more);
  return node;
}

/** A picture in Base64; null for any other text. */
export function pictureIn(text: string): HTMLElement | null {
  if (text.length < MIN_PICTURE || !/^(data:image\/[a-z+.-]+;base64,)?[A-Za-z0-9+/\s]{64}/.test(text)) return null;
  let content: Uint8Array<ArrayBuffer>;
  try {
    const plain = atob(text.replace(/^data:[^,]*,/, ''));
    content = Uint8Array.from(plain, sign => sign.charCodeAt(0));
  } catch {
    return null;
  }
  const address = pictureAddress(content);
  return address ? picture(address, `${bytes(content.length)}`) : null;
}

/** Small, and large in a new window. */
export function picture(address: string, about: string): HTMLElement {
  const image = make('img', { alt: `Picture, ${about}`, src: address });
  const button = make('button', { type: 'button', className: 'picture', title: 'Enlarge' }, image);
  button.addEventListener('click', () => {
    const dialog = make('dialog', { className: 'shown' }, make('img', { alt: image.alt, src: address }));
    dialog.addEventListener('click', () => dialog.close());
    dialog.addEventListener('close', () => {
      dialog.remove();
      button.focus();
    });
    document.body.append(dialog);
    dialog.showModal();
  });
  return button;
}
