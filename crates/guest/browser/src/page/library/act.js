// Getting elements ready for hands, and changing what hands can't.

const frame = () => new Promise(done => {
  // A page that is not drawn has no frames.
  const late = setTimeout(done, 100);
  requestAnimationFrame(() => { clearTimeout(late); done(); });
});

function disabled(element) {
  return element.matches(':disabled') || element.closest('[aria-disabled="true"]') !== null;
}

// Whether hands can use it, and if not, why: `detached`, `hidden`, `moving`, `disabled`.
async function ready(element) {
  if (!element.isConnected) return 'detached';
  if (!visible(element)) return 'hidden';
  if (disabled(element)) return 'disabled';
  const before = element.getBoundingClientRect();
  await frame();
  await frame();
  if (!element.isConnected) return 'detached';
  const after = element.getBoundingClientRect();
  const same = ['x', 'y', 'width', 'height'].every(side => before[side] === after[side]);
  return same ? 'ready' : 'moving';
}

// Whether a click on `hit` is one on the element.
function hits(element, hit) {
  if (element.tagName === 'IFRAME') return true;
  for (let up = hit; up; up = up.assignedSlot ?? up.parentNode ?? up.host) {
    if (up === element || (up.tagName === 'LABEL' && up.control === element)) return true;
  }
  // A label's click goes to its control.
  const label = element.closest?.('label');
  return Boolean(label?.contains(hit)) || (element.tagName === 'LABEL' && element.control === hit);
}

// What an element takes: `text`, `value` (set as a whole), `select`, `check`, `file` or `none`.
function inputKind(element) {
  if (element.tagName === 'SELECT') return 'select';
  if (element.tagName === 'TEXTAREA') return 'text';
  if (element.tagName === 'INPUT') {
    if (['checkbox', 'radio'].includes(element.type)) return 'check';
    if (element.type === 'file') return 'file';
    if (['button', 'submit', 'reset', 'image', 'hidden'].includes(element.type)) return 'none';
    return ['color', 'date', 'datetime-local', 'month', 'range', 'time', 'week'].includes(element.type) ? 'value' : 'text';
  }
  return element.isContentEditable ? 'text' : 'none';
}

const told = (element, ...kinds) => {
  for (const kind of kinds) element.dispatchEvent(new Event(kind, { bubbles: true, composed: true }));
};

// What a field has; null of what is edited in the page itself, and of secrets, unless these are asked for too.
function written(element, secrets) {
  if (secrets) return element.isContentEditable ? null : element.value ?? null;
  if (element.type === 'password' || element.type === 'file') return null;
  const text = element.isContentEditable ? element.innerText : element.value;
  return text === undefined ? null : String(text).slice(0, 1000);
}

// Prepares an element for text: `insert` wants it typed, `done` has it already, `readonly` and `refused` can't have it.
// What is edited in the page itself keeps what it has if `adds`.
function fill(element, text, adds = false) {
  const kind = inputKind(element);
  if (element.readOnly) return 'readonly';
  if (kind === 'value') {
    element.focus();
    element.value = text;
    if (element.value !== text && element.type !== 'color' && element.type !== 'range') return 'refused';
    told(element, 'input', 'change');
    return 'done';
  }
  element.focus();
  if (element.isContentEditable) {
    const range = document.createRange();
    range.selectNodeContents(element);
    if (adds) range.collapse(false);
    const selection = getSelection();
    selection.removeAllRanges();
    selection.addRange(range);
  } else {
    if (element.type === 'number' && text !== '' && Number.isNaN(Number(text))) return 'refused';
    element.select();
  }
  return 'insert';
}

// Chooses options by value, label or place. The values that are chosen then, or null when there is no such option.
function select(element, wanted) {
  const options = [...element.options];
  const chosen = [];
  for (const { value, label, index } of wanted) {
    const text = option => squeeze(option.label || option.text);
    const option = index !== undefined ? options[index] : options.find(option =>
      (value !== undefined && option.value === value) || (label !== undefined && text(option) === squeeze(label)));
    if (!option) return null;
    if (option.disabled) return 'disabled';
    chosen.push(option);
    if (!element.multiple) break;
  }
  element.focus();
  for (const option of options) option.selected = chosen.includes(option);
  told(element, 'input', 'change');
  return chosen.map(option => option.value);
}

// For what is not an input, by its ARIA state; null: it can't be checked.
function setChecked(element) {
  if (element.tagName === 'LABEL' && element.control) element = element.control;
  if (inputKind(element) === 'check') return element.checked;
  if (!['checkbox', 'radio', 'switch', 'menuitemcheckbox', 'menuitemradio', 'option', 'treeitem'].includes(roleOf(element))) return null;
  return element.getAttribute('aria-checked') === 'true';
}

// Whether files can be given to it: `no`, `one` or `many`.
function files(element) {
  if (inputKind(element) !== 'file') return 'no';
  return element.multiple || element.webkitdirectory ? 'many' : 'one';
}
