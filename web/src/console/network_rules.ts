// Rules of a network as lines of text.

import type { Schemas } from '../client/api';

export type NetworkRule = Schemas['NetworkRule'];

export const RULE_NOTE = 'One rule a line, such as pypi.org, *.example.com:443, or 192.0.2.0/24:5432/tcp';

/** A line is a rule as text, or an object as JSON. Malformed JSON is a `SyntaxError`. */
export function rulesOf(text: string): NetworkRule[] {
  return text.split('\n').map(line => line.trim()).filter(Boolean).map(line => (line.startsWith('{') ? JSON.parse(line) as NetworkRule : line));
}

/** A line that `rulesOf` reads back. */
export function ruleText(rule: NetworkRule): string {
  return typeof rule === 'string' ? rule : JSON.stringify(rule);
}

/** Such as `b.example:80/http GET,HEAD /v1/*`, for people to read. */
export function ruleLabel(rule: NetworkRule): string {
  if (typeof rule === 'string') return rule;
  const { host, cidr, ports = [], protocol, methods = [], paths = [] } = rule;
  const place = `${host ?? cidr ?? ''}${ports.length > 0 ? `:${ports.join(',')}` : ''}${protocol ? `/${protocol}` : ''}`;
  return [place, methods.join(','), ...paths].filter(Boolean).join(' ');
}
