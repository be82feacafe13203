// Charts as SVG: lines, areas, and bars. Each has a text alternative; exact values are in tooltips and, where given, in a table.

import { useId } from 'preact/hooks';

export interface Point {
  label: string;
  value: number;
}

export interface Series {
  name: string;
  points: readonly Point[];
}

interface Frame {
  title: string;
  /** The newest or the total value, as text. */
  value?: string;
  /** An attribute that names what the value is of. */
  amount?: string;
  /** A value as text, for tooltips and the alternative. */
  format: (value: number) => string;
  /** The top of the axis. By default, the highest value, with some space above lines. */
  top?: number;
}

const WIDTH = 320;
const HEIGHT = 96;
const COLORS = ['var(--series-1)', 'var(--series-2)', 'var(--series-3)'];

/** The text alternative: the range, and the highest value with its time. */
export function describe(title: string, points: readonly Point[], format: (value: number) => string): string {
  const first = points[0];
  const last = points.at(-1);
  if (!first || !last) return `${title}: no values yet`;
  const highest = points.reduce((most, point) => (point.value > most.value ? point : most), first);
  return `${title} from ${first.label} to ${last.label}: highest ${format(highest.value)} (${highest.label}), last ${format(last.value)}`;
}

function Grid() {
  return <>{[0.5, HEIGHT / 2, HEIGHT - 0.5].map(y => <line key={y} class="gridline" x1={0} x2={WIDTH} y1={y} y2={y} />)}</>;
}

function Head({ title, value, amount }: Frame) {
  return <><figcaption>{title}</figcaption>{value !== undefined && <span class="value" data-amount={amount}>{value}</span>}</>;
}

function Axis({ points }: { points: readonly Point[] }) {
  return <div class="axis" aria-hidden="true"><span>{points[0]?.label ?? ''}</span><span>{points.at(-1)?.label ?? ''}</span></div>;
}

export function BarChart(props: Frame & { points: readonly Point[] }) {
  const { title, points, format } = props;
  const top = props.top ?? Math.max(...points.map(point => point.value), 0);
  const step = WIDTH / Math.max(1, points.length);
  const gap = Math.min(3, step * 0.3);
  return (
    <figure class="chart">
      <Head {...props} />
      <svg viewBox={`0 0 ${WIDTH} ${HEIGHT}`} preserveAspectRatio="none" role="img" aria-label={describe(title, points, format)}>
        <Grid />
        {points.map((point, n) => {
          const high = top > 0 ? Math.max((point.value / top) * (HEIGHT - 4), point.value > 0 ? 1 : 0) : 0;
          return (
            <g key={point.label}>
              {/* The whole column shows the value, so that small bars can be read, too. */}
              <rect class="hit" x={n * step} y={0} width={step} height={HEIGHT} />
              <rect x={n * step + gap / 2} y={HEIGHT - high} width={step - gap} height={high} fill={COLORS[0]} rx={1} />
              <title>{`${point.label}: ${format(point.value)}`}</title>
            </g>
          );
        })}
      </svg>
      <Axis points={points} />
    </figure>
  );
}

/** `area`: the ground below the lines is tinted. `most`: the number of points of the whole width; fewer are at the right. */
export function LineChart(props: Frame & { series: readonly Series[]; area?: boolean; most?: number; axis?: boolean }) {
  const { title, series, format, area = false, axis = false } = props;
  const id = useId();
  const longest = Math.max(...series.map(one => one.points.length), 2);
  const most = Math.max(props.most ?? longest, 2);
  const top = props.top ?? Math.max(...series.flatMap(one => one.points.map(point => point.value)), 0) * 1.25;
  const step = WIDTH / (most - 1);
  const alternative = series.map(one => describe(series.length > 1 ? `${title}, ${one.name}` : title, one.points, format)).join('; ');
  return (
    <figure class="chart">
      <Head {...props} />
      <svg viewBox={`0 0 ${WIDTH} ${HEIGHT}`} preserveAspectRatio="none" role="img" aria-label={alternative}>
        <Grid />
        {series.map(({ name, points }, n) => {
          const start = most - points.length;
          const at = points.map((point, i) => `${((start + i) * step).toFixed(1)},${(HEIGHT - 1 - (top > 0 ? Math.min(1, point.value / top) : 0) * (HEIGHT - 3)).toFixed(1)}`);
          const color = COLORS[n % COLORS.length];
          return (
            <g key={`${id}-${name}`}>
              {area && at.length > 1 && <polygon class="area" fill={color} points={`${(start * step).toFixed(1)},${HEIGHT} ${at.join(' ')} ${WIDTH},${HEIGHT}`} />}
              <polyline class="line" stroke={color} points={at.join(' ')} />
            </g>
          );
        })}
      </svg>
      {axis && <Axis points={series[0]?.points ?? []} />}
    </figure>
  );
}
