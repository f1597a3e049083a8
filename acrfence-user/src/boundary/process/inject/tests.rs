//! Real processes, stopped between exec and their first instruction as the kernel gate does it.

use std::io::{Read as _, Write as _};
use std::os::fd::OwnedFd;
use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::process::{Child, Command, ExitStatus, Stdio};

use nix::sys::wait::{Id, WaitPidFlag, WaitStatus, waitid, waitpid};

use super::*;

/// Starts `command` and leaves it with a `SIGSTOP` pending at the end of its exec, which is what
/// `bpf_send_signal(SIGSTOP)` in `sched_process_exec` does.
fn at_exec(mut command: Command) -> Child {
    let (pid_here, pid_there) = pipe();
    let (go_there, go_here) = pipe();
    let spawner = std::thread::spawn(move || {
        let (pid_there, go_there) = (pid_there, go_there);
        // SAFETY: only system calls between fork and exec.
        unsafe {
            command.pre_exec(move || {
                nix::unistd::write(&pid_there, &std::process::id().to_ne_bytes())?;
                nix::unistd::read(&go_there, &mut [0; 1])?;
                Ok(())
            });
        }
        command.spawn().unwrap()
    });
    let mut pid = [0; 4];
    std::fs::File::from(pid_here).read_exact(&mut pid).unwrap();
    let pid = Pid::from_raw(i32::from_ne_bytes(pid));
    trace::seize(pid, libc::PTRACE_O_TRACEEXEC).unwrap();
    std::fs::File::from(go_here).write_all(b"!").unwrap();
    assert_eq!(trace::wait(pid), Ok(Stop::Event));
    nix::sys::signal::kill(pid, nix::sys::signal::SIGSTOP).unwrap();
    trace::detach(pid).unwrap();
    spawner.join().unwrap()
}

/// A pipe that other tests' children do not inherit.
fn pipe() -> (OwnedFd, OwnedFd) {
    nix::unistd::pipe2(nix::fcntl::OFlag::O_CLOEXEC).unwrap()
}

/// The same, and waits until it is seen to have stopped.
fn stopped_at_exec(command: Command) -> Child {
    let child = at_exec(command);
    let flags = WaitPidFlag::WSTOPPED | WaitPidFlag::WNOWAIT;
    let id = Id::Pid(pid(&child));
    assert!(matches!(
        waitid(id, flags).unwrap(),
        WaitStatus::Stopped(..)
    ));
    child
}

fn pid(child: &Child) -> Pid {
    Pid::from_raw(child.id().try_into().unwrap())
}

fn process(child: &Child) -> Process {
    Process::open(pid(child)).unwrap()
}

fn sh(script: &str) -> Command {
    let mut command = Command::new("/bin/sh");
    command.args(["-c", script]);
    command
}

fn output(mut child: Child) -> (String, ExitStatus) {
    let mut text = String::new();
    let mut out = child.stdout.take().unwrap();
    out.read_to_string(&mut text).unwrap();
    (text, child.wait().unwrap())
}

#[test]
fn a_released_process_runs_as_if_nothing_had_been() {
    for wait_for_stop in [true, false] {
        let mut command = sh("echo $0 $1; exit 7");
        command.args(["zero", "one"]).stdout(Stdio::piped());
        let child = if wait_for_stop {
            stopped_at_exec(command)
        } else {
            at_exec(command)
        };
        let process = process(&child);
        Held::seize(&process).unwrap().release().unwrap();
        let (text, status) = output(child);
        assert_eq!((text.as_str(), status.code()), ("zero one\n", Some(7)));
    }
}

#[test]
fn variables_are_added_behind_those_it_has() {
    let mut command = Command::new("/usr/bin/env");
    command.env_clear().env("FIRST", "1").stdout(Stdio::piped());
    let child = stopped_at_exec(command);
    let process = process(&child);
    let mut held = Held::seize(&process).unwrap();
    assert!(!held.is_privileged());
    held.add_environment(&[b"SSL_CERT_FILE=/x/y.pem", b"EMPTY="])
        .unwrap();
    held.add_environment(&[b"AGAIN=2"]).unwrap();
    held.release().unwrap();
    let (text, status) = output(child);
    assert_eq!(text, "FIRST=1\nSSL_CERT_FILE=/x/y.pem\nEMPTY=\nAGAIN=2\n");
    assert!(status.success());
}

