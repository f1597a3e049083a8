"""Does what no fence understands, a line of standard input each; says what came of it."""

import socket
import sys
import time

kept = {}


def connect(host, port):
    return socket.create_connection((host, int(port)), timeout=20)


def answer(stream, text):
    stream.sendall(bytes.fromhex(text))
    got = stream.recv(4096)
    return f"got {got.hex()}" if got else "closed"


def act(verb, *words):
    if verb == "tcp":
        with connect(*words[:2]) as stream:
            return answer(stream, words[2])
    if verb == "keep":
        kept[words[1]] = connect(*words[:2])
        return answer(kept[words[1]], words[2])
    if verb == "again":
        return answer(kept[words[0]], words[1])
    if verb == "listen":  # for the end of one that is kept
        return "closed" if not kept[words[0]].recv(4096) else "got more"
    if verb == "late":  # says nothing for some seconds
        with connect(*words[:2]) as stream:
            time.sleep(float(words[2]))
            stream.settimeout(10)
            return answer(stream, words[3])
    if verb == "unix":
        with socket.socket(socket.AF_UNIX) as stream:
            stream.settimeout(20)
            stream.connect(words[0])
            return answer(stream, words[1])
    if verb == "udp":
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as datagrams:
            return f"sent {datagrams.sendto(bytes.fromhex(words[2]), (words[0], int(words[1])))}"
    raise ValueError(verb)


print("ready", flush=True)
for line in sys.stdin:
    try:
        said = act(*line.split())
    except OSError as error:
        said = f"failed {error}"
    print("so", said, flush=True)
