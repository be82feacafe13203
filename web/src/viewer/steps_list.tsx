// The list of a run's rows, and the filters above it.

import { milliseconds } from '../format';
import { plural } from '../quantities';
import { Button, EmptyState, Icon, IconButton, type IconName, SearchField } from '../ui';
import { type Annotation, type AnnotationsOf, noteChoices, ratingOf, summaryText } from './annotations';
import { RowNote } from './annotations_view';
import { type Filters, LEAST, ORIGINS, OUTCOMES, annotationsOf, isFiltered } from './filters';
import { KINDS, type Kind, type Row } from './rows';
import { VirtualList } from './virtual';

export const ROW_HEIGHT = 46;
const ICONS: Record<Kind, IconName> = { tool: 'right', model: 'model', screen: 'overview', network: 'webhook', session: 'key' };

/** What a screen reader says of the icon. */
const NAMES: Record<Kind, string> = { tool: 'tool', model: 'model call', screen: 'screen', network: 'network', session: 'session' };

export function StepsList({ rows, chosen, onChoose, empty, annotations = new Map() }: { rows: readonly Row[]; chosen: string; onChoose: (row: Row) => void; empty: preact.ComponentChildren; annotations?: AnnotationsOf }) {
  if (rows.length === 0) return <>{empty}</>;
  return (
    <VirtualList label="Steps" rows={rows} height={ROW_HEIGHT} rowKey={row => row.id} chosen={chosen} onChoose={onChoose}
      attributes={row => ({ 'data-id': row.id, 'data-kind': row.kind, 'data-outcome': row.outcome, 'data-origin': row.origin })}>
      {row => <StepRow row={row} annotations={annotationsOf(row, annotations)} />}
    </VirtualList>
  );
}

export function StepRow({ row, annotations = [] }: { row: Row; annotations?: readonly Annotation[] }) {
  const took = row.outcome === 'running' ? 'running' : row.duration === null ? '' : milliseconds(row.duration);
  return (
    <>
      <span class="mark" style={{ marginLeft: `${row.depth * 0.8}rem` }}><Icon name={ICONS[row.kind]} /></span>
      <span class="unseen">{NAMES[row.kind]}, {row.outcome}</span>
      <span class="what clip">{row.step && <small>{row.step.step}</small>}{row.tool}{row.from !== null && <small class="from">↳ from {row.from === 0 ? 'the start' : row.from}</small>}<RowNote annotations={annotations} text={annotations.length > 0 ? summaryText(annotations) : ''} rating={ratingOf(annotations)} /></span>
      <span class="took">{row.note && row.outcome !== 'running' && <b>{row.note.slice(0, 40)}</b>} {took}</span>
      <span class="about clip">{row.about}</span>
    </>
  );
}

export function NoRows({ filters, onReset }: { filters: Filters; onReset: () => void }) {
  if (!isFiltered(filters)) return <EmptyState icon="trajectory" title="No steps yet">The first call of the sandbox appears here as soon as it starts.</EmptyState>;
  return <EmptyState icon="search" title="No step matches" actions={<Button onPress={onReset}>Clear the filters</Button>}>Only steps that the page has loaded are searched.</EmptyState>;
}

export interface FilterBarProps {
  filters: Filters;
  tools: readonly (readonly [string, number])[];
  annotations?: readonly Annotation[];
  onChange: (filters: Filters) => void;
  search: { current: HTMLInputElement | null };
}

function Choice({ label, value, options, onChange }: { label: string; value: string; options: readonly (readonly [string, string])[]; onChange: (value: string) => void }) {
  return (
    <select class="input" aria-label={label} data-set={value && value !== '0' ? '' : undefined} value={value} onChange={event => onChange(event.currentTarget.value)}>
      {options.map(([name, text]) => <option key={name} value={name}>{text}</option>)}
    </select>
  );
}

export function FilterBar({ filters, tools, annotations = [], onChange, search }: FilterBarProps) {
  const set = (part: Partial<Filters>): void => onChange({ ...filters, ...part });
  const known = filters.tool && !tools.some(([tool]) => tool === filters.tool) ? [[filters.tool, 0] as const, ...tools] : tools;
  return (
    <div class="filters" role="search" aria-label="Steps">
      <SearchField label="Search arguments and observations" placeholder="Search arguments, observations" hotkey="/" inputRef={search} value={filters.text} onInput={text => set({ text })} />
      <div class="filter-row">
        <Choice label="Kind" value={filters.kind} options={[['', 'Kind'], ...KINDS]} onChange={kind => set({ kind: kind as Kind | '' })} />
        <Choice label="Tool" value={filters.tool} options={[['', 'Tool'], ...known.map(([tool, count]) => [tool, `${tool} (${count})`] as const)]} onChange={tool => set({ tool })} />
        <Choice label="Outcome" value={filters.outcome} options={OUTCOMES} onChange={outcome => set({ outcome: outcome as Filters['outcome'] })} />
        <Choice label="Origin" value={filters.origin} options={ORIGINS} onChange={origin => set({ origin })} />
        <Choice label="Minimum duration" value={String(filters.least)} options={durations(filters.least)} onChange={least => set({ least: Number(least) })} />
        <Choice label="Notes" value={filters.note} options={noteChoices(annotations, filters.note)} onChange={note => set({ note })} />
      </div>
    </div>
  );
}

/** An address may have any duration. */
function durations(least: number): [string, string][] {
  const known = LEAST.map(([value, text]): [string, string] => [String(value), text]);
  return known.some(([value]) => value === String(least)) ? known : [...known, [String(least), `At least ${milliseconds(least)}`]];
}

export interface CountsProps {
  shown: number;
  total: number;
  failures: number;
  filters: Filters;
  onReset: () => void;
  onFailure: (ways: 1 | -1) => void;
}

export function Counts({ shown, total, failures, filters, onReset, onFailure }: CountsProps) {
  return (
    <div class="counts">
      <span role="status">{isFiltered(filters) ? `${shown.toLocaleString('en')} of ${total.toLocaleString('en')}` : plural(total, 'row')}</span>
      {isFiltered(filters) && <Button small kind="plain" onPress={onReset}>Clear</Button>}
      <span class="grow" />
      {failures > 0 && (
        <>
          <span class="bad">{plural(failures, 'failure')}</span>
          <IconButton small kind="plain" icon="down" className="up" label="Previous failure" title="Previous failure (Shift+F)" onPress={() => onFailure(-1)} />
          <IconButton small kind="plain" icon="down" label="Next failure" title="Next failure (F)" onPress={() => onFailure(1)} />
        </>
      )}
    </div>
  );
}
