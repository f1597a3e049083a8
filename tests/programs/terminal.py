"""A person at a terminal: types into an interactive bash and says what stood on the screen.

Arguments: a Git repository. Prints the screen without what moves the cursor.
"""

import os
import pty
import re
import select
import sys

PROMPT = "PROMPT> "
LIMIT = 20

repository = sys.argv[1]
environment = {"PATH": os.environ["PATH"], "HOME": repository, "PS1": PROMPT, "TERM": "dumb", "LANG": "C.UTF-8", "PAGER": "less"}
pid, terminal = pty.fork()
if pid == 0:
    os.chdir(repository)
    os.execve("/bin/bash", ["bash", "--norc", "--noprofile", "-i"], environment)

seen = ""


def until(what):
    """Reads the screen up to `what`, and prints it."""
    global seen
    while what not in seen:
        ready, _, _ = select.select([terminal], [], [], LIMIT)
        if not ready:
            sys.exit(f"waited for {what!r}, saw {seen!r}")
        seen += re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]|\r|\x1b[=>]", "", os.read(terminal, 65536).decode())
    end = seen.index(what) + len(what)
    print(seen[:end], end="")
    seen = seen[end:]


def types(text):
    os.write(terminal, text.encode())


until(PROMPT)
for command in [
    "/bin/true; echo status $?",
    "/bin/sh -c 'exit 7'; echo status $?",
    "ls /proc/self/fd | wc -l",
    "git log --oneline | cat | wc -l",
    "/bin/echo one | /bin/cat - | /usr/bin/tr o 0",
    "env true && (exec true) && echo both",
    "(sleep 0.1 & wait); echo waited",
]:
    types(command + "\n")
    until("\n")
    until(PROMPT)
# Ctrl-Z, the list of jobs, back to the foreground, Ctrl-C. The shell gives it the terminal before it
# wakes it.
sleeper = "import os, signal as s; s.signal(s.SIGINT, s.SIG_DFL); s.signal(s.SIGCONT, lambda *_: os.write(1, b'awake' + bytes([10]))); os.write(1, b'asleep' + bytes([10])); [s.pause() for _ in iter(int, 1)]"
types(f'/usr/bin/python3 -Ic "{sleeper}"\n')
until("asleep\n")
types("\x1a")
until("Stopped")
until(PROMPT)
types("jobs\n")
until("\n")
until(PROMPT)
types("fg\n")
until("awake\n")
types("\x03")
until(PROMPT)
types("echo status $?\n")
until("\n")
until(PROMPT)
types("git log --oneline | less -d\n")
until("\n")
until("(END)")
types("q")
until(PROMPT)
types("exit 5\n")
_, status = os.waitpid(pid, 0)
print("\nexit", os.waitstatus_to_exitcode(status))
