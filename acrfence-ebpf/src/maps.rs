//! The maps, and what user space sets once at load.

use acrfence_common::{
    AgentLabel, Claim, ClientKey, CommandWord, Config, Counters, DropKey, Endpoint, GateConfig,
    GateEntry, Layout, Listener, Parentage, ProgramName, Restorable, SocketRecord, Sort, Tracked,
    Traffic, TrafficKey, WAKE_EVERY_NS,
};
use aya_ebpf::bindings::{
    BPF_RB_AVAIL_DATA, BPF_RB_FORCE_WAKEUP, BPF_RB_NO_WAKEUP, BPF_RB_RING_SIZE,
};
use aya_ebpf::macros::map;
use aya_ebpf::maps::{Array, HashMap, LruHashMap, PerCpuArray, RingBuf};

use crate::kernel;

/// Offsets of this kernel; user space overwrites the zeros before the programs are loaded.
#[unsafe(no_mangle)]
pub static LAYOUT: Layout = Layout {
    task_tgid: 0,
    task_pid: 0,
    task_flags: 0,
    task_start_boottime: 0,
    task_group_leader: 0,
    task_real_parent: 0,
    task_children: 0,
    task_sibling: 0,
    task_signal: 0,
    task_exit_code: 0,
    task_mm: 0,
    task_files: 0,
    task_ptrace: 0,
    task_comm: 0,
    signal_live: 0,
    signal_flags: 0,
    signal_group_exit_code: 0,
    signal_tty: 0,
    signal_pids: 0,
    mm_arg_start: 0,
    mm_arg_end: 0,
    mm_env_start: 0,
    mm_env_end: 0,
    binprm_filename: 0,
    binprm_file: 0,
    files_fdt: 0,
    fdtable_fd: 0,
    fdtable_max_fds: 0,
    file_inode: 0,
    file_private_data: 0,
    file_dentry: 0,
    dentry_name: 0,
    inode_mode: 0,
    inode_ino: 0,
    socket_sk: 0,
    sock_family: 0,
    sock_daddr: 0,
    sock_dport: 0,
    sock_v6_daddr: 0,
    sock_cookie: 0,
    sock_type: 0,
    sock_protocol: 0,
    unix_peer: 0,
    unix_addr: 0,
    unix_address_len: 0,
    unix_address_name: 0,
    task_thread_pid: 0,
    pid_level: 0,
    pid_numbers: 0,
    upid_nr: 0,
    upid_size: 0,
    task_fs: 0,
    task_nsproxy: 0,
    fs_pwd: 0,
    mm_exe_file: 0,
    file_path: 0,
    path_mnt: 0,
    path_dentry: 0,
    vfsmount_root: 0,
    mount_mnt: 0,
    mount_parent: 0,
    mount_mountpoint: 0,
    dentry_parent: 0,
    dentry_pprev: 0,
    nsproxy_net: 0,
    net_inum: 0,
    net_cookie: 0,
};

/// Reads one offset. Volatile: the compiler must not believe the zeros above.
macro_rules! offset {
    ($field:ident) => {
        // SAFETY: a plain static, written before the program runs and never after.
        unsafe { core::ptr::read_volatile(&raw const $crate::maps::LAYOUT.$field) as usize }
    };
}
pub(crate) use offset;

/// How a record is submitted that its reader is to see at once. Said each time: by itself the kernel wakes
/// nobody who has a quiet record before it to read.
pub const LOUDLY: u64 = BPF_RB_FORCE_WAKEUP as u64;
/// And one that can wait until the reader comes back, or somebody empties the ring for a look-up.
const QUIETLY: u64 = BPF_RB_NO_WAKEUP as u64;

/// How a record is submitted that can wait unless it is `urgent`: see [`WAKE_EVERY_NS`].
#[inline(always)]
pub fn in_good_time(urgent: bool) -> u64 {
    const WAITING: u64 = BPF_RB_AVAIL_DATA as u64;
    const ROOM: u64 = BPF_RB_RING_SIZE as u64;

    let now = kernel::now();
    let Some(woken) = WOKEN.get_ptr_mut(0) else {
        return LOUDLY;
    };
    // SAFETY: array entries live as long as the map; a torn moment costs or saves a wake-up.
    let last = unsafe { woken.read_volatile() };
    if urgent
        || now.wrapping_sub(last) >= WAKE_EVERY_NS
        || EVENTS.query(WAITING) > EVENTS.query(ROOM) / 8
    {
        // SAFETY: as above.
        unsafe { woken.write_volatile(now) };
        return LOUDLY;
    }
    QUIETLY
}

