//! Connections: who is redirected, where to, and what either end sees.

use std::collections::HashMap;
use std::io::{BufRead, BufReader, Write};
use std::net::SocketAddr;

use acrfence_user::probe::{DaemonDown, Treatment, What};
use serde_json::json;

use crate::fence::{EventsExt as _, Fence, Place, Puppet, Target, accept, wait_for};

#[test]
fn a_tracked_connection_reaches_the_daemon_and_the_agent_sees_its_real_peer() {
    let fence = Fence::new();
    let mut agent = fence.agent();
    let (answer, claims) = fence.serve(&fence.v4, 1, || agent.ok("tcp('10.99.99.99', 443)"));
    assert_eq!(answer["peer"], json!(["10.99.99.99", 443]));
    assert_eq!(answer["heard"], "hook");
    let claim = claims[0].unwrap();
    assert_eq!(claim.original, "10.99.99.99:443".parse().unwrap());
    assert_eq!(claim.agent, 1);
    let identity = fence.probe().tracked().unwrap().into_keys().next().unwrap();
    assert_eq!(claim.process, identity);
    assert_eq!(identity.tgid, agent.pid());
}

#[test]
fn so_does_one_that_is_made_without_waiting_or_with_its_first_bytes() {
    let fence = Fence::new();
    let mut agent = fence.agent();
    let (answer, claims) =
        fence.serve(&fence.v4, 1, || agent.ok("nonblocking('10.99.99.99', 443)"));
    assert_eq!(answer["started"], "EINPROGRESS");
    assert_eq!(answer["error"], 0);
    assert_eq!(answer["peer"], json!(["10.99.99.99", 443]));
    assert_eq!(
        claims[0].unwrap().original,
        "10.99.99.99:443".parse().unwrap()
    );

    agent.start("fast_open('10.88.88.88', 80)");
    let (mut stream, from) = accept(&fence.v4);
    let claim = fence.probe().claim(from).unwrap();
    assert_eq!(claim.original, "10.88.88.88:80".parse().unwrap());
    let mut said = String::new();
    BufReader::new(&stream).read_line(&mut said).unwrap();
    assert_eq!(said, "hello\n");
    stream.write_all(b"hook\n").unwrap();
    let answer = &agent.answer()["ok"];
    assert_eq!(answer["peer"], json!(["10.88.88.88", 80]));
    assert_eq!(answer["heard"], "hook");
}

#[test]
fn ipv6_and_ipv4_mapped_into_it_are_redirected_as_well() {
    let fence = Fence::new();
    let mut agent = fence.agent();
    let (answer, claims) = fence.serve(&fence.v6, 1, || agent.ok("tcp('2001:db8::9', 443)"));
    assert_eq!(answer["peer"], json!(["2001:db8::9", 443]));
    assert_eq!(
        claims[0].unwrap().original,
        "[2001:db8::9]:443".parse().unwrap()
    );

    let (answer, claims) =
        fence.serve(&fence.v4, 1, || agent.ok("tcp('::ffff:10.99.99.99', 8443)"));
    assert_eq!(answer["peer"], json!(["::ffff:10.99.99.99", 8443]));
    assert_eq!(answer["heard"], "hook");
    assert_eq!(
        claims[0].unwrap().original,
        "10.99.99.99:8443".parse().unwrap()
    );
}

#[test]
fn loopback_destinations_are_fenced_too() {
    let fence = Fence::new();
    let target = Target::new("127.0.0.1:0");
    let mut agent = fence.agent();
    let (answer, claims) = fence.serve(&fence.v4, 1, || {
        agent.ok(&format!("tcp({})", target.python()))
    });
    assert_eq!(answer["heard"], "hook");
    assert_eq!(answer["peer"], json!(["127.0.0.1", target.addr.port()]));
    assert_eq!(claims[0].unwrap().original, target.addr);
}

