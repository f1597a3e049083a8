//! The kernel's maps, typed.

use acrfence_common::{
    AgentLabel, Claim, ClientKey, CommandWord, Config, Counters, DropKey, Endpoint, GateConfig,
    GateEntry, Listener, Parentage, ProgramName, Restorable, SocketRecord, Tracked, Traffic,
    TrafficKey,
};
use aya::maps::{Array, HashMap, MapData, MapError, PerCpuArray, RingBuf};
use aya::{Ebpf, Pod};
use parking_lot::Mutex;

use super::ProbeError;

/// Every map that outlives a daemon, by name. `EVENTS` is among them.
pub const PINNED: [&str; 21] = [
    "EVENTS",
    "TRACKED",
    "RESTORABLE",
    "DUMPED",
    "PARENTS",
    "SOCKETS",
    "CLIENTS",
    "PASSES",
    "LISTENERS",
    "CONFIG",
    "COUNTERS",
    "DROPS",
    "TRAFFIC",
    "AGENTS",
    "GATE_CONFIG",
    "GATE_AGENTS",
    "GATE_COMMANDS",
    "GATE_WORDS",
    "GATE_SHELLS",
    "GATES",
    "GATE_QUEUE",
];

/// A hash map of the kernel that many threads use.
pub struct Table<K: Pod, V: Pod>(Mutex<HashMap<MapData, K, V>>);

impl<K: Pod + Eq + std::hash::Hash, V: Pod> Table<K, V> {
    /// The value of a key.
    pub fn get(&self, key: &K) -> Result<Option<V>, ProbeError> {
        match self.0.lock().get(key, 0) {
            Ok(value) => Ok(Some(value)),
            Err(MapError::KeyNotFound) => Ok(None),
            Err(error) => Err(failed("a kernel table could not be read", error)),
        }
    }

    /// Sets the value of a key.
    pub fn set(&self, key: &K, value: &V) -> Result<(), ProbeError> {
        self.0
            .lock()
            .insert(key, value, 0)
            .map_err(|error| failed("a kernel table could not be written", error))
    }

    /// Sets the value of a key that has none; gives whether it had none.
    pub fn add(&self, key: &K, value: &V) -> Result<bool, ProbeError> {
        const BPF_NOEXIST: u64 = 1;
        match self.0.lock().insert(key, value, BPF_NOEXIST) {
            Ok(()) => Ok(true),
            Err(error) if errno(&error) == Some(libc::EEXIST) => Ok(false),
            Err(error) => Err(failed("a kernel table could not be written", error)),
        }
    }

    /// Takes a key out; gives whether it was there.
    pub fn remove(&self, key: &K) -> Result<bool, ProbeError> {
        match self.0.lock().remove(key) {
            Ok(()) => Ok(true),
            Err(MapError::KeyNotFound) => Ok(false),
            Err(error) if errno(&error) == Some(libc::ENOENT) => Ok(false),
            Err(error) => Err(failed("a kernel table could not be written", error)),
        }
    }

    /// All entries. The kernel goes on changing the table meanwhile: what was in it all the time
    /// is in the answer, once.
    pub fn entries(&self) -> Result<std::collections::HashMap<K, V>, ProbeError> {
        let map = self.0.lock();
        let mut all = std::collections::HashMap::new();
        for entry in map.iter() {
            match entry {
                Ok((key, value)) => {
                    all.insert(key, value);
                }
                // Taken out between the key's and the value's turn.
                Err(MapError::KeyNotFound) => {}
                Err(error) => return Err(failed("a kernel table could not be read", error)),
            }
        }
        Ok(all)
    }

    /// Takes everything out.
    pub fn clear(&self) -> Result<(), ProbeError> {
        for key in self.entries()?.into_keys() {
            self.remove(&key)?;
        }
        Ok(())
    }
}

/// The maps.
pub struct Maps {
    pub tracked: Table<u32, Tracked>,
    pub restorable: Table<u32, Restorable>,
    pub dumped: Table<u32, Restorable>,
    pub parents: Table<u32, Parentage>,
    pub sockets: Table<u64, SocketRecord>,
    pub clients: Table<ClientKey, Claim>,
    pub passes: Table<Endpoint, u32>,
    pub listeners: Table<u64, Listener>,
    pub drops: Table<DropKey, u64>,
    pub traffic: Table<TrafficKey, Traffic>,
    pub agents: Table<u32, AgentLabel>,
    pub gate_agents: Table<u32, u32>,
    pub gate_commands: Table<ProgramName, u32>,
    pub gate_words: Table<CommandWord, u32>,
    pub gate_shells: Table<ProgramName, u32>,
    pub gates: Table<u32, GateEntry>,
    /// Until somebody serves the gate.
    pub gate_queue: Mutex<Option<RingBuf<MapData>>>,
    gate_config: Mutex<Array<MapData, GateConfig>>,
    exec_seen: Mutex<Array<MapData, u32>>,
    config: Mutex<Array<MapData, Config>>,
    counters: PerCpuArray<MapData, Counters>,
}

