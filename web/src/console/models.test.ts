import { expect, it } from 'vitest';

import { parsePrices, priceText } from './models';

it('reads prices as people write them, and writes them the same', () => {
  expect(parsePrices('gpt-5*=1.25,10,0.125\n\n*=2,8')).toEqual({ prices: [{ models: 'gpt-5*', input: 1.25, output: 10, cached: 0.125 }, { models: '*', input: 2, output: 8 }] });
  expect(priceText({ models: '*', input: 2, output: 8, cached: null })).toBe('*=2,8');
  for (const wrong of ['gpt', 'gpt=1', 'gpt=1,two', 'gpt=1,2,3,4', 'gpt=-1,2', '=1,2']) expect(parsePrices(wrong)).toHaveProperty('error');
});
