"""What a connection to the bank looks like from both of its ends.

Imported by the other programs here; run with a URL it prints one JSON line: the program's own
address, the peer it sees, and the address from which the bank sees it come. A connection is
redirected exactly when the bank sees another address than the program has.
"""

import http.client
import json
import os
import ssl
import sys
import urllib.parse


def open_connection(url):
    where = urllib.parse.urlsplit(url)
    if where.scheme == "https":
        return http.client.HTTPSConnection(where.netloc, timeout=60, context=ssl.create_default_context())
    return http.client.HTTPConnection(where.netloc, timeout=60)


def ask(connection, url):
    """Asks the bank, over this connection, from where it comes."""
    connection.request("GET", urllib.parse.urlsplit(url).path)
    answer = connection.getresponse()
    body = answer.read()
    if answer.status != 200:
        raise SystemExit(f"status {answer.status}: {body.decode(errors='replace')}")
    return json.loads(body)["peer"]


def address(pair):
    host, port = pair[:2]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def report(url, **more):
    connection = open_connection(url)
    connection.connect()
    own, peer = address(connection.sock.getsockname()), address(connection.sock.getpeername())
    seen = ask(connection, url)
    # One write, so that the lines of several processes do not mix.
    line = json.dumps({"pid": os.getpid(), "own": own, "peer": peer, "seen": seen, "redirected": own != seen, **more})
    os.write(1, line.encode() + b"\n")


if __name__ == "__main__":
    report(sys.argv[1])
