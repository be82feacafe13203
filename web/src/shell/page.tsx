// A page within the shell: its heading, its actions, and the window's title. The heading gets the focus after a navigation.

import type { ComponentChildren } from 'preact';
import { useEffect, useRef } from 'preact/hooks';

import { navigations } from './router';

export interface PageProps {
  title: string;
  /** Beside the heading, such as a count or a state. */
  beside?: ComponentChildren;
  actions?: ComponentChildren;
  /** Links to the pages above. */
  crumbs?: ComponentChildren;
  children: ComponentChildren;
}

let focused = 0;

export function Page({ title, beside, actions, crumbs, children }: PageProps) {
  const heading = useRef<HTMLHeadingElement>(null);
  useEffect(() => { document.title = `${title}: Arenite`; }, [title]);
  useEffect(() => {
    if (focused === navigations.value) return;
    focused = navigations.value;
    scrollTo({ top: 0 });
    heading.current?.focus({ preventScroll: true });
  }, [navigations.value]);
  return (
    <>
      {crumbs && <nav class="crumbs" aria-label="Breadcrumb">{crumbs}</nav>}
      <div class="page-head">
        <h1 ref={heading} tabIndex={-1}>{title}</h1>
        {beside}
        {actions && <div class="actions">{actions}</div>}
      </div>
      {children}
    </>
  );
}
