"""A process that does what a test tells it, line by line: each line is a JSON string of Python code,
each answer a line of JSON."""
import ctypes
import errno
import json
import os
import signal
import socket
import struct
import sys
import threading
import time

libc = ctypes.CDLL(None, use_errno=True)
kept = []  # what must stay open


def family(host):
    return socket.AF_INET6 if ":" in host else socket.AF_INET


def tcp(host, port, say=None, timeout=10):
    """Connects; gives the peer's name and the first line the other end says."""
    s = socket.socket(family(host), socket.SOCK_STREAM)
    s.settimeout(timeout)
    s.connect((host, port))
    peer = s.getpeername()
    if say is not None:
        s.sendall(say.encode() + b"\n")
    heard = s.makefile().readline().strip()
    s.close()
    return {"peer": [peer[0], peer[1]], "heard": heard}


def keep_tcp(host, port):
    s = socket.create_connection((host, port), timeout=10)
    kept.append(s)
    return s.fileno()


def same_source(targets):
    """Connects from one address and port to several targets at once."""
    sockets = []
    results = []
    port = 0
    for target in targets:
        s = socket.socket()
        s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        s.bind(("127.0.0.1", port))
        port = s.getsockname()[1]
        result = s.connect_ex(target)
        results.append(errno.errorcode.get(result, "OK"))
        sockets.append(s)
    for s in sockets:
        s.close()
    return results


def send_and_go(host, port, data):
    s = socket.create_connection((host, port), timeout=10)
    s.sendall(data)
    s.close()


def nonblocking(host, port):
    """Connects without waiting; asks for the peer's name once it is there."""
    import select

    s = socket.socket(family(host), socket.SOCK_STREAM)
    s.setblocking(False)
    result = s.connect_ex((host, port))
    select.select([], [s], [], 10)
    error = s.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
    peer = s.getpeername()
    s.close()
    return {"started": errno.errorcode.get(result, "OK"), "error": error, "peer": peer[:2]}


def in_child(f):
    """Runs `f` in a child process; gives its result."""
    r, w = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(r)
        try:
            answer = {"ok": f()}
        except OSError as e:
            answer = {"errno": errno.errorcode.get(e.errno, str(e))}
        os.write(w, json.dumps(answer).encode() + b"\n")
        os._exit(0)
    os.close(w)
    with os.fdopen(r, "rb") as pipe:
        answer = json.loads(pipe.readline())
    os.waitpid(pid, 0)
    return answer


def in_daemon(f):
    """Runs `f` in a process that has forked twice, left the session and lost its parent."""
    r, w = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.setsid()
        if os.fork() != 0:
            os._exit(0)
        while os.getppid() == os.getpgrp():
            pass
        try:
            answer = {"ok": f(), "pid": os.getpid()}
        except OSError as e:
            answer = {"errno": errno.errorcode.get(e.errno, str(e))}
        os.write(w, json.dumps(answer).encode() + b"\n")
        os._exit(0)
    os.close(w)
    os.waitpid(pid, 0)
    with os.fdopen(r, "rb") as pipe:
        return json.loads(pipe.readline())


def in_thread(f):
    answer = []

    def run():
        try:
            answer.append({"ok": f(), "tid": threading.get_native_id()})
        except OSError as e:
            answer.append({"errno": errno.errorcode.get(e.errno, str(e))})

    t = threading.Thread(target=run)
    t.start()
    t.join()
    return answer[0]


def sleeper():
    """A child that only waits; gives its pid."""
    pid = os.fork()
    if pid == 0:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        while True:
            signal.pause()
    return pid


def end(pid, sig=signal.SIGKILL):
    os.kill(pid, sig)
    return os.waitpid(pid, 0)[1]


def run(argv, env=None, path=None):
    """Forks and executes; gives the pid and the status."""
    pid = os.fork()
    if pid == 0:
        try:
            os.execve(path or argv[0], argv, env if env is not None else dict(os.environ))
        except OSError:
            os._exit(127)
    return [pid, os.waitpid(pid, 0)[1]]


def run_after(prepare, argv):
    """The same after something was done in the child."""
    pid = os.fork()
    if pid == 0:
        try:
            prepare()
            os.execve(argv[0], argv, dict(os.environ))
        finally:
            os._exit(127)
    return [pid, os.waitpid(pid, 0)[1]]


def run_in(where, argv):
    # Name by name, as a long path is refused as a whole.
    def start():
        os.chdir('/')
        for name in where.split('/'):
            if name:
                os.chdir(name)
    return run_after(start, argv)


def run_in_removed(where, argv):
    def start():
        os.mkdir(where)
        os.chdir(where)
        os.rmdir(where)
    return run_after(start, argv)


