// Reading pages.

const MAX_ELEMENTS = 2000;
const WIDGETS = new Set([
  'button', 'checkbox', 'combobox', 'gridcell', 'link', 'listbox', 'menuitem', 'menuitemcheckbox', 'menuitemradio', 'option',
  'radio', 'scrollbar', 'searchbox', 'slider', 'spinbutton', 'switch', 'tab', 'textbox', 'treeitem',
]);

// Numbers stay with their elements while the document lives.
const numbers = new WeakMap();
const byNumber = [];

function numberOf(element) {
  if (!numbers.has(element)) {
    numbers.set(element, byNumber.length);
    byNumber.push(new WeakRef(element));
  }
  return numbers.get(element);
}

function numbered(number) {
  const element = byNumber[number]?.deref();
  return element?.isConnected ? element : null;
}

function interactive(element) {
  if (WIDGETS.has(roleOf(element)) && element.tagName !== 'OPTION') return true;
  if (['SUMMARY', 'AUDIO', 'VIDEO'].includes(element.tagName)) return element.tagName === 'SUMMARY' || element.controls;
  if (element.isContentEditable) return !element.parentElement?.isContentEditable;
  if (element.hasAttribute('onclick') || (element.hasAttribute('tabindex') && element.tabIndex >= 0)) return true;
  if (element.tagName === 'LABEL' && element.control) return !visible(element.control);
  const pointer = getComputedStyle(element).cursor === 'pointer';
  return pointer && !(element.parentElement && getComputedStyle(element.parentElement).cursor === 'pointer');
}

const boxOf = element => {
  const { x, y, width, height } = element.getBoundingClientRect();
  return { x, y, width, height };
};

// The place of an element among those of its parent with the same name, and how many these are. Of a parent with many
// children all are counted at once.
function placeOf(element, counted) {
  const parent = element.parentElement;
  if (!parent) return [1, 1];
  if (!counted.has(parent)) {
    const [places, totals] = [new Map(), new Map()];
    for (const child of parent.children) {
      const place = (totals.get(child.localName) ?? 0) + 1;
      totals.set(child.localName, place);
      places.set(child, place);
    }
    counted.set(parent, [places, totals]);
  }
  const [places, totals] = counted.get(parent);
  return [places.get(element), totals.get(element.localName)];
}

// CSS that finds the element in its tree.
function selectorOf(element, counted) {
  const root = element.getRootNode();
  const steps = [];
  for (let at = element; at && at.nodeType === Node.ELEMENT_NODE; at = at.parentElement) {
    const id = at.id && `#${CSS.escape(at.id)}`;
    if (id && root.querySelectorAll(id).length === 1) {
      steps.unshift(id);
      break;
    }
    const tag = CSS.escape(at.localName);
    const [place, total] = placeOf(at, counted);
    steps.unshift(total > 1 ? `${tag}:nth-of-type(${place})` : tag);
    if (['BODY', 'HTML'].includes(at.tagName)) break;
  }
  return steps.join(' > ');
}

function elements() {
  const [found, counted] = [[], new Map()];
  for (const element of below(document)) {
    if (!interactive(element) || !visible(element)) continue;
    const kind = inputKind(element);
    const described = {
      number: numberOf(element),
      tag: element.localName,
      role: roleOf(element),
      name: nameOf(element),
      text: kind === 'none' ? squeeze(element.innerText).slice(0, 200) : '',
      disabled: disabled(element),
      selector: selectorOf(element, counted),
      box: boxOf(element),
    };
    if (element.tagName === 'INPUT' || element.tagName === 'BUTTON') described.type = element.type;
    // What is secret stays in the page.
    if (kind !== 'none' && element.type !== 'password' && element.type !== 'file') {
      described.value = String(element.value ?? element.innerText ?? '').slice(0, 1000);
    }
    if (element.href) described.href = String(element.href).slice(0, 2000);
    const checked = setChecked(element);
    if (checked !== null) described.checked = checked;
    if (found.push(described) >= MAX_ELEMENTS) break;
  }
  return found;
}

// Where the page's links lead, and what they are called; each once.
function links() {
  const [found, known] = [[], new Set()];
  for (const element of below(document)) {
    if (!['A', 'AREA'].includes(element.tagName) || !element.href || element.protocol === 'javascript:') continue;
    if (element.tagName === 'A' && !visible(element)) continue;
    const link = { text: nameOf(element), href: element.href.slice(0, 2000) };
    const key = `${link.href} ${link.text}`;
    if (known.has(key)) continue;
    known.add(key);
    if (found.push(link) >= MAX_ELEMENTS) break;
  }
  return found;
}

