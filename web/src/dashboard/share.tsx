// A link for others: with a ticket that ends if the server requires keys.

import { useRef, useState } from 'preact/hooks';

import { request } from '../client/api';
import { ApiError } from '../client/errors';
import { duration } from '../format';
import { Button, CopyButton, Dialog, LinkButton, Problem, fullTime, openDialog, selectWhole } from '../ui';

interface Ticket {
  ticket: string;
  expires_in: number;
}

/** Links that last for less than this many seconds are of little use to others. */
const SHORT = 300;

/** The address of this page, without what belongs to this visit. */
export function linkTo(location: Location | URL, ticket?: string): string {
  const address = new URL(location.href);
  address.search = ticket ? `?ticket=${encodeURIComponent(ticket)}` : '';
  return address.href;
}

export function share(name: string, keys: boolean, console: string): void {
  openDialog(close => <ShareDialog name={name} keys={keys} console={console} close={close} />);
}

export function ShareDialog({ name, keys, console, close }: { name: string; keys: boolean; console: string; close: () => void }) {
  const input = useRef<HTMLInputElement>(null);
  const [made, setMade] = useState<{ link: string; ends: string; short: boolean } | null>(keys ? null : { link: linkTo(location), ends: '', short: false });
  const [error, setError] = useState<Error | null>(null);
  const make = async (): Promise<void> => {
    setError(null);
    try {
      const { ticket, expires_in } = (await (await request('tickets', { method: 'POST' })).json()) as Ticket;
      setMade({ link: linkTo(location, ticket), ends: `It ends in ${duration(expires_in)}, at ${fullTime(new Date(Date.now() + expires_in * 1000).toISOString())}.`, short: expires_in < SHORT });
    } catch (refused) {
      setError(refused as Error);
    }
  };
  const isRefused = error instanceof ApiError && error.status === 403;
  return (
    <Dialog title={`Share ${name}`} onClose={close} foot={<Button onPress={close}>Close</Button>}>
      {!made && <p>A link lets others use this sandbox without a key: its terminal, desktop and files. It gives access to no other sandbox, and ends by itself.</p>}
      {made && (
        <>
          <p>{made.ends ? `Anyone with this link can use the sandbox. ${made.ends}` : 'This server requires no key: anyone who can reach it can open this address.'}</p>
          <div class="secret-row">
            <input ref={input} class="input secret" readOnly value={made.link} aria-label="Link" autofocus onFocus={event => selectWhole(event.currentTarget)} />
            <CopyButton text={() => made.link} shown={() => input.current} label="Copy the link" />
          </div>
          {made.short && <p class="quiet">Links last longer with the server's setting <code>ticket_ttl_seconds</code>. A key for this sandbox, from the console, lasts until it is revoked.</p>}
        </>
      )}
      {!made && !isRefused && <div class="row"><Button kind="primary" icon="share" onPress={make}>Create a link</Button></div>}
      <Problem error={error} />
      {isRefused && <p>Keys for this sandbox are made in the console. <LinkButton small href={`${console}#/keys`}>Open the keys</LinkButton></p>}
    </Dialog>
  );
}
