// For `cargo xtask bench`: Playwright's click on a button, once for each line of input; it prints the click's microseconds.
// Usage: click.mjs CDP_URL PAGE.

import { createInterface } from 'node:readline';
import playwright from 'playwright-core';

const [url, site] = process.argv.slice(2);
const browser = await playwright.chromium.connectOverCDP(url);
const page = await browser.contexts()[0].newPage();
await page.goto(site);
for await (const _ of createInterface({ input: process.stdin })) {
  const begun = performance.now();
  await page.click('#button');
  console.log(((performance.now() - begun) * 1e3).toFixed(0));
}
await browser.close();
