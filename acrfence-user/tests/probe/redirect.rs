//! Connections: who is redirected, where to, and what either end sees.

use acrfence_user::words::ProcessIdentity;
use serde_json::json;

use crate::fence::{Fence, Target};

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
