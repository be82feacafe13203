// One run: its steps, the time line, one step in full, the film, and the comparison with another run.

import type { ComponentChildren } from 'preact';
import { useEffect, useLayoutEffect, useMemo, useRef, useState } from 'preact/hooks';

import { address } from '../client/api';
import { milliseconds } from '../format';
import { plural } from '../quantities';
import { Page, useShortcut } from '../shell';
import { Button, Check, EmptyState, IconButton, LinkButton, Loading, Splitter, State, Tabs, failed, notify, openDialog } from '../ui';
import { type Annotation, WHOLE, byStep, labelsOf, mayAnnotate, rate, ratingOf, ratingText, useAnnotations } from './annotations';
import { AnnotationSection, RunNotes } from './annotations_view';
import { ChooseRun, Compare } from './compare';
import { Detail } from './detail';
import { ExportDialog } from './export_dialog';
import { Film } from './film_view';
import { type Address, type Filters, NO_FILTERS, filterRows, findFailure, formatAddress, isFailure, isFiltered, parseAddress, toolsOf } from './filters';
import { nameOf } from './names';
import { type Row, buildRows } from './rows';
import { Counts, FilterBar, NoRows, StepsList } from './steps_list';
import type { Run, RunState } from './store';
import { MOST } from './store';
import { parentOf } from './step';
import { TimeLine } from './time_line';
import { useRun } from './use_run';

/** The address is not written for each step that the film passes. */
const WRITE = 150;

