// Finding elements. Runs in an isolated world: what a page does to its globals is not visible here.

const MAX_FOUND = 10000;

const squeeze = text => (text ?? '').replace(/[\s\u00a0\u200b]+/g, ' ').trim();

// All elements below a root, those in open shadow trees too, in the order of the document.
function* below(root) {
  const walker = document.createTreeWalker(root, NodeFilter.SHOW_ELEMENT);
  for (let node = walker.nextNode(); node; node = walker.nextNode()) {
    yield node;
    if (node.shadowRoot) yield* below(node.shadowRoot);
  }
}

// The roots of trees: the document's, and open shadow trees in it.
function trees(root) {
  const found = [root];
  for (const element of below(root)) if (element.shadowRoot) found.push(element.shadowRoot);
  return found;
}

function visible(element) {
  if (!element.isConnected) return false;
  const style = getComputedStyle(element);
  if (style.display === 'contents') return [...element.children].some(visible);
  if (style.visibility !== 'visible') return false;
  const box = element.getBoundingClientRect();
  return box.width > 0 && box.height > 0;
}

const SILENT = 'script, style, noscript, template';

// What an element says: its text, or what is on it.
function said(element) {
  if (element.tagName === 'INPUT' && ['submit', 'button', 'reset'].includes(element.type)) return element.value;
  if (!element.querySelector(SILENT)) return element.textContent;
  const texts = document.createTreeWalker(element, NodeFilter.SHOW_TEXT);
  let text = '';
  while (texts.nextNode()) if (!texts.currentNode.parentElement?.closest(SILENT)) text += texts.currentNode.data;
  return text;
}

