'use strict';
// Names, images, reasons and bodies come from whoever uses the sandboxes: they reach the page as text nodes only.
const $ = id => document.getElementById(id);
const PERIOD = 4000;
const PAGE = 100;
const MOST_SHOWN = 20000;

function element(tag, properties, ...children) {
  const node = document.createElement(tag);
  Object.assign(node, properties);
  node.append(...children);
  return node;
}

async function call(method, path, body) {
  const options = { method, headers: {} };
  if (body !== undefined) {
    options.headers['content-type'] = 'application/json';
    options.body = JSON.stringify(body);
  }
  const answer = await fetch(path, options);
  const value = await answer.json().catch(() => null);
  // The session ended: the same address asks for a key.
  if (answer.status === 401) location.reload();
  if (!answer.ok) {
    const said = value && value.message ? value.message : `the server answered ${answer.status}`;
    throw new Error(value && value.hint ? `${said} (${value.hint})` : said);
  }
  return value;
}

function say(text, bad) {
  $('message').textContent = text;
  $('message').classList.toggle('bad', Boolean(bad));
}

function age(from) {
  const seconds = Math.max(0, (Date.now() - Date.parse(from)) / 1000);
  for (const [unit, size] of [['d', 86400], ['h', 3600], ['min', 60]]) {
    if (seconds >= size) return `${Math.floor(seconds / size)} ${unit}`;
  }
  return `${Math.floor(seconds)} s`;
}

function bytes(n) {
  for (const [unit, size] of [['TiB', 2 ** 40], ['GiB', 2 ** 30], ['MiB', 2 ** 20]]) {
    if (n >= size) return `${(n / size).toFixed(1)} ${unit}`;
  }
  return `${n} B`;
}

const busy = new Set();
let shown = [];

function row(sandbox, steps) {
  const { name, state } = sandbox;
  const button = (text, act, label) => {
    const node = element('button', { type: 'button', textContent: text, disabled: busy.has(name) });
    node.setAttribute('aria-label', `${label || text} ${name}`);
    node.dataset.key = `${text} ${name}`;
    node.addEventListener('click', act);
    return node;
  };
  const actions = element('td', { className: 'actions' });
  const base = `/sandbox/${encodeURIComponent(name)}/`;
  if (state === 'running' || state === 'paused') {
    actions.append(element('a', { href: `${base}terminal`, textContent: 'Terminal' }), element('a', { href: `${base}v1/docs`, textContent: 'API' }));
  }
  actions.append(button('Steps', () => openSteps(sandbox), 'Steps of'));
  if (state === 'running') actions.append(button('Pause', () => act(name, 'pausing', 'POST', '/pause')));
  if (state === 'paused') actions.append(button('Resume', () => act(name, 'resuming', 'POST', '/resume')));
  actions.append(button('Delete', () => confirmDelete(name)));
  const badge = element('span', { className: `state ${state}`, textContent: state });
  const stateCell = element('td', {}, badge);
  if (sandbox.reason) stateCell.append(element('small', { className: 'reason', textContent: sandbox.reason, title: sandbox.reason }));
  return element('tr', {},
    element('td', { className: 'name' }, element('strong', { textContent: name }), element('small', { textContent: sandbox.id })),
    stateCell,
    element('td', { className: 'image', textContent: sandbox.spec.image, title: sandbox.spec.image }),
    element('td', { className: 'number', textContent: age(sandbox.created_at), title: sandbox.created_at }),
    element('td', { className: 'number', textContent: steps === undefined ? '0' : String(steps) }),
    actions);
}

async function refresh() {
  const [list, recorded] = await Promise.all([call('GET', '/api/v2/sandboxes'), call('GET', '/api/v1/trajectories').catch(() => null)]);
  shown = list.sandboxes;
  const steps = new Map((recorded ? recorded.trajectories : []).map(t => [t.trajectory, t.steps]));
  // Whoever is at a button by keyboard stays there when its row is drawn anew.
  const focused = document.activeElement && document.activeElement.dataset.key;
  $('list').tBodies[0].replaceChildren(...shown.map(sandbox => row(sandbox, steps.get(sandbox.id))));
  if (focused) [...$('list').querySelectorAll('button')].find(b => b.dataset.key === focused)?.focus();
  $('list').hidden = shown.length === 0;
  $('none').hidden = shown.length > 0;
  const which = $('which');
  const chosen = which.value;
  const names = ['default', ...shown.map(s => s.name).filter(n => n !== 'default')];
  which.replaceChildren(...names.map(name => element('option', { value: name, textContent: name })));
  which.value = names.includes(chosen) ? chosen : names[0];
  example();
}

let timer = 0;
async function keepFresh() {
  clearTimeout(timer);
  if (document.hidden) return;
  try {
    await refresh();
    if ($('message').dataset.lost) { say(''); delete $('message').dataset.lost; }
  } catch (error) {
    say(`The server can't be reached: ${error.message}`, true);
    $('message').dataset.lost = 'yes';
  }
  timer = setTimeout(keepFresh, PERIOD);
}

async function act(name, doing, method, tail) {
  busy.add(name);
  say(`${name}: ${doing} …`);
  try {
    await call(method, `/api/v2/sandboxes/${encodeURIComponent(name)}${tail}`);
    say('');
  } catch (error) {
    say(error.message, true);
  }
  busy.delete(name);
  await keepFresh();
}

function confirmDelete(name) {
  const dialog = $('confirm');
  $('confirm-title').textContent = `Delete the sandbox ${name}?`;
  dialog.returnValue = 'no';
  dialog.addEventListener('close', () => { if (dialog.returnValue === 'yes') act(name, 'deleting', 'DELETE', ''); }, { once: true });
  dialog.showModal();
}

