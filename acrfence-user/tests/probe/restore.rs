//! The kernel's restore primitives are noticed, whoever uses them.

use acrfence_user::probe::{Primitive, What};

use crate::fence::{EventsExt as _, Fence};

#[test]
fn every_restore_primitive_is_noticed() {
    let fence = Fence::new();
    let mut outsider = fence.puppet();
    let mut events = fence.probe().events();
    // A pid that is free: that of a child that has just ended.
    let free = outsider.ok("run(['/bin/true'])")[0].as_u64().unwrap();
    outsider.ok(&format!("clone_at({free}, ['/bin/true'])"));
    outsider.ok("write_last_pid()");
    outsider.ok("set_mm()");
    outsider.ok("tcp_repair()");
    fence.probe().drain();
    let seen: Vec<_> = std::iter::from_fn(|| events.try_event())
        .filter(|event| event.process.tgid == outsider.pid())
        .filter_map(|event| match event.what {
            What::Restoring {
                primitive,
                argument,
            } => {
                assert_eq!(event.agent, None);
                Some((primitive, argument))
            }
            _ => None,
        })
        .collect();
    let expected = [
        (Primitive::SetTid, free),
        (Primitive::LastPid, 0),
        (Primitive::SetMm, 8),
        (Primitive::TcpRepair, 1),
    ];
    assert_eq!(seen, expected);
}

#[test]
fn ordinary_use_of_the_same_calls_is_not() {
    let fence = Fence::new();
    let mut agent = fence.agent();
    agent.ok("[run(['/bin/true']), ordinary_calls()] and None");
    // Others on this machine may restore something meanwhile; this process must not show up.
    let mut events = fence.probe().events();
    fence.probe().drain();
    let seen = std::iter::from_fn(|| events.try_event())
        .filter(|e| e.process.tgid == agent.pid() && matches!(e.what, What::Restoring { .. }))
        .count();
    assert_eq!(seen, 0);
}
