// What comes from the sandbox reaches the page as pixels, and as text for the clipboard when a person asks for it.
{
  const $ = id => document.getElementById(id);
  const FIRST_PAUSE = 500;
  const LAST_PAUSE = 15000;
  const MOST_REFUSALS = 6;
  const asked = new URLSearchParams(location.search);

  let rfb = null;
  let pause = FIRST_PAUSE;
  let refusals = 0;
  let copied = '';
  let watching = ['1', 'true'].includes(asked.get('view_only'));

  function say(text, kind) {
    $('state').textContent = text;
    $('state').className = kind;
  }

  function watch(on) {
    watching = on;
    $('watch').setAttribute('aria-pressed', String(on));
    // Releases what is pressed, as the key that hands the desktop back: nothing of that is sent once it only watches.
    if (on && rfb && !rfb.viewOnly) dispatchEvent(new Event('blur'));
    if (rfb) rfb.viewOnly = on;
    // The dashboard shows who acts.
    if (parent !== window) parent.postMessage({ type: 'arenite-desktop', watching }, location.origin);
  }

  function size() {
    const canvas = $('screen').querySelector('canvas');
    $('size').textContent = canvas ? `${canvas.width} × ${canvas.height}` : '';
  }

  function connect() {
    const address = new URL(location.href);
    address.protocol = location.protocol === 'https:' ? 'wss:' : 'ws:';
    address.pathname = location.pathname.replace(/\/vnc(\/.*)?$/, '/websockify');
    address.search = asked.has('ticket') ? `?ticket=${encodeURIComponent(asked.get('ticket'))}` : '';
    address.hash = '';
    const mine = new RFB($('screen'), address.href, { wsProtocols: ['binary'] });
    rfb = mine;
    mine.scaleViewport = asked.get('resize') !== 'off';
    mine.viewOnly = watching;
    mine.background = 'transparent';
    mine.addEventListener('connect', () => {
      pause = FIRST_PAUSE;
      refusals = 0;
      say('connected', 'good');
      size();
      // Who only watches stays where they are.
      if (!watching) mine.focus();
    });
    mine.addEventListener('clipboard', event => {
      copied = event.detail.text;
      $('copy').disabled = !copied;
    });
    mine.addEventListener('disconnect', () => {
      if (mine === rfb) lost();
    });
  }

  /** Tries again: another desktop may have to be started, or the server may be away for a while. */
  async function lost() {
    if ($('state').className !== 'bad') say('connecting …', 'wait');
    const wait = pause;
    pause = Math.min(pause * 2, LAST_PAUSE);
    try {
      const answer = await fetch(new URL(location.pathname.replace(/\/vnc(\/.*)?$/, '/v1/browser/info'), location.href), { headers: { 'x-arenite-origin': 'person' } });
      if (answer.status === 401) { location.reload(); return; }
      const value = await answer.json();
      if (!answer.ok) {
        say([value.message, value.hint].filter(Boolean).join(': '), 'bad');
        // As a rule the next call starts another desktop; an image without one will have none later either.
        refusals += 1;
        if (refusals < MOST_REFUSALS) setTimeout(lost, wait);
        return;
      }
    } catch { /* It is away: tried again below. */ }
    setTimeout(connect, wait);
  }

  new MutationObserver(size).observe($('screen'), { subtree: true, attributes: true, attributeFilter: ['width', 'height'] });
  $('watch').addEventListener('click', () => { watch(!watching); rfb?.focus(); });
  // The dashboard, which frames this page, hands the desktop to a person, and back.
  addEventListener('message', event => {
    if (event.source !== parent || parent === window || event.origin !== location.origin) return;
    if (event.data?.type !== 'arenite-desktop' || typeof event.data.watching !== 'boolean') return;
    if (event.data.watching !== watching) watch(event.data.watching);
    if (!watching) rfb?.focus();
  });
  $('paste').addEventListener('click', async () => {
    try {
      const text = await navigator.clipboard.readText();
      rfb?.clipboardPasteFrom(text);
      say('on the clipboard of the desktop: paste it there', 'good');
    } catch {
      say('this browser does not give its clipboard to pages here', 'bad');
    }
    rfb?.focus();
  });
  $('copy').addEventListener('click', () => {
    navigator.clipboard?.writeText(copied).catch(() => say('this browser does not let pages copy here', 'bad'));
    rfb?.focus();
  });

  const named = location.pathname.match(/^\/sandbox\/([^/]+)\//);
  const name = named ? decodeURIComponent(named[1]) : '';
  $('where').textContent = name;
  document.title = name ? `Desktop of ${name}` : 'Desktop';
  watch(watching);
  connect();
}
