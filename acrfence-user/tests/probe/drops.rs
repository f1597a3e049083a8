//! Nothing is lost silently.

use crate::fence::Fence;

#[test]
fn the_accounts_add_up_when_the_ring_buffer_is_much_too_small() {
    let fence = Fence::with(|settings| settings.ring_bytes = 4096);
    let mut agent = fence.agent();
    agent.ok("[run(['/bin/true']) for _ in range(60)] and None");
    let accounts = fence.probe().accounts().unwrap();
    let mut dropped = 0;
    for account in &accounts {
        let lost: u64 = account.dropped.values().sum();
        assert_eq!(
            account.seen,
            account.submitted + account.aggregated + lost,
            "{account:?}"
        );
        dropped += lost;
    }
    assert!(dropped > 0, "{accounts:?}");
    let of = |sort: &str| accounts.iter().find(|a| a.sort == sort).unwrap();
    assert_eq!(of("fork").seen, 60);
    assert_eq!(of("exec").seen, 60);
    assert_eq!(of("exit").seen, 60);
    // A whole program start does not even fit once.
    assert_eq!(of("exec").dropped["ring buffer full"], 60);

    // The agent concerned is marked, and no other.
    let losses: u64 = fence
        .probe()
        .losses(1)
        .unwrap()
        .iter()
        .map(|loss| loss.count)
        .sum();
    assert_eq!(losses, dropped);
    assert!(
        fence
            .probe()
            .gaps(1)
            .contains("60 exec events dropped (ring buffer full)")
    );
    assert_eq!(fence.probe().gaps(2), "");

    // The fence does not depend on the ring buffer.
    let (answer, claims) = fence.serve(&fence.v4, 1, || {
        agent.ok("in_child(lambda: tcp('10.99.99.99', 443))")
    });
    assert_eq!(answer["ok"]["heard"], "hook");
    assert!(claims[0].is_some());
}

#[test]
fn the_accounts_add_up_when_all_is_well() {
    let fence = Fence::new();
    let mut agent = fence.agent();
    agent.ok("[run(['/bin/true']) for _ in range(20)] and None");
    for account in fence.probe().accounts().unwrap() {
        assert_eq!(
            account.seen,
            account.submitted + account.aggregated,
            "{account:?}"
        );
    }
    assert_eq!(fence.probe().gaps(1), "");
}

#[test]
fn a_receiver_that_is_too_slow_is_told() {
    use acrfence_user::probe::Received;
    let fence = Fence::with(|settings| settings.ring_bytes = 16 << 20);
    let mut events = fence.probe().events();
    let mut agent = fence.agent();
    // Three events each, more than a receiver may be behind.
    agent.ok("[run(['/bin/true']) for _ in range(300)] and None");
    fence.probe().drain();
    let mut got = 0;
    let mut missed = 0;
    while let Some(received) = events.try_next() {
        match received {
            Received::Event(_) => got += 1,
            Received::Missed(count) => missed += count,
        }
    }
    let submitted: u64 = fence
        .probe()
        .accounts()
        .unwrap()
        .iter()
        .map(|a| match a.sort {
            // These go into maps.
            "redirect" | "establish" => 0,
            _ => a.submitted,
        })
        .sum();
    assert_eq!(got + missed, submitted);
}

/// Waits for `seen` while the probe is read, and for nothing else.
fn while_it_is_read(fence: &Fence, seen: impl Future<Output = ()>, missing: &str) {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    runtime.block_on(async {
        tokio::select! {
            ended = fence.probe().run() => panic!("{ended:?}"),
            () = seen => {}
            () = tokio::time::sleep(std::time::Duration::from_secs(20)) => panic!("{missing}"),
        }
    });
}

#[test]
fn events_come_as_they_happen() {
    use acrfence_user::probe::{Received, What};
    let fence = Fence::new();
    let mut agent = fence.agent();
    let mut events = fence.probe().events();
    agent.start("run(['/bin/true', 'now'])");
    let seen = async {
        while let Some(received) = events.next().await {
            if let Received::Event(event) = received
                && let What::Executed(execution) = &event.what
                && execution.argv.get(1).is_some_and(|a| a == "now")
            {
                return;
            }
        }
    };
    while_it_is_read(&fence, seen, "no event came");
}

/// Most reports wake nobody. The reader comes back for them by itself, also after nothing happened for long.
#[test]
fn what_wakes_nobody_is_read_all_the_same() {
    use acrfence_user::probe::{Received, What};
    let fence = Fence::new();
    let mut agent = fence.agent();
    let mut events = fence.probe().events();
    let ends = async {
        for _ in 0..3 {
            // So long that the reader has stopped coming back.
            tokio::time::sleep(std::time::Duration::from_millis(300)).await;
            agent.start("[run(['/bin/true']) for _ in range(5)] and None");
            let mut ends = 0;
            while ends < 5 {
                match events.next().await {
                    Some(Received::Event(event)) => {
                        ends += u32::from(matches!(event.what, What::Exited { .. }));
                    }
                    other => panic!("{other:?}"),
                }
            }
            agent.answer();
        }
    };
    while_it_is_read(&fence, ends, "an end was not told");
}
