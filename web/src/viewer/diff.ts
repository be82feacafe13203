// Lines that went and lines that came.

export interface Line {
  kind: 'same' | 'gone' | 'new' | 'gap';
  text: string;
}

/** Beyond so many pairs of lines no common ones are looked for in the middle. */
const MOST_PAIRS = 2_000_000;
/** Common lines shown around a change. */
const AROUND = 3;

export function diff(before: string, after: string): Line[] {
  const a = before.split('\n');
  const b = after.split('\n');
  let head = 0;
  while (head < a.length && head < b.length && a[head] === b[head]) head++;
  let tail = 0;
  while (tail < a.length - head && tail < b.length - head && a[a.length - 1 - tail] === b[b.length - 1 - tail]) tail++;
  const lines: Line[] = [
    ...a.slice(0, head).map(same),
    ...middle(a.slice(head, a.length - tail), b.slice(head, b.length - tail)),
    ...a.slice(a.length - tail).map(same),
  ];
  return folded(lines);
}

function same(text: string): Line {
  return { kind: 'same', text };
}

/** By the longest common subsequence. */
function middle(a: string[], b: string[]): Line[] {
  const gone = (text: string): Line => ({ kind: 'gone', text });
  const fresh = (text: string): Line => ({ kind: 'new', text });
  if (a.length * b.length > MOST_PAIRS) return [...a.map(gone), ...b.map(fresh)];
  const width = b.length + 1;
  const longest = new Uint32Array((a.length + 1) * width);
  for (let i = a.length - 1; i >= 0; i--) {
    for (let j = b.length - 1; j >= 0; j--) {
      longest[i * width + j] = a[i] === b[j] ? longest[(i + 1) * width + j + 1]! + 1 : Math.max(longest[(i + 1) * width + j]!, longest[i * width + j + 1]!);
    }
  }
  const lines: Line[] = [];
  let i = 0;
  let j = 0;
  while (i < a.length || j < b.length) {
    if (i < a.length && j < b.length && a[i] === b[j]) {
      lines.push(same(a[i]!));
      i++;
      j++;
    } else if (j >= b.length || (i < a.length && longest[(i + 1) * width + j]! >= longest[i * width + j + 1]!)) {
      lines.push(gone(a[i++]!));
    } else {
      lines.push(fresh(b[j++]!));
    }
  }
  return lines;
}

/** Long runs of common lines become a gap. */
function folded(lines: Line[]): Line[] {
  const near = lines.map(() => false);
  lines.forEach((line, at) => {
    if (line.kind !== 'same') for (let i = Math.max(0, at - AROUND); i <= Math.min(lines.length - 1, at + AROUND); i++) near[i] = true;
  });
  const out: Line[] = [];
  let skipped = 0;
  const gap = (): void => {
    if (skipped > 0) out.push({ kind: 'gap', text: `${skipped} ${skipped === 1 ? 'line' : 'lines'} alike` });
    skipped = 0;
  };
  lines.forEach((line, at) => {
    if (near[at]) {
      gap();
      out.push(line);
    } else skipped++;
  });
  gap();
  return out;
}
