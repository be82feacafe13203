// Who is signed in, and what they may do. The server decides; the pages only don't offer what it would refuse.

import { call } from './api';

export type Role = 'read' | 'use' | 'manage' | 'admin';
export const ROLES: readonly Role[] = ['read', 'use', 'manage', 'admin'];

/** What each role adds. */
export const ROLE_TEXTS: Record<Role, string> = {
  read: 'see sandboxes, trajectories and usage',
  use: 'also call sandboxes',
  manage: 'also create, pause, resume and delete them',
  admin: 'also keys, webhooks and the audit log',
};

export interface QuotaState {
  quota: string;
  limit: number | null;
  used: number | null;
}

/** `GET /api/v2/me`. */
export interface Me {
  tenant: string;
  key: string | null;
  subject: string | null;
  name: string | null;
  role: Role | null;
  operator: boolean;
  bound: string[];
  expires_at: string | null;
  /** Whether the server keeps tenants. */
  tenants: boolean;
  quotas: QuotaState[];
}

/** Whether the server requires keys. */
export function keysRequired(): boolean {
  return document.querySelector('main')?.dataset.keys === 'required';
}

export class Rights {
  readonly me: Me;

  constructor(me: Me) {
    this.me = me;
  }

  static async read(): Promise<Rights> {
    return new Rights(await call<Me>('GET', 'api/v2/me'));
  }

  /** The same user with the same rights; the key may be another one. */
  equals({ me }: Rights): boolean {
    const parts = ({ tenant, role, operator, bound, name, subject }: Me): string => JSON.stringify([tenant, role, operator, bound, name, subject]);
    return parts(this.me) === parts(me);
  }

  may(role: Role): boolean {
    return this.me.role !== null && ROLES.indexOf(this.me.role) >= ROLES.indexOf(role);
  }

  /** A key that is bound to sandboxes has no access to what concerns the tenant. */
  get wholeTenant(): boolean {
    return this.me.bound.length === 0;
  }

  /** Keys and the audit log exist only on a server with tenants. */
  get managesKeys(): boolean {
    return this.me.tenants && this.wholeTenant && this.may('admin');
  }

  get managesTenants(): boolean {
    return this.me.tenants && this.me.operator;
  }

  /** Chooses among tenants in keys, usage and the audit log. */
  get seesTenants(): boolean {
    return this.managesTenants;
  }

  get managesWebhooks(): boolean {
    return this.wholeTenant && this.may('admin');
  }
}
