//! What crosses a boundary that is not fenced.

use acrfence_user::probe::{Captures, Channel, What, Write};

use crate::fence::{EventsExt as _, Fence, Target, wait_for};

/// Runs `code` in an agent; gives what was reported of its writes, but for those to the test.
fn writes(fence: &Fence, code: &str) -> Vec<Write> {
    let mut agent = fence.agent();
    let mut events = fence.probe().events();
    agent.ok(code);
    fence.probe().drain();
    std::iter::from_fn(|| events.try_event())
        .filter_map(|event| match event.what {
            What::Wrote(write) if write.fd != 1 => Some(*write),
            _ => None,
        })
        .collect()
}

fn fence() -> Fence {
    // Sampled once a channel, however slow the machine is.
    Fence::with(|settings| settings.resample = std::time::Duration::from_secs(3600))
}

#[test]
fn pipes_and_socketpairs_are_reported_with_their_first_bytes() {
    let fence = fence();
    let seen = writes(
        &fence,
        "[pipe_write(b'to a pipe'), pair_write(b'x' * 1000)] and None",
    );
    assert_eq!(seen.len(), 2, "{seen:?}");
    assert_eq!(seen[0].channel, Channel::Pipe);
    assert_eq!(seen[0].data, b"to a pipe");
    assert_eq!((seen[0].length, seen[0].calls, seen[0].bytes), (9, 1, 9));
    assert_eq!(seen[1].channel, Channel::Unix);
    assert_eq!(seen[1].data, [b'x'; 256]);
    assert_eq!(seen[1].length, 1000);
}

#[test]
fn every_way_of_writing_is_seen() {
    let fence = fence();
    for (call, expected) in [
        ("os.writev(w, [b'', b'ab', b'cde'])", "ab"),
        ("os.write(w, b'abcde')", "abcde"),
    ] {
        let code = format!("with_pipe(lambda w: {call})");
        let seen = writes(&fence, &code);
        assert_eq!(seen.len(), 1, "{call}: {seen:?}");
        assert_eq!(seen[0].data, expected.as_bytes(), "{call}");
        assert_eq!(seen[0].length, 5, "{call}");
        fence.probe().untrack(1).unwrap();
    }
    for (call, expected) in [
        ("s.send(b'abcde')", "abcde"),
        ("s.sendmsg([b'abc', b'de'])", "abc"),
        ("s.sendmsg([b'', b'abcde'])", "abcde"),
        (
            "os.sendfile(s.fileno(), os.open('/bin/sh', os.O_RDONLY), 0, 5)",
            "",
        ),
    ] {
        let code = format!("with_pair(lambda s: {call})");
        let seen = writes(&fence, &code);
        assert_eq!(seen.len(), 1, "{call}: {seen:?}");
        assert_eq!(seen[0].channel, Channel::Unix);
        assert_eq!(seen[0].data, expected.as_bytes(), "{call}");
        assert_eq!(seen[0].length, 5, "{call}");
        fence.probe().untrack(1).unwrap();
    }
}

#[test]
fn the_other_end_is_named() {
    let fence = fence();
    let target = Target::new("127.0.0.1:0");
    let six = Target::new("[::1]:0");
    fence.probe().set_passes(&[target.addr, six.addr]).unwrap();
    let path = format!("/tmp/acrfence-test-{}.sock", std::process::id());
    let _ = std::fs::remove_file(&path);
    let _listener = std::os::unix::net::UnixListener::bind(&path).unwrap();
    let code = format!(
        "[tcp({}, 'one'), tcp({}, 'two'), unix_write('{path}', b'three'), \
          udp('127.0.0.1', 4434, False), udp('::1', 4435, True)] and None",
        target.python(),
        six.python()
    );
    let seen = writes(&fence, &code);
    let _ = std::fs::remove_file(&path);
    let told: Vec<_> = seen
        .iter()
        .map(|w| (w.channel, w.peer.map(|p| p.to_string()), w.path.clone()))
        .collect();
    let expected = [
        (Channel::Tcp, Some(target.addr.to_string()), None),
        (Channel::Tcp, Some(six.addr.to_string()), None),
        (Channel::Unix, None, Some(path)),
        (Channel::Udp, Some("127.0.0.1:4434".into()), None),
    ];
    assert_eq!(told, expected);
    assert_eq!(seen[0].data, b"one\n");
    assert_eq!(seen[2].data, b"three");
}

#[test]
fn a_busy_channel_is_reported_once_and_counted_whole() {
    let fence = fence();
    let mut agent = fence.agent();
    let mut events = fence.probe().events();
    agent.ok("with_pipe(lambda w: [os.write(w, b'0123456789') for _ in range(500)]) and None");
    let total = fence.probe().traffic(1).unwrap()["pipe"];
    fence.probe().drain();
    let reported = std::iter::from_fn(|| events.try_event())
        .filter(|e| matches!(&e.what, What::Wrote(w) if w.data.starts_with(b"0123456789")))
        .count();
    assert_eq!(reported, 1);
    assert!(total.calls >= 500 && total.bytes >= 5000, "{total:?}");
    let account = fence.account("write");
    assert_eq!(account.seen, account.submitted + account.aggregated);
    assert!(account.aggregated >= 499);

    // What a process wrote outlives it.
    agent.ok("in_child(lambda: with_pipe(lambda w: os.write(w, b'x' * 70)))");
    drop(agent);
    wait_for("the agent to end", || {
        fence.probe().tracked().unwrap().is_empty()
    });
    let after = fence.probe().traffic(1).unwrap()["pipe"];
    assert!(after.bytes >= total.bytes + 70);
}

#[test]
fn redirected_connections_files_and_other_processes_are_not_looked_at() {
    let fence = fence();
    let mut outsider = fence.puppet();
    outsider.ok("pipe_write(b'nobody')");
    let (seen, _) = fence.serve(&fence.v4, 1, || {
        writes(
            &fence,
            "[tcp('10.99.99.99', 443, 'fenced'), open('/dev/null', 'w').write('x')] and None",
        )
    });
    assert!(seen.is_empty(), "{seen:?}");
}

#[test]
fn each_kind_can_be_switched_off() {
    let fence = fence();
    fence.probe().set_captures(Captures::UNIX).unwrap();
    let seen = writes(&fence, "[pipe_write(b'p'), pair_write(b'u')] and None");
    assert_eq!(seen.len(), 1);
    assert_eq!(seen[0].channel, Channel::Unix);
    fence.probe().untrack(1).unwrap();

    fence.probe().set_captures(0).unwrap();
    let seen = writes(&fence, "[pipe_write(b'p'), pair_write(b'u')] and None");
    assert!(seen.is_empty());
}
