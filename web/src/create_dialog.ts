// The dialog that creates sandboxes with all settings, and shows the same as code.

import { Refused, call } from './api';
import { type CreateField, type CreateForm, type CreateRequest, MOST_AT_ONCE, asCommand, asCurl, asPython, createRequest, refusedField } from './create_request';
import { make } from './dom';
import { Field, Pairs, button, copyButton, dialog, refusalNodes, select, textInput } from './forms';
import { cores, exactSize, exactTime } from './quantities';

/** A spec, as far as the dialog shows it. */
export interface Spec {
  image: string;
  args: string[];
  env: Record<string, string>;
  labels: Record<string, string>;
  resources: { memory_bytes: number; cpu_millis: number; disk_bytes: number; pids: number; shm_bytes: number };
  network: string;
  timeout_seconds: number | null;
  idle_timeout_seconds: number | null;
  idle_policy: 'delete' | 'pause';
}

export interface Template {
  name: string;
  description: string;
  spec: Spec;
}

export interface Choices {
  images: string[];
  templates: Template[];
}

export interface Created {
  name: string;
  stages: { ms: number }[];
}

const CODES = { curl: 'curl', command: 'Command line', python: 'Python' } as const;
type Code = keyof typeof CODES;

/** A key that makes a repeated create find what the first one made. */
function idempotencyKey(): string {
  return [...crypto.getRandomValues(new Uint8Array(16))].map(byte => byte.toString(16).padStart(2, '0')).join('');
}

export class CreateDialog {
  private readonly server: string;
  private readonly withKey: boolean;
  private readonly done: (made: Created[]) => void;
  private readonly choices: Choices;
  private readonly node: HTMLDialogElement;
  private readonly fields: { [field in CreateField]: Field<HTMLInputElement | HTMLSelectElement> | Pairs };
  private readonly problem = make('p', { className: 'bad', role: 'alert', hidden: true });
  private readonly code = make('pre', { tabIndex: 0, ariaLabel: 'The same as code' });
  private readonly codeTabs = new Map<Code, HTMLButtonElement>();
  private readonly send = make('button', { className: 'primary', textContent: 'Create' });
  private shown: Code = 'curl';
  /** The last request that got no answer, and its key. */
  private unanswered: { body: string; key: string } | null = null;

  /** `withKey`: the server asks for a key. `done` gets what was created. */
  constructor(choices: Choices, server: string, withKey: boolean, done: (made: Created[]) => void) {
    this.choices = choices;
    this.server = server;
    this.withKey = withKey;
    this.done = done;
    const draw = (): void => this.drawCode();
    const templates = [['', 'default'], ...choices.templates.map(template => [template.name, template.name])] as [string, string][];
    const images = [['', 'as template'], ...choices.images.map(image => [image, image])] as [string, string][];
    // An engine may keep no list of images.
    const image = choices.images.length > 0 ? select(images) : textInput({ placeholder: 'as template' });
    const fields = {
      name: new Field('Name', textInput({ placeholder: 'generated', maxLength: 63, autofocus: true })),
      template: new Field('Template', select(templates)),
      image: new Field('Image', image),
      count: new Field('Number', textInput({ placeholder: '1', inputMode: 'numeric' }), `Up to ${MOST_AT_ONCE} equal ones`),
      cpu: new Field('CPU', textInput({ inputMode: 'decimal' }), 'Cores, such as 0.5'),
      memory: new Field('Memory', textInput(), 'Such as 512MiB'),
      disk: new Field('Disk', textInput(), 'Such as 10GiB'),
      network: new Field('Network', select([['', 'as template'], ['open', 'internet'], ['none', 'none']])),
      env: new Pairs('Environment', 'variable', draw),
      labels: new Pairs('Labels', 'label', draw),
      timeout: new Field('Lifetime', textInput(), 'Such as 2h; 0 is unlimited'),
      idleTimeout: new Field('Idle timeout', textInput(), 'Time without a call'),
      idlePolicy: new Field('When idle', select([['', 'as template'], ['delete', 'delete it'], ['pause', 'pause it']])),
      command: new Field('Main command', textInput({ placeholder: 'none' }), 'Run once by the shell; the log has its output'),
    };
    this.fields = fields;
    const group = (legend: string, ...boxes: HTMLElement[]): HTMLElement => make('fieldset', {}, make('legend', { textContent: legend }), make('div', { className: 'grid' }, ...boxes));
    const form = make('form', { noValidate: true },
      group('Sandbox', fields.name.box, fields.count.box, fields.template.box, fields.image.box),
      group('Resources', fields.cpu.box, fields.memory.box, fields.disk.box, fields.network.box),
      fields.env.box,
      group('Time', fields.timeout.box, fields.idleTimeout.box, fields.idlePolicy.box),
      fields.labels.box,
      group('Program', fields.command.box));
    fields.command.box.classList.add('whole');
    form.id = 'create-form';
    this.send.setAttribute('form', form.id);
    form.addEventListener('input', draw);
    form.addEventListener('submit', event => {
      event.preventDefault();
      void this.submit();
    });
    fields.template.input.addEventListener('change', () => this.showDefaults());
    const buttons = make('div', { className: 'buttons' }, button('Cancel', () => this.node.close()), this.send);
    this.node = dialog('Create sandboxes', make('div', { className: 'create-parts' }, form, this.codeBox()), this.problem, buttons);
    this.node.classList.add('wide', 'create');
    this.node.id = 'create-dialog';
    this.showDefaults();
    this.drawCode();
  }

