"""An agent that starts a stdio MCP server through the official SDK, generation 1 or 2, and calls its
tools. It says `ready` and does nothing before it is told to, so that somebody can attach to it first.

Arguments: the server's command line. Each line on standard input is a JSON object with `tool` and
`arguments`; each is answered by `answer` and a JSON object.
"""

import asyncio
import contextlib
import json
import sys

from mcp import ClientSession, StdioServerParameters, stdio_client


@contextlib.asynccontextmanager
async def connected(parameters):
    try:
        from mcp import Client
    except ImportError:
        async with stdio_client(parameters) as (incoming, outgoing):
            async with ClientSession(incoming, outgoing) as session:
                await session.initialize()
                yield session
    else:
        async with Client(stdio_client(parameters)) as client:
            yield client


async def main():
    line = lambda: asyncio.to_thread(sys.stdin.readline)
    print("ready", flush=True)
    asked = await line()
    if not asked:
        return
    parameters = StdioServerParameters(command=sys.argv[1], args=sys.argv[2:])
    async with connected(parameters) as session:
        while asked:
            call = json.loads(asked)
            result = await asyncio.wait_for(session.call_tool(call["tool"], call["arguments"]), 60)
            seen = result.model_dump(by_alias=True, mode="json")
            text = "\n".join(c.get("text", "") for c in seen["content"])
            answer = {"is_error": bool(seen.get("isError")), "text": text}
            print("answer", json.dumps(answer), flush=True)
            asked = await line()


asyncio.run(main())