#[test]
fn a_long_argument_vector_survives_and_a_longer_one_is_refused() {
    for (arguments, fits) in [(5_000, true), (100_000, false)] {
        let mut command = sh("echo $# $ADDED");
        command.arg("zero");
        command
            .args(std::iter::repeat_n("a", arguments))
            .stdout(Stdio::piped());
        let child = stopped_at_exec(command);
        let process = process(&child);
        let mut held = Held::seize(&process).unwrap();
        let added = held.add_environment(&[b"ADDED=yes"]);
        assert_eq!(added.is_ok(), fits, "{added:?}");
        held.release().unwrap();
        let (text, _) = output(child);
        let expected = format!("{arguments}{}\n", if fits { " yes" } else { "" });
        assert_eq!(text, expected);
    }
}

#[test]
fn without_a_vdso_the_program_text_is_used_and_put_back() {
    let mut command = sh("read line; echo got $line");
    command.stdin(Stdio::piped()).stdout(Stdio::piped());
    let child = stopped_at_exec(command);
    let process = process(&child);
    let mut held = Held::seize_and(&process, false).unwrap();
    assert!(held.covered.is_some());
    let input = Standard::of(&process, 0);
    let ours = held
        .interpose(&[place(&[0], &input, Direction::In)])
        .unwrap();
    held.release().unwrap();
    write_all(ours, b"through our pipe\n");
    let (text, status) = output(child);
    assert_eq!(text, "got through our pipe\n");
    assert!(status.success());
}

fn place<'a>(numbers: &'a [i32], now: &'a Standard, direction: Direction) -> Place<'a> {
    Place {
        numbers,
        now: now.copy.as_ref().unwrap(),
        kind: now.kind,
        direction,
    }
}

fn write_all(ours: Vec<Interposed>, bytes: &[u8]) {
    let [Interposed(end)] = <[_; 1]>::try_from(ours).unwrap();
    std::fs::File::from(end).write_all(bytes).unwrap();
}

#[test]
fn standard_descriptors_are_told_apart() {
    let mut command = sh("exit");
    let (end, _other) = std::os::unix::net::UnixStream::pair().unwrap();
    command
        .stdin(OwnedFd::from(end))
        .stdout(Stdio::piped())
        .stderr(std::fs::File::open("/dev/null").unwrap());
    let mut child = stopped_at_exec(command);
    let process = process(&child);
    let kinds = [0, 1, 2, 77].map(|n| Standard::of(&process, n).kind);
    assert_eq!(kinds, [Kind::Socket, Kind::Pipe, Kind::Null, Kind::Closed]);
    Held::seize(&process).unwrap().release().unwrap();
    child.wait().unwrap();
}

#[test]
fn pipes_and_sockets_are_replaced_by_their_like() {
    // The program says what its descriptors are, how large and what it reads.
    let script = "import os,stat,fcntl,socket
kind=lambda n: 'pipe' if stat.S_ISFIFO(os.fstat(n).st_mode) else 'socket'
data=os.read(0,100)
size=fcntl.fcntl(1,1032) if kind(1)=='pipe' else 0
same=os.fstat(1).st_ino==os.fstat(2).st_ino
blocking=[os.get_blocking(n) for n in (0,1,2)]
os.write(1,repr((kind(0),kind(1),size,same,blocking,data)).encode())";
    let python = || {
        let mut command = Command::new("python3");
        command.args(["-ISc", script]);
        command
    };
    // Pipes, the output's with another size and not blocking, and standard error in it.
    let (out_read, out_write) = pipe();
    fcntl_size(&out_write, 8192);
    not_blocking(&out_write);
    let (in_read, _in_write) = pipe();
    let mut command = python();
    command
        .stdin(in_read)
        .stderr(out_write.try_clone().unwrap())
        .stdout(out_write);
    let got = talk(command, Kind::Pipe);
    assert_eq!(
        got,
        "('pipe', 'pipe', 8192, True, [True, False, False], b'hello')"
    );
    drop(out_read);

    let (in_there, _in_here) = std::os::unix::net::UnixStream::pair().unwrap();
    let (out_there, _out_here) = std::os::unix::net::UnixStream::pair().unwrap();
    let mut command = python();
    command
        .stdin(OwnedFd::from(in_there))
        .stderr(OwnedFd::from(out_there.try_clone().unwrap()))
        .stdout(OwnedFd::from(out_there));
    let got = talk(command, Kind::Socket);
    assert_eq!(
        got,
        "('socket', 'socket', 0, True, [True, True, True], b'hello')"
    );
}

