// The console: which page an address shows, and what the palette finds.

import type { ComponentChildren } from 'preact';
import { useEffect, useLayoutEffect, useMemo } from 'preact/hooks';

import { Page, type Command, type Rights, Shell, go, navigationIds, pageAddress, rights, route, sandboxPage, useShortcut } from '../shell';
import { closeDialogs } from '../ui/dialog';
import { Boundary, ErrorState, Loading } from '../ui';
import { AuditPage } from './audit';
import { CorporaPage } from './corpora';
import { GroupsPage } from './groups';
import { openBuild, openPull } from './images/dialogs';
import { ImagesPage } from './images/page';
import { KeysPage } from './keys';
import { ModelsPage } from './models';
import { NodesPage } from './nodes';
import { OverviewPage } from './overview';
import { RolloutsPage } from './rollouts/page';
import { SandboxPage } from './sandbox/page';
import { openCreate } from './sandboxes/create';
import { SandboxesPage } from './sandboxes/list';
import { dashboardAddress, keepFresh, known } from './sandboxes/store';
import { SecretsPage } from './secrets';
import { SettingsPage } from './settings';
import { SnapshotsPage } from './snapshots';
import { TemplatesPage } from './templates';
import { TenantsPage } from './tenants';
import { UsagePage } from './usage';
import { VolumesPage } from './volumes';
import { WebhooksPage } from './webhooks';
import { WorkersPage } from './workers';

const PAGES: Record<string, (props: { rights: Rights }) => ComponentChildren> = {
  '': SandboxesPage, overview: OverviewPage, rollouts: RolloutsPage, workers: WorkersPage, corpora: CorporaPage,
  images: ImagesPage, templates: TemplatesPage, snapshots: SnapshotsPage, volumes: VolumesPage, groups: GroupsPage, usage: UsagePage, secrets: SecretsPage, models: ModelsPage,
  keys: KeysPage, webhooks: WebhooksPage, audit: AuditPage, nodes: NodesPage, tenants: TenantsPage, settings: SettingsPage,
};

/** The page of an address. One that the role may not see is not there: the list of sandboxes is shown. */
export function shownPage(page: string, offered: ReadonlySet<string>): string {
  return page in PAGES && offered.has(page) ? page : '';
}

export function App({ error }: { error: Error | null }) {
  const current = rights.value;
  if (!current) return <main class="page">{error ? <ErrorState error={error} retry={() => location.reload()} /> : <Page title="Arenite"><Loading label="Loading" /></Page>}</main>;
  return <Console rights={current} />;
}

function Console({ rights: current }: { rights: Rights }) {
  useEffect(keepFresh, []);
  const { page, parts } = route.value;
  const name = page === 'sandboxes' ? parts[0] : undefined;
  const offered = useMemo(() => navigationIds(current), [current]);
  const id = name === undefined ? shownPage(page, offered) : '';
  // Going to another page leaves this one with its dialogs. At once: a dialog that is opened right after stays.
  useLayoutEffect(() => closeDialogs, [page, parts.join('/')]);
  const manages = current.may('manage');
  useShortcut('c', 'Create sandboxes', 'General', () => openCreate(), manages);
  const commands = useMemo<Command[]>(() => [
    ...(manages ? [{ id: 'create', text: 'Create sandboxes', group: 'Actions', icon: 'plus' as const, words: 'new', hint: 'c', run: () => openCreate() }] : []),
    ...(manages && offered.has('images') ? [{ id: 'pull', text: 'Pull an image', group: 'Actions', icon: 'download' as const, words: 'registry', run: openPull }, { id: 'build', text: 'Build an image', group: 'Actions', icon: 'image' as const, words: 'dockerfile', run: openBuild }] : []),
    ...known.value.flatMap<Command>(sandbox => [
      { id: `sandbox-${sandbox.id}`, text: sandbox.name, group: 'Sandboxes', icon: 'sandbox', words: `${sandbox.id} ${sandbox.spec.image}`, hint: sandbox.state, run: () => go(sandboxPage(sandbox.name)) },
      { id: `dashboard-${sandbox.id}`, text: `Dashboard of ${sandbox.name}`, group: 'Dashboards', icon: 'dashboard', run: () => { location.href = dashboardAddress(sandbox.name); } },
    ]),
    { id: 'paused', text: 'Show paused sandboxes', group: 'Actions', icon: 'search', run: () => go(pageAddress([], { state: 'paused' })) },
  ], [known.value, manages]);
  const Shown = PAGES[id]!;
  return (
    <Shell rights={current} base="" current={id} commands={commands}>
      <Boundary key={[id, ...parts].join('/')}>{name === undefined ? <Shown rights={current} /> : <SandboxPage name={name} rights={current} />}</Boundary>
    </Shell>
  );
}
