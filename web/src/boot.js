// Runs before the first paint: a chosen theme must not flash.
try {
  for (const name of ['theme', 'contrast']) {
    const value = JSON.parse(localStorage.getItem('arenite.' + name));
    if (value && value !== 'system') document.documentElement.dataset[name] = value;
  }
} catch { /* Nothing was chosen. */ }
