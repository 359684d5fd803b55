// SPDX-License-Identifier: Apache-2.0
// The TypeScript SDK's MCP client, for the tests: a line of JSON says what to do, a line of JSON says what came of it.
//
// client.mjs stdio COMMAND...
// client.mjs http URL [TOKEN]        (a certificate of one's own: NODE_EXTRA_CA_CERTS)
//
// What is right is for the test to say; this only does what any program with this SDK does.

import { createInterface } from 'node:readline';
import { Client } from '@modelcontextprotocol/sdk/client/index.js';
import { StdioClientTransport } from '@modelcontextprotocol/sdk/client/stdio.js';
import { StreamableHTTPClientTransport } from '@modelcontextprotocol/sdk/client/streamableHttp.js';

function transport([kind, ...rest]) {
  if (kind === 'stdio') {
    return new StdioClientTransport({ command: rest[0], args: rest.slice(1) });
  }
  const [url, token] = rest;
  const headers = token ? { Authorization: `Bearer ${token}` } : {};
  return new StreamableHTTPClientTransport(new URL(url), { requestInit: { headers } });
}

// All pages of a list.
async function everything(method, key) {
  const entries = [];
  let cursor;
  do {
    const page = await method(cursor === undefined ? {} : { cursor });
    entries.push(...page[key]);
    cursor = page.nextCursor;
  } while (cursor !== undefined);
  return entries;
}

async function perform(client, asked) {
  switch (asked.do) {
    case 'about':
      return { server: client.getServerVersion(), instructions: client.getInstructions() };
    case 'tools':
      return await everything((page) => client.listTools(page), 'tools');
    case 'call':
      return await client.callTool({ name: asked.name, arguments: asked.arguments });
    case 'is_valid':
      // Whether the SDK takes this for an answer of the tool: what callTool asks.
      return client.getToolOutputValidator(asked.name)(asked.content).valid;
    case 'resources':
      return await everything((page) => client.listResources(page), 'resources');
    case 'read':
      return await client.readResource({ uri: asked.uri });
    case 'prompts':
      return await everything((page) => client.listPrompts(page), 'prompts');
    case 'prompt':
      return await client.getPrompt({ name: asked.name, arguments: asked.arguments });
    default:
      throw new Error(`nobody knows how to do ${asked.do}`);
  }
}

function say(what) {
  process.stdout.write(`${JSON.stringify(what)}\n`);
}

const client = new Client({ name: 'gpuwhy-test', version: '1' });
const way = transport(process.argv.slice(2));
try {
  await client.connect(way);
} catch (error) {
  say({ failed: String(error) });
  process.exit(1);
}
say({ ok: 'connected' });
for await (const line of createInterface({ input: process.stdin })) {
  try {
    say({ ok: await perform(client, JSON.parse(line)) });
  } catch (error) {
    say({ failed: String(error) });
  }
}
if (way.terminateSession) {
  await way.terminateSession();
}
await client.close();
