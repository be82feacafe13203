// MCP's official client from npm: lists a server's tools, calls each, and prints what it saw as JSON.
// Usage: mcp.mjs http|sse URL CALLS, or mcp.mjs stdio PROGRAM CALLS ARGUMENTS…; CALLS is {tool: arguments}.

import { Client } from '@modelcontextprotocol/sdk/client/index.js';
import { SSEClientTransport } from '@modelcontextprotocol/sdk/client/sse.js';
import { StdioClientTransport } from '@modelcontextprotocol/sdk/client/stdio.js';
import { StreamableHTTPClientTransport } from '@modelcontextprotocol/sdk/client/streamableHttp.js';

const [kind, where, calls, ...args] = process.argv.slice(2);
const transports = {
  http: () => new StreamableHTTPClientTransport(new URL(where)),
  sse: () => new SSEClientTransport(new URL(where)),
  stdio: () => new StdioClientTransport({ command: where, args }),
};
const client = new Client({ name: 'arenite-tests', version: '1.0.0' });
await client.connect(transports[kind]());
const listed = (await client.listTools()).tools.map(tool => tool.name);
const results = {};
for (const [name, given] of Object.entries(JSON.parse(calls))) {
  const { isError, content } = await client.callTool({ name, arguments: given });
  results[name] = { isError: isError ?? false, text: isError ? content[0].text : '' };
}
const unknown = await client.callTool({ name: 'nope', arguments: {} }).catch(error => error.code);
console.log(JSON.stringify({ listed, results, unknown }));
await client.close();