function example() {
  const name = $('which').value || 'default';
  const base = name === 'default' ? location.origin : `${location.origin}/sandbox/${name}`;
  $('curl').textContent = `curl ${base}/v1/bash/exec \\\n  -H 'content-type: application/json' \\\n  -d '{"command": "uname -a"}'`;
  $('python').textContent = `from agent_sandbox import Sandbox  # pip install agent-sandbox\n\nsandbox = Sandbox(base_url="${base}")\nprint(sandbox.bash.exec(command="uname -a").data.stdout)`;
}

// The steps of one sandbox.
let open = null;

function body(title, value) {
  if (value === null || value === undefined) return [];
  const [kind, content] = Object.entries(value)[0] || ['text', ''];
  let text = typeof content === 'string' ? content : JSON.stringify(content, null, 2);
  if (kind === 'blob') text = `${content.bytes} bytes, SHA-256 ${content.sha256}${content.kept ? '' : ', not kept'}`;
  if (text.length > MOST_SHOWN) text = `${text.slice(0, MOST_SHOWN)}\n… ${text.length - MOST_SHOWN} more characters; the export has them`;
  return [element('h3', { textContent: title }), element('pre', { textContent: text })];
}

function stepItem(step) {
  const outcome = step.outcome || 'under way';
  const details = element('details', {},
    element('summary', {},
      element('span', { className: 'number quiet', textContent: String(step.step) }),
      element('span', { className: 'quiet', textContent: step.dialect }),
      element('span', { textContent: step.action, title: step.action }),
      element('span', { className: outcome, textContent: step.status ? `${outcome} ${step.status}` : outcome }),
      element('span', { className: 'number quiet', textContent: step.duration_ms === null ? '' : `${step.duration_ms.toFixed(1)} ms` })));
  // Bodies are drawn when someone looks.
  details.addEventListener('toggle', () => {
    if (details.childElementCount > 1) return;
    details.append(...body('Arguments', step.arguments), ...body('Observation', step.observation));
    if (step.error) details.append(...body('Error', { text: step.error }));
    details.append(element('p', { className: 'quiet', textContent: `${step.started_at}, from ${step.origin || 'unknown'}` }));
  });
  return element('li', {}, details);
}

async function openSteps(sandbox) {
  open = { id: sandbox.id, after: 0, count: 0 };
  $('steps-title').textContent = `Steps of ${sandbox.name}`;
  $('export').href = `/api/v1/trajectories/${encodeURIComponent(sandbox.id)}?format=jsonl&bodies=inline`;
  $('export').download = `${sandbox.name}-${sandbox.id}.jsonl`;
  $('step-list').replaceChildren();
  $('steps').showModal();
  await moreSteps();
}

async function moreSteps() {
  const mine = open;
  $('more').hidden = true;
  $('step-end').textContent = 'reading …';
  try {
    const page = await call('GET', `/api/v1/trajectories/${encodeURIComponent(mine.id)}?after=${mine.after}&limit=${PAGE}`);
    if (mine !== open) return;
    $('step-list').append(...page.steps.map(stepItem));
    mine.count += page.steps.length;
    mine.after = page.next_after;
    $('more').hidden = page.next_after === null;
    $('step-end').textContent = page.next_after === null && mine.count === 0 ? 'Nothing was recorded yet.' : '';
  } catch (error) {
    if (mine === open) $('step-end').textContent = error.message;
  }
}

$('more').addEventListener('click', moreSteps);
$('close').addEventListener('click', () => $('steps').close());
$('steps').addEventListener('close', () => { open = null; });
$('which').addEventListener('change', example);
document.addEventListener('visibilitychange', keepFresh);
for (const button of document.querySelectorAll('[data-copy]')) {
  button.addEventListener('click', async () => {
    try {
      await navigator.clipboard.writeText($(button.dataset.copy).textContent);
      button.textContent = 'Copied';
    } catch {
      getSelection().selectAllChildren($(button.dataset.copy));
      button.textContent = 'Selected';
    }
    setTimeout(() => { button.textContent = 'Copy'; }, 1500);
  });
}

$('create').addEventListener('submit', async event => {
  event.preventDefault();
  const form = event.currentTarget;
  const request = {};
  if (form.elements.name.value.trim()) request.name = form.elements.name.value.trim();
  if (form.elements.template.value) request.template = form.elements.template.value;
  const submit = form.querySelector('button');
  submit.disabled = true;
  say('creating …');
  try {
    const made = await call('POST', '/api/v2/sandboxes', request);
    const took = made.stages.reduce((sum, stage) => sum + stage.ms, 0);
    say(`${made.name} is there${took ? `, made in ${took.toFixed(0)} ms` : ''}.`);
    form.elements.name.value = '';
  } catch (error) {
    say(error.message, true);
  }
  submit.disabled = false;
  await keepFresh();
});

async function about() {
  const [info, templates] = await Promise.all([call('GET', '/api/v2/info'), call('GET', '/api/v2/templates')]);
  const room = info.room ? `, ${bytes(info.room.memory_available_bytes)} memory and ${bytes(info.room.disk_available_bytes)} disk free` : '';
  $('about').textContent = `${info.version}, ${info.engine} engine${room}`;
  $('warnings').replaceChildren(...info.warnings.map(text => element('li', { textContent: text })));
  $('warnings').hidden = info.warnings.length === 0;
  $('create').elements.template.replaceChildren(...templates.templates.map(t =>
    element('option', { value: t.name, textContent: t.name, title: t.description })));
}

example();
about().catch(error => say(error.message, true));
keepFresh();