/// Interposes, says hello and gives what comes back.
fn talk(command: Command, kind: Kind) -> String {
    let mut child = stopped_at_exec(command);
    let process = process(&child);
    let [input, out, error] = [0, 1, 2].map(|n| Standard::of(&process, n));
    assert_eq!((input.kind, out.kind, error.kind), (kind, kind, kind));
    assert_eq!(out.identity, error.identity);
    let before = descriptors(&child);
    let mut held = Held::seize(&process).unwrap();
    let ours = held
        .interpose(&[
            place(&[0], &input, Direction::In),
            place(&[1, 2], &out, Direction::Out),
        ])
        .unwrap();
    let names = |all: Vec<(String, _)>| all.into_iter().map(|(name, _)| name).collect::<Vec<_>>();
    assert_eq!(names(descriptors(&child)), names(before));
    held.release().unwrap();
    let [Interposed(to), Interposed(from)] = <[_; 2]>::try_from(ours).unwrap();
    std::fs::File::from(to).write_all(b"hello").unwrap();
    let mut text = String::new();
    std::fs::File::from(from).read_to_string(&mut text).unwrap();
    child.wait().unwrap();
    text
}

fn fcntl_size(fd: &OwnedFd, size: i32) {
    nix::fcntl::fcntl(fd, nix::fcntl::FcntlArg::F_SETPIPE_SZ(size)).unwrap();
}

fn not_blocking(fd: &OwnedFd) {
    let flags = nix::fcntl::FcntlArg::F_SETFL(nix::fcntl::OFlag::O_NONBLOCK);
    nix::fcntl::fcntl(fd, flags).unwrap();
}

#[test]
fn a_process_without_room_for_descriptors_is_left_as_it_was() {
    let mut command = sh("echo untouched");
    command.stdin(Stdio::piped()).stdout(Stdio::piped());
    let child = stopped_at_exec(command);
    let process = process(&child);
    let before = descriptors(&child);
    // Room for one pipe and a half.
    let is_free = |n: &u64| before.iter().all(|(name, _)| *name != n.to_string());
    let limit = (3..).filter(is_free).nth(2).unwrap() + 1;
    let few = libc::rlimit {
        rlim_cur: limit,
        rlim_max: limit,
    };
    // SAFETY: the kernel reads one rlimit and writes none.
    let done = unsafe {
        let number = i32::try_from(child.id()).unwrap();
        libc::prlimit(
            number,
            libc::RLIMIT_NOFILE,
            &raw const few,
            std::ptr::null_mut(),
        )
    };
    assert_eq!(done, 0);
    let [input, out] = [0, 1].map(|n| Standard::of(&process, n));
    let mut held = Held::seize(&process).unwrap();
    let error = held
        .interpose(&[
            place(&[0], &input, Direction::In),
            place(&[1], &out, Direction::Out),
        ])
        .unwrap_err();
    assert!(
        matches!(
            error,
            GateError::Failed {
                what: "pipe2",
                why: Errno::EMFILE,
                ..
            }
        ),
        "{error}"
    );
    assert_eq!(descriptors(&child), before);
    held.release().unwrap();
    drop((input, out));
    assert_eq!(output(child).0, "untouched\n");
}

