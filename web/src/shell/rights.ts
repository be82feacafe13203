// Who is signed in, and what they may do. The server decides; the pages only don't offer what it would refuse.

import { signal } from '@preact/signals';

import { type Schemas, address, api } from '../client/api';

export type Role = Schemas['Role'];
export type Me = Schemas['Me'];
export const ROLES: readonly Role[] = ['read', 'use', 'manage', 'admin'];

/** What each role adds. */
export const ROLE_TEXTS: Record<Role, string> = {
  read: 'see sandboxes, trajectories and usage',
  use: 'also call sandboxes',
  manage: 'also create, pause, resume and delete them',
  admin: 'also keys, webhooks and the audit log',
};

/** Whether the server requires keys; without them, there is nothing to sign out of. */
export function keysRequired(): boolean {
  return document.documentElement.dataset.keys === 'required';
}

export class Rights {
  readonly me: Me;

  constructor(me: Me) {
    this.me = me;
  }

  static async read(): Promise<Rights> {
    return new Rights(await api.get('/api/v2/me'));
  }

  /** The same user with the same rights; the key may be another one. */
  equals({ me }: Rights): boolean {
    const parts = ({ tenant, role, operator, bound, name, subject }: Me): string => JSON.stringify([tenant, role, operator, bound, name, subject]);
    return parts(this.me) === parts(me);
  }

  may(role: Role): boolean {
    return Boolean(this.me.role) && ROLES.indexOf(this.me.role!) >= ROLES.indexOf(role);
  }

  /** A key that is bound to sandboxes has no access to what concerns the tenant. */
  get wholeTenant(): boolean {
    return this.me.bound.length === 0;
  }

  /** Keys and the audit log exist only on a server with tenants. */
  get managesKeys(): boolean {
    return this.me.tenants && this.wholeTenant && this.may('admin');
  }

  /** Also chooses among tenants in keys, usage and the audit log. */
  get managesTenants(): boolean {
    return this.me.tenants && this.me.operator;
  }

  /** Webhooks, secrets, and routes to models. */
  get administers(): boolean {
    return this.wholeTenant && this.may('admin');
  }
}

/** Null until it was read. */
export const rights = signal<Rights | null>(null);

/** Reads who is signed in. A page that is shown to another user starts again, with their rights. */
export async function readRights(): Promise<void> {
  const read = await Rights.read();
  if (rights.value && !rights.value.equals(read)) location.reload();
  rights.value ??= read;
}

export async function signOut(): Promise<void> {
  await fetch(address('/logout'), { method: 'POST' }).catch(() => null);
  location.reload();
}