  /** `name`: what was already entered. */
  open(name: string): void {
    this.input('name').value = name;
    this.drawCode();
    this.node.showModal();
  }

  private input(field: CreateField): HTMLInputElement | HTMLSelectElement {
    return (this.fields[field] as Field<HTMLInputElement | HTMLSelectElement>).input;
  }

  private form(): CreateForm {
    return Object.fromEntries(Object.entries(this.fields).map(([field, { value }]) => [field, value])) as unknown as CreateForm;
  }

  /** Placeholders show what applies if a field is left empty. */
  private showDefaults(): void {
    const chosen = this.input('template').value || 'default';
    const spec = this.choices.templates.find(template => template.name === chosen)?.spec;
    const texts: Partial<Record<CreateField, string>> = spec ? {
      cpu: cores(spec.resources.cpu_millis),
      memory: exactSize(spec.resources.memory_bytes),
      disk: exactSize(spec.resources.disk_bytes),
      timeout: spec.timeout_seconds ? exactTime(spec.timeout_seconds) : 'unlimited',
      idleTimeout: spec.idle_timeout_seconds ? exactTime(spec.idle_timeout_seconds) : 'never',
      command: spec.args.length > 0 ? spec.args.join(' ') : 'none',
    } : {};
    for (const field of ['cpu', 'memory', 'disk', 'timeout', 'idleTimeout', 'command'] as const) {
      (this.input(field) as HTMLInputElement).placeholder = texts[field] ?? 'as template';
    }
    const first = (field: CreateField, text: string): void => {
      const input = this.input(field);
      if (input instanceof HTMLSelectElement) input.options[0]!.textContent = text;
      else input.placeholder = text;
    };
    first('image', spec ? `${spec.image} (default)` : 'as template');
    first('idlePolicy', spec ? `${spec.idle_policy} it (default)` : 'as template');
  }

  private codeBox(): HTMLElement {
    const tabs = make('div', { className: 'segments', role: 'group', ariaLabel: 'Language' });
    for (const [code, text] of Object.entries(CODES) as [Code, string][]) {
      const tab = button(text, () => {
        this.shown = code;
        this.drawCode();
      });
      this.codeTabs.set(code, tab);
      tabs.append(tab);
    }
    const heading = make('h3', { textContent: 'The same as code' });
    const copied = copyButton(() => this.code.textContent ?? '', this.code);
    copied.ariaLabel = 'Copy the code';
    return make('div', { className: 'same' }, heading, tabs, make('div', { className: 'code' }, this.code, copied));
  }

  private drawCode(): void {
    const { request } = createRequest(this.form());
    const code = { curl: asCurl, command: asCommand, python: asPython }[this.shown];
    this.code.textContent = code(request, this.server, this.withKey);
    for (const [name, tab] of this.codeTabs) tab.ariaPressed = String(name === this.shown);
  }

  private say(...content: Node[]): void {
    this.problem.replaceChildren(...content);
    this.problem.hidden = content.length === 0;
  }

  private async submit(): Promise<void> {
    const { request, errors } = createRequest(this.form());
    this.say();
    for (const [field, text] of Object.entries(errors)) this.fields[field as CreateField].error = text;
    const wrong = Object.keys(errors)[0] as CreateField | undefined;
    if (wrong) {
      this.focus(wrong);
      return;
    }
    this.send.disabled = true;
    this.send.textContent = 'Creating …';
    try {
      const made = await this.create(request);
      this.node.close();
      this.done(made);
    } catch (error) {
      this.refused(error as Error);
    } finally {
      this.send.disabled = false;
      this.send.textContent = 'Create';
    }
  }

  private async create(request: CreateRequest): Promise<Created[]> {
    const body = JSON.stringify(request);
    const key = this.unanswered?.body === body ? this.unanswered.key : idempotencyKey();
    this.unanswered = { body, key };
    try {
      const answer = await call<Created | { sandboxes: Created[] }>('POST', 'api/v2/sandboxes', request, { 'idempotency-key': key });
      this.unanswered = null;
      return 'sandboxes' in answer ? answer.sandboxes : [answer];
    } catch (error) {
      if (error instanceof Refused && error.status > 0 && error.status < 500) this.unanswered = null;
      throw error;
    }
  }

  /** Shows a refusal at the field that it is about. */
  private refused(error: Error): void {
    const field = error instanceof Refused ? refusedField(error) : null;
    if (field && error instanceof Refused) {
      this.fields[field].error = error.message;
      this.focus(field);
    } else {
      this.say(...refusalNodes(error));
      this.problem.scrollIntoView({ block: 'nearest' });
    }
  }

  private focus(field: CreateField): void {
    const shown = this.fields[field];
    (shown instanceof Pairs ? shown.box.querySelector('input') : shown.input)?.focus();
  }
}

/** Images and templates that a create can name. An engine may keep no list of images. */
export async function readChoices(): Promise<Choices> {
  const [images, templates] = await Promise.all([
    call<{ images: { name: string }[] }>('GET', 'api/v2/images').catch(() => ({ images: [] })),
    call<{ templates: Template[] }>('GET', 'api/v2/templates'),
  ]);
  return { images: images.images.map(image => image.name), templates: templates.templates };
}

/** The server's address as clients use it. */
export function serverAddress(): string {
  return location.href.replace(/[?#].*$/, '').replace(/\/(index\.html)?$/, '');
}

