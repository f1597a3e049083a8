"""An agent that lives in its process alone: what it remembers is on its heap, and whoever saves its
process saves it all. Python's standard library only; it knows nothing of ACRFence.

It is told what to do through a named pipe, one order each time that is opened, and answers through
another one. Between orders it has nothing open but what it was told to keep.
"""

import ctypes
import json
import os
import socket
import sys
import urllib.error
import urllib.request
import uuid


def call(url, body=None):
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data, {"content-type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            return f"{answer.status} {answer.read().decode()}"
    except urllib.error.HTTPError as refused:
        return f"{refused.code} {refused.read().decode()}"
    except OSError as e:
        return f"error {e}"


def obey(bank, order, memory, pipes):
    """Carries one order out and gives the answer."""
    what, *words = order.split()
    if what == "balance":
        answer = call(bank + "/v1/balance")
    elif what == "pay":
        body = {"to": words[0], "amount": int(words[1]), "currency": "EUR", "reference": f"pay-{uuid.uuid4()}"}
        answer = call(bank + "/v1/transfers", body)
    elif what == "keep":
        memory["kept"] = socket.create_connection((words[0], int(words[1])), timeout=60)
        answer = "kept"
    elif what == "say":
        try:
            memory["kept"].sendall(b"hello\n")
            answer = "heard " + memory["kept"].recv(100).decode()
        except OSError as e:
            answer = f"error {e}"
    elif what == "child":
        child = os.fork()
        if child == 0:
            live(bank, memory, words[0])
        answer = str(child)
    elif what == "remember":
        memory["word"] = words[0]
        answer = "yes"
    elif what == "recall":
        answer = memory.get("word", "nothing")
    else:
        answer = f"error: what is {what}?"
    return " ".join(answer.split("\n"))


def live(bank, memory, pipes):
    while True:
        with open(pipes + "/orders") as orders:
            order = orders.readline()
        answer = obey(bank, order, memory, pipes)
        with open(pipes + "/answers", "w") as answers:
            answers.write(answer + "\n")


def main():
    bank, pipes, log = sys.argv[1:]
    # Nothing that would tie it to whoever started it.
    ctypes.CDLL(None).prctl(1, 0, 0, 0, 0)
    os.dup2(os.open("/dev/null", os.O_RDWR), 0)
    out = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.dup2(out, 1)
    os.dup2(out, 2)
    os.closerange(3, 1024)
    live(bank, {}, pipes)


main()
