// Calls to the server, and what it says when it refuses.

export class Refused extends Error {
  readonly status: number;
  readonly hint: string;

  constructor(status: number, message: string, hint: string) {
    super(hint ? `${message} (${hint})` : message);
    this.status = status;
    this.hint = hint;
  }
}

interface Said {
  success?: boolean;
  message?: string;
  hint?: string | null;
}

/** What to do when the key that was shown is not good any more; afterwards the call is made again. */
let signIn: (() => Promise<void>) | null = null;

export function onUnauthorized(ask: () => Promise<void>): void {
  signIn = ask;
}

export async function refusal(answer: Response): Promise<Refused> {
  const said = (await answer.json().catch(() => ({}))) as Said;
  return new Refused(answer.status, said.message || `the server answered ${answer.status}`, said.hint || '');
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
    throw new Refused(0, 'the server can\'t be reached', '');
  }
  if (answer.status === 401 && signIn) {
    await signIn();
    return request(path, options);
  }
  if (!answer.ok) throw await refusal(answer);
  return answer;
}

export async function call<T>(method: string, path: string, body?: unknown): Promise<T> {
  const options: RequestInit = { method, headers: { accept: 'application/json' } };
  if (body !== undefined) {
    options.headers = { accept: 'application/json', 'content-type': 'application/json' };
    options.body = JSON.stringify(body);
  }
  const answer = await request(path, options);
  const value = (await answer.json()) as T & Said;
  // AIO says so within an answer of 200.
  if (value.success === false) throw new Refused(answer.status, value.message || 'the call failed', value.hint || '');
  return value;
}