def run_mounted(where, below, argv):
    """In a directory of a file system that is mounted only for the program."""
    def start():
        CLONE_NEWNS, MS_REC, MS_PRIVATE = 0x20000, 0x4000, 1 << 18
        os.mkdir(where)
        if libc.unshare(CLONE_NEWNS) or libc.mount(None, b'/', None, MS_REC | MS_PRIVATE, None):
            raise OSError(ctypes.get_errno(), 'unshare')
        if libc.mount(b'none', where.encode(), b'tmpfs', 0, None):
            raise OSError(ctypes.get_errno(), 'mount')
        os.makedirs(where + '/' + below)
        os.chdir(where + '/' + below)
    return run_after(start, argv)


def clone_at(pid, argv):
    """Starts a program under a chosen pid (clone3 with set_tid); gives that pid."""
    tids = (ctypes.c_int32 * 1)(pid)
    args = (ctypes.c_uint64 * 11)()
    args[4] = signal.SIGCHLD
    args[8] = ctypes.addressof(tids)
    args[9] = 1
    path = argv[0].encode()
    c_argv = (ctypes.c_char_p * (len(argv) + 1))(*[a.encode() for a in argv], None)
    c_env = (ctypes.c_char_p * 1)(None)
    got = libc.syscall(435, ctypes.byref(args), 88)
    if got == 0:
        libc.execve(path, c_argv, c_env)
        libc._exit(127)
    if got < 0:
        raise OSError(ctypes.get_errno(), "clone3")
    return got


def udp(host, port, connect):
    s = socket.socket(family(host), socket.SOCK_DGRAM)
    if connect:
        s.connect((host, port))
    else:
        s.sendto(b"x", (host, port))
    s.close()


def fast_open(host, port):
    """Connects and sends in one call."""
    s = socket.socket(family(host), socket.SOCK_STREAM)
    s.sendto(b"hello\n", 0x20000000, (host, port))
    peer = s.getpeername()
    heard = s.makefile().readline().strip()
    s.close()
    return {"peer": peer[:2], "heard": heard}


def storm(workers, births):
    """Children that, at a byte on a pipe, make orphans as fast as they can: each forks a child
    that forks a grandchild and ends at once. The grandchildren stay. Gives the pipes."""
    go_r, go_w = os.pipe()
    told_r, told_w = os.pipe()
    for _ in range(workers):
        if os.fork() == 0:
            os.close(go_w)
            os.read(go_r, 1)
            for _ in range(births):
                pid = os.fork()
                if pid == 0:
                    before = time.clock_gettime_ns(time.CLOCK_BOOTTIME)
                    orphan = os.fork()
                    if orphan == 0:
                        while True:
                            signal.pause()
                    os.write(told_w, struct.pack("<QQ", before, orphan))
                    os._exit(0)
                os.waitpid(pid, 0)
            os.write(told_w, struct.pack("<QQ", 0, 0))
            while True:
                signal.pause()
    return [go_w, told_r]


def orphans(told_r, workers):
    """Waits for the storm to end; gives each orphan's pid and a time before its birth."""
    told = []
    while workers:
        before, pid = struct.unpack("<QQ", os.read(told_r, 16))
        if pid == 0:
            workers -= 1
        else:
            told.append([before, pid])
    return told


def pipe_write(data):
    with_pipe(lambda w: os.write(w, data))


def with_pipe(f):
    r, w = os.pipe()
    try:
        return f(w)
    finally:
        os.close(r)
        os.close(w)


def pair_write(data):
    with_pair(lambda s: s.send(data))


def with_pair(f):
    a, b = socket.socketpair()
    try:
        return f(a)
    finally:
        a.close()
        b.close()


def unix_write(path, data):
    s = socket.socket(socket.AF_UNIX)
    s.connect(path)
    s.sendall(data)
    s.close()


def keep_quic():
    s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    s.connect(("127.0.0.1", 443))
    kept.append(s)


def keep_listener():
    s = socket.socket()
    s.bind(("127.0.0.1", 0))
    s.listen()
    kept.append(s)


def drained(s):
    """Reads to the end, past the greeting."""
    s.settimeout(10)
    rest = b""
    while chunk := s.recv(100):
        rest += chunk
    return rest.replace(b"target\n", b"").decode()


def orphan_now():
    """An orphan: its parent has ended and was waited for. Gives its pid."""
    r, w = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.write(w, struct.pack("<Q", sleeper()))
        os._exit(0)
    os.waitpid(pid, 0)
    return struct.unpack("<Q", os.read(r, 8))[0]


def parent_waits(child=False):
    """A child that waits to be told what to do, maybe with a child of its own."""
    global parent_pipes
    go_r, go_w = os.pipe()
    told_r, told_w = os.pipe()
    pid = os.fork()
    if pid == 0:
        orphan = sleeper() if child else 0
        os.write(told_w, b"x")
        order = os.read(go_r, 20)
        if order == b"sleeper":
            orphan = sleeper()
        os.write(told_w, struct.pack("<Q", orphan))
        os._exit(0)
    os.read(told_r, 1)
    parent_pipes = (pid, go_w, told_r)


