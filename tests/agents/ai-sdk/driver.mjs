// Vercel AI SDK: messages are saved and given to another call.

import { spawnSync } from "node:child_process";
import { readFileSync, writeFileSync } from "node:fs";
import { createMCPClient } from "@ai-sdk/mcp";
import { Experimental_StdioMCPTransport } from "@ai-sdk/mcp/mcp-stdio";
import { createOpenAI } from "@ai-sdk/openai";
import { generateText, stepCountIs, tool } from "ai";
import { z } from "zod";

const task = JSON.parse(process.argv[2]);

async function get(path) {
  return await (await fetch(task.service + path)).text();
}

async function post(path, body) {
  const headers = { "content-type": "application/json" };
  const signal = AbortSignal.timeout(task.patience * 1000);
  const wish = { method: "POST", headers, body: JSON.stringify(body), signal };
  const answer = await fetch(task.service + path, wish).catch((why) => {
    if (why.name === "TimeoutError") return null;
    throw why;
  });
  if (answer === null) return "Error: the request timed out";
  const text = await answer.text();
  return answer.ok ? text : `Error ${answer.status}: ${text}`;
}

const text = z.string();
const define = (description, shape, execute) => tool({ description, inputSchema: z.object(shape), execute });

const ownTools = {
  bank: {
    check_balance: define("Tells what is left on the account.", {}, () => get("/v1/balance")),
    read_statement: define("Reads a page of the statement.", { page: z.number().int() }, ({ page }) =>
      get(`/v1/statement?page=${page}`),
    ),
    transfer: define("Transfers money.", { to: text, amount: z.number().int(), ref: text }, ({ to, amount, ref }) =>
      post("/v1/transfers", { to, amount, currency: "EUR", reference: ref, requested_at: new Date().toISOString() }),
    ),
  },
  cloud: {
    check_quota: define("Tells how many servers are allowed, and how many run.", {}, () => get("/v1/quota")),
    create_server: define("Makes a server.", { spec: text, client_token: text }, (wish) => post("/v1/servers", wish)),
  },
  approval: {
    request_approval: define(
      "Asks for a single-use approval token.",
      { operation: text, target: text, reason: text.optional() },
      (wish) => post("/v1/approvals", wish),
    ),
    delete_customer_data: define("Deletes all data of a customer.", { token: text, customer_id: text }, (wish) =>
      post("/v1/deletions", wish),
    ),
    execute_payment: define("Pays a vendor.", { token: text, vendor: text, amount: z.number().int() }, (wish) =>
      post("/v1/payments", wish),
    ),
  },
}[task.kind];

function shell({ command }) {
  const ended = spawnSync("bash", ["-c", command], { encoding: "utf8", stdio: ["ignore", "pipe", "pipe"] });
  return ended.stdout + ended.stderr + (ended.status ? `\nexit code ${ended.status}` : "");
}

/** The service over MCP, if that is how it is reached. */
async function mcpClient() {
  if (task.transport === "mcp_http") {
    return await createMCPClient({ transport: { type: "http", url: `${task.service}/mcp` } });
  }
  if (task.transport === "mcp_stdio") {
    const [command, ...args] = task.stdio;
    return await createMCPClient({ transport: new Experimental_StdioMCPTransport({ command, args }) });
  }
  return null;
}

const mcp = await mcpClient();
const shellTools = { shell_command: define("Runs a command in a shell.", { command: text }, shell) };
const tools = mcp ? await mcp.tools() : task.transport === "shell" ? shellTools : ownTools;

const openai = createOpenAI({ baseURL: `${task.model}/v1`, apiKey: "none" });

async function ask(words, messages) {
  const asked = [...messages, { role: "user", content: words }];
  const result = await generateText({
    model: openai("scripted"),
    maxRetries: 0,
    stopWhen: stepCountIs(8),
    messages: asked,
    tools,
  });
  console.log(result.text);
  return [...asked, ...result.response.messages];
}

const file = `${task.home}/messages.json`;
if (task.part !== "second") {
  const messages = task.opening ? await ask(task.opening, []) : [];
  writeFileSync(file, JSON.stringify(messages));
  await ask(task.prompt, messages);
}
if (task.part !== "first") {
  await ask(task.redirects ? task.again : task.prompt, JSON.parse(readFileSync(file)));
}
await mcp?.close();
