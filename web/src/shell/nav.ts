// The navigation that all pages share: which pages there are, for these rights.

import type { IconName } from '../ui/icons';
import type { Rights } from './rights';

export interface NavItem {
  id: string;
  text: string;
  icon: IconName;
  href: string;
  /** The second key of its shortcut, after `g`. */
  key?: string;
  /** Words that find it in the palette. */
  words?: string;
}

export interface NavGroup {
  title: string;
  items: NavItem[];
}

interface Entry extends Omit<NavItem, 'href'> {
  /** Of another page than the console. */
  path?: string;
  offered?: (rights: Rights) => boolean;
}

const whole = (rights: Rights): boolean => rights.wholeTenant;
const admin = (rights: Rights): boolean => rights.administers;

const GROUPS: readonly { title: string; entries: readonly Entry[] }[] = [
  { title: '', entries: [
    { id: 'overview', text: 'Overview', icon: 'overview', key: 'o', words: 'home dashboard', offered: whole },
    { id: '', text: 'Sandboxes', icon: 'sandbox', key: 's', words: 'list' },
    { id: 'trajectories', text: 'Trajectories', icon: 'trajectory', key: 't', path: 'trajectories', words: 'steps record replay' },
  ] },
  { title: 'Agents', entries: [
    { id: 'rollouts', text: 'Rollouts', icon: 'rollout', key: 'r', words: 'tasks results agentflow', offered: whole },
    { id: 'workers', text: 'Workers', icon: 'worker', key: 'f', words: 'agentflow sessions', offered: whole },
    { id: 'corpora', text: 'Corpora', icon: 'corpus', key: 'c', words: 'retrieval rag search documents', offered: whole },
  ] },
  { title: 'Resources', entries: [
    { id: 'images', text: 'Images', icon: 'image', key: 'i', words: 'pull build dockerfile registry', offered: whole },
    { id: 'templates', text: 'Templates', icon: 'template', key: 'l', words: 'spec pool', offered: whole },
    { id: 'snapshots', text: 'Snapshots', icon: 'snapshot', key: 'p', offered: whole },
    { id: 'volumes', text: 'Volumes', icon: 'volume', key: 'v', words: 'storage disk', offered: whole },
    { id: 'groups', text: 'Groups', icon: 'group', key: 'g', words: 'lease', offered: whole },
    { id: 'usage', text: 'Usage', icon: 'usage', key: 'u', words: 'quota cost csv', offered: whole },
  ] },
  { title: 'Administration', entries: [
    { id: 'secrets', text: 'Secrets', icon: 'secret', key: 'e', words: 'credentials', offered: rights => rights.wholeTenant && rights.may('manage') },
    { id: 'models', text: 'Models', icon: 'model', key: 'm', words: 'llm route budget', offered: admin },
    { id: 'keys', text: 'Keys', icon: 'key', key: 'k', words: 'api token', offered: rights => rights.managesKeys },
    { id: 'webhooks', text: 'Webhooks', icon: 'webhook', key: 'w', words: 'events delivery', offered: admin },
    { id: 'audit', text: 'Audit log', icon: 'audit', key: 'a', words: 'history', offered: rights => rights.managesKeys },
    { id: 'nodes', text: 'Nodes', icon: 'node', key: 'd', words: 'cluster drain servers', offered: rights => rights.me.operator },
    { id: 'tenants', text: 'Tenants', icon: 'tenant', key: 'n', words: 'limits', offered: rights => rights.managesTenants },
  ] },
  { title: '', entries: [
    { id: 'docs', text: 'API docs', icon: 'docs', path: 'api/v2/docs', words: 'openapi reference documentation' },
    { id: 'settings', text: 'Settings', icon: 'settings', key: ',', words: 'theme dark light contrast appearance' },
  ] },
];

/** `base`: the console's address, as seen from the page; empty on the console itself. */
export function navigation(rights: Rights, base: string): NavGroup[] {
  return GROUPS.map(({ title, entries }) => ({
    title,
    items: entries.filter(entry => entry.offered?.(rights) ?? true).map(({ path, offered: _, ...entry }) => ({ ...entry, href: path === undefined ? `${base}#/${entry.id}` : base + path })),
  })).filter(group => group.items.length > 0);
}

/** The ids of the pages that these rights offer. */
export function navigationIds(rights: Rights): ReadonlySet<string> {
  return new Set(navigation(rights, '').flatMap(group => group.items.map(item => item.id)));
}
