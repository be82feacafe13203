// The dashboard of one sandbox. All addresses are relative, so that the page works under /sandbox/{name}/, on the sandbox's
// own host, and behind a path of a proxy.

import './design/index.css';
import './styles/steps.css';
import './dashboard.css';

import { render } from 'preact';

import { onUnauthorized } from './client/api';
import { Dashboard } from './dashboard/app';
import { applyTheme } from './shell/theme';

const app = document.getElementById('app')!;
const { name = '', place = '', console: address = '' } = app.dataset;

applyTheme();
// The page that lies at this address knows what to do: it asks for a key, or says where one is asked for.
onUnauthorized(async () => {
  location.reload();
  await new Promise(() => {});
});
app.replaceChildren();
render(<Dashboard name={name} ownHost={place === 'own'} console={address} />, app);
