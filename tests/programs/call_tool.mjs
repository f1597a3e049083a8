// Calls MCP tools with the official TypeScript SDK.
//
// Arguments: FOLDER (with the packages) URL TOOL ARGUMENTS [TOOL ARGUMENTS …]. All calls go over one
// client connection. Prints a JSON line for each, as call_tool.py does.

import { createRequire } from "node:module";

const [folder, url, ...rest] = process.argv.slice(2);
const require = createRequire(`${folder}/package.json`);
const { Client } = require("@modelcontextprotocol/sdk/client/index.js");
const { StreamableHTTPClientTransport } = require(
  "@modelcontextprotocol/sdk/client/streamableHttp.js",
);

const client = new Client({ name: "test", version: "1" });
const transport = new StreamableHTTPClientTransport(new URL(url));
await client.connect(transport);
for (let at = 0; at < rest.length; at += 2) {
  const result = await client.callTool({
    name: rest[at],
    arguments: JSON.parse(rest[at + 1]),
  });
  console.log(
    JSON.stringify({
      protocol: transport.protocolVersion,
      is_error: Boolean(result.isError),
      text: result.content.map((part) => part.text ?? "").join("\n"),
      structured: result.structuredContent ?? null,
    }),
  );
}
await client.close();
