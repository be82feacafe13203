// The border between two parts of a page: dragged, or moved with the arrow keys.

/** `size`: of the part before it, in percent. */
export function Splitter({ label, size, onResize, least = 15, most = 85 }: { label: string; size: number; onResize: (size: number) => void; least?: number; most?: number }) {
  const resize = (to: number): void => onResize(Math.min(most, Math.max(least, to)));
  const key = (event: KeyboardEvent): void => {
    const moves: Record<string, number> = { ArrowLeft: size - 2, ArrowRight: size + 2, Home: least, End: most };
    if (!(event.key in moves)) return;
    event.preventDefault();
    resize(moves[event.key]!);
  };
  const drag = (event: PointerEvent): void => {
    const node = event.currentTarget as HTMLElement;
    const box = node.parentElement?.getBoundingClientRect();
    if (box && node.hasPointerCapture(event.pointerId)) resize(((event.clientX - box.left) / box.width) * 100);
  };
  return (
    <div class="splitter" role="separator" tabIndex={0} aria-label={label} aria-orientation="vertical" aria-valuenow={Math.round(size)} aria-valuemin={least} aria-valuemax={most}
      onKeyDown={key} onPointerDown={event => (event.currentTarget as HTMLElement).setPointerCapture(event.pointerId)} onPointerMove={drag} />
  );
}
