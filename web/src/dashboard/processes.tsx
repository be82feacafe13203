// The sandbox's processes, the largest first.

import { useResource } from '../client/resource';
import { bytes, duration } from '../format';
import { type Column, EmptyState, Loaded, Meter, Table } from '../ui';
import { type Schemas, readData } from './calls';

type Snapshot = Schemas['ObservationLiveSnapshot'];
type Process = Schemas['ObservationProcessSnapshot'];

const EVERY = 5000;
const MOST = 100;

const COLUMNS: Column<Process>[] = [
  { id: 'command', title: 'Command', cell: one => <span class="mono">{one.comm}</span>, sort: one => one.comm, main: true },
  { id: 'pid', title: 'PID', cell: one => one.pid, sort: one => one.pid, number: true },
  { id: 'user', title: 'User', cell: one => one.user, sort: one => one.user },
  { id: 'cpu', title: 'CPU', cell: one => (one.cpu_pct == null ? '–' : `${one.cpu_pct.toFixed(0)} %`), sort: one => one.cpu_pct ?? 0, number: true },
  { id: 'memory', title: 'Memory', cell: one => bytes(one.rss_bytes), sort: one => one.rss_bytes, number: true },
  { id: 'threads', title: 'Threads', cell: one => one.threads ?? '–', sort: one => one.threads ?? 0, number: true, low: true },
  { id: 'runs', title: 'Runs for', cell: one => (one.uptime_sec == null ? '–' : duration(one.uptime_sec)), sort: one => one.uptime_sec ?? 0, number: true, low: true },
];

export function Processes({ shown }: { shown: boolean }) {
  const live = useResource(`processes ${shown}`, signal => (shown ? readData<Snapshot>(`v1/sandbox/observe/live?top_rows=${MOST}`, signal) : Promise.reject(new DOMException('not shown', 'AbortError'))), shown ? EVERY : undefined);
  return (
    <div class="pane stack">
      <div class="panel-head"><h2>Processes</h2><span class="quiet">The {MOST} largest, every five seconds while this tab is open.</span></div>
      <Loaded resource={live}>{({ top_processes, disk }) => (
        <>
          {disk.length > 0 && <div class="disks">{disk.map(one => (
            <Meter key={one.path} share={one.usage_pct / 100} label={`Disk ${one.path}`}><span class="mono">{one.path}</span> <small class="quiet">{bytes(one.used_bytes)} of {bytes(one.total_bytes)}</small></Meter>
          ))}</div>}
          <div class="panel"><Table label="Processes" columns={COLUMNS} rows={top_processes} rowKey={one => String(one.pid)} sort={{ column: 'memory', down: true }} empty={<EmptyState icon="usage" title="No processes" />} /></div>
        </>
      )}</Loaded>
    </div>
  );
}
