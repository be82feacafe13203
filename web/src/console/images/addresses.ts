// Where images have their pages, and what uses them.

import type { Schemas } from '../../client/api';
import { pageAddress } from '../../shell';
import type { Sandbox } from '../sandboxes/store';

export interface ImageUse {
  sandboxes: string[];
  templates: string[];
}

export function imagePage(name: string): string {
  return pageAddress(['images', name]);
}

/** What uses each image, by its name. */
export function imageUses(sandboxes: readonly Sandbox[], templates: readonly Schemas['Template'][]): ReadonlyMap<string, ImageUse> {
  const uses = new Map<string, ImageUse>();
  const use = (image: string): ImageUse => {
    const found = uses.get(image) ?? { sandboxes: [], templates: [] };
    uses.set(image, found);
    return found;
  };
  for (const { name, spec } of sandboxes) use(spec.image).sandboxes.push(name);
  for (const { name, spec } of templates) use(spec.image).templates.push(name);
  return uses;
}