fn descriptors(child: &Child) -> Vec<(String, std::path::PathBuf)> {
    let mut all: Vec<_> = std::fs::read_dir(format!("/proc/{}/fd", child.id()))
        .unwrap()
        .map(|entry| {
            let entry = entry.unwrap();
            let to = std::fs::read_link(entry.path()).unwrap();
            (entry.file_name().into_string().unwrap(), to)
        })
        .collect();
    all.sort();
    all
}

#[test]
fn a_process_can_end_before_it_began() {
    let dir = tempfile::tempdir().unwrap();
    let mut command = Command::new("touch");
    command.arg(dir.path().join("ran"));
    let mut child = stopped_at_exec(command);
    let process = process(&child);
    Held::seize(&process).unwrap().exit(126).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(126));
    assert!(!dir.path().join("ran").exists());
}

#[test]
fn signals_that_come_meanwhile_are_delivered_afterwards() {
    let mut child = stopped_at_exec(sh("echo never"));
    let p = process(&child);
    let held = Held::seize(&p).unwrap();
    p.signal(libc::SIGTERM).unwrap();
    held.release().unwrap();
    assert_eq!(child.wait().unwrap().signal(), Some(libc::SIGTERM));
}

#[test]
fn a_signal_in_delivery_is_put_back_with_all_that_is_known_of_it() {
    // Blocked in the program, so that it can fetch it and tell from whom it came.
    let script = "import signal
info=signal.sigtimedwait([signal.SIGUSR1],5)
print(info.si_signo==signal.SIGUSR1, info.si_pid)";
    let mut command = Command::new("python3");
    command.args(["-ISc", script]).stdout(Stdio::piped());
    // SAFETY: one system call between fork and exec.
    unsafe {
        command.pre_exec(|| {
            let mut set = nix::sys::signal::SigSet::empty();
            set.add(nix::sys::signal::SIGUSR1);
            set.thread_block()?;
            Ok(())
        });
    }
    let child = stopped_at_exec(command);
    let p = process(&child);
    let mut held = Held::seize(&p).unwrap();
    p.signal(libc::SIGUSR1).unwrap();
    // As if the kernel had taken it out of the queue for delivery just before the seizure.
    trace::set_signal_mask(p.pid(), !(1 << (libc::SIGUSR1 - 1))).unwrap();
    held.call("getpid", libc::SYS_getpid, [0; 6]).unwrap();
    trace::set_signal_mask(p.pid(), u64::MAX).unwrap();
    assert_eq!(held.meanwhile.len(), 1);
    held.release().unwrap();
    let (text, _) = output(child);
    assert_eq!(text, format!("True {}\n", std::process::id()));
}

#[test]
fn a_stop_that_somebody_else_meant_is_kept() {
    let mut command = sh("exit 3");
    // In an orphaned process group, which a test may be in, such stops do nothing.
    command.process_group(0);
    let mut child = stopped_at_exec(command);
    let p = process(&child);
    let held = Held::seize(&p).unwrap();
    p.signal(libc::SIGTSTP).unwrap();
    held.release().unwrap();
    // What is reported first may still be our own stop being lifted.
    let stopped = loop {
        match waitpid(
            pid(&child),
            Some(WaitPidFlag::WUNTRACED | WaitPidFlag::WCONTINUED),
        )
        .unwrap()
        {
            WaitStatus::Continued(_) => {}
            WaitStatus::Stopped(_, signal) => break signal,
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(stopped, nix::sys::signal::SIGTSTP);
    p.signal(libc::SIGCONT).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(3));
}

#[test]
fn death_at_the_gate_is_noticed_and_leaves_no_zombie() {
    for in_call in [false, true] {
        let mut child = stopped_at_exec(sh("echo never"));
        let p = process(&child);
        if !in_call {
            p.signal(libc::SIGKILL).unwrap();
            let gone = Held::seize(&p).map(drop).unwrap_err();
            assert_eq!(gone.word(), "gone");
        } else {
            let mut held = Held::seize(&p).unwrap();
            p.signal(libc::SIGKILL).unwrap();
            let gone = held.call("getpid", libc::SYS_getpid, [0; 6]).unwrap_err();
            assert_eq!(gone.word(), "gone");
        }
        // The tracer of this test is also the parent, and may have reaped it.
        if let Ok(status) = child.wait() {
            assert_eq!(status.signal(), Some(libc::SIGKILL));
        }
        assert!(!std::path::Path::new(&format!("/proc/{}", child.id())).exists());
    }
}

#[test]
fn a_process_that_is_not_our_child_is_left_to_its_parent() {
    // The parent waits for a child that dies at the gate, and must get its status.
    let mut parent = sh("sh -c 'kill -STOP $$; exit 5'; echo status $?");
    parent.stdout(Stdio::piped());
    let parent = parent.spawn().unwrap();
    let children = format!("/proc/{0}/task/{0}/children", parent.id());
    let child = loop {
        let text = std::fs::read_to_string(&children).unwrap();
        if let Ok(pid) = text.trim().parse::<i32>()
            && is_stopped(Pid::from_raw(pid))
        {
            break Pid::from_raw(pid);
        }
        std::thread::yield_now();
    };
    let p = Process::open(child).unwrap();
    // Not at the gate: refused, and still stopped.
    let error = Held::seize(&p).map(drop).unwrap_err();
    assert_eq!(
        error,
        GateError::PastGate {
            pid: child.as_raw()
        }
    );
    while !is_stopped(child) {
        std::thread::yield_now();
    }
    p.signal(libc::SIGCONT).unwrap();
    assert_eq!(output(parent).0, "status 5\n");
}

fn is_stopped(pid: Pid) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    stat.contains(") T ")
}

