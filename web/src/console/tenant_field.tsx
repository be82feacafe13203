// The choice of a tenant, for operators. It is a part of the address: `#/usage?tenant=acme`.

import { all } from '../client/api';
import { useResource } from '../client/resource';
import { type Rights, replaceQuery, route } from '../shell';
import { type FieldState, type Option, SelectField, fieldState, useFields } from '../ui';

/** The chosen tenant; `first` without a choice. `field` is null for callers that see only theirs. */
export function useTenant(rights: Rights, first: Option): { tenant: string; field: preact.JSX.Element | null } {
  const chosen = route.value.query.get('tenant') ?? first[0];
  const state = useFields<FieldState>(() => fieldState(chosen));
  state.value.value = chosen;
  const sees = rights.managesTenants;
  const { data } = useResource(`tenants ${sees}`, signal => (sees ? all('/api/v2/tenants', 'tenants', { signal }) : Promise.resolve([])));
  if (!sees) return { tenant: first[0], field: null };
  const names = [...new Set([...(data ?? []).map(one => one.name), ...(chosen ? [chosen] : [])])].filter(name => name !== first[0]);
  const options: Option[] = [first, ...names.map(name => [name, name] as const)];
  const choose = (tenant: string): void => replaceQuery({ ...Object.fromEntries(route.value.query), tenant: tenant === first[0] ? '' : tenant });
  return { tenant: chosen, field: <SelectField label="Tenant" inline state={state} options={options} onChange={choose} /> };
}
