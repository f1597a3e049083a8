"""OpenAI Agents SDK with its SQLite session, from which items are popped."""

import asyncio
import json
import os
import sys

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
from agents import Agent, OpenAIResponsesModel, Runner, SQLiteSession, function_tool, set_tracing_disabled
from agents.mcp import MCPServerStdio, MCPServerStreamableHttp
from openai import AsyncOpenAI
from task import TASK

set_tracing_disabled(True)
client = AsyncOpenAI(base_url=TASK.model + "/v1", api_key="none", max_retries=0)
agent = Agent(
    name="assistant",
    model=OpenAIResponsesModel(model="scripted", openai_client=client),
    tools=[] if TASK.over_mcp else [function_tool(function) for function in TASK.tools()],
)


def mcp_server():
    """The service over MCP."""
    if TASK.transport == "mcp_stdio":
        params = {"command": TASK.stdio[0], "args": TASK.stdio[1:]}
        return MCPServerStdio(params, name=TASK.kind, client_session_timeout_seconds=60)
    params = {"url": TASK.service + "/mcp"}
    return MCPServerStreamableHttp(params, name=TASK.kind, client_session_timeout_seconds=60)


async def ask(session, words):
    return (await Runner.run(agent, words, session=session)).final_output


async def rewind(session):
    """Pops the action and all that came after it; returns what to say next."""
    while (item := await session.pop_item()) is not None:
        if item.get("type") == "function_call" and TASK.is_act(item["name"], json.loads(item["arguments"])):
            break
    left = await session.get_items()
    if any(item.get("type") == "function_call_output" for item in left):
        return TASK.again
    await session.clear_session()
    return TASK.anew


async def main():
    if not TASK.over_mcp:
        return await live()
    async with mcp_server() as server:
        agent.mcp_servers = [server]
        await live()


async def live():
    session = SQLiteSession("1", TASK.at("session.db"))
    if TASK.part in ("first", "both"):
        print(await ask(session, TASK.prompt))
    if TASK.part in ("second", "both"):
        print(await ask(session, await rewind(session)))


asyncio.run(main())
