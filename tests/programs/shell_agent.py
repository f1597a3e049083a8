"""An agent with a shell tool, as coding agents have one. Python's standard library only.

It says `ready` and does nothing before it is told to, so that somebody can attach to it first. Each
line on standard input is a JSON string with a command for bash; each is answered by `answer` and a
JSON object with what the tool gives the model.
"""

import json
import subprocess
import sys

print("ready", flush=True)
for line in sys.stdin:
    done = subprocess.run(
        ["bash", "-c", json.loads(line)],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=300,
    )
    answer = {"status": done.returncode, "stdout": done.stdout, "stderr": done.stderr}
    print("answer", json.dumps(answer), flush=True)
