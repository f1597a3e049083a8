"""An agent that types into an interactive bash, as one in a terminal multiplexer does, or a person beside it.

It says `ready` and does nothing before it is told to, so that somebody can attach to it first. Each
line on standard input is a JSON string: a line to type. It is answered by `answer` and a JSON object with
what stood on the screen (`stdout`) and what `$?` was.
"""

import json
import os
import pty
import re
import select
import sys

PROMPT = "PROMPT> "
LIMIT = 60

environment = {"PATH": os.environ["PATH"], "HOME": os.environ.get("HOME", "/"), "PS1": PROMPT, "TERM": "dumb", "LANG": "C.UTF-8"}
pid, terminal = pty.fork()
if pid == 0:
    os.execve("/bin/bash", ["bash", "--norc", "--noprofile", "--noediting", "-i"], environment)


def until_prompt():
    global seen
    while PROMPT not in seen:
        if not select.select([terminal], [], [], LIMIT)[0]:
            sys.exit(f"waited for the prompt, saw {seen!r}")
        seen += re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]|\r|\x1b[=>]", "", os.read(terminal, 65536).decode(errors="replace"))
    # What nobody typed may stand behind it.
    said, _, seen = seen.partition(PROMPT)
    return said


def types(line):
    os.write(terminal, line.encode() + b"\n")
    return until_prompt()


seen = ""
until_prompt()
print("ready", flush=True)
for line in sys.stdin:
    screen = types(json.loads(line))
    # What nobody typed may stand in either.
    more = types("echo status $?")
    status = re.search(r"status (\d+)", more)
    answer = {"status": int(status[1]), "stdout": screen + more, "stderr": ""}
    print("answer", json.dumps(answer), flush=True)
