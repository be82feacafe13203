// The console: pages for the sandboxes of a tenant, and for those who manage tenants, keys and usage.

import './design/index.css';
import './console.css';
import './styles/steps.css';

import { signal } from '@preact/signals';
import { render } from 'preact';

import { App } from './console/app';
import { applyTheme, readRights, watchSession } from './shell';

const failure = signal<Error | null>(null);

function read(): void {
  readRights().then(() => { failure.value = null; }, (error: Error) => { failure.value = error; });
}

function Root() {
  return <App error={failure.value} />;
}

applyTheme();
watchSession(read);
read();
const box = document.getElementById('app');
if (box) {
  box.replaceChildren();
  render(<Root />, box);
}