def parent_acts(order):
    """Tells it, and waits for its end. Gives the pid of the child that has lost its parent."""
    pid, go_w, told_r = parent_pipes
    os.write(go_w, order.encode())
    orphan = struct.unpack("<Q", os.read(told_r, 8))[0]
    os.waitpid(pid, 0)
    return orphan


def clone_me(pid):
    """Like fork, with a chosen pid for the child."""
    tids = (ctypes.c_int32 * 1)(pid)
    args = (ctypes.c_uint64 * 11)()
    args[4] = signal.SIGCHLD
    args[8] = ctypes.addressof(tids)
    args[9] = 1
    got = libc.syscall(435, ctypes.byref(args), 88)
    if got < 0:
        raise OSError(ctypes.get_errno(), "clone3")
    return got


def relay_child(at=None):
    """A child that is told what to do by `relay`, perhaps under a chosen pid."""
    global relay_pipes
    to_r, to_w = os.pipe()
    from_r, from_w = os.pipe()
    pid = os.fork() if at is None else clone_me(at)
    if pid == 0:
        out = os.fdopen(from_w, "w")
        for line in os.fdopen(to_r):
            print(json.dumps(eval(json.loads(line), globals())), file=out, flush=True)
        os._exit(0)
    relay_pipes = (os.fdopen(to_w, "w"), os.fdopen(from_r))
    return pid


def relay(code):
    print(json.dumps(code), file=relay_pipes[0], flush=True)
    return json.loads(relay_pipes[1].readline())


def unshare_net():
    if libc.unshare(0x40000000) != 0:
        raise OSError(ctypes.get_errno(), "unshare")


def lone_thread(f):
    """A process whose first thread has ended; another one runs `f`. Gives its status."""
    pid = os.fork()
    if pid == 0:
        me = os.getpid()

        def run():
            while open(f"/proc/self/task/{me}/stat").read().rsplit(")")[1].split()[0] != "Z":
                time.sleep(0.001)
            f()
            os._exit(7)

        threading.Thread(target=run).start()
        # Ends this thread alone.
        libc.syscall(93 if os.uname().machine == "aarch64" else 60, 0)
    return os.waitpid(pid, 0)[1]


def waiting_thread():
    ready = threading.Event()
    ids = []

    def run():
        ids.append(threading.get_native_id())
        ready.set()
        time.sleep(600)

    threading.Thread(target=run, daemon=True).start()
    ready.wait()
    return ids[0]


def exec_by_thread(argv):
    pid = os.fork()
    if pid == 0:
        threading.Thread(target=lambda: os.execv(argv[0], argv)).start()
        while True:
            time.sleep(1)
    return os.waitpid(pid, 0)[1]


def zombie():
    pid = os.fork()
    if pid == 0:
        os._exit(0)
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    return pid


def write_last_pid():
    with open("/proc/sys/kernel/ns_last_pid") as f:
        last = f.read()
    with open("/proc/sys/kernel/ns_last_pid", "w") as f:
        f.write(last)


def set_mm():
    """Sets the start of the arguments to what it is."""
    start = open("/proc/self/stat").read().rsplit(")", 1)[1].split()[45]
    libc.prctl(35, 8, ctypes.c_ulong(int(start)), 0, 0)


def set_mm_map(exe=None):
    """Sets the whole memory layout to what it is, as a restorer does, perhaps with an executable.
    Gives the result."""
    stat = open("/proc/self/stat").read().rsplit(")", 1)[1].split()
    field = lambda n: int(stat[n - 3])
    brk = libc.sbrk
    brk.restype = ctypes.c_uint64
    layout = [field(n) for n in (26, 27, 45, 46, 47)] + [brk(0)] + [field(n) for n in (28, 48, 49, 50, 51)]
    fd = 0xFFFFFFFF if exe is None else os.open(exe, os.O_RDONLY)
    arg = struct.pack("<11Q Q II", *layout, 0, 0, fd)
    return libc.prctl(35, 14, ctypes.c_char_p(arg), len(arg), 0)


def seize(pid):
    if libc.ptrace(0x4206, pid, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "ptrace")


def unshare_pid():
    if libc.unshare(0x20000000) != 0:
        raise OSError(ctypes.get_errno(), "unshare")


def tcp_repair():
    s = socket.socket()
    s.setsockopt(socket.SOL_TCP, 19, 1)
    s.close()


def ordinary_calls():
    libc.prctl(15, b"puppet", 0, 0, 0)
    s = socket.socket()
    s.setsockopt(socket.SOL_TCP, socket.TCP_NODELAY, 1)
    s.close()


def main():
    for line in sys.stdin:
        code = json.loads(line)
        try:
            try:
                answer = {"ok": eval(code, globals())}
            except SyntaxError:
                exec(code, globals())
                answer = {"ok": None}
        except OSError as e:
            answer = {"errno": errno.errorcode.get(e.errno, str(e))}
        except Exception as e:  # reported to the test, which fails
            answer = {"error": repr(e)}
        print(json.dumps(answer), flush=True)


main()