#[test]
fn a_process_outside_every_tree_is_never_redirected() {
    let fence = Fence::new();
    let target = Target::new("127.0.0.1:0");
    let _agent = fence.agent();
    let mut outsider = fence.puppet();
    for _ in 0..20 {
        let answer = outsider.ok(&format!("tcp({})", target.python()));
        assert_eq!(answer["heard"], "target");
    }
    let answer = outsider.ok(&format!("in_daemon(lambda: tcp({}))", target.python()));
    assert_eq!(answer["ok"]["heard"], "target");
    let redirects = fence.account("redirect");
    assert_eq!(redirects.seen, 0);
}

#[test]
fn two_hundred_connections_at_once_are_told_apart() {
    const MANY: usize = 200;
    let fence = Fence::new();
    let mut agent = fence.agent();
    let code = format!(
        "list(__import__('concurrent.futures').futures.ThreadPoolExecutor({MANY}).map(
            lambda n: tcp('10.7.%d.%d' % (n // 100, n % 100), 1000 + n, '10.7.%d.%d:%d' % (n // 100, n % 100, 1000 + n)),
            range({MANY})))"
    )
    .replace('\n', " ");
    let claims = std::thread::scope(|scope| {
        let server = scope.spawn(|| {
            let streams: Vec<_> = (0..MANY).map(|_| accept(&fence.v4)).collect();
            streams
                .into_iter()
                .map(|(mut stream, from)| {
                    let claim = fence.probe().claim(from).unwrap();
                    let mut said = String::new();
                    BufReader::new(&stream).read_line(&mut said).unwrap();
                    stream.write_all(b"hook\n").unwrap();
                    (said.trim().parse::<SocketAddr>().unwrap(), claim)
                })
                .collect::<Vec<_>>()
        });
        let answers = agent.ok(&code);
        for (n, answer) in answers.as_array().unwrap().iter().enumerate() {
            let host = format!("10.7.{}.{}", n / 100, n % 100);
            assert_eq!(answer["peer"], json!([host, 1000 + n]));
        }
        server.join().unwrap()
    });
    let mut seen = HashMap::new();
    for (said, claim) in claims {
        assert_eq!(claim.original, said);
        assert_eq!(claim.process.tgid, agent.pid());
        *seen.entry(said).or_insert(0) += 1;
    }
    assert_eq!(seen.len(), MANY);
    let redirects = fence.account("redirect");
    assert_eq!(
        (redirects.seen, redirects.submitted),
        (MANY as u64, MANY as u64)
    );
}

#[test]
fn a_claim_ends_with_its_connection() {
    let fence = Fence::new();
    let mut agent = fence.agent();
    agent.start("tcp('10.99.99.99', 443)");
    let (mut stream, from) = accept(&fence.v4);
    assert!(fence.probe().claim(from).is_some());
    stream.write_all(b"hook\n").unwrap();
    agent.answer();
    // The agent has closed; once we close as well, its socket is gone.
    let mut rest = BufReader::new(&stream);
    assert_eq!(rest.fill_buf().unwrap(), b"");
    drop(stream);
    wait_for("the claim to end", || fence.probe().claim(from).is_none());
}

#[test]
fn a_client_that_sends_and_goes_at_once_is_still_known() {
    let fence = Fence::new();
    let mut agent = fence.agent();
    agent.ok("send_and_go('10.99.99.99', 443, b'once\\n')");
    // Everything of the client is gone by now.
    wait_for("its socket to be forgotten", || {
        fence.entries("SOCKETS") == 0
    });
    let (stream, from) = accept(&fence.v4);
    let claim = fence.probe().claim(from).unwrap();
    assert_eq!(claim.original, "10.99.99.99:443".parse().unwrap());
    let mut said = String::new();
    BufReader::new(&stream).read_line(&mut said).unwrap();
    assert_eq!(said, "once\n");
    // Once made, nothing is left of it.
    assert!(fence.probe().claim(from).is_none());
    assert_eq!(fence.entries("CLIENTS"), 0);
}

