import { expect, it } from 'vitest';

import { capitalized, sentence } from './format';

it('writes messages as sentences, and leaves names and commands', () => {
  expect(sentence('can\'t be read')).toBe('Can\'t be read.');
  expect(sentence('error: none')).toBe('Error: none.');
  expect(sentence('Is it there?')).toBe('Is it there?');
  for (const text of ['memory_bytes is outside', 'arenite image pull base', 'https://a.example is closed', 'a-1 is gone', 'spec.env is wrong', '"x" is wrong', '']) expect(capitalized(text)).toBe(text);
});
