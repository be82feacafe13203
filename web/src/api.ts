// Calls to the server, and what it says when it refuses.

/** The quota that a refused request exceeds. */
export interface QuotaExceeded {
  quota: string;
  limit: number;
  used: number;
  requested: number;
}

interface Said {
  success?: boolean;
  message?: string;
  /** The same, in problem details. AIO's validation errors have a list here. */
  detail?: unknown;
  code?: string;
  hint?: string | null;
  quota?: QuotaExceeded;
}

/** A refused request. `message` includes the hint, `reason` does not. The status is 0 if the server can't be reached. */
export class Refused extends Error {
  readonly status: number;
  readonly code: string;
  readonly reason: string;
  readonly hint: string;
  readonly quota: QuotaExceeded | null;

  constructor(status: number, said: Said) {
    const detail = typeof said.detail === 'string' ? said.detail : '';
    const reason = detail || said.message || `the server answered ${status}`;
    super(said.hint ? `${reason} (${said.hint})` : reason);
    this.status = status;
    this.code = said.code ?? '';
    this.reason = reason;
    this.hint = said.hint ?? '';
    this.quota = said.quota ?? null;
  }
}

/** What to do when the key that was shown is not good any more; afterwards the call is made again. */
let signIn: (() => Promise<void>) | null = null;

export function onUnauthorized(ask: () => Promise<void>): void {
  signIn = ask;
}

export async function refusal(answer: Response): Promise<Refused> {
  return new Refused(answer.status, (await answer.json().catch(() => ({}))) as Said);
}

/** Says that a person causes what this page asks for. It is for the record alone. */
function byPerson(options: RequestInit): RequestInit {
  const headers = new Headers(options.headers);
  headers.set('x-arenite-origin', 'person');
  return { ...options, headers };
}

export async function request(path: string, options: RequestInit = {}): Promise<Response> {
  let answer: Response;
  try {
    answer = await fetch(path, byPerson(options));
  } catch {
    throw new Refused(0, { message: 'the server can\'t be reached' });
  }
  if (answer.status === 401 && signIn) {
    await signIn();
    return request(path, options);
  }
  if (!answer.ok) throw await refusal(answer);
  return answer;
}

export async function call<T>(method: string, path: string, body?: unknown, more: Record<string, string> = {}): Promise<T> {
  const options: RequestInit = { method, headers: { accept: 'application/json', ...more } };
  if (body !== undefined) {
    options.headers = { ...options.headers, 'content-type': 'application/json' };
    options.body = JSON.stringify(body);
  }
  const answer = await request(path, options);
  const value = (await answer.json()) as T & Said;
  // AIO says so within an answer of 200.
  if (value.success === false) throw new Refused(answer.status, { ...value, message: value.message || 'the call failed' });
  return value;
}

/** A part of a list, and what continues it. */
export interface Page<T> {
  items: T[];
  next: string | null;
}

/** A page of the list in an answer's `field`. Lists without pages are one page. */
export async function page<T>(path: string, field: string, cursor: string | null = null): Promise<Page<T>> {
  const [place, query = ''] = path.split('?', 2) as [string, string?];
  const parameters = new URLSearchParams(query);
  if (cursor !== null) parameters.set('cursor', cursor);
  const asked = parameters.size > 0 ? `${place}?${parameters}` : place;
  const answer = await call<Record<string, unknown>>('GET', asked);
  return { items: (answer[field] ?? []) as T[], next: (answer.next_cursor as string | null | undefined) ?? null };
}

/** The entries of all pages of a list, which are in one field of its answers; up to a number of them. */
export async function entries<T>(path: string, field: string, most = 10_000): Promise<T[]> {
  const all: T[] = [];
  let cursor: string | null = null;
  do {
    const read: Page<T> = await page<T>(path, field, cursor);
    all.push(...read.items);
    cursor = read.next;
  } while (cursor !== null && all.length < most);
  return all;
}