#[test]
fn a_failed_connection_leaves_nothing_behind() {
    let fence = Fence::with(|settings| settings.listeners.v4 = Some(closed_port()));
    let mut agent = fence.agent();
    for _ in 0..50 {
        assert_eq!(agent.errno("tcp('10.99.99.99', 443)"), "ECONNREFUSED");
    }
    wait_for("the sockets to be forgotten", || {
        fence.entries("SOCKETS") == 0
    });
    assert_eq!(fence.entries("CLIENTS"), 0);
}

#[test]
fn neither_does_one_that_fails_before_anything_is_sent() {
    let fence = Fence::new();
    let mut agent = fence.agent();
    // Two sockets with one address of their own: to the hook they cannot be told apart.
    let code = "same_source([('10.1.1.1', 443), ('10.2.2.2', 443)])";
    let (answer, claims) = fence.serve(&fence.v4, 1, || agent.ok(code));
    assert_eq!(answer, json!(["OK", "EADDRNOTAVAIL"]));
    assert_eq!(claims[0].unwrap().original, "10.1.1.1:443".parse().unwrap());
    wait_for("the sockets to be forgotten", || {
        fence.entries("SOCKETS") == 0
    });
}

#[test]
fn a_connection_whose_destination_cannot_be_stored_is_refused() {
    let fence = Fence::with(|settings| settings.most_connections = 2);
    let mut events = fence.probe().events();
    let mut agent = fence.agent();
    let (_, claims) = fence.serve(&fence.v4, 2, || {
        agent.ok("keep_tcp('10.1.1.1', 443)");
        agent.ok("keep_tcp('10.2.2.2', 443)");
    });
    assert!(claims.iter().all(Option::is_some));
    assert_eq!(agent.errno("tcp('10.3.3.3', 443)"), "EPERM");
    fence.probe().drain();
    let refused = std::iter::from_fn(|| events.try_event()).any(|event| {
        matches!(
            event.what,
            What::Connected {
                treatment: Treatment::RefusedNoRoom,
                ..
            }
        )
    });
    assert!(refused);
    let account = fence.account("redirect");
    assert_eq!((account.seen, account.submitted), (3, 2));
    assert_eq!(account.dropped["table full"], 1);
    assert!(fence.probe().gaps(1).contains("redirect"));
}

#[test]
fn nobody_may_connect_to_the_listener_by_himself() {
    let fence = Fence::new();
    let mut agent = fence.agent();
    let port = fence.v4.local_addr().unwrap().port();
    for host in ["127.0.0.1", "0.0.0.0", "::ffff:127.0.0.1", "::1"] {
        assert_eq!(
            agent.errno(&format!("tcp('{host}', {port})")),
            "EPERM",
            "{host}"
        );
    }
    // Whoever is not tracked gets through, but nobody is behind the connection.
    let mut outsider = fence.puppet();
    let (_, claims) = fence.serve(&fence.v4, 1, || {
        outsider.ok(&format!("tcp('127.0.0.1', {port})"))
    });
    assert_eq!(claims, [None]);
}

#[test]
fn quic_is_refused_and_counted_and_other_datagrams_pass() {
    let fence = Fence::new();
    let mut events = fence.probe().events();
    let mut agent = fence.agent();
    for host in ["127.0.0.1", "::1", "::ffff:127.0.0.1"] {
        for connect in ["True", "False"] {
            let call = |port: u16| format!("udp('{host}', {port}, {connect})");
            assert_eq!(agent.errno(&call(443)), "EPERM", "{host} {connect}");
            agent.ok(&call(4433));
        }
    }
    fence.probe().drain();
    let mut refused = 0;
    while let Some(event) = events.try_event() {
        if let What::Connected {
            peer,
            treatment,
            protocol,
        } = event.what
        {
            assert_eq!(
                (peer.port(), treatment, protocol),
                (443, Treatment::RefusedQuic, 17)
            );
            refused += 1;
        }
    }
    assert_eq!(refused, 6);
    assert_eq!(fence.account("connect").seen, 6);
    // Not for others.
    fence.puppet().ok("udp('127.0.0.1', 443, True)");
}

