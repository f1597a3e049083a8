"""Has a conversation with a stdio MCP server, and prints every byte that it said and how it ended.

Arguments: the server's command line.
"""

import json
import subprocess
import sys


def call(number, tool, arguments):
    meta = {"progressToken": number}
    return {"jsonrpc": "2.0", "id": number, "method": "tools/call", "params": {"name": tool, "arguments": arguments, "_meta": meta}}


hello = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}}
said = [
    {"jsonrpc": "2.0", "id": "i", "method": "initialize", "params": hello},
    {"jsonrpc": "2.0", "method": "notifications/initialized"},
    {"jsonrpc": "2.0", "id": "t", "method": "tools/list"},
    call(1, "check_balance", {}),
    call(2, "transfer", {"to": "älice ☃", "amount": 100, "ref": "r" * 100_000}),
    call(3, "transfer", {"to": "alice", "amount": "much", "ref": "r2"}),
    call(4, "no_such_tool", {}),
    {"jsonrpc": "2.0", "id": 5, "method": "no/such/method"},
]
server = subprocess.Popen(sys.argv[1:], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
heard = b""
for message in said:
    server.stdin.write(json.dumps(message).encode() + b"\n")
    server.stdin.flush()
    while "id" in message:
        line = server.stdout.readline()
        heard += line
        if not line or json.loads(line).get("id") == message["id"]:
            break
server.stdin.close()
heard += server.stdout.read()
print(ascii(heard), server.wait(60))
