// Runs before the first paint: a chosen theme must not flash.
try {
  // A page on another host has no access to what was chosen here: its address carries it.
  const passed = new URLSearchParams(location.hash.slice(1));
  if (passed.has('theme')) history.replaceState(null, '', location.pathname + location.search);
  for (const name of ['theme', 'contrast']) {
    if (passed.has(name)) localStorage.setItem('arenite.' + name, JSON.stringify(passed.get(name)));
    const value = JSON.parse(localStorage.getItem('arenite.' + name));
    if (value && value !== 'system') document.documentElement.dataset[name] = value;
  }
} catch { /* Nothing was chosen. */ }
