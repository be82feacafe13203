// Descriptions: paragraphs, lists, code in backticks, and fenced blocks. They become text, never markup.

import { Inline } from '../ui';

function Block({ text }: { text: string }) {
  const fenced = /^```\w*\n([\s\S]*?)\n?```$/.exec(text);
  if (fenced) return <pre class="diagram" tabIndex={0} role="group" aria-label="Diagram">{fenced[1]}</pre>;
  const lines = text.split('\n');
  if (lines.every(line => /^([-*]|\d+\.) /.test(line) || /^\s/.test(line))) {
    const items = text.split(/\n(?=[-*] |\d+\. )/).map(item => item.replace(/^([-*]|\d+\.) /, '').replace(/\s*\n\s*/g, ' '));
    return <ul class="prose-list">{items.map(item => <li key={item}><Inline text={item} /></li>)}</ul>;
  }
  // The lines of a paragraph are broken for their source.
  return <p><Inline text={lines.join(' ')} /></p>;
}

export function Prose({ text }: { text: string }) {
  const blocks = text.split(/(```[\s\S]*?```)|\n\s*\n/).map(block => block?.trim()).filter(Boolean);
  return <div class="prose">{blocks.map((block, n) => <Block key={n} text={block!} />)}</div>;
}
