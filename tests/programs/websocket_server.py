"""A bank over WebSocket and TLS. Arguments: CERTIFICATE KEY. Says its port, who opens, and what they say. Answers
`booked N` to a text, and turns bytes round."""

import ssl
import sys
import threading

from websockets.exceptions import ConnectionClosed
from websockets.sync.server import serve

context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
context.load_cert_chain(*sys.argv[1:3])
lock = threading.Lock()
booked = []


def bank(connection):
    print("opened", connection.request.path, flush=True)
    try:
        for message in connection:
            if isinstance(message, bytes):
                connection.send(message[::-1])
                continue
            with lock:
                booked.append(message)
                print("paid", message, flush=True)
                connection.send(f"booked {len(booked)}")
    except ConnectionClosed:
        pass


with serve(bank, "localhost", 0, ssl=context) as server:
    print("port", server.socket.getsockname()[1], flush=True)
    server.serve_forever()
