"""A bank as an MCP server over streamable HTTP, with whichever of the Python SDKs is there: fastmcp, or
the official one of either generation. Says its port, and each payment that it books."""

import socket

import uvicorn


def bank(server):
    booked = {}

    @server.tool()
    def transfer(to: str, amount: int, ref: str) -> dict:
        """Transfers money."""
        known = booked.setdefault(ref, len(booked) + 1)
        print("paid", to, amount, ref, flush=True)
        return {"id": f"tr_{known:06}", "ref": ref}

    return server


try:
    import fastmcp
except ImportError:
    try:
        from mcp.server import MCPServer as Official
    except ImportError:
        from mcp.server.fastmcp import FastMCP as Official
    app = bank(Official("bank")).streamable_http_app()
else:
    app = bank(fastmcp.FastMCP("bank")).http_app()
# Every one of them is served by uvicorn; a socket of our own says the port before anybody waits for it.
listener = socket.create_server(("127.0.0.1", 0))
print("port", listener.getsockname()[1], flush=True)
uvicorn.Server(uvicorn.Config(app, log_level="error")).run(sockets=[listener])
