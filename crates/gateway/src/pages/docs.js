'use strict';
const $ = id => document.getElementById(id);
const METHODS = ['get', 'post', 'put', 'patch', 'delete', 'head', 'options'];
const DEEPEST = 6;
let spec = null;

function element(tag, properties, ...children) {
  const node = document.createElement(tag);
  Object.assign(node, properties);
  node.append(...children);
  return node;
}

/** Text whose words in backticks are code. */
function prose(tag, text, className = '') {
  // A paragraph's lines are broken for their source; what stays apart are paragraphs and the items of lists.
  const parts = text.replace(/([^\n])\n(?![\n*-]|\d+\.)/g, '$1 ').split(/`([^`]+)`/);
  return element(tag, { className }, ...parts.map((part, i) => i % 2 ? element('code', { textContent: part }) : part));
}

/** Follows references, of which a document may have circles. */
function resolve(schema) {
  for (let i = 0; i < 20 && schema && schema.$ref; i += 1) {
    schema = schema.$ref.slice(2).split('/').reduce((at, key) => at && at[key.replaceAll('~1', '/').replaceAll('~0', '~')], spec);
  }
  return schema || {};
}

function nameOf(schema) {
  return schema && schema.$ref ? schema.$ref.split('/').pop() : '';
}

/** A schema's branches without null, and whether null is among them. */
function branches(schema) {
  const all = schema.oneOf || schema.anyOf || schema.allOf;
  return all ? all.filter(s => s.type !== 'null') : null;
}

function type(schema, depth = 0) {
  if (!schema || depth > 4) return '…';
  if (nameOf(schema)) {
    const whole = resolve(schema);
    return whole.enum ? whole.enum.map(v => JSON.stringify(v)).join(' | ') : whole.type && whole.type !== 'object' ? type(whole, depth + 1) : nameOf(schema);
  }
  if (schema.enum) return schema.enum.map(v => JSON.stringify(v)).join(' | ');
  if (schema.const !== undefined) return JSON.stringify(schema.const);
  const several = branches(schema);
  if (several) return several.map(s => type(s, depth + 1)).join(schema.allOf ? ' & ' : ' | ');
  const kinds = [].concat(schema.type || 'any').filter(t => t !== 'null');
  return kinds.map(kind => {
    if (kind === 'array') return `${type(schema.items, depth + 1)}[]`;
    if (kind === 'object' && schema.additionalProperties && schema.additionalProperties !== true) return `{ text: ${type(schema.additionalProperties, depth + 1)} }`;
    if (kind === 'string' && schema.format) return schema.format;
    return kind;
  }).join(' | ');
}

/** The object schemas within: what a fold shows further down. */
function objects(schema) {
  if (!schema) return [];
  const whole = resolve(schema);
  if (whole.properties) return [[nameOf(schema) || whole.title || 'object', whole]];
  if (whole.items) return objects(whole.items);
  if (whole.additionalProperties && typeof whole.additionalProperties === 'object') return objects(whole.additionalProperties);
  return (branches(whole) || []).flatMap(objects);
}

function bounds(schema) {
  const words = [];
  if (schema.default !== undefined && schema.default !== null) words.push(`default ${JSON.stringify(schema.default)}`);
  if (schema.minimum !== undefined) words.push(`from ${schema.minimum}`);
  if (schema.maximum !== undefined) words.push(`to ${schema.maximum}`);
  if (schema.deprecated) words.push('deprecated');
  return words.join(', ');
}

function line(name, schema, needed, about) {
  const whole = resolve(schema);
  const text = [about || schema.description || whole.description || '', bounds({ ...whole, ...schema })].filter(Boolean).join(' · ');
  return element('tr', {},
    element('td', { textContent: name, className: needed ? 'needed' : '' }),
    element('td', { textContent: type(schema) }),
    prose('td', text));
}

function fields(schema, depth = 0, seen = []) {
  const nodes = [];
  for (const [name, whole] of objects(schema)) {
    const needed = new Set(whole.required || []);
    const entries = Object.entries(whole.properties);
    if (objects(schema).length > 1) nodes.push(element('p', { className: 'quiet', textContent: name }));
    nodes.push(element('table', {}, element('tbody', {}, ...entries.map(([key, s]) => line(key, s, needed.has(key))))));
    if (depth >= DEEPEST) continue;
    for (const [key, inner] of entries) {
      const names = objects(inner).map(([n]) => n);
      if (!names.length || names.some(n => seen.includes(n))) continue;
      const fold = element('details', {}, element('summary', { textContent: `${key}: ${names.join(' | ')}` }));
      // Drawn when it is opened: documents nest deeply.
      fold.addEventListener('toggle', () => { if (fold.childElementCount === 1) fold.append(...fields(inner, depth + 1, [...seen, ...names])); });
      nodes.push(fold);
    }
  }
  return nodes;
}

function sample(schema, name = '', depth = 0) {
  const whole = resolve(schema);
  if (schema && schema.example !== undefined) return schema.example;
  if (whole.example !== undefined) return whole.example;
  if (whole.default !== undefined && whole.default !== null) return whole.default;
  if (whole.enum) return whole.enum[0];
  const several = branches(whole);
  if (several && several.length) return sample(several[0], name, depth + 1);
  const kind = [].concat(whole.type || 'object').find(t => t !== 'null');
  if (kind === 'integer' || kind === 'number') return whole.minimum || 1;
  if (kind === 'boolean') return false;
  if (kind === 'array') return depth > 3 ? [] : [sample(whole.items, name, depth + 1)];
  if (kind === 'string') return { command: 'echo hello', cmd: 'echo hello', file: '/tmp/file.txt', path: '/tmp', content: 'hello' }[name] || 'text';
  const value = {};
  const needed = whole.required || [];
  for (const key of needed) if (depth <= 3 && whole.properties) value[key] = sample(whole.properties[key], key, depth + 1);
  return value;
}

const quoted = text => `'${text.replaceAll("'", "'\\''")}'`;

function curl(method, path, operation, server) {
  const parameters = (operation.parameters || []).map(resolve);
  let url = path;
  const query = [];
  for (const p of parameters) {
    const value = encodeURIComponent(String(sample(p.schema || {}, p.name)));
    if (p.in === 'path') url = url.replace(`{${p.name}}`, value);
    if (p.in === 'query' && p.required) query.push(`${p.name}=${value}`);
  }
  url = server + url + (query.length ? `?${query.join('&')}` : '');
  const words = [`curl${method === 'get' ? '' : ` -X ${method.toUpperCase()}`} ${/[?&{}]/.test(url) ? quoted(url) : url}`];
  const content = (resolve(operation.requestBody) || {}).content || {};
  if (content['application/json']) {
    words.push("-H 'content-type: application/json'", `-d ${quoted(JSON.stringify(sample(content['application/json'].schema)))}`);
  } else if (content['multipart/form-data']) {
    words.push('-F path=/tmp/file.txt', '-F file=@file.txt');
  }
  return words.join(' \\\n  ');
}

function operationNode({ id, method, path, operation }, server) {
  const node = element('article', { id },
    element('h3', {}, element('span', { className: `method ${method}`, textContent: method }), element('a', { href: `#${id}`, textContent: path })));
  const said = [operation.summary, operation.description].filter((text, i, all) => text && all.indexOf(text) === i);
  for (const text of said) node.append(prose('p', text));
  const parameters = (operation.parameters || []).map(resolve);
  if (parameters.length) {
    node.append(element('h4', { textContent: 'Parameters' }),
      element('table', {}, element('tbody', {}, ...parameters.map(p => line(`${p.name} (${p.in})`, p.schema || {}, p.required, p.description)))));
  }
  const body = operation.requestBody && resolve(operation.requestBody);
  for (const [kind, { schema }] of Object.entries(body ? body.content || {} : {})) {
    node.append(element('h4', { textContent: `Request body: ${kind}` }), ...fields(schema));
  }
  for (const [status, given] of Object.entries(operation.responses || {})) {
    const answer = resolve(given);
    const contents = Object.entries(answer.content || {});
    const kinds = contents.map(([kind]) => kind).join(', ');
    const fold = element('details', {}, element('summary', { textContent: ['Answer', status, answer.description, kinds].filter(Boolean).join(' · ') }));
    fold.addEventListener('toggle', () => {
      if (fold.childElementCount === 1) fold.append(...contents.flatMap(([, c]) => c.schema ? [element('p', { className: 'quiet', textContent: type(c.schema) }), ...fields(c.schema)] : []));
    });
    node.append(fold);
  }
  node.append(element('h4', { textContent: 'Example' }), element('pre', { textContent: curl(method, path, operation, server) }));
  return node;
}

