"""A bank as a stdio MCP server, with the official SDK of either generation.

Like any server it makes up a reference for each transfer, so that nothing behind it takes a second
call for a repetition.

Arguments: `books FILE` (every transfer is a line there), `pays URL` (it is a client of another bank,
over HTTPS) or `stumbles URL` (the same, and then something goes wrong). What follows is
not looked at.
"""

import json
import os
import sys
import uuid

try:
    from mcp.server.fastmcp import FastMCP as Server
except ImportError:
    from mcp.server.mcpserver import MCPServer as Server

try:
    import httpx
except ImportError:
    import httpx2 as httpx

how, where, *_ = sys.argv[1:]
server = Server("bank")


@server.tool()
def transfer(to: str, amount: int) -> str:
    """Pays."""
    order = {"to": to, "amount": amount, "currency": "EUR", "reference": f"srv-{uuid.uuid4()}"}
    if how == "books":
        with open(where, "a") as books:
            books.write(json.dumps(order) + "\n")
        return "paid, reference " + order["reference"]
    answer = httpx.post(where, json=order, timeout=60)
    answer.raise_for_status()
    if how == "stumbles":
        raise RuntimeError("the receipt printer is on fire")
    return answer.text


@server.tool()
def sees(variable: str) -> str:
    """What the server has in its environment."""
    return os.environ.get(variable, "")


server.run("stdio")