#[test]
fn a_dropped_hold_kills_rather_than_runs_half_changed() {
    let dir = tempfile::tempdir().unwrap();
    let mut command = Command::new("touch");
    command.arg(dir.path().join("ran"));
    let mut child = stopped_at_exec(command);
    let p = process(&child);
    drop(Held::seize(&p).unwrap());
    // Reaped by the tracer, which in this test is the parent.
    assert!(child.wait().is_err());
    assert!(!dir.path().join("ran").exists());
}

#[test]
fn a_tracer_that_dies_takes_the_held_process_with_it() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("ran");
    let mut child = std::thread::spawn(move || {
        let mut command = Command::new("touch");
        command.arg(path);
        let child = stopped_at_exec(command);
        let p = process(&child);
        std::mem::forget(Held::seize(&p).unwrap());
        child
    })
    .join()
    .unwrap();
    assert_eq!(child.wait().unwrap().signal(), Some(libc::SIGKILL));
    assert!(!dir.path().join("ran").exists());
}

#[test]
fn a_traced_process_is_refused() {
    let mut child = stopped_at_exec(sh("exit 4"));
    let p = process(&child);
    let (seized, wait_for_seized) = std::sync::mpsc::channel();
    let (done, wait_for_done) = std::sync::mpsc::channel::<()>();
    let pid = p.pid();
    let tracer = std::thread::spawn(move || {
        trace::seize(pid, 0).unwrap();
        assert_eq!(trace::wait(pid), Ok(Stop::Event));
        seized.send(nix::unistd::gettid()).unwrap();
        let _ = wait_for_done.recv();
        trace::detach(pid).unwrap();
    });
    wait_for_seized.recv().unwrap();
    let error = Held::seize(&p).map(drop).unwrap_err();
    assert_eq!(error.word(), "traced", "{error}");
    drop(done);
    tracer.join().unwrap();
    Held::seize(&p).unwrap().release().unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(4));
}

