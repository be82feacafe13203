// The tabs: which there are in this sandbox, and what the others need.

import type { IconName } from '../ui/icons';
import type { Schemas } from './calls';

export type TabId = 'terminal' | 'browser' | 'code' | 'jupyter' | 'files' | 'ports' | 'logs' | 'processes';

interface Kind {
  id: TabId;
  title: string;
  icon: IconName;
  /** The service of the sandbox that it needs. */
  service?: string;
}

const KINDS: readonly Kind[] = [
  { id: 'terminal', title: 'Terminal', icon: 'terminal', service: 'shell' },
  { id: 'browser', title: 'Desktop', icon: 'desktop', service: 'display' },
  { id: 'code', title: 'Code', icon: 'code', service: 'code-server' },
  { id: 'jupyter', title: 'Jupyter', icon: 'notebook', service: 'jupyter-lab' },
  { id: 'files', title: 'Files', icon: 'folder' },
  { id: 'ports', title: 'Ports', icon: 'port' },
  { id: 'logs', title: 'Logs', icon: 'audit' },
  { id: 'processes', title: 'Processes', icon: 'usage' },
];

export interface TabState {
  id: TabId;
  title: string;
  icon: IconName;
  available: boolean;
  /** It is there in almost all images, so it is shown before the services are known. */
  usual: boolean;
  /** What the image lacks, and what brings it. */
  missing: string;
  hint: string;
}

type Service = Schemas['ServiceState'];

/** All tabs. A service that is not known yet is taken to be there: its tab reports what it finds. */
export function tabStates(services: readonly Service[] | undefined): TabState[] {
  const find = (name: string): Service | undefined => services?.find(one => one.name === name);
  return KINDS.map(({ id, title, icon, service }) => {
    const found = service ? find(service) : undefined;
    const hasBrowser = id === 'browser' && find('browser')?.available;
    return { id, title: hasBrowser ? 'Browser' : title, icon, available: found?.available ?? true, usual: !service || service === 'shell', missing: found?.missing ?? '', hint: found?.hint ?? '' };
  });
}

export function isTab(name: string): name is TabId {
  return KINDS.some(({ id }) => id === name);
}
