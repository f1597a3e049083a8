"""Calls MCP tools with fastmcp, or the official SDK, generation 1 or 2, whichever is installed.

Arguments: URL TOOL ARGUMENTS [TOOL ARGUMENTS …]. All calls go over one client connection, so that
each has a JSON-RPC id of its own. Prints a JSON line for each.
"""

import asyncio
import json
import sys


async def connected(url, use):
    try:
        from fastmcp import Client
    except ImportError:
        pass
    else:
        async with Client(url) as client:
            await use(client.call_tool_mcp, client.protocol_version)
        return
    try:
        from mcp import Client
    except ImportError:
        from mcp import ClientSession
        from mcp.client.streamable_http import streamable_http_client

        async with streamable_http_client(url) as (incoming, outgoing, *_):
            async with ClientSession(incoming, outgoing) as session:
                greeting = await session.initialize()
                await use(session.call_tool, greeting.protocolVersion)
    else:
        async with Client(url) as client:
            await use(client.call_tool, client.protocol_version)


async def main():
    url, *rest = sys.argv[1:]

    async def use(call_tool, protocol):
        for tool, arguments in zip(rest[::2], rest[1::2]):
            result = await asyncio.wait_for(call_tool(tool, json.loads(arguments)), 60)
            seen = result.model_dump(by_alias=True, mode="json")
            print(
                json.dumps(
                    {
                        "protocol": protocol,
                        "is_error": bool(seen.get("isError")),
                        "text": "\n".join(c.get("text", "") for c in seen["content"]),
                        "structured": seen.get("structuredContent"),
                    }
                ),
                flush=True,
            )

    await connected(url, use)


asyncio.run(main())
