// The choice of a tenant, for operators.

import { entries } from './api';
import { Field, select } from './forms';
import type { Rights } from './rights';

export interface TenantName {
  name: string;
}

/** A field with all tenants. Null for callers that see only theirs. */
export class TenantChoice {
  readonly field: Field<HTMLSelectElement>;
  private readonly first: readonly [string, string];

  /** `first`: what is chosen without a tenant. */
  constructor(first: readonly [string, string], changed: () => void) {
    this.first = first;
    this.field = new Field('Tenant', select([first]));
    this.field.input.addEventListener('change', changed);
  }

  static of(rights: Rights, first: readonly [string, string], changed: () => void): TenantChoice | null {
    return rights.seesTenants ? new TenantChoice(first, changed) : null;
  }

  get value(): string {
    return this.field.value;
  }

  /** Reads the tenants again, and chooses one. */
  async read(chosen: string): Promise<void> {
    const tenants = await entries<TenantName>('api/v2/tenants', 'tenants');
    const { input } = this.field;
    const names = tenants.map(tenant => tenant.name);
    input.replaceChildren(...[this.first, ...names.map(name => [name, name] as const)].map(([value, text]) => new Option(text, value)));
    input.value = names.includes(chosen) ? chosen : this.first[0];
  }
}