export function RunPage({ id, base }: { id: string; base: string }) {
  const [at, setAt] = useState<Address>(() => parseAddress(location.search, location.hash));
  const wanted = useMemo(() => Number(/^step-(\d+)$/.exec(at.row)?.[1] ?? 0), []);
  const { run, bodies, version } = useRun(id, wanted);
  const other = useRun(at.compare && at.compare !== id ? at.compare : null, 0);
  const [follow, setFollow] = useState(wanted === 0);
  const [sought, setSought] = useState(0);
  const [cursor, setCursor] = useState<number | null>(null);
  const [split, setSplit] = useState(36);
  const search = useRef<HTMLInputElement>(null);
  const pane = useRef<HTMLDivElement>(null);

  const change = (part: Partial<Address>): void => setAt(before => ({ ...before, ...part }));
  useEffect(() => {
    const timer = setTimeout(() => {
      const next = `${location.pathname}${formatAddress(at)}`;
      if (next !== `${location.pathname}${location.search}${location.hash}`) history.replaceState(null, '', next);
    }, WRITE);
    return () => clearTimeout(timer);
  }, [at]);
  useEffect(() => {
    const changed = (): void => {
      setAt(parseAddress(location.search, location.hash));
      setFollow(false);
      setSought(before => before + 1);
    };
    addEventListener('hashchange', changed);
    return () => removeEventListener('hashchange', changed);
  }, []);

  const rows = useMemo(() => buildRows(run!.steps, run!.network, run!.sessions), [run, version]);
  const notes = useAnnotations(id);
  const all = notes.data ?? NO_NOTES;
  const annotations = useMemo(() => byStep(all), [all]);
  const annotated = useMemo(() => new Set([...annotations.keys()].map(step => `step-${step}`)), [annotations]);
  const labels = useMemo(() => labelsOf(all), [all]);
  const ofRun = annotations.get(WHOLE) ?? NO_NOTES;
  const [asked, setAsked] = useState(0);
  const [runNotes, setRunNotes] = useState(false);
  const shown = useMemo(() => filterRows(rows, at.filters, annotations), [rows, at.filters, annotations]);
  const shownIds = useMemo(() => (isFiltered(at.filters) ? new Set(shown.map(row => row.id)) : null), [shown, at.filters]);
  const tools = useMemo(() => toolsOf(rows), [rows]);
  const stepRows = useMemo(() => rows.filter(row => row.step), [rows]);
  const row = useMemo(() => rows.find(one => one.id === at.row) ?? null, [rows, at.row]);
  const isLive = run!.state === 'live' || run!.state === 'waiting' || run!.state === 'loading';

  const lastStep = shown.findLast(one => one.step);
  useEffect(() => {
    if (follow && at.view === 'step' && lastStep && lastStep.id !== at.row) change({ row: lastStep.id });
  }, [follow, lastStep?.id, at.view]);
  const choose = (chosen: Row): void => {
    change({ row: chosen.id });
    setFollow(isLive && chosen === lastStep);
    setSought(before => before + 1);
  };
  const goTo = (row: string): void => {
    change({ row });
    setFollow(false);
    setSought(before => before + 1);
  };
  const move = (ways: 1 | -1): void => {
    const now = shown.findIndex(one => one.id === at.row);
    const next = shown[now < 0 ? (ways > 0 ? 0 : shown.length - 1) : Math.min(shown.length - 1, Math.max(0, now + ways))];
    if (next) choose(next);
  };
  const failure = (ways: 1 | -1): void => {
    const found = findFailure(shown, at.row, ways);
    if (found) goTo(found.id);
    else notify(ways > 0 ? 'There is no later failure.' : 'There is no earlier failure.');
  };
  const isComparing = at.compare !== '';
  const group = 'Steps';
  useShortcut('j', 'Next step', group, () => move(1), !isComparing);
  useShortcut('k', 'Previous step', group, () => move(-1), !isComparing);
  useArrows(move, !isComparing, pane);
  useShortcut('f', 'Next failure', group, () => failure(1), !isComparing);
  useShortcut('F', 'Previous failure', group, () => failure(-1), !isComparing);
  useShortcut('p', 'The step that this one continues', group, () => { if (row?.step && parentOf(row.step) > 0) goTo(`step-${parentOf(row.step)}`); }, !isComparing);
  useShortcut('l', 'Follow new steps, or stay', group, () => toggleFollow(!follow), isLive && !isComparing);
  useShortcut('Enter', 'Into the step', group, () => pane.current?.focus(), !isComparing);
  const step = row?.step?.step ?? 0;
  const canNote = !isComparing && at.view === 'step' && step > 0 && mayAnnotate();
  useShortcut('n', 'Add a note, labels or a rating to the step', group, () => setAsked(before => before + 1), canNote);
  const rateStep = (rating: number): void => {
    rate(id, step, annotations.get(step) ?? NO_NOTES, rating).then(() => notify(`Rated step ${step}: ${ratingText(rating)}.`), failed).finally(() => void notes.reload());
  };
  useRatingKeys(group, rateStep, canNote);
  useShortcut('N', 'Notes on the whole run', group, () => setRunNotes(true));
  useShortcut('/', 'Search', group, () => search.current?.focus(), !isComparing);
  useShortcut('x', 'Export', group, () => openExport());
  useShortcut('c', 'Compare with another run', group, () => openChoice());

  const toggleFollow = (on: boolean): void => {
    setFollow(on);
    if (on && lastStep) change({ row: lastStep.id });
  };
  const openExport = (): void => { openDialog(close => <ExportDialog id={id} name={nameOf(run!)} origin={at.filters.origin} close={close} />); };
  const openChoice = (): void => { openDialog(close => <ChooseRun run={run!} close={close} onChoose={compare => change({ compare })} />); };
  const share = async (): Promise<void> => {
    await navigator.clipboard?.writeText(location.href);
    notify(navigator.clipboard ? 'Copied the address.' : 'The address of this page has all filters.');
  };

  if (run!.state === 'gone') return <Gone id={id} reason={run!.reason} />;
  const failures = shown.reduce((sum, one) => sum + (isFailure(one) ? 1 : 0), 0);
  const notesText = ofRun.length > 0 ? `Notes (${ofRun.length})` : 'Notes';
  const reset = (): void => change({ filters: NO_FILTERS });
  const setFilters = (filters: Filters): void => change({ filters });
  const tabs = [
    { id: 'step', title: 'Step', content: () => null },
    { id: 'film', title: 'Film', content: () => null },
  ];
  return (
    <Page title={nameOf(run!)} crumbs={<><a href={address('/trajectories')}>Trajectories</a><span aria-hidden="true">/</span></>} beside={<><RunBadge state={run!.state} reason={run!.reason} reading={run!.reading} /><Totals run={run!} rows={rows} rating={ratingOf(ofRun)} /></>}
      actions={<>
        {isLive && !isComparing && <Check label="Follow" checked={follow} onChange={toggleFollow} />}
        <IconButton icon="copy" label="Copy the address" onPress={share} />
        {(mayAnnotate() || ofRun.length > 0) && <Button icon="note" label={`${notesText} on the whole run`} onPress={() => setRunNotes(true)}>{notesText}</Button>}
        {!isComparing && <Button icon="compare" onPress={openChoice}>Compare</Button>}
        <Button icon="download" onPress={openExport}>Export</Button>
      </>}>
      {runNotes && <RunNotes id={id} name={nameOf(run!)} annotations={ofRun} labels={labels} reload={notes.reload} close={() => setRunNotes(false)} />}
      {run!.leftOut > 0 && <p class="notice">The first {plural(run!.leftOut, 'step')} are not on this page, which keeps {MOST.toLocaleString('en')}. Exports have all.</p>}
      {run!.networkLeftOut > 0 && <p class="notice">The network policy decided at least {run!.networkLeftOut.toLocaleString('en')} times more than the log keeps.</p>}
      {isComparing && other.run ? (
        <Compare left={run!} right={other.run} leftBodies={bodies!} rightBodies={other.bodies!} version={version + other.version} chosen={at.row} onChoose={goTo} onClose={() => change({ compare: '' })} />
      ) : (
        <div class="run">
          <TimeLine rows={rows} shown={shownIds} chosen={at.row} onChoose={choose} annotated={annotated} cursor={at.view === 'film' ? cursor : null} />
          <div class="run-body">
            <section class="run-list" aria-label="Steps of the run" style={{ '--split': `${split}%` }}>
              <FilterBar filters={at.filters} tools={tools} annotations={all} onChange={setFilters} search={search} />
              <Counts shown={shown.length} total={rows.length} failures={failures} filters={at.filters} onReset={reset} onFailure={failure} />
              {run!.state === 'loading' && rows.length === 0 ? <Loading label="Loading the steps" /> : <StepsList rows={shown} chosen={at.row} onChoose={choose} annotations={annotations} empty={<NoRows filters={at.filters} onReset={reset} />} />}
            </section>
            <Splitter label="Width of the list" size={split} onResize={setSplit} least={20} most={65} />
            <div class="run-pane">
              <Tabs label="View" tabs={tabs} chosen={at.view} onChoose={view => change({ view: view === 'film' ? 'film' : 'step' })} />
              <div class="pane" ref={pane} tabIndex={0} role="group" aria-label={at.view === 'film' ? 'Film' : 'Step'} onKeyDown={event => { if (event.key === 'Escape') document.querySelector<HTMLElement>('.run-list .virtual')?.focus(); }}>
                {at.view === 'film' ? <Film rows={stepRows} chosen={at.row} sought={sought} onFollow={followed => change({ row: followed.id })} onTime={setCursor} bodies={bodies!} /> : <Detail row={row} run={run!} bodies={bodies!} base={base} onGo={goTo} beside={step > 0 && <AnnotationSection key={step} id={id} step={step} annotations={annotations.get(step) ?? NO_NOTES} labels={labels} reload={notes.reload} asked={asked} />} />}
              </div>
            </div>
          </div>
        </div>
      )}
    </Page>
  );
}

