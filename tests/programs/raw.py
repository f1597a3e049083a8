"""Sends bytes as they are, over TLS. Arguments: PORT. For each line `h2 HEX` or `http/1.1 HEX` it opens a
connection to localhost with that protocol, sends the bytes, and says in one line of JSON what came back:

  h2        {"frames": [[type, flags, stream, payload in hex], …], "closed": whether the connection ended}.
            A PING follows the bytes. What was asked is over when it was answered and a stream got an
            answer or an error, or when the connection is.
  http/1.1  {"answer": all that came until the connection ended, in hex, "closed": …}
"""

import json
import socket
import ssl
import sys

PATIENCE = 20
RST_STREAM, PING, GOAWAY, HEADERS = 3, 6, 7, 1
END = b"the end."


def frames(received):
    found = []
    while len(received) >= 9:
        length = int.from_bytes(received[:3], "big")
        if len(received) < 9 + length:
            break
        stream = int.from_bytes(received[5:9], "big") & 0x7FFFFFFF
        found.append((received[3], received[4], stream, received[9 : 9 + length].hex()))
        received = received[9 + length :]
    return found


def over(found):
    kinds = {kind for kind, *_ in found}
    ended = any(kind == PING and flags & 1 and payload == END.hex() for kind, flags, _, payload in found)
    return ended and kinds & {RST_STREAM, HEADERS}


def ask(port, protocol, sent):
    context = ssl.create_default_context()
    context.set_alpn_protocols([protocol])
    with socket.create_connection(("127.0.0.1", port), timeout=PATIENCE) as plain:
        with context.wrap_socket(plain, server_hostname="localhost") as connection:
            assert connection.selected_alpn_protocol() == protocol
            received, closed = b"", False
            try:
                if protocol == "h2":
                    sent += bytes([0, 0, 8, PING, 0, 0, 0, 0, 0]) + END
                connection.sendall(sent)
            except OSError:
                # Whoever has had enough reads no further; what it said may still be there.
                pass
            while not (protocol == "h2" and over(frames(received))):
                try:
                    more = connection.recv(65536)
                except TimeoutError:
                    break
                except OSError:
                    more = b""
                if not more:
                    closed = True
                    break
                received += more
            if protocol == "h2":
                return {"frames": frames(received), "closed": closed}
            return {"answer": received.hex(), "closed": closed}


port = int(sys.argv[1])
print("started", flush=True)
for line in sys.stdin:
    protocol, sent = line.split(" ")
    print("got", json.dumps(ask(port, protocol, bytes.fromhex(sent))), flush=True)
