// Finds operations by words in their path, summary, parameters, and fields.

import { type Operation, resolve } from './openapi';
import { objects } from './schema';

/** The most results that are shown. */
export const MOST_RESULTS = 60;

interface Entry {
  operation: Operation;
  /** Lower-case texts, of which the earlier ones count more. */
  texts: readonly string[];
}

const WEIGHTS = [8, 6, 4, 3, 1];

export type Index = readonly Entry[];

export function indexOf(operations: readonly Operation[]): Index {
  return operations.map(operation => ({
    operation,
    texts: [
      `${operation.method} ${operation.path}`,
      operation.summary,
      `${operation.id} ${operation.tag} ${operation.dialect.title}`,
      `${operation.parameters.map(parameter => parameter.name).join(' ')} ${fieldNames(operation)}`,
      `${operation.description} ${operation.parameters.map(parameter => parameter.description ?? '').join(' ')}`,
    ].map(text => text.toLowerCase()),
  }));
}

function fieldNames({ spec, body }: Operation): string {
  return Object.values(body).flatMap(schema => objects(spec, schema)).flatMap(object => object.entries.map(entry => `${entry.name} ${resolve(spec, entry.schema).title ?? ''}`)).join(' ');
}

/** The operations that have all words, the best first. */
export function findOperations(index: Index, typed: string): Operation[] {
  const words = typed.toLowerCase().split(/\s+/).filter(Boolean);
  if (words.length === 0) return [];
  const found: { operation: Operation; score: number }[] = [];
  for (const { operation, texts } of index) {
    let score = 0;
    for (const word of words) {
      const best = Math.max(...texts.map((text, n) => scoreOf(text, word) * WEIGHTS[n]!));
      if (best === 0) {
        score = 0;
        break;
      }
      score += best;
    }
    // Of equal ones, the shorter path is the more general one.
    if (score > 0) found.push({ operation, score: score - operation.path.length / 1000 });
  }
  return found.sort((a, b) => b.score - a.score).map(({ operation }) => operation);
}

/** 0 without the word, more if a word starts with it, and most if it is one. */
function scoreOf(text: string, word: string): number {
  let best = 0;
  for (let at = text.indexOf(word); at >= 0 && best < 3; at = text.indexOf(word, at + 1)) {
    const starts = at === 0 || !/[a-z0-9]/.test(text[at - 1]!);
    const ends = !/[a-z0-9]/.test(text[at + word.length] ?? ' ');
    best = Math.max(best, starts && ends ? 3 : starts ? 2 : 1);
  }
  return best;
}
