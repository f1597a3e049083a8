//! The relay between a scripted agent and scripted or real programs, over real pipes.

mod bench;

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use nix::fcntl::OFlag;
use proptest::prelude::*;

use self::bench::*;
use super::*;

#[tokio::test]
async fn a_call_is_admitted_sent_settled_and_answered() {
    let (mut agent, mut server, judge, relay) = bench().opened().await;
    agent.say(&call("1", "pay"));
    assert_eq!(server.hear().await, Some(call("1", "pay")));
    server.say(&result("1", "paid"));
    assert_eq!(agent.hear().await, Some(result("1", "paid")));
    assert_eq!(
        *judge.seen.lock(),
        [("pay".to_owned(), Some(r#"{"text":"paid"}"#.to_owned()))]
    );
    drop(agent.to.take());
    assert_eq!(server.hear().await, None);
    drop(server.to.take());
    assert_eq!(agent.hear().await, None);
    let summary = relay.await.unwrap();
    assert!(summary.is_rpc && summary.sent > 100 && summary.received > 50);
}

#[tokio::test]
async fn an_answer_is_on_disk_before_the_agent_sees_it() {
    let (mut agent, mut server, judge, _relay) = bench().opened().await;
    agent.say(&call("1", "slow"));
    server.hear().await.unwrap();
    server.say(&result("1", "paid"));
    server.say(PING);
    // The other direction goes on meanwhile.
    agent.say(PING);
    assert_eq!(server.hear().await.as_deref(), Some(PING));
    agent.heard_nothing();
    judge.disk.notify_one();
    assert_eq!(agent.hear().await, Some(result("1", "paid")));
    assert_eq!(agent.hear().await.as_deref(), Some(PING));
}

#[tokio::test]
async fn an_answer_that_cannot_be_recorded_is_not_shown() {
    let (mut agent, mut server, _judge, _relay) = bench().opened().await;
    agent.say(&call("1", "unlucky"));
    server.hear().await.unwrap();
    server.say(&result("1", "secret"));
    let line = agent.hear().await.unwrap();
    assert!(
        line.contains("could not be recorded") && line.contains("e7"),
        "{line}"
    );
    assert!(
        !line.contains("secret") && line.contains(r#""id":1"#),
        "{line}"
    );
}

#[tokio::test]
async fn a_replay_and_a_refusal_touch_nothing() {
    let (mut agent, mut server, judge, _relay) = bench().opened().await;
    agent.say(&call("\"new\"", "replay"));
    assert_eq!(
        agent.hear().await.unwrap(),
        r#"{"jsonrpc":"2.0","id":"new","result":{"recorded":1}}"#
    );
    agent.say(&call("2", "refuse"));
    let line = agent.hear().await.unwrap();
    assert!(
        line.contains(r#""isError":true"#) && line.contains("It differs"),
        "{line}"
    );
    agent.say(PING);
    assert_eq!(server.hear().await.as_deref(), Some(PING));
    assert!(judge.seen.lock().is_empty());
}

#[tokio::test]
async fn a_held_call_is_overtaken_and_can_be_called_off() {
    let (mut agent, mut server, judge, _relay) = bench().opened().await;
    agent.say(&call("1", "held"));
    agent.say(&call("2", "held"));
    agent.say(PING);
    assert_eq!(server.hear().await.as_deref(), Some(PING));
    agent.say(&cancel("1"));
    agent.say(PING);
    // The cancellation of what was never sent is not passed on.
    assert_eq!(server.hear().await.as_deref(), Some(PING));
    judge.go.notify_waiters();
    assert_eq!(server.hear().await, Some(call("2", "held")));
    server.say(&result("2", "paid"));
    assert_eq!(agent.hear().await, Some(result("2", "paid")));
    let mut seen = judge.seen.lock().clone();
    seen.sort();
    let ends: Vec<&str> = seen
        .iter()
        .map(|(_, end)| end.as_deref().unwrap())
        .collect();
    assert!(
        ends[0].starts_with("not sent: the agent cancelled"),
        "{ends:?}"
    );
    assert_eq!(ends[1], r#"{"text":"paid"}"#);
}

#[tokio::test]
async fn a_cancelled_call_is_in_doubt_once_no_answer_came() {
    let (mut agent, mut server, judge, _relay) = bench().opened().await;
    agent.say(&call("1", "pay"));
    server.hear().await.unwrap();
    agent.say(&cancel("1"));
    assert_eq!(server.hear().await, Some(cancel("1")));
    let ended = || judge.seen.lock()[0].1.clone();
    assert_eq!(*judge.lost.lock(), ["abandoned e7"]);
    for _ in 0..100 {
        if ended().is_some() {
            break;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert!(ended().unwrap().starts_with("broken: the agent cancelled"));
}

#[tokio::test]
async fn a_server_that_dies_leaves_its_calls_in_doubt() {
    let (mut agent, mut server, judge, relay) = bench().opened().await;
    agent.say(&call("1", "pay"));
    server.hear().await.unwrap();
    server
        .to
        .as_mut()
        .unwrap()
        .write_all(b"half an ans")
        .unwrap();
    drop(server.to.take());
    assert_eq!(agent.hear().await.as_deref(), Some("half an ans"));
    assert_eq!(agent.hear().await, None);
    assert!(
        judge.seen.lock()[0]
            .1
            .as_ref()
            .unwrap()
            .starts_with("broken: the server ended")
    );
    drop(server);
    drop(agent);
    relay.await.unwrap();
}

#[tokio::test]
async fn an_agent_that_goes_does_not_lose_the_outcome() {
    let bench = bench();
    let (judge, relay) = (bench.judge.clone(), bench.relay);
    let (to, from) = bench.agent;
    let mut server = Side::new(bench.server.1, bench.server.0);
    let mut to = std::fs::File::from(to);
    to.write_all(format!("{}\n{}\n", INITIALIZE, call("1", "pay")).as_bytes())
        .unwrap();
    server.hear().await.unwrap();
    server.hear().await.unwrap();
    drop((to, from));
    while judge.lost.lock().is_empty() {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    server.say(PING);
    server.say(&result("1", "paid"));
    // Its input ends once the outcome is known, and not before.
    assert_eq!(server.hear().await, None);
    assert_eq!(
        judge.seen.lock()[0].1.as_deref(),
        Some(r#"{"text":"paid"}"#)
    );
    drop(server);
    relay.await.unwrap();
    assert_eq!(*judge.lost.lock(), ["abandoned e7", "undelivered e7"]);
}

#[tokio::test]
async fn an_answer_that_lay_unread_when_the_agent_died_was_not_told() {
    let bench = bench();
    let judge = bench.judge.clone();
    let (to, from) = bench.agent;
    let mut server = Side::new(bench.server.1, bench.server.0);
    let mut to = std::fs::File::from(to);
    let asked = format!(
        "{}\n{}\n{}\n",
        INITIALIZE,
        call("1", "pay"),
        call("2", "replay")
    );
    to.write_all(asked.as_bytes()).unwrap();
    server.hear().await.unwrap();
    server.hear().await.unwrap();
    server.say(&result("1", "paid"));
    server.say(PING);
    // Read up to the first answer, and no further.
    let mut reader = Source::ours(from).unwrap();
    let mut got = bytes::BytesMut::new();
    while !got.ends_with(b"\n") || memchr::memmem::find(&got, b"\"p\"").is_none() {
        reader.read(&mut got).await.unwrap();
    }
    assert!(judge.lost.lock().is_empty());
    to.write_all(format!("{}\n", call("3", "pay")).as_bytes())
        .unwrap();
    server.hear().await.unwrap();
    server.say(&result("3", "paid too"));
    while !reader.has_more() {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    drop(to);
    reader = Source::ours(pipe().0).unwrap();
    drop(reader);
    for _ in 0..100 {
        if !judge.lost.lock().is_empty() {
            break;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert_eq!(*judge.lost.lock(), ["undelivered e7"]);
}

#[tokio::test]
async fn a_call_to_a_server_that_took_nothing_was_not_sent() {
    let (mut agent, server, judge, relay) = bench().opened().await;
    agent.say(&call("1", "held"));
    // Held; then the server closes its input but not its output.
    tokio::time::sleep(Duration::from_millis(10)).await;
    let Side { to, lines } = server;
    drop(lines);
    // The reading thread ends when it sees a line that nobody takes.
    agent.say(PING);
    tokio::time::sleep(Duration::from_millis(100)).await;
    judge.go.notify_waiters();
    for _ in 0..100 {
        if judge
            .seen
            .lock()
            .first()
            .is_some_and(|(_, end)| end.is_some())
        {
            break;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let end = judge.seen.lock()[0].1.clone().unwrap();
    assert!(
        end.starts_with("not sent: the server took no more input"),
        "{end}"
    );
    drop(to);
    drop(agent);
    relay.await.unwrap();
}

#[tokio::test]
async fn an_id_that_is_in_use_is_refused() {
    let (mut agent, mut server, judge, _relay) = bench().opened().await;
    agent.say(&call("1", "pay"));
    server.hear().await.unwrap();
    agent.say(&call("1.0", "pay"));
    let line = agent.hear().await.unwrap();
    assert!(
        line.contains("same id") && line.contains("-32600"),
        "{line}"
    );
    server.say(&result("1", "paid"));
    assert_eq!(agent.hear().await, Some(result("1", "paid")));
    let seen = judge.seen.lock();
    assert_eq!(seen[0].1.as_deref(), Some(r#"{"text":"paid"}"#));
    assert!(seen[1].1.as_ref().unwrap().starts_with("not sent"));
}

#[tokio::test]
async fn a_batch_is_sent_as_it_was_or_without_what_is_answered_here() {
    let (mut agent, mut server, judge, _relay) = bench().opened().await;
    let whole = format!("[{} , {}]", call("1", "pay"), PING);
    agent.say(&whole);
    assert_eq!(server.hear().await, Some(whole));
    server.say(&format!(
        "[{},{}]",
        result("\"p\"", ""),
        result("1", "paid")
    ));
    assert!(agent.hear().await.unwrap().contains("paid"));

    agent.say(&format!(
        "[{},{},{}]",
        call("2", "replay"),
        PING,
        call("3", "pay")
    ));
    assert_eq!(
        server.hear().await,
        Some(format!("[{},{}]", PING, call("3", "pay")))
    );
    let own = agent.hear().await.unwrap();
    assert_eq!(own, r#"[{"jsonrpc":"2.0","id":2,"result":{"recorded":1}}]"#);
    server.say(&result("3", "paid too"));
    assert_eq!(agent.hear().await, Some(result("3", "paid too")));

    agent.say(&format!("[{}]", call("4", "refuse")));
    assert!(agent.hear().await.unwrap().starts_with("[{"));
    server.heard_nothing();
    assert_eq!(judge.seen.lock().len(), 2);
}

#[tokio::test]
async fn tools_are_learned() {
    let (mut agent, mut server, judge, _relay) = bench().opened().await;
    let ask = r#"{"jsonrpc":"2.0","id":5,"method":"tools/list"}"#;
    agent.say(ask);
    server.hear().await.unwrap();
    let told = r#"{"jsonrpc":"2.0","id":5,"result":{"tools":[{"name":"pay"}]}}"#;
    server.say(told);
    assert_eq!(agent.hear().await.as_deref(), Some(told));
    assert_eq!(
        *judge.tools.lock(),
        [("bank".to_owned(), r#"[{"name":"pay"}]"#.to_owned())]
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn messages_that_cannot_be_understood_are_refused_and_reported() {
    let (mut agent, mut server, judge, _relay) = bench().opened().await;
    agent.say(r#"{"jsonrpc":"2.0","id":8,"method":"ping","method":"tools/call"}"#);
    assert!(agent.hear().await.unwrap().contains(r#""id":8"#));
    agent.say(&"x".repeat(150_000));
    assert!(agent.hear().await.unwrap().contains("150001 bytes"));
    agent.say(PING);
    assert_eq!(server.hear().await.as_deref(), Some(PING));
    assert_eq!(judge.troubles.lock().len(), 2);
    assert!(judge.troubles.lock()[0].starts_with("bank: "));
}

#[tokio::test]
async fn an_answer_too_long_to_be_read_passes_and_its_effect_is_in_doubt() {
    let (mut agent, mut server, judge, _relay) = bench().opened().await;
    agent.say(&call("1", "pay"));
    server.hear().await.unwrap();
    let long = result("1", &"x".repeat(300_000));
    let sent = long.clone();
    let sender = tokio::task::spawn_blocking(move || {
        server.say(&sent);
        server
    });
    assert_eq!(agent.hear().await, Some(long));
    assert!(
        judge.seen.lock()[0]
            .1
            .as_ref()
            .unwrap()
            .contains("too long")
    );
    sender.await.unwrap();
}

#[tokio::test]
async fn an_answer_that_need_not_wait_does_not() {
    let (mut agent, mut server, judge, _relay) = bench().opened().await;
    agent.say(&call("1", "loose slow"));
    server.hear().await.unwrap();
    server.say(&result("1", "read"));
    assert_eq!(agent.hear().await, Some(result("1", "read")));
    for _ in 0..100 {
        if judge.seen.lock()[0].1.is_some() {
            return;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("never settled");
}

#[tokio::test]
async fn what_is_no_json_rpc_is_passed_on_byte_by_byte() {
    let (mut agent, mut server, _judge, relay) = bench().sides();
    // The server speaks first, and the answer is no line.
    server.to.as_mut().unwrap().write_all(b"login: \n").unwrap();
    assert_eq!(agent.hear().await.as_deref(), Some("login: "));
    agent.say("me");
    assert_eq!(server.hear().await.as_deref(), Some("me"));
    agent.say(&call("1", "refuse"));
    assert_eq!(server.hear().await, Some(call("1", "refuse")));
    drop(agent.to.take());
    assert_eq!(server.hear().await, None);
    server.say("half closed");
    assert_eq!(agent.hear().await.as_deref(), Some("half closed"));
    drop(server.to.take());
    assert_eq!(agent.hear().await, None);
    assert!(!relay.await.unwrap().is_rpc);
}

#[tokio::test]
async fn an_agent_that_says_nothing_still_hears() {
    let (agent, mut server, _judge, relay) = bench().sides();
    let Side { to, lines } = agent;
    drop(to);
    let mut agent = Side { to: None, lines };
    assert_eq!(server.hear().await, None);
    server.say("output");
    assert_eq!(agent.hear().await.as_deref(), Some("output"));
    drop(server);
    assert_eq!(agent.hear().await, None);
    relay.await.unwrap();
}

#[tokio::test]
async fn what_is_not_read_holds_the_writer_back() {
    for first in ["raw\n", &format!("{INITIALIZE}\n")] {
        let bench = bench();
        let agent = bench.agent.0;
        let flags = nix::fcntl::FcntlArg::F_SETFL(OFlag::O_NONBLOCK);
        nix::fcntl::fcntl(&agent, flags).unwrap();
        let mut written = nix::unistd::write(&agent, first.as_bytes()).unwrap();
        let line = [b"x".repeat(999), b"\n".to_vec()].concat();
        let mut idle = 0;
        while idle < 10 {
            match nix::unistd::write(&agent, &line) {
                Ok(more) => (written, idle) = (written + more, 0),
                Err(nix::Error::EAGAIN) => {
                    idle += 1;
                    tokio::time::sleep(Duration::from_millis(5)).await;
                }
                Err(error) => panic!("{error}"),
            }
        }
        assert!(written < 1 << 20, "{written} bytes are somewhere");
        drop((agent, bench.server.0));
        bench.relay.abort();
    }
}

#[tokio::test]
async fn sockets_and_one_socket_for_both_ways_work_as_pipes_do() {
    let (ours, theirs) = std::os::unix::net::UnixStream::pair().unwrap();
    let (server_ours, server_theirs) = std::os::unix::net::UnixStream::pair().unwrap();
    let copy = |stream: &std::os::unix::net::UnixStream| OwnedFd::from(stream.try_clone().unwrap());
    let judge = Arc::new(Judge::default());
    let ends = Ends {
        agent_in: Source::shared(copy(&ours)).unwrap().half(),
        agent_out: Sink::shared(ours.into()).unwrap().half(),
        server_in: Sink::ours(copy(&server_ours)).unwrap().half(),
        server_out: Source::ours(server_ours.into()).unwrap().half(),
    };
    let session = Session {
        arbiter: Arc::new(Court(judge.clone())),
        origin: origin(),
        inside: None,
        server: "bank".to_owned(),
        limits: limits(),
    };
    let relay = tokio::spawn(relay(ends, session));
    let mut agent = Side::new(copy(&theirs), copy(&theirs));
    let mut server = Side::new(copy(&server_theirs), server_theirs.into());
    agent.say(&call("1", "pay"));
    assert_eq!(server.hear().await, Some(call("1", "pay")));
    theirs.shutdown(std::net::Shutdown::Write).unwrap();
    server.say(&result("1", "paid"));
    assert_eq!(agent.hear().await, Some(result("1", "paid")));
    assert_eq!(server.hear().await, None);
    drop(server.to.take());
    // The reading thread holds the other copy of the server's end; its stream has ended.
    assert_eq!(agent.hear().await, None);
    relay.await.unwrap();
}

/// What the agent sends and what the server answers to it.
fn conversation() -> impl Strategy<Value = Vec<(String, String)>> {
    let exchange = (0..6u8, any::<u16>(), "[ -~é]{0,30}").prop_map(|(kind, id, text)| {
        let id = id.to_string();
        let text = serde_json::to_string(&text).unwrap();
        let answer = format!(r#"{{"result":{{"t":{text}}},"jsonrpc":"2.0","id":{id}}}"#);
        match kind {
            0 => (PING.to_owned(), String::new()),
            1 => (
                String::new(),
                format!(r#"{{"jsonrpc":"2.0","method":"notifications/message","params":{text}}}"#),
            ),
            2 => (call(&id, "pay"), answer),
            3 => (call(&id, "loose"), format!("{answer}\r")),
            4 => (format!("[{}]", call(&id, "pay")), format!("[{answer}]")),
            _ => (
                format!(r#"{{"jsonrpc":"2.0","id":{id},"method":"x","params":{text}}}"#),
                answer,
            ),
        }
    });
    prop::collection::vec(exchange, 0..12).prop_map(|mut all| {
        // Ids of calls that run are unique, as JSON-RPC demands: here each is answered at once.
        all.insert(0, (INITIALIZE.to_owned(), INITIALIZED.to_owned()));
        all
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Both sides get byte for byte what the other one said, however it is cut.
    #[test]
    fn the_relay_is_invisible(
        conversation in conversation(),
        cuts in prop::collection::vec(1..200usize, 1..20),
    ) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let bench = bench();
            let (mut to_relay, from_relay) = (std::fs::File::from(bench.agent.0), bench.agent.1);
            let said: String = conversation.iter().map(|(ask, _)| format!("{ask}\n")).collect();
            let answered: String = conversation.iter().map(|(_, answer)| format!("{answer}\n")).collect();
            let (server_in, server_out) = (bench.server.0, bench.server.1);
            let server_cuts = cuts.clone();
            let answers: Vec<String> = conversation.iter().map(|(_, a)| format!("{a}\n")).collect();
            let server = std::thread::spawn(move || {
                let mut lines = BufReader::new(std::fs::File::from(server_in));
                let mut out = std::fs::File::from(server_out);
                let mut got = Vec::new();
                let mut cuts = server_cuts.iter().cycle();
                for answer in answers {
                    lines.read_until(b'\n', &mut got).unwrap();
                    let mut rest = answer.as_bytes();
                    while !rest.is_empty() {
                        let (now, later) = rest.split_at((*cuts.next().unwrap()).min(rest.len()));
                        out.write_all(now).unwrap();
                        rest = later;
                    }
                }
                lines.read_to_end(&mut got).unwrap();
                got
            });
            let (text, agent_cuts) = (said.clone(), cuts.clone());
            let agent = std::thread::spawn(move || {
                let mut rest = text.as_bytes();
                let mut cuts = agent_cuts.iter().cycle();
                while !rest.is_empty() {
                    let (now, later) = rest.split_at((*cuts.next().unwrap()).min(rest.len()));
                    to_relay.write_all(now).unwrap();
                    rest = later;
                }
            });
            let listener = std::thread::spawn(move || {
                let mut got = Vec::new();
                std::fs::File::from(from_relay).read_to_end(&mut got).unwrap();
                got
            });
            bench.relay.await.unwrap();
            agent.join().unwrap();
            prop_assert_eq!(String::from_utf8(server.join().unwrap()).unwrap(), said);
            prop_assert_eq!(String::from_utf8(listener.join().unwrap()).unwrap(), answered);
            // Every call was seen, and every one of them settled with its own answer.
            let calls = conversation.iter().filter(|(ask, _)| ask.contains("tools/call")).count();
            let seen = bench.judge.seen.lock();
            prop_assert_eq!(seen.len(), calls);
            for (_, end) in seen.iter() {
                prop_assert!(end.as_ref().is_some_and(|end| end.starts_with("{\"t\":")), "{:?}", end);
            }
            Ok(())
        })?;
    }
}
