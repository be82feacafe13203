// Settings of this browser, and facts of the session and the server.

import { api } from '../client/api';
import { useResource } from '../client/resource';
import { bytes, duration } from '../format';
import { Page, type Rights } from '../shell';
import { singleKeys } from '../shell/shortcuts';
import { CONTRASTS, type Contrast, THEMES, type Theme, contrast, theme } from '../shell/theme';
import { Check, Loaded, Time } from '../ui';

export function SettingsPage({ rights }: { rights: Rights }) {
  const info = useResource('info', signal => api.get('/api/v2/info', { signal }));
  const { tenant, role, operator, name, key, subject, bound, expires_at } = rights.me;
  return (
    <Page title="Settings">
      <section class="panel stack" aria-label="Appearance">
        <h2>Appearance</h2>
        <p class="quiet">These choices are kept in this browser.</p>
        <Choice<Theme> label="Theme" options={THEMES} chosen={theme.value} choose={value => { theme.value = value; }} />
        <Choice<Contrast> label="Contrast" options={CONTRASTS} chosen={contrast.value} choose={value => { contrast.value = value; }} />
        <Check label="Single keys are shortcuts" checked={singleKeys.value} onChange={on => { singleKeys.value = on; }} note="Press ? to see them" />
      </section>
      <section class="panel" aria-label="Session">
        <div class="panel-head"><h2>Session</h2></div>
        <dl class="facts">
          <div><dt>Tenant</dt><dd>{tenant}</dd></div>
          <div><dt>Role</dt><dd>{operator ? 'operator' : role ?? 'none'}</dd></div>
          {(name ?? subject) && <div><dt>Name</dt><dd>{name ?? subject}</dd></div>}
          {key && <div><dt>Key</dt><dd><code>{key}</code></dd></div>}
          {bound.length > 0 && <div><dt>Bound to</dt><dd>{bound.join(', ')}</dd></div>}
          <div><dt>Expires</dt><dd>{expires_at ? <Time at={expires_at} /> : 'never'}</dd></div>
        </dl>
      </section>
      <section class="panel" aria-label="Server">
        <div class="panel-head"><h2>Server</h2></div>
        <Loaded resource={info}>{({ version, engine, uptime_seconds, capacity }) => (
          <dl class="facts">
            <div><dt>Version</dt><dd>Arenite {version}</dd></div>
            <div><dt>Engine</dt><dd>{engine}</dd></div>
            <div><dt>Running for</dt><dd>{duration(uptime_seconds)}</dd></div>
            {capacity && <div><dt>Free</dt><dd>{bytes(capacity.memory_available_bytes)} memory, {bytes(capacity.disk_available_bytes)} disk</dd></div>}
            <div><dt>More</dt><dd class="row"><a href="api/v2/docs">API</a><a href="v1/docs">API of a sandbox</a>{operator && <a href="metrics">Metrics</a>}</dd></div>
          </dl>
        )}</Loaded>
      </section>
    </Page>
  );
}

function Choice<T extends string>({ label, options, chosen, choose }: { label: string; options: readonly (readonly [T, string])[]; chosen: T; choose: (value: T) => void }) {
  return (
    <fieldset><legend>{label}</legend>
      <div class="segments" role="group" aria-label={label}>{options.map(([value, text]) => <button type="button" key={value} aria-pressed={value === chosen} onClick={() => choose(value)}>{text}</button>)}</div>
    </fieldset>
  );
}
