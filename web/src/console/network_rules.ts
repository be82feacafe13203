// Rules of a network as lines of text.

import type { Schemas } from '../client/api';

export type NetworkRule = Schemas['NetworkRule'];

export const RULE_NOTE = 'One rule a line, such as pypi.org, *.example.com:443, or 192.0.2.0/24:5432/tcp';

/** A line is a rule as text, or an object as JSON. Malformed JSON is a `SyntaxError`. */
export function rulesOf(text: string): NetworkRule[] {
  return text.split('\n').map(line => line.trim()).filter(Boolean).map(line => (line.startsWith('{') ? JSON.parse(line) as NetworkRule : line));
}

export function ruleText(rule: NetworkRule): string {
  return typeof rule === 'string' ? rule : JSON.stringify(rule);
}
