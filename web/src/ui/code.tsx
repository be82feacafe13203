// Code that can be copied, and buttons that copy.

import { useEffect, useRef, useState } from 'preact/hooks';

import { Button } from './button';

/** Selects the text of a field, and shows its beginning. */
export function selectWhole(input: HTMLInputElement | null): void {
  input?.setSelectionRange(0, input.value.length, 'backward');
}

/** Copies a text, or selects where it is shown if the browser does not allow that: there is no clipboard without TLS. */
export function CopyButton({ text, shown, label, small = false }: { text: () => string; shown?: () => Node | null; label?: string; small?: boolean }) {
  const [done, setDone] = useState('');
  useEffect(() => {
    if (!done) return;
    const timer = setTimeout(() => setDone(''), 1600);
    return () => clearTimeout(timer);
  }, [done]);
  const copy = async (): Promise<void> => {
    try {
      if (!navigator.clipboard) throw new Error('no clipboard');
      await navigator.clipboard.writeText(text());
      setDone('Copied');
    } catch {
      const node = shown?.();
      if (node instanceof HTMLInputElement) selectWhole(node);
      else if (node) getSelection()?.selectAllChildren(node);
      setDone('Selected');
    }
  };
  return <Button small={small} label={done || !label ? undefined : label} onPress={copy}><span aria-live="polite">{done || 'Copy'}</span></Button>;
}

/** A line of text with code in backticks. */
export function Inline({ text }: { text: string }) {
  return <>{text.split(/`([^`]+)`/).map((part, n) => (n % 2 === 1 ? <code key={n}>{part}</code> : part))}</>;
}

/** A block of code with a button that copies it. */
export function CodeBlock({ code, label, wrap = false }: { code: string; label: string; wrap?: boolean }) {
  const pre = useRef<HTMLPreElement>(null);
  return (
    <div class={wrap ? 'code wrap' : 'code'}>
      <pre ref={pre} tabIndex={0} role="group" aria-label={label}>{code}</pre>
      <CopyButton small text={() => code} shown={() => pre.current} label={`Copy: ${label}`} />
    </div>
  );
}

/** The same in several languages. `codes`: the code by the name of its language. */
export function CodeTabs({ codes, label }: { codes: Record<string, string>; label: string }) {
  const names = Object.keys(codes);
  const [chosen, setChosen] = useState(names[0] ?? '');
  return (
    <div class="stack code-tabs">
      <div class="segments" role="group" aria-label="Language">
        {names.map(name => <button type="button" key={name} aria-pressed={name === chosen} onClick={() => setChosen(name)}>{name}</button>)}
      </div>
      <CodeBlock code={codes[chosen] ?? ''} label={label} wrap />
    </div>
  );
}