const NO_NOTES: readonly Annotation[] = [];

/** 1 to 5 rate the step. */
function useRatingKeys(group: string, run: (rating: number) => void, enabled: boolean): void {
  useShortcut('1', 'Rate the step: 1, the worst', group, () => run(1), enabled);
  useShortcut('2', 'Rate the step: 2', group, () => run(2), enabled);
  useShortcut('3', 'Rate the step: 3', group, () => run(3), enabled);
  useShortcut('4', 'Rate the step: 4', group, () => run(4), enabled);
  useShortcut('5', 'Rate the step: 5, the best', group, () => run(5), enabled);
}

/** Arrows move through the list, also if nothing has the focus. Within a step they scroll, and controls have their own. */
function useArrows(move: (ways: 1 | -1) => void, enabled: boolean, pane: { current: HTMLElement | null }): void {
  const latest = useRef(move);
  latest.current = move;
  useLayoutEffect(() => {
    if (!enabled) return;
    const key = (event: KeyboardEvent): void => {
      if ((event.key !== 'ArrowDown' && event.key !== 'ArrowUp') || event.defaultPrevented || event.altKey || event.ctrlKey || event.metaKey || document.querySelector('dialog[open]')) return;
      const { target } = event;
      if (target instanceof Element && (pane.current?.contains(target) || target.closest('input, select, textarea, [role="menu"], [role="tablist"], [role="separator"], .sidebar'))) return;
      event.preventDefault();
      latest.current(event.key === 'ArrowDown' ? 1 : -1);
    };
    document.addEventListener('keydown', key);
    return () => document.removeEventListener('keydown', key);
  }, [enabled]);
}