impl Maps {
    /// Takes the maps out of a loaded object. They must live until the programs are loaded.
    pub fn take(ebpf: &mut Ebpf) -> Result<(Self, RingBuf<MapData>), ProbeError> {
        let maps = Self {
            tracked: table(ebpf, "TRACKED")?,
            restorable: table(ebpf, "RESTORABLE")?,
            dumped: table(ebpf, "DUMPED")?,
            parents: table(ebpf, "PARENTS")?,
            sockets: table(ebpf, "SOCKETS")?,
            clients: table(ebpf, "CLIENTS")?,
            passes: table(ebpf, "PASSES")?,
            listeners: table(ebpf, "LISTENERS")?,
            drops: table(ebpf, "DROPS")?,
            traffic: table(ebpf, "TRAFFIC")?,
            agents: table(ebpf, "AGENTS")?,
            gate_agents: table(ebpf, "GATE_AGENTS")?,
            gate_commands: table(ebpf, "GATE_COMMANDS")?,
            gate_words: table(ebpf, "GATE_WORDS")?,
            gate_shells: table(ebpf, "GATE_SHELLS")?,
            gates: table(ebpf, "GATES")?,
            gate_queue: Mutex::new(Some(
                RingBuf::try_from(take(ebpf, "GATE_QUEUE")?)
                    .map_err(|e| unusable("GATE_QUEUE", &e))?,
            )),
            gate_config: Mutex::new(
                Array::try_from(take(ebpf, "GATE_CONFIG")?)
                    .map_err(|e| unusable("GATE_CONFIG", &e))?,
            ),
            exec_seen: Mutex::new(
                Array::try_from(take(ebpf, "EXEC_SEEN")?).map_err(|e| unusable("EXEC_SEEN", &e))?,
            ),
            config: Mutex::new(
                Array::try_from(take(ebpf, "CONFIG")?).map_err(|e| unusable("CONFIG", &e))?,
            ),
            counters: PerCpuArray::try_from(take(ebpf, "COUNTERS")?)
                .map_err(|e| unusable("COUNTERS", &e))?,
        };
        let events =
            RingBuf::try_from(take(ebpf, "EVENTS")?).map_err(|e| unusable("EVENTS", &e))?;
        Ok((maps, events))
    }

    /// What the kernel is told.
    pub fn config(&self) -> Result<Config, ProbeError> {
        self.config
            .lock()
            .get(&0, 0)
            .map_err(|error| failed("the kernel's configuration could not be read", error))
    }

    /// Changes what the kernel is told.
    pub fn configure(&self, change: impl FnOnce(&mut Config)) -> Result<(), ProbeError> {
        let mut array = self.config.lock();
        let mut config = array
            .get(&0, 0)
            .map_err(|error| failed("the kernel's configuration could not be read", error))?;
        change(&mut config);
        array
            .set(0, config, 0)
            .map_err(|error| failed("the kernel's configuration could not be written", error))
    }

    /// Sets how the gate works.
    pub fn configure_gate(&self, config: GateConfig) -> Result<(), ProbeError> {
        self.gate_config
            .lock()
            .set(0, config, 0)
            .map_err(|error| failed("the gate's configuration could not be written", error))
    }

    /// Whether the program that denies an exec was ever asked.
    pub fn exec_seen(&self) -> Result<bool, ProbeError> {
        let seen = self.exec_seen.lock().get(&0, 0);
        seen.map(|seen| seen != 0)
            .map_err(|error| failed("a kernel table could not be read", error))
    }

    /// The accounts of one sort, summed up over the CPUs.
    pub fn counters(&self, sort: u32) -> Result<Counters, ProbeError> {
        let per_cpu = self
            .counters
            .get(&sort, 0)
            .map_err(|error| failed("the kernel's counters could not be read", error))?;
        let mut sum = Counters::default();
        for one in per_cpu.iter() {
            sum.seen += one.seen;
            sum.submitted += one.submitted;
            sum.aggregated += one.aggregated;
            for (total, part) in sum.dropped.iter_mut().zip(one.dropped) {
                *total += part;
            }
        }
        Ok(sum)
    }
}

fn take(ebpf: &mut Ebpf, name: &str) -> Result<aya::maps::Map, ProbeError> {
    ebpf.take_map(name)
        .ok_or_else(|| ProbeError::Object(format!("the map {name} is missing")))
}

fn table<K: Pod, V: Pod>(ebpf: &mut Ebpf, name: &str) -> Result<Table<K, V>, ProbeError> {
    HashMap::try_from(take(ebpf, name)?)
        .map(|map| Table(Mutex::new(map)))
        .map_err(|error| unusable(name, &error))
}

fn unusable(name: &str, error: &MapError) -> ProbeError {
    ProbeError::Object(format!("the map {name} is not usable: {error}"))
}

fn errno(error: &MapError) -> Option<i32> {
    match error {
        MapError::SyscallError(error) => error.io_error.raw_os_error(),
        _ => None,
    }
}

fn failed(what: &str, error: MapError) -> ProbeError {
    if errno(&error) == Some(libc::E2BIG) {
        return ProbeError::NoRoom("entries");
    }
    let source = match error {
        MapError::SyscallError(error) => error.io_error,
        other => std::io::Error::other(other.to_string()),
    };
    ProbeError::System {
        what: what.into(),
        source,
    }
}
