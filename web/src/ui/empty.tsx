// What is shown in place of data: while it loads, if there is none, and if it could not be read.

import type { ComponentChildren } from 'preact';

import { ApiError } from '../client/errors';
import type { Resource } from '../client/resource';
import { Button } from './button';
import { Icon, type IconName } from './icons';

export function EmptyState({ icon, title, children, actions }: { icon: IconName; title: string; children?: ComponentChildren; actions?: ComponentChildren }) {
  return (
    <div class="empty">
      <Icon name={icon} />
      <h3>{title}</h3>
      {children && <p>{children}</p>}
      {actions && <div class="row">{actions}</div>}
    </div>
  );
}

export function ErrorState({ error, retry }: { error: Error; retry?: () => unknown }) {
  const { reason, hint } = error instanceof ApiError ? error : { reason: error.message, hint: '' };
  const isMissing = error instanceof ApiError && error.status === 404;
  return (
    <div class="empty" role="alert">
      <Icon name="alert" />
      <h3>{isMissing ? reason.replace(/\.$/, '') : 'This could not be read'}</h3>
      {!isMissing && <p>{reason}</p>}
      {hint && <p>{hint}</p>}
      {retry && <div class="row"><Button icon="refresh" onPress={() => retry()}>Try again</Button></div>}
    </div>
  );
}

export function Loading({ label = 'Loading' }: { label?: string }) {
  return <div class="skeleton" role="status" aria-label={label}><i /><i /><i /><i /></div>;
}

/** Shows data, or why there is none. Data that could not be read again stays, with a notice. */
export function Loaded<T>({ resource, children }: { resource: Resource<T>; children: (data: T) => ComponentChildren }) {
  const { data, error, reload } = resource;
  if (data === undefined && error instanceof ApiError && error.code === 'unsupported') return <EmptyState icon="alert" title="This server does not have it">{error.message}</EmptyState>;
  if (data === undefined) return error ? <ErrorState error={error} retry={reload} /> : <Loading />;
  return <>{error && <p class="notice bad" role="alert">{error.message}</p>}{children(data)}</>;
}
