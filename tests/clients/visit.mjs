// A client from npm at work in a sandbox's browser: it logs in, downloads, opens a context of its own and takes a picture.
// Usage: visit.mjs CLIENT CDP_URL SITE. It prints what it saw, as JSON.

const [client, url, site] = process.argv.slice(2);
const seen = {};

async function logIn(page, fill) {
  await page.goto(`${site}/shop/login`);
  await fill(page, 'input[name=user]', 'gem');
  await fill(page, 'input[name=word]', 'stone & 10% more');
  await Promise.all([page.waitForNavigation(), page.click('button')]);
  return page.title();
}

async function playwright() {
  const { chromium } = (await import('playwright-core')).default;
  const browser = await chromium.connectOverCDP(url);
  const context = await browser.newContext({ acceptDownloads: true });
  const page = await context.newPage();
  seen.title = await logIn(page, (page, selector, text) => page.fill(selector, text));
  await page.setContent(`<a href="${site}/download">get</a>`);
  const [download] = await Promise.all([page.waitForEvent('download'), page.click('a')]);
  seen.download = download.suggestedFilename();
  seen.picture = (await page.screenshot()).subarray(1, 4).toString();
  await context.close();
  await browser.close();
}

async function puppeteer() {
  const { default: puppeteer } = await import('puppeteer-core');
  const browser = await puppeteer.connect({ browserWSEndpoint: url, defaultViewport: null });
  const context = await browser.createBrowserContext();
  const page = await context.newPage();
  seen.title = await logIn(page, (page, selector, text) => page.type(selector, text));
  const session = await browser.target().createCDPSession();
  const begun = new Promise(done => session.once('Browser.downloadWillBegin', done));
  await session.send('Browser.setDownloadBehavior', { behavior: 'deny', browserContextId: context.id, eventsEnabled: true });
  await page.setContent(`<a href="${site}/download">get</a>`);
  await page.click('a');
  seen.download = (await begun).suggestedFilename;
  seen.picture = Buffer.from(await page.screenshot()).subarray(1, 4).toString();
  await context.close();
  await browser.disconnect();
}

await { playwright, puppeteer }[client]();
console.log(JSON.stringify(seen));
