// Icons as strokes on a grid of 16. They are decoration: what has only an icon has a label.

const PATHS = {
  overview: 'M2.5 2.5h4.5v5h-4.5zM9 2.5h4.5v3H9zM9 8h4.5v5.5H9zM2.5 10h4.5v3.5h-4.5z',
  sandbox: 'M8 1.8 13.6 5v6L8 14.2 2.4 11V5zM2.6 5 8 8.1 13.4 5M8 8.1v6',
  snapshot: 'M2 5h2.6l1-1.8h4.8l1 1.8H14v8H2zM8 11.2a2.4 2.4 0 1 0 0-4.8 2.4 2.4 0 0 0 0 4.8z',
  image: 'M8 2 14 5 8 8 2 5zM2 8l6 3 6-3M2 11l6 3 6-3',
  template: 'M2.500 2.500h11v3h-11zM2.500 8h4v5.500h-4zM9 8h4.500v5.500H9z',
  node: 'M2.500 2.500h11v4h-11zM2.500 9.500h11v4h-11zM5 4.500h.01M5 11.500h.01',
  worker: 'M5 5.500h6a2 2 0 0 1 2 2v4a2 2 0 0 1-2 2H5a2 2 0 0 1-2-2v-4a2 2 0 0 1 2-2zM8 5.500V2.500M6 9h.01M10 9h.01',
  rollout: 'M3 3.500h10M3 8h6M3 12.500h3.500M10 11.500l1.700 1.700 2.800-3.400',
  corpus: 'M3.500 2.500h2.500v11H3.500zM7.500 2.500H10v11H7.500zM11.300 3l2.300-.5 1.400 10.800',
  volume: 'M13 4c0 1.2-2.2 2.2-5 2.2S3 5.2 3 4s2.2-2.2 5-2.2S13 2.8 13 4zM3 4v8c0 1.2 2.2 2.2 5 2.2s5-1 5-2.2V4M3 8c0 1.2 2.2 2.2 5 2.2S13 9.2 13 8',
  group: 'M2.5 2.5h5v5h-5zM8.5 8.5h5v5h-5zM10 2.5h3.5V6M6 13.5H2.5V10',
  usage: 'M2 13.5h12M4 11V7.5M8 11V3M12 11V5.5',
  trajectory: 'M3.5 4.5a1.5 1.5 0 1 0 0-3 1.5 1.5 0 0 0 0 3zM12.5 14.5a1.5 1.5 0 1 0 0-3 1.5 1.5 0 0 0 0 3zM5 3h4.5a2.5 2.5 0 0 1 0 5h-3a2.5 2.5 0 0 0 0 5H11',
  secret: 'M3.5 7h9v6.5h-9zM5.3 7V4.7a2.7 2.7 0 0 1 5.4 0V7M8 9.6v1.6',
  model: 'M8 1.8v3M8 11.2v3M1.8 8h3M11.2 8h3M8 5a3 3 0 1 0 0 6 3 3 0 0 0 0-6z',
  key: 'M10.3 9.2a3.5 3.5 0 1 0-3.5-3.5c0 .5.1.9.3 1.3L2 12v2h2.4v-1.6H6v-1.6h1.4l1-1c.6.3 1.2.4 1.9.4zM11 5.2h.01',
  webhook: 'M6 5.2a2.4 2.4 0 1 1 3.3 2.2l2 3.4M10 10.8H14M5.5 7.2 3.8 10M3.8 10a2.2 2.2 0 1 0 2.2 2.4h6M12.3 14a2 2 0 0 0 0-4',
  audit: 'M4 1.8h6l2.5 2.6v9.8H4zM6.3 7h4M6.3 9.5h4M6.3 12h2.4',
  tenant: 'M2.5 14V4.5L8 2v12M8 6h5.5v8M1.5 14h13M4.8 6.5h1M4.8 9h1M10.3 8.7h1M10.3 11.2h1',
  docs: 'M3 2.5h7.5L13 5v8.5H3zM10 2.5V5.5h3M5.5 8h5M5.5 10.5h5',
  settings: 'M2 4.5h6M12 4.5h2M2 11.5h2M8 11.5h6M10 2.8a1.7 1.7 0 1 0 0 3.4 1.7 1.7 0 0 0 0-3.4zM6 9.8a1.7 1.7 0 1 0 0 3.4 1.7 1.7 0 0 0 0-3.4z',
  search: 'M7 12A5 5 0 1 0 7 2a5 5 0 0 0 0 10zM10.6 10.6 14 14',
  plus: 'M8 3v10M3 8h10',
  minus: 'M3 8h10',
  fit: 'M2.5 6V2.5H6M10 2.5h3.5V6M13.5 10v3.5H10M6 13.5H2.5V10',
  download: 'M8 2.5v7.5M4.8 7 8 10.2 11.2 7M3 13.5h10',
  compare: 'M2.5 2.5h4.5v11H2.5zM9 2.5h4.5v11H9z',
  previous: 'M4 3v10M12.5 3v10L6 8z',
  next: 'M12 3v10M3.5 3v10L10 8z',
  close: 'M3.8 3.8l8.4 8.4M12.2 3.8l-8.4 8.4',
  more: 'M3.2 8h.01M8 8h.01M12.8 8h.01',
  menu: 'M2.5 4.5h11M2.5 8h11M2.5 11.5h11',
  check: 'M3 8.5 6.5 12 13 4.5',
  alert: 'M8 2 14.5 13.5h-13zM8 6.5v3.2M8 11.6h.01',
  down: 'M4 6.5l4 4 4-4',
  right: 'M6.5 4l4 4-4 4',
  copy: 'M5.5 5.5h8v8h-8zM10.5 5.5v-3h-8v8h3',
  pause: 'M5.5 3.5v9M10.5 3.5v9',
  play: 'M4.5 2.8v10.4L13 8z',
  trash: 'M2.5 4.5h11M6 4.5v-2h4v2M4 4.5l.6 9h6.8l.6-9',
  signout: 'M6 2.5H2.5v11H6M10 11l3.2-3L10 5M13 8H6',
  keyboard: 'M1.8 4h12.4v8H1.8zM4.3 6.6h.01M6.8 6.6h.01M9.3 6.6h.01M11.8 6.6h.01M5 9.5h6',
  refresh: 'M13 8a5 5 0 1 1-1.5-3.6M13 2v3h-3',
  dashboard: 'M1.8 3h12.4v8.4H1.8zM5.5 13.8h5M4.4 5.8l1.8 1.6-1.8 1.6M7.8 9h2.6',
  external: 'M9.5 2.5h4v4M13.3 2.7 7.5 8.5M7 3.5H3v9.5h9.5V9',
  bookmark: 'M4 2.2h8v11.6l-4-3-4 3z',
  terminal: 'M2 3h12v10H2zM4.5 6l2.2 2-2.2 2M8 10.2h3.5',
  desktop: 'M1.8 2.5h12.4v8.5H1.8zM5.5 13.8h5M8 11v2.8',
  code: 'M5.5 4.5 2 8l3.5 3.5M10.5 4.5 14 8l-3.5 3.5',
  notebook: 'M4 2h9v12H4zM2.8 5h2M2.8 8h2M2.8 11h2M7 5.5h3.5',
  folder: 'M2 4h4.5l1.5 1.5H14V13H2z',
  file: 'M4 1.8h5l3 3v9.4H4zM9 1.8v3h3',
  port: 'M5.5 2v3.5M10.5 2v3.5M3.5 5.5h9V8a4.5 4.5 0 0 1-9 0zM8 12.5V15',
  upload: 'M8 11V2.5M4.5 6 8 2.5 11.5 6M2.5 11v2.5h11V11',
  up: 'M8 13V3M4 7l4-4 4 4',
  share: 'M11.5 5.5a2 2 0 1 0 0-4 2 2 0 0 0 0 4zM4.5 10a2 2 0 1 0 0-4 2 2 0 0 0 0 4zM11.5 14.5a2 2 0 1 0 0-4 2 2 0 0 0 0 4zM6.3 7l3.5-2.3M6.3 9l3.5 2.3',
  hand: 'M5.5 8.5V3.8a1.1 1.1 0 0 1 2.2 0V7V2.8a1.1 1.1 0 0 1 2.2 0V7V4a1.1 1.1 0 0 1 2.2 0v6a4.2 4.2 0 0 1-4.2 4.2c-2 0-3-1-4-2.7L2.600 9.300a1.100 1.100 0 0 1 1.900-1.100l1 1.300',
  edit: 'M3 13l.7-3L10.5 3.200l2.300 2.300L6 12.300zM8.800 4.900l2.300 2.300',
  note: 'M2.500 3h11v7.500H8L5 13.500v-3H2.500z',
  home: 'M2.5 7.5 8 2.8l5.500 4.700M4 6.500v7h8v-7',
} as const;

export type IconName = keyof typeof PATHS;

export function Icon({ name }: { name: IconName }) {
  const dots = name === 'more';
  return (
    <svg class="icon" viewBox="0 0 16 16" fill="none" stroke="currentColor" stroke-width={dots ? 2.4 : 1.4} stroke-linecap="round" stroke-linejoin="round" aria-hidden="true">
      <path d={PATHS[name]} />
    </svg>
  );
}

/** The layers of a sandstone. */
export function Mark() {
  return (
    <svg viewBox="0 0 24 24" aria-hidden="true">
      <path d="M3 9.5 12 4l9 5.5-9 5.5z" fill="var(--accent)" />
      <path d="M3 13.2 12 18.7l9-5.5M3 16.9 12 22.4l9-5.5" fill="none" stroke="var(--accent)" stroke-width="1.7" stroke-linejoin="round" stroke-linecap="round" opacity=".65" transform="translate(0 -1)" />
    </svg>
  );
}
