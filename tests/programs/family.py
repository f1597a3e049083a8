"""Processes that descend from this one in ways that are easy to lose, each reporting its connection.

Arguments: KIND URL, where KIND is grandchild, double-fork, thread or spawner.
"""

import os
import sys
import threading

from connection import report


def in_child(work):
    """Runs `work` in a forked child and returns the child's pid."""
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            work()
            code = 0
        finally:
            os._exit(code)
    return pid


def wait(pid):
    _, status = os.waitpid(pid, 0)
    if status != 0:
        raise SystemExit(f"child {pid} ended with status {status}")


def grandchild(url):
    wait(in_child(lambda: wait(in_child(lambda: report(url)))))


def double_fork(url):
    """A daemon as daemons are made: a session of its own, and a parent that is gone."""
    gone, alive = os.pipe()

    def middle():
        os.setsid()
        parent = os.getpid()

        def daemon():
            os.close(alive)
            os.read(gone, 1)  # returns when the last process that holds `alive` has ended
            report(url, orphan=os.getppid() != parent)

        in_child(daemon)

    wait(in_child(middle))
    os.close(alive)


def thread(url):
    worker = threading.Thread(target=report, args=(url,))
    worker.start()
    worker.join()


def spawner(url):
    """Forks a child every moment until its standard input ends; then all of them connect."""
    stop = threading.Event()
    threading.Thread(target=lambda: (sys.stdin.read(), stop.set()), daemon=True).start()
    go, holder = os.pipe()
    children = []

    def child():
        os.close(holder)
        os.read(go, 1)
        report(url)

    while not stop.wait(0.001):
        if len(children) < 150:
            children.append(in_child(child))
        if len(children) == 10:
            print("forking", flush=True)
    os.close(holder)
    for pid in children:
        wait(pid)
    print("children", len(children), flush=True)


{"grandchild": grandchild, "double-fork": double_fork, "thread": thread, "spawner": spawner}[sys.argv[1]](sys.argv[2])
