// The dialog that creates sandboxes with all settings, and shows the same as code.

import { useRef } from 'preact/hooks';

import { type Schemas, all, api, idempotencyKey } from '../../client/api';
import { ApiError } from '../../client/errors';
import { useResource } from '../../client/resource';
import { cores, exactSize, exactTime } from '../../quantities';
import { keysRequired } from '../../shell';
import { AreaField, Check, CodeTabs, FieldsWrong, FormDialog, type Option, PairsField, SelectField, TextField, fieldState, notify, openDialog, pairsState, useFields } from '../../ui';
import { RULE_NOTE } from '../network_rules';
import { type CreateField, type CreateForm, type CreateRequest, MOST_AT_ONCE, asCommand, asCurl, asPython, asTypeScript, createRequest, refusedField } from './create_request';
import { refresh } from './store';

type Template = Schemas['Template'];
interface Choices {
  images: string[];
  templates: Template[];
  /** The names of those that sandboxes can have. */
  secrets: string[];
}

/** The server's address as clients use it. */
export function serverAddress(): string {
  return location.href.replace(/[?#].*$/, '').replace(/\/(index\.html)?$/, '');
}

/** What a create can name. An engine may keep no list of images, and some have no secrets. */
async function readChoices(signal: AbortSignal): Promise<Choices> {
  const [images, templates, secrets] = await Promise.all([
    all('/api/v2/images', 'images', { signal }).catch(() => []),
    all('/api/v2/templates', 'templates', { signal }),
    all('/api/v2/secrets', 'secrets', { signal }).catch(() => []),
  ]);
  return { images: images.map(image => image.name), templates, secrets: secrets.filter(one => one.hosts.length > 0).map(one => one.name) };
}

/** What is chosen already. */
export type Chosen = Partial<Pick<CreateForm, 'template' | 'image'>>;

export function openCreate(chosen: Chosen = {}): void {
  openDialog(close => <CreateDialog chosen={chosen} close={close} />);
}

function newFields({ template, image }: Chosen) {
  return {
    name: fieldState(), count: fieldState(), template: fieldState(template), image: fieldState(image), cpu: fieldState(), memory: fieldState(), disk: fieldState(), network: fieldState(),
    allow: fieldState(), deny: fieldState(), secrets: fieldState(), volumes: pairsState(), timeout: fieldState(), idleTimeout: fieldState(), idlePolicy: fieldState(), command: fieldState(), env: pairsState(), labels: pairsState(),
  };
}
type Fields = ReturnType<typeof newFields>;

function readForm({ env, labels, volumes, ...fields }: Fields): CreateForm {
  const texts = Object.fromEntries(Object.entries(fields).map(([name, { value }]) => [name, value.value])) as unknown as Omit<CreateForm, 'env' | 'labels' | 'volumes'>;
  const pairs = ({ rows }: Fields['env']): [string, string][] => rows.value.map(({ key, value }) => [key, value]);
  return { ...texts, env: pairs(env), labels: pairs(labels), volumes: pairs(volumes) };
}

/** Reports what was created, and how long it took. */
function report(made: readonly Schemas['SandboxInfo'][]): void {
  const took = made.flatMap(one => one.stages).reduce((sum, stage) => sum + stage.ms, 0);
  const names = made.length <= 3 ? made.map(one => one.name).join(', ') : `${made.length} sandboxes`;
  notify(`Created ${names}${made.length === 1 && took ? ` in ${took.toFixed(0)} ms` : ''}.`);
}

function CreateDialog({ chosen, close }: { chosen: Chosen; close: () => void }) {
  const fields = useFields(() => newFields(chosen));
  const { data: choices } = useResource('choices', readChoices);
  /** The last request that got no answer, and its key: the same again finds what it made. */
  const unanswered = useRef<{ body: string; key: string } | null>(null);
  const form = readForm(fields);
  const { request } = createRequest(form);
  const server = serverAddress();
  const withKey = keysRequired();

  const create = async (asked: CreateRequest): Promise<Schemas['SandboxInfo'][]> => {
    const body = JSON.stringify(asked);
    const key = unanswered.current?.body === body ? unanswered.current.key : idempotencyKey();
    unanswered.current = { body, key };
    try {
      const answer = await api.post('/api/v2/sandboxes', { body: asked as Schemas['CreateSandbox'], headers: { 'idempotency-key': key } });
      unanswered.current = null;
      return 'sandboxes' in answer ? answer.sandboxes : [answer];
    } catch (error) {
      if (error instanceof ApiError && error.status > 0 && error.status < 500) unanswered.current = null;
      throw error;
    }
  };
  const submit = async (): Promise<void> => {
    const { request: asked, errors } = createRequest(readForm(fields));
    for (const [field, text] of Object.entries(errors)) fields[field as CreateField].error.value = text;
    if (Object.keys(errors).length > 0) throw new FieldsWrong();
    try {
      report(await create(asked));
      await refresh();
    } catch (error) {
      const field = error instanceof ApiError ? refusedField(error) : null;
      if (!field) throw error;
      // A refusal is shown at the field that it is about.
      fields[field].error.value = (error as ApiError).message;
      throw new FieldsWrong();
    }
  };
  const spec = choices?.templates.find(template => template.name === (form.template || 'default'))?.spec;
  const hints = placeholders(spec);
  // What is chosen is there before the others are read, and if they can't be read.
  const first = (text: string, options: readonly Option[], extra = ''): Option[] => [['', text], ...options, ...(extra && !options.some(([name]) => name === extra) ? [[extra, extra] as const] : [])];
  return (
    <FormDialog title="Create sandboxes" submitText="Create" className="wide create" onSubmit={submit} onClose={close}>
      <div class="create-parts">
        <div class="fields">
          <fieldset><legend>Sandbox</legend><div class="grid">
            <TextField label="Name" state={fields.name} placeholder="generated" maxLength={63} autofocus />
            <TextField label="Number" state={fields.count} placeholder="1" inputMode="numeric" note={`Up to ${MOST_AT_ONCE} equal ones`} />
            <SelectField label="Template" state={fields.template} options={first('default', choices?.templates.map(one => [one.name, one.name]) ?? [], chosen.template)} />
            {choices && choices.images.length === 0
              ? <TextField label="Image" state={fields.image} placeholder={spec?.image ?? 'as template'} />
              : <SelectField label="Image" state={fields.image} options={first(spec ? `${spec.image} (default)` : 'as template', choices?.images.map(name => [name, name]) ?? [], chosen.image)} />}
          </div></fieldset>
          <fieldset><legend>Resources</legend><div class="grid">
            <TextField label="CPU" state={fields.cpu} placeholder={hints.cpu} inputMode="decimal" note="Cores, such as 0.5" />
            <TextField label="Memory" state={fields.memory} placeholder={hints.memory} note="Such as 512MiB" />
            <TextField label="Disk" state={fields.disk} placeholder={hints.disk} note="Such as 10GiB" />
          </div></fieldset>
          <NetworkFields fields={fields} secrets={choices?.secrets ?? []} />
          <PairsField legend="Environment" what="variable" state={fields.env} />
          <fieldset><legend>Time</legend><div class="grid">
            <TextField label="Lifetime" state={fields.timeout} placeholder={hints.timeout} note="Such as 2h; 0 is unlimited" />
            <TextField label="Idle timeout" state={fields.idleTimeout} placeholder={hints.idleTimeout} note="Time without a call" />
            <SelectField label="When idle" state={fields.idlePolicy} options={first(spec?.idle_policy ? `${spec.idle_policy} it (default)` : 'as template', [['delete', 'delete it'], ['pause', 'pause it']])} />
          </div></fieldset>
          <PairsField legend="Volumes" what="volume" state={fields.volumes} hints={['volume', '/path']} note="A directory of a volume is volume/directory; a path that ends with :ro is read-only" />
          <PairsField legend="Labels" what="label" state={fields.labels} />
          <fieldset><legend>Program</legend><TextField label="Main command" state={fields.command} placeholder={hints.command} note="Run once by the shell; the log has its output" wide /></fieldset>
        </div>
        <section class="same" aria-label="The same as code">
          <h3>The same as code</h3>
          <CodeTabs label="The code" codes={{ curl: asCurl(request, server, withKey), 'Command line': asCommand(request), Python: asPython(request, server, withKey), TypeScript: asTypeScript(request, server, withKey) }} />
        </section>
      </div>
    </FormDialog>
  );
}

const NETWORKS: readonly Option[] = [
  ['', 'as template'], ['none', 'none'], ['allowlist', 'allowlist: what the rules allow'], ['observe', 'observe: all that is public, recorded'], ['open', 'open: all that is public'],
];

function NetworkFields({ fields, secrets }: { fields: Fields; secrets: readonly string[] }) {
  const mode = fields.network.value.value;
  const chosen = fields.secrets.value.value.split(',').filter(Boolean);
  const choose = (name: string, isChosen: boolean): void => {
    fields.secrets.error.value = '';
    fields.secrets.value.value = [...chosen.filter(one => one !== name), ...(isChosen ? [name] : [])].join(',');
  };
  return (
    <fieldset><legend>Network</legend><div class="fields">
      <SelectField label="Network" state={fields.network} options={NETWORKS} />
      {mode === 'allowlist' && <AreaField label="Allow" state={fields.allow} rows={3} note={RULE_NOTE} />}
      {(mode === 'allowlist' || mode === 'observe') && <AreaField label="Deny" state={fields.deny} rows={2} note="The same; it wins over what is allowed" />}
      {secrets.length > 0 && (
        <fieldset class="field"><legend>Secrets</legend>
          <div class="row">{secrets.map(name => <Check key={name} label={name} checked={chosen.includes(name)} onChange={isChosen => choose(name, isChosen)} />)}</div>
          <p class="note">The sandbox gets placeholders. The values are put in outside of it, for the hosts of each secret.</p>
          {fields.secrets.error.value && <p class="problem" role="alert">{fields.secrets.error.value}</p>}
        </fieldset>
      )}
    </div></fieldset>
  );
}

/** What applies if a field is left empty. */
function placeholders(spec: Template['spec'] | undefined): Record<'cpu' | 'memory' | 'disk' | 'timeout' | 'idleTimeout' | 'command', string> {
  const none = 'as template';
  const resources = spec?.resources;
  return {
    cpu: resources?.cpu_millis ? cores(resources.cpu_millis) : none,
    memory: resources?.memory_bytes ? exactSize(resources.memory_bytes) : none,
    disk: resources?.disk_bytes ? exactSize(resources.disk_bytes) : none,
    timeout: spec ? (spec.timeout_seconds ? exactTime(spec.timeout_seconds) : 'unlimited') : none,
    idleTimeout: spec ? (spec.idle_timeout_seconds ? exactTime(spec.idle_timeout_seconds) : 'never') : none,
    command: spec ? (spec.args && spec.args.length > 0 ? spec.args.join(' ') : 'none') : none,
  };
}
