//! Connections from before the attach.

use crate::fence::{Fence, Target, wait_for};

#[test]
fn old_connections_are_listed_and_can_be_cut() {
    let fence = Fence::new();
    let target = Target::new("127.0.0.1:0");
    let six = Target::new("[::1]:0");
    let mut agent = fence.puppet();
    let fd = agent.ok(&format!("keep_tcp({})", target.python()));
    agent.ok(&format!("keep_tcp({})", six.python()));
    agent.ok("keep_quic()");
    fence.probe().track(agent.pid(), 1).unwrap();

    // A connection through the hook is none of them, nor is a listener.
    agent.ok("keep_listener()");
    let open = fence
        .serve(&fence.v4, 1, || {
            agent.ok("keep_tcp('10.99.99.99', 443)");
            fence.probe().open_connections(1).unwrap()
        })
        .0;
    let mut peers: Vec<_> = open.iter().map(|c| (c.protocol, c.peer)).collect();
    peers.sort();
    let mut expected = vec![
        ("tcp", target.addr),
        ("tcp", six.addr),
        ("udp", "127.0.0.1:443".parse().unwrap()),
    ];
    expected.sort();
    assert_eq!(peers, expected);
    assert!(open.iter().all(|c| c.process.tgid == agent.pid()));

    let first = open.iter().find(|c| c.peer == target.addr).unwrap();
    assert_eq!(first.fd, fd.as_i64().unwrap() as i32);
    assert!(fence.probe().cut(first).unwrap());
    assert_eq!(agent.ok("drained(kept[0])"), "");
    wait_for("it to be gone", || {
        !fence.probe().open_connections(1).unwrap().contains(first)
    });
    // Cut is cut; the agent comes back through the hook.
    let (answer, _) = fence.serve(&fence.v4, 1, || {
        agent.ok(&format!("tcp({})", target.python()))
    });
    assert_eq!(answer["heard"], "hook");
}

#[test]
fn nothing_is_cut_that_is_not_meant() {
    let fence = Fence::new();
    let target = Target::new("127.0.0.1:0");
    let mut agent = fence.puppet();
    agent.ok(&format!("keep_tcp({})", target.python()));
    fence.probe().track(agent.pid(), 1).unwrap();
    let open = fence.probe().open_connections(1).unwrap();
    // The descriptor is another connection's by now.
    agent.ok("kept.pop(0).close()");
    let (_, _) = fence.serve(&fence.v4, 1, || agent.ok("keep_tcp('10.99.99.99', 443)"));
    assert!(!fence.probe().cut(&open[0]).unwrap());
    // The process is another one by now.
    let mut other = open[0].clone();
    other.process.start_ns += 1_000_000_000;
    assert!(!fence.probe().cut(&other).unwrap());
    agent.ok("kept[0].send(b'still there')");
}