const STATES: Record<RunState, string> = { loading: 'loading', live: 'live', waiting: 'waiting', ended: 'ended', gone: 'gone' };

function RunBadge({ state, reason, reading }: { state: RunState; reason: string; reading: boolean }) {
  const text = state === 'waiting' && reason ? reason : STATES[state];
  return <span role="status" class="run-state"><State name={state} tone={state === 'live' ? 'good' : state === 'waiting' ? 'wait' : state === 'loading' ? 'busy' : 'none'} text={text} />{reading && <span class="quiet"> reading earlier steps</span>}</span>;
}

/** What the run took: steps, time, tokens, cost. */
function Totals({ run, rows, rating }: { run: Run; rows: readonly Row[]; rating: number | null }) {
  const sums = useMemo(() => {
    let [tokens, cost, last] = [0, 0, 0];
    for (const { step, end, start } of rows) {
      last = Math.max(last, end ?? start);
      tokens += (step?.model?.prompt_tokens ?? 0) + (step?.model?.completion_tokens ?? 0);
      cost += step?.model?.cost_usd ?? 0;
    }
    return { tokens, cost, took: rows.length > 0 ? last - rows[0]!.start : 0 };
  }, [rows]);
  const parts = [run.summary?.task, plural(Math.max(run.size, run.summary?.steps ?? 0), 'step'), sums.took > 0 ? milliseconds(sums.took) : '', sums.tokens > 0 ? `${sums.tokens.toLocaleString('en')} tokens` : '', sums.cost > 0 ? `$${sums.cost.toPrecision(3)}` : '', rating === null ? '' : `rated ${ratingText(rating)}`];
  return <span class="quiet totals">{parts.filter(Boolean).join(' · ')}</span>;
}

function Gone({ id, reason }: { id: string; reason: string }): ComponentChildren {
  return (
    <Page title="This trajectory is not here">
      <section class="panel gone" role="alert">
        <EmptyState icon="alert" title={reason.replace(/\.$/, '')} actions={<LinkButton kind="primary" href={address('/trajectories')}>All trajectories</LinkButton>}>
          <span class="mono">{id}</span> may have been removed when the limit for trajectories was reached, may belong to another tenant, or its address is wrong.
        </EmptyState>
      </section>
    </Page>
  );
}
