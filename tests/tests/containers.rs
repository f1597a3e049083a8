//! An agent in a container that `runc` saves and restores. Nobody tells the daemon anything.

use std::path::PathBuf;

use acrfence_tests::authority::Authority;
use acrfence_tests::bank::Bank;
use acrfence_tests::client::bare_python;
use acrfence_tests::container::Container;
use acrfence_tests::fence::Fence;
use acrfence_tests::orders::{ask, pipes};
use acrfence_tests::process::Running;
use anyhow::{Context as _, Result, ensure};

const NAME: &str = "contained";
/// Nothing else that would tell of a restore, and nobody waits for a person.
const ONLY_THE_KERNEL: &str = "[fence]\nhold_timeout = \"1s\"\non_restart = \"nothing\"\n";

/// A bank, a fence, and an agent inside.
struct World {
    agent: Option<Running>,
    container: Container,
    bank: Bank,
    fence: Fence,
}

impl World {
    /// The agent was started through `acrfence run -- runc run …`; its container knows nothing of ACRFence
    /// but the files that it shares with the machine.
    fn new() -> Result<Self> {
        // Restored processes lose their parent when runc is done.
        rustix::process::set_child_subreaper(Some(rustix::process::getpid()))?;
        let authority = Authority::new()?;
        let bank = Bank::start(&authority)?;
        let fence = Fence::start_with(&[&authority.root()], ONLY_THE_KERNEL)?;
        let scratch = fence.place().scratch();
        let dir = scratch.join("container");
        std::fs::create_dir(&dir)?;
        pipes(&scratch.join("agent"))?;
        let [orders, log] = ["agent", "agent.log"].map(|name| scratch.join(name));
        let program = bare_python(
            "saved.py",
            &[
                &bank.url(""),
                &orders.to_string_lossy(),
                &log.to_string_lossy(),
            ],
        )?;
        let programs = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("programs");
        let shared = [scratch, &programs];
        let mut container = Container::new(&dir, fence.place().cgroup(), &program, &shared)?;
        let mut launched = fence.launch(NAME, &container.start())?;
        // What runc opens for its container must be there when that is restored.
        launched.stdin(std::process::Stdio::null());
        let agent = Running::start(NAME, &mut launched)?;
        let world = Self {
            agent: Some(agent),
            container,
            bank,
            fence,
        };
        let first = world.ask("recall");
        let first =
            first.with_context(|| format!("it does not live: {}", world.container.log()))?;
        ensure!(first == "nothing");
        Ok(world)
    }

    fn ask(&self, order: &str) -> Result<String> {
        ask(&self.fence.place().scratch().join("agent"), order)
    }

    fn images(&self) -> PathBuf {
        self.fence.place().scratch().join("container/images")
    }

    fn restore(&mut self) -> Result<()> {
        let images = self.images();
        let group = self.fence.place().cgroup();
        self.container.restore(&images, |c| group.enter(c))
    }
}

#[test]
fn a_container_that_is_restored_three_times_pays_once() -> Result<()> {
    let mut world = World::new()?;
    world.container.checkpoint(&world.images(), &[])?;
    let agent = world.agent.take().context("no agent")?;
    agent.finish()?;
    let mut first = String::new();
    for life in 1..=3 {
        world.restore()?;
        let answer = world.ask("pay alice 100")?;
        if life == 1 {
            assert!(answer.starts_with("201"), "{answer}");
            first = answer;
        } else {
            assert_eq!(answer, first);
        }
        assert_eq!(world.bank.payments(), 1);
    }
    // What it means otherwise than before is stopped.
    world.restore()?;
    let other = world.ask("pay bob 30")?;
    assert!(
        other.starts_with("409") && other.contains("acrfence fork"),
        "{other}"
    );
    Ok(())
}

#[test]
fn a_container_that_went_on_after_it_was_saved_pays_once() -> Result<()> {
    let mut world = World::new()?;
    world
        .container
        .checkpoint(&world.images(), &["--leave-running"])?;
    let first = world.ask("pay alice 100")?;
    assert!(first.starts_with("201"), "{first}");
    world.restore()?;
    assert_eq!(world.ask("pay alice 100")?, first);
    assert_eq!(world.bank.payments(), 1);
    Ok(())
}
