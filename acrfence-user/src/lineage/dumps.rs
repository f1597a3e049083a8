//! Which dump a restored process comes from.

use super::Lineage;
use crate::words::{AgentName, Checkpoint, Image, IncarnationCause, Seq, Timestamp};

/// What was seen of the image that a process is restored from. Programs say it, so it may be missing; it
/// is never taken for more than it can prove.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ImageSeen {
    /// Its directory.
    pub dir: Option<String>,
    /// When it was written, by its files. Copying makes this later, never earlier.
    pub written: Option<Timestamp>,
}

/// Files get the time of the kernel's last tick, which may lie before the dump began.
const TICK: u64 = 100_000_000;

impl Lineage {
    /// The dump of an agent that a process with this pid was restored from; none when that cannot be
    /// told, and everything must be taken as forgotten.
    ///
    /// `watched` is the time since when dumps of the agent are certain to have been noticed. A fork
    /// point that is too early stops harmless calls; one that is too late executes duplicates. So where
    /// several dumps are possible the oldest is taken, and where one may not have been noticed, none.
    pub fn dump_of(
        &self,
        agent: &AgentName,
        pid: u32,
        seen: &ImageSeen,
        watched: Timestamp,
    ) -> Option<&(Seq, Checkpoint)> {
        let images = self.checkpoints(agent).iter().filter_map(|entry| {
            let image = entry.1.image.as_ref()?;
            let holds = image.processes.iter().any(|saved| saved.pid == pid);
            holds.then_some((entry, image))
        });
        let possible: Vec<(&(Seq, Checkpoint), &Image)> = images
            .filter(|((_, c), _)| {
                seen.written
                    .is_none_or(|written| c.at.0 <= written.0.saturating_add(TICK))
            })
            .collect();
        let dir = seen.dir.as_deref();
        let mut same_place = possible
            .iter()
            .filter(|(_, image)| dir.is_some() && image.dir.as_deref() == dir);
        match (same_place.clone().next(), seen.written) {
            // A directory that is used again holds its last image, unless that dump failed before it
            // wrote anything: then the files are older than it, and it is not among these.
            (Some(_), Some(_)) => return same_place.next_back().map(|(entry, _)| *entry),
            (Some((first, _)), None) => return Some(first),
            (None, _) => {}
        }
        let oldest = possible.first().map(|(entry, _)| *entry)?;
        // Another one may have been made while nobody looked: before the agent was attached, or without
        // a daemon.
        let first = &self.agent(agent)?.lives.first()?.incarnation;
        let all_noticed = first.cause == IncarnationCause::Launch && first.at >= watched;
        all_noticed.then_some(oldest)
    }

    /// Whether a process with this pid that runs this program can be a saved one of the agent: not when
    /// images of it are known and all hold another program under that pid.
    pub fn may_be_saved(&self, agent: &AgentName, pid: u32, program: &str) -> bool {
        let images = self.checkpoints(agent).iter();
        let images = images.filter_map(|(_, c)| c.image.as_ref());
        let mut known = images
            .flat_map(|image| &image.processes)
            .filter(|saved| saved.pid == pid)
            .peekable();
        known.peek().is_none() || known.any(|saved| saved.program == program)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::effect::Event;
    use crate::words::{Incarnation, ProcessIdentity, Saved};

    const SECOND: u64 = 1_000_000_000;

    fn agent() -> AgentName {
        "a".parse().unwrap()
    }

    fn saved(pid: u32) -> Saved {
        Saved {
            pid,
            start_ns: 1,
            program: format!("program{pid}"),
        }
    }

    /// A life that began at second 10, with dumps at these seconds.
    fn lineage(dumps: &[(u64, u32, Option<&str>)]) -> Lineage {
        let mut lineage = Lineage::default();
        let began = Incarnation {
            agent: agent(),
            number: 1,
            cause: IncarnationCause::Launch,
            root: ProcessIdentity {
                tgid: 7,
                start_ns: 1,
            },
            boot_id: String::new(),
            uid: 0,
            exe: String::new(),
            argv: vec![],
            at: Timestamp(10 * SECOND),
        };
        lineage.apply(Seq(1), &Event::IncarnationBegan(began));
        for &(second, pid, dir) in dumps {
            let taken = Checkpoint {
                agent: agent(),
                name: "dump".into(),
                thread: None,
                at: Timestamp(second * SECOND),
                through: None,
                image: Some(Image {
                    incarnation: 1,
                    processes: vec![saved(pid), saved(99)],
                    dir: dir.map(Into::into),
                }),
            };
            lineage.apply(Seq(second), &Event::CheckpointTaken(taken));
        }
        lineage
    }

    fn found(
        lineage: &Lineage,
        pid: u32,
        dir: Option<&str>,
        written: Option<u64>,
        watched: u64,
    ) -> Option<u64> {
        let seen = ImageSeen {
            dir: dir.map(Into::into),
            written: written.map(|second| Timestamp(second * SECOND)),
        };
        let watched = Timestamp(watched * SECOND);
        lineage
            .dump_of(&agent(), pid, &seen, watched)
            .map(|(seq, _)| seq.0)
    }

    #[test]
    fn the_image_s_directory_names_its_dump() {
        let l = lineage(&[
            (20, 7, Some("/a")),
            (30, 7, Some("/b")),
            (40, 8, Some("/b")),
        ]);
        assert_eq!(found(&l, 7, Some("/b"), Some(31), 0), Some(30));
        assert_eq!(found(&l, 7, Some("/b"), None, 0), Some(30));
        assert_eq!(found(&l, 8, Some("/b"), Some(41), 0), Some(40));
        // Any process of the tree will do.
        assert_eq!(found(&l, 99, Some("/a"), Some(21), 0), Some(20));
        assert_eq!(found(&l, 6, Some("/a"), Some(21), 0), None);
    }

    #[test]
    fn a_directory_that_is_used_again_holds_the_image_that_its_files_are_as_old_as() {
        let l = lineage(&[
            (20, 7, Some("/a")),
            (30, 7, Some("/a")),
            (40, 7, Some("/a")),
        ]);
        assert_eq!(found(&l, 7, Some("/a"), Some(45), 0), Some(40));
        // The last dump failed before it wrote anything.
        assert_eq!(found(&l, 7, Some("/a"), Some(31), 0), Some(30));
        assert_eq!(found(&l, 7, Some("/a"), None, 0), Some(20));
        // Made before anything that was noticed.
        assert_eq!(found(&l, 7, Some("/a"), Some(15), 0), None);
    }

    #[test]
    fn without_a_hint_the_oldest_counts_and_none_where_one_may_have_been_missed() {
        let l = lineage(&[(20, 7, Some("/a")), (30, 7, None)]);
        assert_eq!(found(&l, 7, None, None, 10), Some(20));
        assert_eq!(found(&l, 7, None, None, 11), None);
        // An image that was moved: older ones are possible, younger ones are not.
        assert_eq!(found(&l, 7, Some("/moved"), Some(25), 10), Some(20));
        assert_eq!(found(&l, 7, Some("/moved"), Some(15), 10), None);
    }

    #[test]
    fn a_stranger_with_a_small_pid_is_no_saved_process() {
        let l = lineage(&[(20, 7, None)]);
        assert!(l.may_be_saved(&agent(), 7, "program7"));
        assert!(!l.may_be_saved(&agent(), 7, "nginx"));
        // Nothing is known of that one, so it may be.
        assert!(l.may_be_saved(&agent(), 8, "nginx"));
    }
}
