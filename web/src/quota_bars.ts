// The quotas of a tenant as bars.

import { make } from './dom';
import { quotaKind, quotaShare, quotaText } from './quotas';
import type { QuotaState } from './rights';

export function quotaBars(quotas: readonly QuotaState[]): HTMLElement {
  return make('ul', { className: 'quotas' }, ...quotas.map(state => {
    const { label, note } = quotaKind(state.quota);
    const share = quotaShare(state);
    const item = make('li', { title: note }, make('span', { className: 'label', textContent: label }), make('span', { className: 'value', textContent: quotaText(state) }));
    item.dataset.quota = state.quota;
    if (share !== null) item.append(make('meter', { max: 1, low: 0.75, high: 0.92, optimum: 0, value: share, ariaLabel: `${label}: ${quotaText(state)}` }));
    return item;
  }));
}

/** The quotas that are nearest to their limits, for a row of a table. */
export function limitedQuotas(quotas: readonly QuotaState[]): QuotaState[] {
  return quotas.filter(state => state.limit !== null && state.used !== null).sort((a, b) => (quotaShare(b) ?? 0) - (quotaShare(a) ?? 0));
}
