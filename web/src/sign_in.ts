// The dialog that asks for a key when the session has ended, and then has the call made again.

import { onUnauthorized } from './api';
import { byId } from './dom';

/** `root`: where the server's own paths begin, as the page sees it. `signedIn` is called after each sign-in. */
export function signInDialog(root = '', signedIn: () => void = () => {}): void {
  onUnauthorized(() => {
    const dialog = byId<HTMLDialogElement>('sign-in');
    if (!dialog.open) dialog.showModal();
    return new Promise(done => dialog.addEventListener('close', () => done(), { once: true }));
  });
  byId('sign-in').addEventListener('cancel', event => event.preventDefault());
  byId('key-form').addEventListener('submit', event => {
    event.preventDefault();
    void signIn(root, signedIn);
  });
}

/** The server keeps who signed in as a cookie that no script can read. */
async function signIn(root: string, signedIn: () => void): Promise<void> {
  const key = byId<HTMLInputElement>('key');
  const message = byId('key-message');
  message.textContent = '';
  try {
    const answer = await fetch(`${root}login`, { method: 'POST', headers: { 'content-type': 'application/json' }, body: JSON.stringify({ key: key.value }) });
    if (answer.ok) {
      key.value = '';
      byId<HTMLDialogElement>('sign-in').close();
      signedIn();
      return;
    }
    message.textContent = answer.status === 401 ? 'Invalid key, token or ticket.' : `The server answered ${answer.status}.`;
  } catch {
    message.textContent = 'The server can\'t be reached.';
  }
  key.select();
}
