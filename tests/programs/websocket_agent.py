"""Pays over WebSocket. Arguments: URL, and what to say. Says each answer, or `failed WHY`; ends with `stays` and
waits for a line of standard input, says one more thing and what came of it."""

import ssl
import sys

from websockets.exceptions import ConnectionClosed, InvalidHandshake
from websockets.sync.client import connect

url, *messages = sys.argv[1:]
try:
    with connect(url, ssl=ssl.create_default_context(), open_timeout=60) as bank:
        for message in messages:
            bank.send(message)
            print("answer", bank.recv(timeout=60), flush=True)
        # Larger than any frame or record on the way.
        large = bytes(range(256)) * 4000
        bank.send(large)
        print("turned", bank.recv(timeout=60) == large[::-1], flush=True)
        print("pong", bank.ping().wait(60), flush=True)
        print("stays", flush=True)
        line = sys.stdin.readline()
        if line:
            bank.send(line.strip())
            print("answer", bank.recv(timeout=60), flush=True)
except ConnectionClosed as e:
    print("closed", e, flush=True)
except (InvalidHandshake, OSError, EOFError) as e:
    print("failed", e, flush=True)