#[test]
fn destinations_that_policy_passes_are_left_alone_and_reported() {
    let fence = Fence::new();
    let target = Target::new("127.0.0.1:0");
    let other = Target::new("127.0.0.1:0");
    let mut events = fence.probe().events();
    let mut agent = fence.agent();
    fence.probe().set_passes(&[target.addr]).unwrap();
    let answer = agent.ok(&format!("tcp({})", target.python()));
    assert_eq!(answer["heard"], "target");
    let (answer, _) = fence.serve(&fence.v4, 1, || {
        agent.ok(&format!("tcp({})", other.python()))
    });
    assert_eq!(answer["heard"], "hook");
    fence.probe().drain();
    let passed = std::iter::from_fn(|| events.try_event())
        .filter(|event| {
            matches!(event.what, What::Connected { peer, treatment: Treatment::Passed, .. } if peer == target.addr)
        })
        .count();
    assert_eq!(passed, 1);

    // Any port of an address, and any address with a port.
    fence
        .probe()
        .set_passes(&["127.0.0.1:0".parse().unwrap()])
        .unwrap();
    assert_eq!(
        agent.ok(&format!("tcp({})", other.python()))["heard"],
        "target"
    );
    let any = format!("0.0.0.0:{}", other.addr.port());
    fence.probe().set_passes(&[any.parse().unwrap()]).unwrap();
    assert_eq!(
        agent.ok(&format!("tcp({})", other.python()))["heard"],
        "target"
    );
    fence.probe().set_passes(&[]).unwrap();
    let (answer, _) = fence.serve(&fence.v4, 1, || {
        agent.ok(&format!("tcp({})", other.python()))
    });
    assert_eq!(answer["heard"], "hook");
}

#[test]
fn the_daemon_itself_is_exempt_even_inside_a_tree() {
    let place = Place::new();
    let target = Target::new("127.0.0.1:0");
    let mut ancestor = Puppet::new(&place.cgroup);
    // The daemon is a child of what becomes an agent.
    let daemon = ancestor.ok("relay_child()");
    let daemon = daemon.as_u64().unwrap() as u32;
    let fence = Fence::at(place, |settings| settings.daemon = Some(daemon));
    let tree = fence.probe().track(ancestor.pid(), 1).unwrap();
    assert!(tree.iter().all(|process| process.tgid != daemon));
    let answer = ancestor.ok(&format!("relay(\"tcp({})\")", target.python()));
    assert_eq!(answer["heard"], "target");
    let (answer, _) = fence.serve(&fence.v4, 1, || {
        ancestor.ok(&format!("tcp({})", target.python()))
    });
    assert_eq!(answer["heard"], "hook");
}

#[test]
fn without_a_listener_in_its_network_namespace_a_connection_fails() {
    let fence = Fence::new();
    let mut agent = fence.agent();
    agent.ok("unshare_net()");
    assert_eq!(agent.errno("tcp('10.99.99.99', 443)"), "EPERM");
    let answer = fence.account("connect");
    assert_eq!(answer.seen, 1);
}

#[test]
fn when_the_daemon_ends_policy_decides() {
    for (policy, expected) in [
        (DaemonDown::Closed, None),
        (DaemonDown::Open, Some("target")),
    ] {
        let place = Place::new();
        let target = Target::new("127.0.0.1:0");
        let mut keeper = Puppet::new(&place.cgroup);
        let daemon = keeper.ok("sleeper()").as_u64().unwrap() as u32;
        let fence = Fence::at(place, |settings| {
            settings.daemon = Some(daemon);
            settings.daemon_down = policy;
        });
        let mut agent = fence.agent();
        let call = format!("tcp({})", target.python());
        let (answer, _) = fence.serve(&fence.v4, 1, || agent.ok(&call));
        assert_eq!(answer["heard"], "hook");

        keeper.ok(&format!("end({daemon})"));
        match expected {
            None => assert_eq!(agent.errno(&call), "EPERM"),
            Some(heard) => assert_eq!(agent.ok(&call)["heard"], heard),
        }
        assert_eq!(fence.puppet().ok(&call)["heard"], "target");
    }
}

fn closed_port() -> u16 {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    listener.local_addr().unwrap().port()
}
