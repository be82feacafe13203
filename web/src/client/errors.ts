// What the server says when it refuses.

import type { components } from '../../generated/schema';
import { capitalized, sentence } from '../format';
import { quotaKind } from '../quotas';

export type QuotaExceeded = components['schemas']['QuotaExceeded'];

/** The parts of a refusal that the pages use. AIO's answers have `message`, problem details have `detail`. */
interface Refusal {
  message?: string;
  detail?: unknown;
  code?: string;
  hint?: string | null;
  quota?: QuotaExceeded | null;
}

/** A refused request, in sentences. `message` includes the hint, `reason` does not. The status is 0 if the server can't be reached. */
export class ApiError extends Error {
  override readonly name = 'ApiError';
  readonly status: number;
  readonly code: string;
  readonly reason: string;
  readonly hint: string;
  readonly quota: QuotaExceeded | null;

  constructor(status: number, refusal: Refusal) {
    const detail = typeof refusal.detail === 'string' ? refusal.detail : '';
    const reason = sentence((refusal.quota && overQuota(refusal.quota)) || detail || refusal.message || `the server answered ${status}`);
    // Without a full stop: it may end with a command.
    const hint = capitalized(refusal.hint ?? '');
    super(hint ? `${reason} ${hint}` : reason);
    this.status = status;
    this.code = refusal.code ?? '';
    this.reason = reason;
    this.hint = hint;
    this.quota = refusal.quota ?? null;
  }

  static async read(answer: Response): Promise<ApiError> {
    return new ApiError(answer.status, (await answer.json().catch(() => ({}))) as Refusal);
  }
}

/** What the server says in plain numbers, with units. Empty for quotas that count. */
function overQuota({ quota, limit, used, requested }: QuotaExceeded): string {
  if (!quota.endsWith('_bytes') && quota !== 'cpu_millis') return '';
  const { label, text } = quotaKind(quota);
  return `${label}: this tenant may have ${text(limit)}, has ${text(used)}, and requested ${text(requested)} more`;
}

/** Whether an error only means that the caller gave up. */
export function isAbort(error: unknown): boolean {
  return error instanceof DOMException && error.name === 'AbortError';
}
