// Ports that programs of the sandbox listen on, with addresses to open and to copy.

import { address } from '../client/api';
import { useResource } from '../client/resource';
import { type Column, CopyButton, EmptyState, Loaded, Table } from '../ui';
import { readSandbox } from './calls';

const EVERY = 5000;
/** The sandbox's own API, and its browser's: they are no previews. */
const OWN = ['8080', '9222'];

/** The address of a port: on its own host, or below this sandbox's path if there are no such hosts. */
export function addressOf(port: string, ownHost: boolean, location: Location | URL): string {
  return ownHost ? `${location.protocol}//${port}-${location.host}/` : new URL(address(`proxy/${port}/`), location.href).href;
}

export function Ports({ ownHost, shown }: { ownHost: boolean; shown: boolean }) {
  const ports = useResource(`ports ${shown}`, async signal => {
    if (!shown) return [];
    const { detail } = await readSandbox(signal);
    return [...new Set(detail.system.occupied_ports)].filter(port => !OWN.includes(port)).sort((a, b) => Number(a) - Number(b));
  }, shown ? EVERY : undefined);
  const columns: Column<string>[] = [
    { id: 'port', title: 'Port', cell: port => <b>{port}</b>, sort: Number, main: true },
    { id: 'address', title: 'Address', className: 'wrap', cell: port => <code>{addressOf(port, ownHost, location)}</code> },
    // By its path, a browser is signed in on the port's own host, too.
    { id: 'actions', title: '', cell: port => (
      <div class="row">
        <CopyButton small text={() => addressOf(port, ownHost, location)} label={`Copy the address of port ${port}`} />
        <a class="button small" href={address(`proxy/${port}/`)} target="_blank" rel="noopener noreferrer" aria-label={`Open port ${port}`}>Open</a>
      </div>
    ) },
  ];
  return (
    <div class="pane stack">
      <div class="panel-head"><h2>Ports</h2><span class="quiet">What programs in the sandbox listen on. A preview opens in a window with a separate origin.</span></div>
      <div class="panel"><Loaded resource={ports}>{all => (
        <Table label="Ports" columns={columns} rows={all} rowKey={port => port}
          empty={<EmptyState icon="port" title="Nothing listens on a port">A server that starts in the sandbox, such as <code>python3 -m http.server 8000</code>, appears here after a few seconds.</EmptyState>} />
      )}</Loaded></div>
    </div>
  );
}