/// Every record for user space. The size is set at load.
#[map]
pub static EVENTS: RingBuf = RingBuf::with_byte_size(4 << 20, 0);

/// When the reader of [`EVENTS`] was woken last for what could have waited (nanoseconds since boot).
#[map]
pub static WOKEN: Array<u64> = Array::with_max_entries(1, 0);

/// Tgid → agent. Sized at load so that every process the kernel can have fits in.
#[map]
pub static TRACKED: HashMap<u32, Tracked> = HashMap::with_max_entries(32768, 0);

/// Innermost tgid → a process of an agent that ended, the latest ones.
#[map]
pub static RESTORABLE: LruHashMap<u32, Restorable> = LruHashMap::with_max_entries(32768, 0);

/// Innermost tgid → a process of an agent that is known to be saved somewhere. Filled by user space;
/// looked at before [`RESTORABLE`], which forgets.
#[map]
pub static DUMPED: HashMap<u32, Restorable> = HashMap::with_max_entries(65536, 0);

/// While user space walks a tree: whose child a process was before that parent ended.
#[map]
pub static PARENTS: HashMap<u32, Parentage> = HashMap::with_max_entries(65536, 0);

/// Socket cookie → where it wanted to go.
#[map]
pub static SOCKETS: HashMap<u64, SocketRecord> = HashMap::with_max_entries(65536, 0);

/// A client's own address → where it wanted to go.
#[map]
pub static CLIENTS: HashMap<ClientKey, Claim> = HashMap::with_max_entries(65536, 0);

/// Destinations that are not redirected.
#[map]
pub static PASSES: HashMap<Endpoint, u32> = HashMap::with_max_entries(1024, 0);

/// Network namespace cookie → where its redirected connections go.
#[map]
pub static LISTENERS: HashMap<u64, Listener> = HashMap::with_max_entries(1024, 0);

/// One entry.
#[map]
pub static CONFIG: Array<Config> = Array::with_max_entries(1, 0);

/// One entry a [`Sort`].
#[map]
pub static COUNTERS: PerCpuArray<Counters> = PerCpuArray::with_max_entries(Sort::COUNT as u32, 0);

/// What was lost of which agent.
#[map]
pub static DROPS: HashMap<DropKey, u64> = HashMap::with_max_entries(4096, 0);

/// What was written where.
#[map]
pub static TRAFFIC: HashMap<TrafficKey, Traffic> = HashMap::with_max_entries(32768, 0);

/// Agent index → name. Only user space uses it; it lives here to outlive the daemon.
#[map]
pub static AGENTS: HashMap<u32, AgentLabel> = HashMap::with_max_entries(4096, 0);

/// One entry.
#[map]
pub static GATE_CONFIG: Array<GateConfig> = Array::with_max_entries(1, 0);

/// Agent → what its processes are stopped for.
#[map]
pub static GATE_AGENTS: HashMap<u32, u32> = HashMap::with_max_entries(4096, 0);

/// Programs that policy names → which of [`GATE_WORDS`] their command lines must have; 0 for none.
#[map]
pub static GATE_COMMANDS: HashMap<ProgramName, u32> = HashMap::with_max_entries(1024, 0);

/// Words of which a command line must have one to be gated.
#[map]
pub static GATE_WORDS: HashMap<CommandWord, u32> = HashMap::with_max_entries(8192, 0);

/// Thread → where the words of the command line are that it asked for last.
#[map]
pub static GATE_LISTS: LruHashMap<u32, u64> = LruHashMap::with_max_entries(4096, 0);

/// Whether the program that denies an exec was ever asked.
#[map]
pub static EXEC_SEEN: Array<u32> = Array::with_max_entries(1, 0);

/// Programs (by `comm`) whose children are not stopped for their pipes: shells make pipelines.
#[map]
pub static GATE_SHELLS: HashMap<ProgramName, u32> = HashMap::with_max_entries(256, 0);

/// Tgid → where it is. Entries last as long as their processes.
#[map]
pub static GATES: HashMap<u32, GateEntry> = HashMap::with_max_entries(32768, 0);

/// Processes of interest, for user space.
#[map]
pub static GATE_QUEUE: RingBuf = RingBuf::with_byte_size(1 << 20, 0);

/// Text that a hook looks at; too large for its stack.
#[map]
pub static GATE_TEXT: PerCpuArray<[u8; 4096]> = PerCpuArray::with_max_entries(1, 0);

/// The configuration, copied field by field where it is used.
#[inline(always)]
pub fn config() -> Option<&'static Config> {
    CONFIG.get_ptr(0).map(|config| {
        // SAFETY: array entries live as long as the map.
        unsafe { &*config }
    })
}