function findText(keyword, limit) {
  const [wanted, counted] = [squeeze(keyword).toLowerCase(), new Map()];
  return byText(document, keyword.replace(/^(["'/])/, ' $1')).filter(visible).slice(0, limit).map(element => {
    const text = squeeze(element.innerText ?? element.textContent);
    const at = Math.max(0, text.toLowerCase().indexOf(wanted) - 80);
    return { text: text.slice(at, at + 200), tag: element.localName, selector: selectorOf(element, counted), box: boxOf(element) };
  });
}

// What the page shows, and what open shadow trees in it show.
function text() {
  const shadows = trees(document).slice(1).flatMap(tree => [...tree.children].filter(visible).map(element => element.innerText ?? ''));
  return [document.body?.innerText ?? document.documentElement?.textContent ?? '', ...shadows].filter(Boolean).join('\n');
}

// The page's main content as plain HTML: what is shown, with whole addresses, without what stands around it.
function main(limit) {
  const body = document.body;
  if (!body) return '';
  const length = element => (element.innerText ?? '').length;
  const whole = length(body);
  const content = [...document.querySelectorAll('main, [role="main"], article')]
    .filter(visible)
    .map(element => [length(element), element])
    .sort((one, other) => other[0] - one[0])[0];
  const chosen = content && content[0] >= whole / 4 ? content[1] : body;
  const around = new Set(['NAV', 'FOOTER', 'ASIDE', ...(chosen === body ? ['HEADER'] : [])]);
  const html = plain(chosen, around, limit);
  return chosen !== body || /[^\s<>]{2}/.test(html.replace(/<[^>]*>/g, '')) ? html : plain(body, new Set(), limit);
}

const DROPPED = new Set(['SCRIPT', 'STYLE', 'NOSCRIPT', 'TEMPLATE', 'IFRAME', 'OBJECT', 'CANVAS', 'SVG', 'LINK', 'META', 'DIALOG']);
const EMPTY = new Set(['BR', 'HR', 'IMG', 'INPUT', 'WBR']);
const escaped = text => text.replace(/&/g, '&amp;').replace(/</g, '&lt;').replace(/>/g, '&gt;').replace(/"/g, '&quot;');

function plain(root, around, limit) {
  let html = '';
  // A separate stack: documents may be deeper than calls can be.
  const stack = [root];
  while (stack.length && html.length < limit) {
    const node = stack.pop();
    if (typeof node === 'string') {
      html += node;
    } else if (node.nodeType === Node.TEXT_NODE) {
      html += escaped(node.data);
    } else if (node.nodeType === Node.ELEMENT_NODE) {
      const tag = node.tagName.toUpperCase();
      if (node !== root && (DROPPED.has(tag) && !(tag === 'DIALOG' && node.open) || around.has(tag))) continue;
      const style = getComputedStyle(node);
      if (style.display === 'none' || style.visibility === 'hidden' || node.getAttribute('aria-hidden') === 'true') continue;
      const name = node.localName.includes('-') ? 'div' : node.localName;
      let open = `<${name}`;
      for (const attribute of ['href', 'src']) {
        if (node.hasAttribute(attribute)) open += ` ${attribute}="${escaped(String(node[attribute] ?? ''))}"`;
      }
      for (const attribute of ['alt', 'colspan', 'rowspan', 'start', 'class']) {
        const value = attribute === 'class' && name !== 'code' ? null : node.getAttribute(attribute);
        if (value) open += ` ${attribute}="${escaped(value)}"`;
      }
      html += `${open}>`;
      if (EMPTY.has(tag)) continue;
      stack.push(`</${name}>`);
      const inside = node.shadowRoot ?? node;
      const assigned = tag === 'SLOT' ? node.assignedNodes() : [];
      stack.push(...[...(assigned.length ? assigned : inside.childNodes)].reverse());
    }
  }
  return html + stack.reverse().filter(node => typeof node === 'string').join('');
}

// Known captchas: what stands in the page for each, and where it leaves its answer.
const CAPTCHAS = [
  ['recaptcha', '.g-recaptcha, iframe[src*="/recaptcha/api"], iframe[src*="/recaptcha/enterprise"]', '[name="g-recaptcha-response"]'],
  ['hcaptcha', '.h-captcha, iframe[src*="hcaptcha.com"], iframe[src*="hcaptcha.html"]', '[name="h-captcha-response"]'],
  ['turnstile', '.cf-turnstile, iframe[src*="challenges.cloudflare.com"], iframe[src*="/turnstile/"]', '[name="cf-turnstile-response"]'],
  ['cloudflare', '#challenge-running, #challenge-stage, #cf-challenge-running', null],
  ['funcaptcha', '#FunCaptcha, iframe[src*="arkoselabs.com"], iframe[src*="funcaptcha"]', '[name="fc-token"]'],
  ['geetest', '.geetest_captcha, .geetest_holder, .geetest_widget', '[name="geetest_validate"]'],
  ['aws-waf', '#captcha-container awswaf-captcha, awswaf-captcha', null],
  ['datadome', 'iframe[src*="captcha-delivery.com"]', null],
  ['friendly-captcha', '.frc-captcha', '[name="frc-captcha-solution"]'],
  ['mtcaptcha', '.mtcaptcha', '[name="mtcaptcha-verifiedtoken"]'],
  ['image', 'img[src*="captcha" i], img[id*="captcha" i], img[alt*="captcha" i]', null],
];

function widgets() {
  const found = [];
  for (const [type, selector, answer] of CAPTCHAS) {
    const shown = byCss(document, selector).filter(element => visible(element) || element.querySelector('iframe'));
    if (!shown.length) continue;
    const solved = answer && byCss(document, answer).some(field => field.value);
    if (solved) continue;
    const outer = shown.filter(element => !shown.some(other => other !== element && other.contains(element)));
    // The badge in a corner asks nobody anything.
    const asking = outer.filter(element => !element.closest('.grecaptcha-badge') && element.getAttribute('data-size') !== 'invisible');
    for (const element of asking.slice(0, 20)) {
      const source = element.src || element.querySelector('iframe')?.src || location.href;
      found.push({ type, url: String(source).slice(0, 2000), box: boxOf(element) });
    }
  }
  return found;
}

function storage() {
  const read = kind => {
    try {
      return Object.entries({ ...globalThis[kind] }).map(([name, value]) => ({ name, value }));
    } catch {
      return [];
    }
  };
  return { origin: location.origin, localStorage: read('localStorage'), sessionStorage: read('sessionStorage') };
}

function setStorage(kind, items) {
  globalThis[kind].clear();
  for (const { name, value } of items) globalThis[kind].setItem(name, value);
}