function draw() {
  const server = ((spec.servers || [])[0] || {}).url || location.origin;
  document.title = `${spec.info.title} API`;
  $('title').textContent = `${spec.info.title} ${spec.info.version}`;
  $('server').textContent = server;
  const all = [];
  for (const [path, item] of Object.entries(spec.paths || {})) {
    for (const method of METHODS) if (item[method]) all.push({ method, path, operation: item[method], id: item[method].operationId || `${method}${path}` });
  }
  const tags = (spec.tags || []).map(t => t.name);
  for (const { operation } of all) for (const tag of operation.tags || ['other']) if (!tags.includes(tag)) tags.push(tag);
  const about = new Map((spec.tags || []).map(t => [t.name, t.description || '']));
  const content = [];
  if (spec.info.description) content.push(prose('p', spec.info.description, 'quiet'));
  const index = [];
  for (const tag of tags) {
    const its = all.filter(o => (o.operation.tags || ['other'])[0] === tag);
    if (!its.length) continue;
    content.push(element('h2', { textContent: tag }), element('p', { className: 'quiet', textContent: about.get(tag) || '' }), ...its.map(o => operationNode(o, server)));
    const group = element('div', {}, element('h2', { textContent: tag }));
    for (const { id, method, path, operation } of its) {
      const link = element('a', { href: `#${id}`, title: operation.summary || path },
        element('span', { className: `method ${method}`, textContent: method }), element('span', { textContent: path.replace(/^\/v1/, '') }));
      link.dataset.text = `${method} ${path} ${tag} ${operation.summary || ''} ${operation.description || ''}`.toLowerCase();
      group.append(link);
    }
    index.push(group);
  }
  $('content').replaceChildren(...content);
  $('index').replaceChildren(...index);
  if (location.hash) document.getElementById(decodeURIComponent(location.hash.slice(1)))?.scrollIntoView();
}