#[test]
fn a_seccomp_filter_does_not_stand_in_the_way() {
    // pipe2 fails with EPERM under this filter, dup3 kills.
    let mut command = sh("read line; echo got $line");
    command.stdin(Stdio::piped()).stdout(Stdio::piped());
    // SAFETY: system calls only between fork and exec; `program` outlives the call.
    unsafe {
        command.pre_exec(|| {
            let op = |code: u32, jt, jf, k| libc::sock_filter {
                code: code as u16,
                jt,
                jf,
                k,
            };
            let load = libc::BPF_LD | libc::BPF_W | libc::BPF_ABS;
            let equal = libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K;
            let ret = libc::BPF_RET | libc::BPF_K;
            let mut rules = [
                op(load, 0, 0, 0),
                op(equal, 0, 1, libc::SYS_pipe2 as u32),
                op(ret, 0, 0, libc::SECCOMP_RET_ERRNO | libc::EPERM as u32),
                op(equal, 0, 1, libc::SYS_dup3 as u32),
                op(ret, 0, 0, libc::SECCOMP_RET_KILL_PROCESS),
                op(ret, 0, 0, libc::SECCOMP_RET_ALLOW),
            ];
            let program = libc::sock_fprog {
                len: rules.len() as u16,
                filter: rules.as_mut_ptr(),
            };
            libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
            let done = libc::prctl(libc::PR_SET_SECCOMP, 2, &raw const program);
            if done == 0 {
                Ok(())
            } else {
                Err(std::io::Error::last_os_error())
            }
        });
    }
    let mut child = stopped_at_exec(command);
    let p = process(&child);
    let input = Standard::of(&p, 0);
    let mut held = match Held::seize(&p) {
        Ok(held) => held,
        // Not root, or a kernel without checkpoint/restore: said plainly.
        Err(error) => {
            assert_eq!(error.word(), "seccomp", "{error}");
            child.kill().unwrap();
            child.wait().unwrap();
            return;
        }
    };
    let ours = held
        .interpose(&[place(&[0], &input, Direction::In)])
        .unwrap();
    held.release().unwrap();
    write_all(ours, b"past the filter\n");
    assert_eq!(output(child).0, "got past the filter\n");
}

#[test]
#[cfg(target_arch = "x86_64")]
fn a_32_bit_program_is_left_alone() {
    // A whole ELF32 program: exit(9) through int 0x80.
    let code = [
        0xb8, 1, 0, 0, 0, // mov eax, 1
        0xbb, 9, 0, 0, 0, // mov ebx, 9
        0xcd, 0x80, // int 0x80
    ];
    let base = 0x0804_8000u32;
    let mut elf = vec![0x7f, b'E', b'L', b'F', 1, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    let half = |elf: &mut Vec<u8>, v: u16| elf.extend(v.to_le_bytes());
    let word = |elf: &mut Vec<u8>, v: u32| elf.extend(v.to_le_bytes());
    half(&mut elf, 2);
    half(&mut elf, 3);
    for v in [1, base + 84, 52, 0, 0] {
        word(&mut elf, v);
    }
    for v in [52, 32, 1, 40, 0, 0] {
        half(&mut elf, v);
    }
    let size = 84 + code.len() as u32;
    for v in [1, 0, base, base, size, size, 5, 0x1000] {
        word(&mut elf, v);
    }
    elf.extend(code);
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("program");
    std::fs::write(&path, elf).unwrap();
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    std::fs::set_permissions(&path, mode).unwrap();
    if Command::new(&path).status().is_err() {
        // This kernel runs no 32-bit programs at all.
        return;
    }
    let mut child = stopped_at_exec(Command::new(&path));
    let p = process(&child);
    let error = Held::seize(&p).map(drop).unwrap_err();
    assert_eq!(error.word(), "other_architecture", "{error}");
    p.signal(libc::SIGCONT).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(9));
}

#[test]
fn a_static_program_takes_more_environment() {
    let dir = tempfile::tempdir().unwrap();
    let (source, program) = (dir.path().join("a.c"), dir.path().join("a"));
    std::fs::write(
        &source,
        "#include <stdio.h>\n#include <stdlib.h>\nint main(int c,char**v){printf(\"%d %s %s\",c,v[1],getenv(\"ADDED\"));return 0;}",
    )
    .unwrap();
    let built = Command::new("cc")
        .args(["-static", "-o"])
        .args([&program, &source])
        .status();
    assert!(
        built.unwrap().success(),
        "this test needs a C compiler with a static libc"
    );
    let mut command = Command::new(&program);
    command.arg("one").stdout(Stdio::piped());
    let child = stopped_at_exec(command);
    let p = process(&child);
    let mut held = Held::seize(&p).unwrap();
    held.add_environment(&[b"ADDED=there"]).unwrap();
    held.release().unwrap();
    assert_eq!(output(child).0, "2 one there");
}
