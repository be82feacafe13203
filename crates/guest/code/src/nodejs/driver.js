// Runs inside Node.js, in the sandbox, as its user: takes code over a socket, evaluates it, and tells what came of it.
// Standard output and error are the process's own, so what programs print that the code starts comes along.
//
// V8's own REPL mode does the evaluation: await at the top, the value of the last expression, and names that may be
// declared again. Only import is missing there, and is put in by `importable`.
'use strict';
const inspector = require('inspector');
const net = require('net');
const path = require('path');
const util = require('util');
const { createRequire } = require('module');
const { pathToFileURL } = require('url');

const [socketPath, mode] = process.argv.splice(1);
const once = mode === 'once';
// Whatever the code starts with this process's options would start this file again.
process.execArgv.length = 0;

const hidden = (name, value) => Object.defineProperty(globalThis, name, { value, writable: true, configurable: true });
let taken;
hidden('__take', (value) => {
  taken = value;
});
hidden('__import', (target, options) => {
  const name = String(target);
  const local = /^\.{0,2}\//.test(name) ? pathToFileURL(path.resolve(name)).href : name;
  return import(local, options);
});

function enter(cwd) {
  process.chdir(cwd);
  const file = path.join(process.cwd(), 'code.js');
  hidden('require', createRequire(file));
  hidden('module', { exports: {}, filename: file });
  hidden('exports', globalThis.module.exports);
  hidden('__filename', file);
  hidden('__dirname', process.cwd());
}

// Comments, texts and templates stay as they are; `import … from` and `import(…)` become calls of ours.
const IMPORTS = new RegExp(
  [
    /\/\/.*|\/\*[\s\S]*?\*\/|"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])*'|`(?:\\[\s\S]|[^`\\])*`/.source,
    /(?<![\w$.])import(?=\s*\()/.source,
    /(?<=^|[;\n])([ \t]*)import\s*(?:([\w$]+)\s*,?\s*)?(?:\*\s*as\s+([\w$]+)\s*|(\{[^}]*\})\s*)?(?:from\s*)?("[^"\n]+"|'[^'\n]+')[ \t]*;?/.source,
  ].join('|'),
  'g',
);

function importable(code) {
  if (!/\bimport\b/.test(code)) return code;
  return code.replace(IMPORTS, (all, indent, initial, whole, some, from) => {
    if (all === 'import') return '__import';
    if (from === undefined) return all;
    const module = `await __import(${from})`;
    const parts = [];
    if (whole) parts.push(`const ${whole} = ${module};`);
    if (initial) parts.push(`const { default: ${initial} } = ${module};`);
    if (some) parts.push(`const ${some.replace(/\s+as\s+/g, ': ')} = ${module};`);
    return indent + (parts.join(' ') || `void (${module});`);
  });
}

const session = new inspector.Session();
session.connect();
const ask = (method, parameters) =>
  new Promise((resolve) => session.post(method, parameters, (error, result) => resolve(error ? { error } : result)));

// The value itself behind what the inspector tells of it.
async function valueOf(remote) {
  if (remote.objectId === undefined) {
    if (remote.unserializableValue === undefined) return remote.value;
    return (0, eval)(remote.unserializableValue);
  }
  taken = undefined;
  const functionDeclaration = 'function () { "use strict"; __take(this); }';
  await ask('Runtime.callFunctionOn', { objectId: remote.objectId, functionDeclaration });
  await ask('Runtime.releaseObject', { objectId: remote.objectId });
  return taken;
}

async function evaluate(code, milliseconds) {
  const expression = `${importable(code)}\n//# sourceURL=code.js`;
  let timer;
  const evaluation = ask('Runtime.evaluate', { expression, replMode: true, awaitPromise: true, timeout: milliseconds });
  const patience = new Promise((resolve) => {
    timer = setTimeout(() => resolve({ error: 'late' }), milliseconds);
  });
  const done = await Promise.race([evaluation, patience]);
  clearTimeout(timer);
  if (done.error) {
    return { ok: false, late: true, ename: 'Interrupted', evalue: `interrupted after ${milliseconds / 1000} s`, traceback: [] };
  }
  if (done.exceptionDetails) {
    const remote = done.exceptionDetails.exception;
    return { ok: false, ...described(remote ? await valueOf(remote) : done.exceptionDetails.text) };
  }
  return { ok: true, ...shown(await valueOf(done.result)) };
}

function described(error) {
  if (!util.types.isNativeError(error) && !(error instanceof Error)) {
    const text = util.inspect(error);
    return { ename: 'Error', evalue: text, traceback: [`Uncaught ${text}`] };
  }
  const stack = String(error.stack).split('\n');
  // Below the code's own frames are those of this file.
  const end = stack.findIndex((line) => /\(node:inspector|at Session\.post|\[eval/.test(line));
  return {
    ename: String(error.name || 'Error'),
    evalue: String(error.message),
    traceback: end > 0 ? stack.slice(0, end) : stack,
  };
}

const LARGEST = 1 << 20;

function shown(value) {
  if (value === undefined) return {};
  const result = { text: util.inspect(value, { depth: 4, maxArrayLength: 1000, maxStringLength: LARGEST }) };
  if (result.text.length > LARGEST) result.text = `${result.text.slice(0, LARGEST)}…`;
  const isPlain = (v) => Array.isArray(v) || [Object.prototype, null].includes(Object.getPrototypeOf(v));
  if (value !== null && typeof value === 'object' && isPlain(value)) {
    try {
      const json = JSON.stringify(value);
      if (json && json.length <= LARGEST) result.json = JSON.parse(json);
    } catch {
      // A ring, or a BigInt: then the text has to do.
    }
  }
  return result;
}

const control = net.connect(socketPath);
const say = (message) => control.write(`${JSON.stringify(message)}\n`);

async function execute({ code, cwd, milliseconds }) {
  let answer;
  try {
    if (cwd) enter(cwd);
    answer = await evaluate(code, milliseconds);
  } catch (error) {
    answer = { ok: false, ...described(error) };
  }
  try {
    answer.cwd = process.cwd();
  } catch {
    // Its directory was removed.
  }
  if (once) {
    if (!answer.ok) {
      if (answer.traceback.length > 0) process.stderr.write(`${answer.traceback.join('\n')}\n`);
      process.exitCode ??= 1;
    }
    // From here on the process lives as long as the code's own timers, servers and children.
    say(answer);
    control.end();
    control.unref();
    session.disconnect();
  } else {
    say(answer);
  }
}

if (!once) {
  // A session outlives what goes wrong between two executions, and ^C for a program that the code waits for.
  process.on('uncaughtException', (error) => process.stderr.write(`Uncaught ${util.inspect(error)}\n`));
  process.on('unhandledRejection', (error) => process.stderr.write(`Uncaught (in promise) ${util.inspect(error)}\n`));
  process.on('SIGINT', () => {});
  control.on('end', () => process.exit(0));
}

let input = '';
control.setEncoding('utf8');
control.on('data', (chunk) => {
  input += chunk;
  for (let end = input.indexOf('\n'); end >= 0; end = input.indexOf('\n')) {
    const line = input.slice(0, end);
    input = input.slice(end + 1);
    execute(JSON.parse(line));
  }
});
control.on('error', () => process.exit(70));
control.on('connect', () => {
  enter(process.cwd());
  say({ ready: true });
});
