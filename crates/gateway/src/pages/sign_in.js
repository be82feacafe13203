'use strict';
const $ = id => document.getElementById(id);
$('form').addEventListener('submit', async event => {
  event.preventDefault();
  $('message').textContent = '';
  try {
    const answer = await fetch('/login', {
      method: 'POST',
      headers: { 'content-type': 'application/json' },
      body: JSON.stringify({ key: $('key').value }),
    });
    if (answer.ok) { location.reload(); return; }
    $('message').textContent = answer.status === 401 ? 'Invalid key, token or ticket.' : `The server answered ${answer.status}.`;
  } catch (error) {
    $('message').textContent = `The server can't be reached: ${error.message}`;
  }
  $('key').select();
});
