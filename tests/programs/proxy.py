"""A forward proxy, as agents are configured with one: CONNECT, and whole URLs of http. Says its port, and
each request's first line."""

import socket
import socketserver
import threading
from urllib.parse import urlsplit


def head(stream):
    read = b""
    while not read.endswith(b"\r\n\r\n"):
        byte = stream.recv(1)
        if not byte:
            return None
        read += byte
    return read


def move(one, other):
    try:
        while data := one.recv(65536):
            other.sendall(data)
        other.shutdown(socket.SHUT_WR)
    except OSError:
        pass


class Proxy(socketserver.BaseRequestHandler):
    def handle(self):
        asked = head(self.request)
        if asked is None:
            return
        line, rest = asked.split(b"\r\n", 1)
        print("asked", line.decode(), flush=True)
        method, target, version = line.decode().split(" ")
        if method == "CONNECT":
            host, port = target.rsplit(":", 1)
        else:
            url = urlsplit(target)
            host, port = url.hostname, url.port or 80
        with socket.create_connection((host, int(port))) as far:
            if method == "CONNECT":
                self.request.sendall(b"HTTP/1.1 200 Connection established\r\n\r\n")
            else:
                path = url.path + (f"?{url.query}" if url.query else "")
                far.sendall(f"{method} {path} {version}\r\n".encode() + rest)
            back = threading.Thread(target=move, args=(far, self.request))
            back.start()
            move(self.request, far)
            back.join()


class Server(socketserver.ThreadingTCPServer):
    daemon_threads = True


with Server(("127.0.0.1", 0), Proxy) as server:
    print("port", server.server_address[1], flush=True)
    server.serve_forever()
