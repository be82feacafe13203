// The quotas of a tenant as bars.

import { quotaKind, quotaShare, quotaText } from '../quotas';
import { Meter } from '../ui';
import type { Me } from '../shell';

export type QuotaState = Me['quotas'][number];

/** Null and absent are the same: no limit, or no use. */
function plain({ quota, limit, used }: QuotaState): { quota: string; limit: number | null; used: number | null } {
  return { quota, limit: limit ?? null, used: used ?? null };
}

export function QuotaBars({ quotas }: { quotas: readonly QuotaState[] }) {
  return (
    <ul class="quotas">{quotas.map(plain).map(state => {
      const { label, note } = quotaKind(state.quota);
      const share = quotaShare(state);
      const text = quotaText(state);
      return (
        <li key={state.quota} title={note} data-quota={state.quota}>
          <span class="quiet">{label}</span>
          {share === null ? <span class="value">{text}</span> : <Meter share={share} label={`${label}: ${text}`}><span class="value">{text}</span></Meter>}
        </li>
      );
    })}</ul>
  );
}

/** The quotas that are nearest to their limits, for a row of a table. */
export function limitedQuotas(quotas: readonly QuotaState[]): QuotaState[] {
  const share = (state: QuotaState): number => quotaShare(plain(state)) ?? 0;
  return quotas.filter(state => plain(state).limit !== null && plain(state).used !== null).sort((a, b) => share(b) - share(a));
}
