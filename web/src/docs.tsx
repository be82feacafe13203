// The entry of the API's documentation.

import { render } from 'preact';

import './design/index.css';
import './docs/docs.css';
import { setRoot } from './client/api';
import { Docs } from './docs/app';
import { dialectOf } from './docs/openapi';
import { applyTheme, readRights, watchSession } from './shell';

const { base = './', dialect = '', sandbox = '', console = './', place } = document.documentElement.dataset;
setRoot(base);
applyTheme();
watchSession(() => { if (place !== 'own') void readRights().catch(() => null); });
const box = document.getElementById('app')!;
// What the page shows before its script runs.
box.replaceChildren();
render(<Docs dialect={dialectOf(dialect)?.id ?? 'arenite'} sandbox={sandbox} ownHost={place === 'own'} base={place === 'own' ? console : base} />, box);
