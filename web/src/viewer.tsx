// The entry of the pages of trajectories.

import './design/index.css';
import './viewer/viewer.css';
import { start } from './viewer/app';

start();
