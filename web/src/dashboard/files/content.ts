// What a file is: text that can be edited, text that is only shown, a picture, or something to download.

import { pictureAddress } from '../../steps';

/** A larger file is not read. */
export const MOST_BYTES = 8 << 20;
/** A longer text is only shown, and cut. */
export const MOST_TEXT = 1 << 20;

export type Ending = '\n' | '\r\n';
export type Content =
  | { kind: 'text'; text: string; ending: Ending }
  | { kind: 'shown'; text: string; why: string }
  | { kind: 'picture'; address: string }
  | { kind: 'binary' };

export function contentOf(content: Uint8Array<ArrayBuffer>): Content {
  const address = pictureAddress(content);
  if (address) return { kind: 'picture', address };
  if (content.subarray(0, 8192).includes(0)) return { kind: 'binary' };
  if (content.length > MOST_TEXT) {
    return { kind: 'shown', text: new TextDecoder().decode(content.subarray(0, MOST_TEXT)), why: 'It is too long to edit here: the rest is in the download.' };
  }
  let text: string;
  try {
    // A mark at its beginning belongs to it.
    text = new TextDecoder('utf-8', { fatal: true, ignoreBOM: true }).decode(content);
  } catch {
    return { kind: 'shown', text: new TextDecoder().decode(content), why: 'It is not UTF-8, so that it can\'t be edited here.' };
  }
  // A text field has one kind of line ends. What it would change is not offered for editing.
  const pairs = text.split('\r\n').length - 1;
  const returns = text.split('\r').length - 1;
  const lines = text.split('\n').length - 1;
  if (returns === 0) return { kind: 'text', text, ending: '\n' };
  if (pairs === returns && pairs === lines) return { kind: 'text', text: text.replaceAll('\r\n', '\n'), ending: '\r\n' };
  return { kind: 'shown', text, why: 'Its lines end in several ways, so that it can\'t be edited here.' };
}

export function encoded(text: string, ending: Ending): string {
  return ending === '\r\n' ? text.replaceAll('\n', '\r\n') : text;
}
