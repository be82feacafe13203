// The dialog that asks for a key when the session has ended; then the call is made again.

import { signal } from '@preact/signals';
import { useState } from 'preact/hooks';

import { address, onUnauthorized } from '../client/api';
import { Button } from '../ui/button';
import { Dialog } from '../ui/dialog';
import { FieldReader, TextField, fieldState, useFields } from '../ui/field';

const asking = signal(false);
let waiting: (() => void)[] = [];

/** Calls that are refused wait for the dialog. `signedIn` is called after each sign-in. */
export function watchSession(signedIn: () => void): void {
  onUnauthorized(() => {
    asking.value = true;
    return new Promise(done => waiting.push(done));
  });
  listeners.add(signedIn);
}

const listeners = new Set<() => void>();

function finish(): void {
  asking.value = false;
  const calls = waiting;
  waiting = [];
  for (const listener of listeners) listener();
  for (const call of calls) call();
}

/** Once in each page. */
export function SignIn() {
  return asking.value ? <SignInDialog /> : null;
}

function SignInDialog() {
  const key = useFields(() => fieldState());
  const [busy, setBusy] = useState(false);
  const submit = async (event: SubmitEvent): Promise<void> => {
    event.preventDefault();
    const reader = new FieldReader();
    const text = reader.text(key, 'Enter a key, a token or a ticket.');
    if (!text) return;
    setBusy(true);
    try {
      // The server keeps who signed in as a cookie that no script can read.
      const answer = await fetch(address('/login'), { method: 'POST', headers: { 'content-type': 'application/json' }, body: JSON.stringify({ key: text }) });
      if (answer.ok) return finish();
      key.error.value = answer.status === 401 ? 'Invalid key, token or ticket.' : `The server answered ${answer.status}.`;
    } catch {
      key.error.value = 'The server can\'t be reached.';
    } finally {
      setBusy(false);
    }
  };
  return (
    <Dialog title="Sign in again" firm id="sign-in" onClose={() => {}} foot={<Button kind="primary" type="submit" form="key-form" busy={busy}>Sign in</Button>}>
      <form id="key-form" class="fields" noValidate onSubmit={event => void submit(event)}>
        <p class="quiet">The session has ended. Nothing on this page is lost.</p>
        <TextField label="API key, token or ticket" type="password" state={key} autofocus />
      </form>
    </Dialog>
  );
}
