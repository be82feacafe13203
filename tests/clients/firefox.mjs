// Debian's Firefox, driven by WebDriver BiDi. Usage: firefox.mjs PROGRAM. It reads commands, one JSON object a line, and answers each
// with a line: {"value": …} or {"error": "…"}. Elements are named by their role and their accessible name, as in the tests of Chromium.

import { createInterface } from 'node:readline';

import puppeteer from 'puppeteer-core';

const browser = await puppeteer.launch({ browser: 'firefox', executablePath: process.argv[2], headless: true, timeout: 120_000 });
const page = await browser.newPage();
page.setDefaultTimeout(45_000);
let mistakes = [];
page.on('pageerror', error => mistakes.push(error.message));

const ROLES = {
  button: 'button', link: 'a[href]', tab: '[role=tab]', menuitem: '[role=menuitem]', checkbox: 'input[type=checkbox]', searchbox: 'input[type=search]',
  textbox: 'input:not([type=checkbox], [type=radio], [type=search]), textarea',
};
/** Waits for an element that can be used; `within`: a CSS selector of what it is in. BiDi's own search by names takes seconds in long pages. */
const find = ({ role, name, within = '' }) => page.waitForFunction((roles, wanted, place) => {
  const modal = [...document.querySelectorAll('dialog:modal')].at(-1);
  const usable = element => element.getClientRects().length > 0 && !element.disabled && (!modal || modal.contains(element));
  const places = place ? [...document.querySelectorAll(place)] : [document];
  const named = element => (element.getAttribute('aria-label') ?? element.labels?.[0]?.innerText ?? element.innerText).trim();
  return places.flatMap(one => [...one.querySelectorAll(roles)]).find(element => usable(element) && named(element) === wanted);
}, {}, ROLES[role], name, within);
const shown = ({ text, within = 'body', gone = false }) =>
  page.waitForFunction((wanted, css, isGone) => [...document.querySelectorAll(css)].some(one => one.innerText.includes(wanted)) !== isGone, {}, text, within, gone);

const commands = {
  version: () => browser.version(),
  look: async ({ theme, width, height }) => {
    await page.setViewport({ width, height });
    if (theme) await page.evaluate(chosen => { localStorage.setItem('arenite.theme', JSON.stringify(chosen)); }, theme);
  },
  open: async ({ url }) => {
    await page.goto('about:blank');
    await page.goto(url);
  },
  url: () => page.url(),
  evaluate: ({ script }) => page.evaluate(script),
  click: async what => { await (await find(what)).click(); },
  fill: async what => {
    await (await find(what)).click();
    await commands.chord({ modifier: 'Control', key: 'a' });
    await page.keyboard.type(what.text);
  },
  press: ({ key }) => page.keyboard.press(key),
  chord: async ({ modifier, key }) => {
    await page.keyboard.down(modifier);
    await page.keyboard.press(key);
    await page.keyboard.up(modifier);
  },
  type: ({ text }) => page.keyboard.type(text),
  clickCss: ({ css }) => page.locator(css).click(),
  shown: async what => { await shown(what); },
  picture: async ({ file }) => { await page.screenshot({ path: file }); },
  mistakes: () => {
    const found = mistakes;
    mistakes = [];
    return found;
  },
};

for await (const line of createInterface({ input: process.stdin })) {
  const { command, ...what } = JSON.parse(line);
  let answer;
  try {
    answer = { value: (await commands[command](what)) ?? null };
  } catch (error) {
    const seen = await page.evaluate(() => document.body.innerText).catch(() => '');
    answer = { error: `${command} ${JSON.stringify(what)}: ${error.message}; the page shows: ${seen.slice(0, 1500)}` };
  }
  console.log(JSON.stringify(answer));
}
await browser.close();
