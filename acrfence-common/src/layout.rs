//! Where the running kernel keeps what the programs read.

use crate::{no_padding, plain};

/// Byte offsets inside kernel structures, read from the running kernel's BTF when the programs are
/// loaded. Rust has no CO-RE; nothing of this is known at compile time.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Layout {
    /// `task_struct.tgid`
    pub task_tgid: u32,
    /// `task_struct.pid`
    pub task_pid: u32,
    /// `task_struct.flags`
    pub task_flags: u32,
    /// `task_struct.start_boottime`
    pub task_start_boottime: u32,
    /// `task_struct.group_leader`
    pub task_group_leader: u32,
    /// `task_struct.real_parent`
    pub task_real_parent: u32,
    /// `task_struct.children`
    pub task_children: u32,
    /// `task_struct.sibling`
    pub task_sibling: u32,
    /// `task_struct.signal`
    pub task_signal: u32,
    /// `task_struct.exit_code`
    pub task_exit_code: u32,
    /// `task_struct.mm`
    pub task_mm: u32,
    /// `task_struct.files`
    pub task_files: u32,
    /// `task_struct.ptrace`
    pub task_ptrace: u32,
    /// `task_struct.comm`
    pub task_comm: u32,
    /// `signal_struct.live`
    pub signal_live: u32,
    /// `signal_struct.flags`
    pub signal_flags: u32,
    /// `signal_struct.group_exit_code`
    pub signal_group_exit_code: u32,
    /// `signal_struct.tty`
    pub signal_tty: u32,
    /// `signal_struct.pids`
    pub signal_pids: u32,
    /// `mm_struct.arg_start`
    pub mm_arg_start: u32,
    /// `mm_struct.arg_end`
    pub mm_arg_end: u32,
    /// `mm_struct.env_start`
    pub mm_env_start: u32,
    /// `mm_struct.env_end`
    pub mm_env_end: u32,
    /// `linux_binprm.filename`
    pub binprm_filename: u32,
    /// `linux_binprm.file`
    pub binprm_file: u32,
    /// `files_struct.fdt`
    pub files_fdt: u32,
    /// `fdtable.fd`
    pub fdtable_fd: u32,
    /// `fdtable.max_fds`
    pub fdtable_max_fds: u32,
    /// `file.f_inode`
    pub file_inode: u32,
    /// `file.private_data`
    pub file_private_data: u32,
    /// `file.f_path.dentry`
    pub file_dentry: u32,
    /// `dentry.d_name.name`
    pub dentry_name: u32,
    /// `inode.i_mode`
    pub inode_mode: u32,
    /// `inode.i_ino`
    pub inode_ino: u32,
    /// `socket.sk`
    pub socket_sk: u32,
    /// `sock_common.skc_family`
    pub sock_family: u32,
    /// `sock_common.skc_daddr`
    pub sock_daddr: u32,
    /// `sock_common.skc_dport`
    pub sock_dport: u32,
    /// `sock_common.skc_v6_daddr`
    pub sock_v6_daddr: u32,
    /// `sock_common.skc_cookie`
    pub sock_cookie: u32,
    /// `sock.sk_type`
    pub sock_type: u32,
    /// `sock.sk_protocol`
    pub sock_protocol: u32,
    /// `unix_sock.peer`
    pub unix_peer: u32,
    /// `unix_sock.addr`
    pub unix_addr: u32,
    /// `unix_address.len`
    pub unix_address_len: u32,
    /// `unix_address.name`
    pub unix_address_name: u32,
    /// `task_struct.thread_pid`
    pub task_thread_pid: u32,
    /// `pid.level`
    pub pid_level: u32,
    /// `pid.numbers`
    pub pid_numbers: u32,
    /// `upid.nr`
    pub upid_nr: u32,
    /// Size of `upid`.
    pub upid_size: u32,
    /// `task_struct.fs`
    pub task_fs: u32,
    /// `task_struct.nsproxy`
    pub task_nsproxy: u32,
    /// `fs_struct.pwd`
    pub fs_pwd: u32,
    /// `mm_struct.exe_file`
    pub mm_exe_file: u32,
    /// `file.f_path`
    pub file_path: u32,
    /// `path.mnt`
    pub path_mnt: u32,
    /// `path.dentry`
    pub path_dentry: u32,
    /// `vfsmount.mnt_root`
    pub vfsmount_root: u32,
    /// `mount.mnt`
    pub mount_mnt: u32,
    /// `mount.mnt_parent`
    pub mount_parent: u32,
    /// `mount.mnt_mountpoint`
    pub mount_mountpoint: u32,
    /// `dentry.d_parent`
    pub dentry_parent: u32,
    /// `dentry.d_hash.pprev`
    pub dentry_pprev: u32,
    /// `nsproxy.net_ns`
    pub nsproxy_net: u32,
    /// `net.ns.inum`
    pub net_inum: u32,
    /// `net.net_cookie`
    pub net_cookie: u32,
}

no_padding!(Layout = 67 * 4);
plain!(Layout);
