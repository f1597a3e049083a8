"""Asks for something large and does not read it until it is told to. Arguments: HOST PORT PATH."""

import socket
import sys

host, port, path = sys.argv[1:]
stream = socket.create_connection((host, int(port)))
stream.sendall(f"POST {path} HTTP/1.1\r\nHost: {host}\r\nContent-Length: 0\r\n\r\n".encode())
answer = stream.makefile("rb")
length = 0
while (line := answer.readline()) not in (b"\r\n", b""):
    name, _, value = line.decode().partition(":")
    if name.lower() == "content-length":
        length = int(value)
print("began", length, flush=True)
sys.stdin.readline()
got = 0
while piece := answer.read(min(1 << 20, length - got)):
    got += len(piece)
print("got", got, flush=True)
