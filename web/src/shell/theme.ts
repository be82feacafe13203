// Light, dark, and high contrast: as the system, or as chosen.

import { effect } from '@preact/signals';

import { stored } from './storage';

export type Theme = 'system' | 'light' | 'dark';
export type Contrast = 'system' | 'more';
export const THEMES: readonly (readonly [Theme, string])[] = [['system', 'As the system'], ['light', 'Light'], ['dark', 'Dark']];
export const CONTRASTS: readonly (readonly [Contrast, string])[] = [['system', 'As the system'], ['more', 'High']];

export const theme = stored<Theme>('theme', 'system', (value): value is Theme => THEMES.some(([name]) => name === value));
export const contrast = stored<Contrast>('contrast', 'system', (value): value is Contrast => CONTRASTS.some(([name]) => name === value));

/** The choices as a fragment, for a page on another host. `boot.js` reads it there. */
export function themeFragment(): string {
  return `#theme=${theme.value}&contrast=${contrast.value}`;
}

/** Applies the choices to the page. `boot.js` has done so before the first paint. */
export function applyTheme(): void {
  effect(() => {
    const { dataset } = document.documentElement;
    if (theme.value === 'system') delete dataset.theme;
    else dataset.theme = theme.value;
    if (contrast.value === 'system') delete dataset.contrast;
    else dataset.contrast = contrast.value;
  });
}
