//! Open files: connections must never use up what the effect log and the control socket need.

use nix::sys::resource::{Resource, getrlimit, setrlimit};

use crate::boundary::Limits;

/// Kept free for the log, the control socket, the kernel's maps and bodies on disk.
const RESERVED: u64 = 256;
/// An accepted connection, its upstream, and a body on disk.
const EACH: u64 = 3;

/// Raises this process's limit of open files as far as it goes; gives what it is then.
pub(super) fn raise() -> u64 {
    let Ok((soft, hard)) = getrlimit(Resource::RLIMIT_NOFILE) else {
        return 1024;
    };
    if soft < hard && setrlimit(Resource::RLIMIT_NOFILE, hard, hard).is_ok() {
        return hard;
    }
    soft
}

/// Lowers the bounds of connections to what so many open files carry. No agent gets more than half of
/// them, so that a flood by one leaves room for the others.
pub(super) fn fit(limits: &mut Limits, files: u64) {
    let most = files.saturating_sub(RESERVED) / EACH;
    let most = usize::try_from(most).unwrap_or(usize::MAX).max(8);
    if most < limits.connections {
        tracing::warn!(
            "only {files} files may be open, so at most {most} connections are taken at a time; raise LimitNOFILE"
        );
        limits.connections = most;
    }
    limits.connections_per_agent = limits.connections_per_agent.min(limits.connections / 2);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn few_files_mean_few_connections_and_half_of_them_for_one_agent() {
        let mut limits = Limits::default();
        fit(&mut limits, 1_000_000);
        assert_eq!(limits, Limits::default());
        fit(&mut limits, 448);
        assert_eq!((limits.connections, limits.connections_per_agent), (64, 32));
        fit(&mut limits, 10);
        assert_eq!((limits.connections, limits.connections_per_agent), (8, 4));
    }
}