function matcher(wanted) {
  const quoted = /^(["'])(.*)\1$/s.exec(wanted);
  if (quoted) {
    const exact = squeeze(quoted[2]);
    return element => squeeze(said(element)) === exact;
  }
  const pattern = /^\/(.+)\/([a-z]*)$/s.exec(wanted);
  if (pattern) {
    const regex = new RegExp(pattern[1], pattern[2].replace('g', ''));
    return element => regex.test(squeeze(said(element)));
  }
  const part = squeeze(wanted).toLowerCase();
  if (!part) throw new Error('the text to look for is empty');
  return element => squeeze(said(element)).toLowerCase().includes(part);
}

// The smallest elements with a text.
function byText(scope, wanted) {
  const matches = matcher(wanted);
  const skipped = new Set(['SCRIPT', 'STYLE', 'NOSCRIPT', 'TEMPLATE', 'HEAD', 'TITLE', 'HTML']);
  const all = [...below(scope)].filter(element => !skipped.has(element.tagName) && matches(element));
  const parents = new Set();
  for (const element of all) {
    for (let up = element.parentElement; up && !parents.has(up); up = up.parentElement) parents.add(up);
  }
  return all.filter(element => !parents.has(element));
}

function byXPath(scope, expression) {
  const result = document.evaluate(expression, scope, null, XPathResult.ORDERED_NODE_SNAPSHOT_TYPE, null);
  const found = [];
  for (let at = 0; at < result.snapshotLength && at < MAX_FOUND; at++) {
    const node = result.snapshotItem(at);
    const element = node.nodeType === Node.ELEMENT_NODE ? node : node.parentElement ?? node.ownerElement;
    if (element) found.push(element);
  }
  return found;
}

function byRole(scope, wanted) {
  const [, name, rest] = /^([\w-]+)(.*)$/s.exec(wanted) ?? [];
  if (!name) throw new Error(`"role=${wanted}" names no role`);
  const label = /\[\s*name\s*(\*?=)\s*(?:"([^"]*)"|'([^']*)'|\/(.+)\/([a-z]*)|([^\]]*))\s*(i?)\s*\]/.exec(rest);
  const says = element => {
    if (!label) return true;
    const own = nameOf(element);
    if (label[4] !== undefined) return new RegExp(label[4], label[5].replace('g', '')).test(own);
    const text = squeeze(label[2] ?? label[3] ?? label[6]);
    return label[1] === '*=' || label[7] ? own.toLowerCase().includes(text.toLowerCase()) : own === text;
  };
  return [...below(scope)].filter(element => roleOf(element) === name && says(element));
}

// CSS, and what Playwright adds to the end of it.
function byCss(scope, selector) {
  const added = /^(.*?):(has-text|text-is|text|visible)(?:\(\s*("(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*'|[^)]*)\s*\))?$/s.exec(selector);
  if (added && (added[2] === 'visible' || added[3] !== undefined)) {
    const base = byCss(scope, added[1] || '*');
    if (added[2] === 'visible') return base.filter(visible);
    const text = added[3].replace(/^(["'])(.*)\1$/s, '$2').replace(/\\(.)/g, '$1');
    if (added[2] === 'has-text') return base.filter(matcher(text));
    const smallest = new Set(byText(scope, added[2] === 'text' ? text : `"${text}"`));
    return base.filter(element => smallest.has(element));
  }
  const found = [];
  for (const tree of trees(scope)) {
    for (const element of tree.querySelectorAll(selector)) {
      if (found.push(element) >= MAX_FOUND) return found;
    }
  }
  return found;
}

function query(scope, part) {
  const engine = /^(css|xpath|text|role|id|data-testid|data-test-id|data-test|nth|visible)=(.*)$/s.exec(part);
  if (!engine) {
    if (/^(\/\/|\(\/\/|\.\.?\/)/.test(part)) return byXPath(scope, part);
    if (/^(["']).*\1$/s.test(part)) return byText(scope, part);
    return byCss(scope, part);
  }
  const [, kind, body] = engine;
  switch (kind) {
    case 'css': return byCss(scope, body);
    case 'xpath': return byXPath(scope, body);
    case 'text': return byText(scope, body);
    case 'role': return byRole(scope, body);
    default: return byCss(scope, `[${kind}="${CSS.escape(body)}"]`);
  }
}

// `a >> b` is b in a.
function parts(selector) {
  const found = [''];
  let quote = null;
  for (let at = 0; at < selector.length; at++) {
    const character = selector[at];
    if (quote === null && selector.startsWith('>>', at)) {
      found.push('');
      at++;
      continue;
    }
    if (quote === character) quote = null;
    else if (quote === null && (character === '"' || character === "'")) quote = character;
    found[found.length - 1] += character;
  }
  return found.map(part => part.trim());
}

function all(selector) {
  let found = [document];
  for (const part of parts(selector)) {
    if (!part) throw new Error('a part of the selector is empty');
    const nth = /^nth=(-?\d+)$/.exec(part);
    if (nth) found = [found.at(Number(nth[1]))].filter(Boolean);
    else if (part === 'visible=true') found = found.filter(visible);
    else found = [...new Set(found.flatMap(scope => query(scope, part)))].slice(0, MAX_FOUND);
  }
  return found.filter(node => node !== document);
}

// The first element that can be seen, else the first one; null: there is none.
function find(selector) {
  const found = all(selector);
  return found.find(visible) ?? found[0] ?? null;
}

const ROLES = {
  ARTICLE: 'article', ASIDE: 'complementary', BUTTON: 'button', DATALIST: 'listbox', DETAILS: 'group', DIALOG: 'dialog',
  FIELDSET: 'group', FIGURE: 'figure', FOOTER: 'contentinfo', FORM: 'form', H1: 'heading', H2: 'heading', H3: 'heading',
  H4: 'heading', H5: 'heading', H6: 'heading', HEADER: 'banner', HR: 'separator', IFRAME: 'iframe', IMG: 'img', LI: 'listitem',
  MAIN: 'main', METER: 'meter', NAV: 'navigation', OL: 'list', OPTION: 'option', OUTPUT: 'status', P: 'paragraph',
  PROGRESS: 'progressbar', SUMMARY: 'button', TABLE: 'table', TBODY: 'rowgroup', TD: 'cell', TEXTAREA: 'textbox',
  TH: 'columnheader', TR: 'row', UL: 'list',
};
const INPUT_ROLES = {
  button: 'button', checkbox: 'checkbox', image: 'button', number: 'spinbutton', radio: 'radio', range: 'slider',
  reset: 'button', search: 'searchbox', submit: 'button',
};

function roleOf(element) {
  const own = element.getAttribute('role')?.trim().split(/\s+/)[0];
  if (own) return own;
  switch (element.tagName) {
    case 'A': case 'AREA': return element.hasAttribute('href') ? 'link' : 'generic';
    case 'INPUT': return INPUT_ROLES[element.type] ?? (element.hasAttribute('list') ? 'combobox' : 'textbox');
    case 'SELECT': return element.multiple || element.size > 1 ? 'listbox' : 'combobox';
    default: return ROLES[element.tagName] ?? (element.isContentEditable ? 'textbox' : 'generic');
  }
}

// What a person would call it.
function nameOf(element) {
  const by = element.getAttribute('aria-labelledby');
  if (by) {
    const root = element.getRootNode();
    const text = squeeze(by.split(/\s+/).map(id => root.getElementById?.(id)?.textContent ?? '').join(' '));
    if (text) return text;
  }
  const choices = [() => element.getAttribute('aria-label')];
  if (element.labels?.length) choices.push(() => [...element.labels].map(label => label.textContent).join(' '));
  if (element.tagName === 'INPUT' && ['submit', 'button', 'reset'].includes(element.type)) choices.push(() => element.value);
  choices.push(() => element.getAttribute('alt'));
  if (!['INPUT', 'SELECT', 'TEXTAREA', 'IFRAME'].includes(element.tagName)) {
    choices.push(() => element.innerText ?? element.textContent, () => element.querySelector('img[alt]')?.alt);
  }
  choices.push(() => element.getAttribute('title'), () => element.getAttribute('placeholder'), () => element.getAttribute('name'));
  for (const choice of choices) {
    const text = squeeze(choice());
    if (text) return text.slice(0, 200);
  }
  return '';
}
