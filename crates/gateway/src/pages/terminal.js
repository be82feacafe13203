// What comes from the sandbox reaches the page as text, drawn by the terminal: never as markup, title or address.
{
  const $ = id => document.getElementById(id);
  const FIRST_PAUSE = 500;
  const LAST_PAUSE = 15000;

  const term = new Terminal({
    cursorBlink: true,
    scrollback: 5000,
    fontSize: 14,
    // With less, some fonts lose their underscores.
    lineHeight: 1.15,
    fontFamily: 'ui-monospace, "SF Mono", "Cascadia Mono", "DejaVu Sans Mono", Menlo, monospace',
    macOptionIsMeta: true,
    theme: { background: '#1b1815', foreground: '#ece5db', cursor: '#e39a5f', selectionBackground: '#5a4a3a' },
  });
  const fit = new FitAddon.FitAddon();
  term.loadAddon(fit);
  term.open($('terminal'));

  let session = new URLSearchParams(location.search).get('session_id') || '';
  let socket = null;
  let pause = FIRST_PAUSE;
  let timer = 0;
  // What is typed while the past is drawn are the terminal's own answers to questions that were asked long ago.
  let redrawing = false;
  let first = false;
  let control = false;

  function say(text, kind) {
    $('state').textContent = text;
    $('state').className = kind;
  }

  function send(type, data) {
    if (socket && socket.readyState === WebSocket.OPEN) socket.send(JSON.stringify({ type, data }));
  }

  function size() {
    $('size').textContent = `${term.cols} × ${term.rows}`;
    send('resize', { cols: term.cols, rows: term.rows });
  }

  function remember(id) {
    session = id;
    $('session').textContent = id ? `session ${id}` : '';
    const address = new URL(location.href);
    if (id) address.searchParams.set('session_id', id); else address.searchParams.delete('session_id');
    history.replaceState(null, '', address);
  }

  function take(frame) {
    if (frame.type === 'session_id') {
      remember(frame.data);
    } else if (frame.type === 'ready') {
      pause = FIRST_PAUSE;
      term.reset();
      first = true;
      say('connected', 'good');
      size();
    } else if (frame.type === 'output') {
      if (first) {
        first = false;
        redrawing = true;
        term.write(frame.data, () => { redrawing = false; });
      } else {
        term.write(frame.data);
      }
    } else if (frame.type === 'ping') {
      send('pong', { timestamp: frame.timestamp });
    } else if (frame.type === 'error') {
      say(frame.data, 'bad');
    }
  }

  function connect() {
    clearTimeout(timer);
    const address = new URL('v1/shell/ws', location.href);
    address.protocol = location.protocol === 'https:' ? 'wss:' : 'ws:';
    if (session) address.searchParams.set('session_id', session);
    const mine = new WebSocket(address);
    let opened = false;
    socket = mine;
    mine.onopen = () => { opened = true; };
    mine.onmessage = event => {
      if (mine !== socket) return;
      let frame;
      try { frame = JSON.parse(event.data); } catch { return; }
      take(frame);
    };
    mine.onclose = () => { if (mine === socket) lost(opened); };
  }

  /** Finds out why: the session may have ended, the key may be void, or the server may be away for a while. */
  async function lost(opened) {
    const mine = socket;
    if (!opened || session) {
      try {
        const answer = await fetch(new URL('v1/shell/sessions', location.href), { headers: { accept: 'application/json', 'x-arenite-origin': 'person' } });
        if (mine !== socket) return;
        if (answer.status === 401) { location.reload(); return; }
        const value = answer.ok ? await answer.json() : null;
        if (mine !== socket) return;
        if (session && value && value.data && !(session in value.data.sessions)) {
          say('the session has ended', 'bad');
          return;
        }
      } catch { /* It is away: tried again below. */ }
      if (mine !== socket) return;
    }
    say('connecting …', 'wait');
    timer = setTimeout(connect, pause);
    pause = Math.min(pause * 2, LAST_PAUSE);
  }

  function typed(data) {
    if (control) {
      setControl(false);
      const code = data.toUpperCase().charCodeAt(0);
      if (data.length === 1 && code >= 63 && code < 96) data = String.fromCharCode(code === 63 ? 127 : code & 31);
    }
    send('input', data);
  }

  function setControl(on) {
    control = on;
    $('control').setAttribute('aria-pressed', String(on));
  }

  term.onData(data => { if (!redrawing) typed(data); });
  term.onBinary(data => { if (!redrawing) send('input', data); });
  term.onResize(size);
  term.attachCustomKeyEventHandler(event => {
    const copies = event.ctrlKey && event.shiftKey && event.code === 'KeyC' && term.hasSelection();
    if (copies && event.type === 'keydown') {
      event.preventDefault();
      navigator.clipboard?.writeText(term.getSelection()).catch(() => {});
    }
    return !copies;
  });

  for (const button of document.querySelectorAll('[data-key]')) {
    button.addEventListener('click', () => { typed(button.dataset.key); term.focus(); });
  }
  for (const button of document.querySelectorAll('[data-arrow]')) {
    button.addEventListener('click', () => {
      send('input', (term.modes.applicationCursorKeysMode ? '\x1bO' : '\x1b[') + button.dataset.arrow);
      term.focus();
    });
  }
  $('control').addEventListener('click', () => { setControl(!control); term.focus(); });
  $('renew').addEventListener('click', () => {
    const old = socket;
    socket = null;
    old?.close();
    remember('');
    pause = FIRST_PAUSE;
    term.reset();
    say('connecting …', 'wait');
    connect();
    term.focus();
  });

  let due = 0;
  new ResizeObserver(() => {
    cancelAnimationFrame(due);
    due = requestAnimationFrame(() => fit.fit());
  }).observe($('terminal'));
  // Of several viewers, the terminal has the size of the one that is used.
  addEventListener('focus', size);
  addEventListener('online', () => { if (timer) { pause = FIRST_PAUSE; connect(); } });

  const named = location.pathname.match(/^\/sandbox\/([^/]+)\//);
  const name = named ? decodeURIComponent(named[1]) : '';
  $('where').textContent = name;
  document.title = name ? `Terminal of ${name}` : 'Terminal';
  fit.fit();
  remember(session);
  connect();
  term.focus();
}
