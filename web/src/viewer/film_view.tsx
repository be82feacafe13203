// Plays a run: the screen, the terminal, and what the model said, in step with the time line.

import { useEffect, useMemo, useRef, useState } from 'preact/hooks';

import { useShortcut } from '../shell';
import { Button, Check, EmptyState, IconButton } from '../ui';
import type { Bodies } from './bodies';
import { type PictureSource, SPEEDS, buildTrack, eventAt, lengthOf, sceneAt, toFilm, toReal } from './film';
import { offset } from './lanes';
import { InlinePicture, Picture, Terminal } from './pieces';
import type { Row } from './rows';

/** Milliseconds between two pictures of the film. */
const TICK = 80;

export interface FilmProps {
  rows: readonly Row[];
  chosen: string;
  /** Counts the choices of a person: the film goes there. Its own do not count. */
  sought: number;
  /** What the film shows now. */
  onFollow: (row: Row) => void;
  /** Where the film is, for the time line. */
  onTime: (real: number | null) => void;
  bodies: Bodies;
}

export function Film({ rows, chosen, sought, onFollow, onTime, bodies }: FilmProps) {
  const [shorten, setShorten] = useState(true);
  const [speed, setSpeed] = useState(1);
  const [playing, setPlaying] = useState(false);
  const [at, setAt] = useState(0);
  const track = useMemo(() => buildTrack(rows, shorten), [rows, shorten]);
  const length = lengthOf(track);
  const position = useRef(0);
  const followed = useRef('');
  const reached = useRef(-1);
  const lessMotion = useMemo(() => matchMedia('(prefers-reduced-motion: reduce)').matches, []);
  const shownAt = lessMotion && playing ? eventAt(track, at) : at;
  const real = toReal(track, shownAt);
  const scene = useMemo(() => sceneAt(rows, real), [rows, real]);
  const seek = (film: number): void => {
    position.current = Math.min(length, Math.max(0, film));
    setAt(position.current);
  };

  useEffect(() => {
    if (!playing) return;
    let before = performance.now();
    const timer = setInterval(() => {
      const present = performance.now();
      seek(position.current + (present - before) * speed);
      before = present;
      if (position.current >= length) setPlaying(false);
    }, TICK);
    return () => clearInterval(timer);
  }, [playing, speed, length]);
  useEffect(() => {
    const row = rows.find(one => one.id === chosen);
    if (!row || reached.current === sought) return;
    reached.current = sought;
    followed.current = chosen;
    seek(toFilm(track, row.end ?? row.start));
  }, [sought, track]);
  useEffect(() => {
    if (!playing || !scene.row || scene.row.id === followed.current) return;
    followed.current = scene.row.id;
    onFollow(scene.row);
  }, [scene.row?.id, playing]);
  useEffect(() => { onTime(real); }, [real]);
  useEffect(() => () => onTime(null), []);

  const toggle = (): void => {
    if (!playing && position.current >= length) seek(0);
    setPlaying(!playing);
  };
  const skip = (ways: 1 | -1): void => {
    const near = track.film.filter(one => (ways > 0 ? one > position.current + 1 : one < position.current - 1));
    seek((ways > 0 ? near[0] : near.at(-1)) ?? (ways > 0 ? length : 0));
  };
  useShortcut(' ', 'Play or pause', 'Film', toggle);
  useShortcut(',', 'Previous event', 'Film', () => skip(-1));
  useShortcut('.', 'Next event', 'Film', () => skip(1));
  if (rows.length === 0) return <EmptyState icon="play" title="Nothing to play">There are no steps yet.</EmptyState>;
  return (
    <section class="film" aria-label="Film">
      <div class="stage" data-only={scene.picture && scene.terminal.length > 0 ? undefined : ''}>
        {scene.picture && <FilmPicture source={scene.picture} bodies={bodies} />}
        {(scene.terminal.length > 0 || !scene.picture) && <FilmTerminal key="terminal" scene={scene} />}
      </div>
      {scene.said && <blockquote class="said">{scene.said}</blockquote>}
      <div class="film-bar" role="group" aria-label="Player">
        <IconButton kind="plain" icon="previous" label="Previous event" onPress={() => skip(-1)} />
        <Button kind="primary" icon={playing ? 'pause' : 'play'} onPress={toggle}>{playing ? 'Pause' : 'Play'}</Button>
        <IconButton kind="plain" icon="next" label="Next event" onPress={() => skip(1)} />
        <input type="range" class="seek" min={0} max={Math.max(1, Math.round(length))} step={1} value={Math.round(shownAt)} aria-label="Position" aria-valuetext={`${offset(shownAt)} of ${offset(length)}, ${scene.row?.tool ?? 'the start'}`} onInput={event => seek(Number(event.currentTarget.value))} />
        <span class="film-time">{offset(Math.round(shownAt / 100) * 100)} / {offset(Math.round(length / 100) * 100)}</span>
        <select class="input" aria-label="Speed" value={String(speed)} onChange={event => setSpeed(Number(event.currentTarget.value))}>{SPEEDS.map(one => <option key={one} value={String(one)}>{one}×</option>)}</select>
        <Check label="Shorten pauses" checked={shorten} onChange={on => { const now = toReal(track, position.current); setShorten(on); seek(toFilm(buildTrack(rows, on), now)); }} />
      </div>
    </section>
  );
}

function FilmTerminal({ scene }: { scene: ReturnType<typeof sceneAt> }) {
  const box = useRef<HTMLDivElement>(null);
  useEffect(() => {
    const pre = box.current?.querySelector('pre');
    if (pre) pre.scrollTop = pre.scrollHeight;
  }, [scene]);
  return <div ref={box} class="film-terminal">{scene.terminal.length > 0 ? <Terminal pieces={scene.terminal} label="Terminal" /> : <p class="quiet">{scene.row ? `${scene.row.tool} ${scene.row.about}` : 'The start'}</p>}</div>;
}

function FilmPicture({ source, bodies }: { source: PictureSource; bodies: Bodies }) {
  const [shown, setShown] = useState<{ address: string; step: number } | null>(null);
  useEffect(() => {
    if (source.text !== null) return;
    let isCurrent = true;
    void bodies.read(source.step, 'observation').then(read => { if (isCurrent && read && 'picture' in read) setShown({ address: read.picture, step: source.step.step }); });
    return () => { isCurrent = false; };
  }, [source, bodies]);
  const about = `Screen after step ${source.step.step}`;
  // The last picture stays until the next one is there.
  return <div class="film-picture">{source.text !== null ? <InlinePicture text={source.text} about={about} /> : shown ? <Picture address={shown.address} about={`Screen after step ${shown.step}`} /> : <p class="quiet">Loading the picture</p>}</div>;
}