let chosen = null;
function choose(link) {
  chosen?.classList.remove('chosen');
  chosen = link;
  chosen?.classList.add('chosen');
  chosen?.scrollIntoView({ block: 'nearest' });
}

function filter() {
  const words = $('search').value.toLowerCase().split(/\s+/).filter(Boolean);
  for (const group of $('index').children) {
    const links = [...group.querySelectorAll('a')];
    for (const link of links) link.hidden = !words.every(word => link.dataset.text.includes(word));
    group.hidden = links.every(link => link.hidden);
  }
  choose(words.length ? visible()[0] || null : null);
}

const visible = () => [...$('index').querySelectorAll('a')].filter(link => !link.hidden);

$('search').addEventListener('input', filter);
$('search').addEventListener('keydown', event => {
  const links = visible();
  const at = links.indexOf(chosen);
  if (event.key === 'ArrowDown') choose(links[Math.min(at + 1, links.length - 1)] || null);
  else if (event.key === 'ArrowUp') choose(links[Math.max(at - 1, 0)] || null);
  else if (event.key === 'Enter' && chosen) chosen.click();
  else if (event.key === 'Escape') { $('search').value = ''; filter(); $('search').blur(); }
  else return;
  event.preventDefault();
});
document.addEventListener('keydown', event => {
  const typing = event.target.closest('input, textarea, select');
  if (!typing && !event.ctrlKey && !event.metaKey && !event.altKey && event.key === '/') {
    event.preventDefault();
    $('search').focus();
    $('search').select();
  }
});

fetch('openapi.json').then(answer => {
  if (!answer.ok) throw new Error(`the server answered ${answer.status}`);
  return answer.json();
}).then(document => { spec = document; draw(); }).catch(error => {
  $('content').replaceChildren(element('p', { textContent: `The document could not be read: ${error.message}` }));
});
