//! Fills [`Layout`] from the running kernel's type information.

use acrfence_common::Layout;

use super::btf::{Btf, BtfError};

/// Every offset the programs need; an error names the first that is not as expected.
pub fn read(btf: &Btf<'_>) -> Result<Layout, BtfError> {
    let at = |structure, field, size| btf.offset(structure, field, Some(size));
    // `sock` starts with what all socket kinds have in common.
    let common = btf.offset("sock", "__sk_common", None)?;
    let common = |field, size| at("sock_common", field, size).map(|offset| common + offset);
    Ok(Layout {
        task_tgid: at("task_struct", "tgid", 4)?,
        task_pid: at("task_struct", "pid", 4)?,
        task_flags: at("task_struct", "flags", 4)?,
        task_start_boottime: at("task_struct", "start_boottime", 8)?,
        task_group_leader: at("task_struct", "group_leader", 8)?,
        task_real_parent: at("task_struct", "real_parent", 8)?,
        task_children: at("task_struct", "children", 16)?,
        task_sibling: at("task_struct", "sibling", 16)?,
        task_signal: at("task_struct", "signal", 8)?,
        task_exit_code: at("task_struct", "exit_code", 4)?,
        task_mm: at("task_struct", "mm", 8)?,
        task_files: at("task_struct", "files", 8)?,
        task_ptrace: at("task_struct", "ptrace", 4)?,
        task_comm: at("task_struct", "comm", 16)?,
        signal_live: at("signal_struct", "live", 4)?,
        signal_flags: at("signal_struct", "flags", 4)?,
        signal_group_exit_code: at("signal_struct", "group_exit_code", 4)?,
        signal_tty: at("signal_struct", "tty", 8)?,
        // By kind: process, thread group, process group, session.
        signal_pids: at("signal_struct", "pids", 4 * 8)?,
        mm_arg_start: at("mm_struct", "arg_start", 8)?,
        mm_arg_end: at("mm_struct", "arg_end", 8)?,
        mm_env_start: at("mm_struct", "env_start", 8)?,
        mm_env_end: at("mm_struct", "env_end", 8)?,
        binprm_filename: at("linux_binprm", "filename", 8)?,
        binprm_file: at("linux_binprm", "file", 8)?,
        files_fdt: at("files_struct", "fdt", 8)?,
        fdtable_fd: at("fdtable", "fd", 8)?,
        fdtable_max_fds: at("fdtable", "max_fds", 4)?,
        file_inode: at("file", "f_inode", 8)?,
        file_private_data: at("file", "private_data", 8)?,
        file_dentry: btf.offset("file", "f_path", None)? + at("path", "dentry", 8)?,
        dentry_name: btf.offset("dentry", "d_name", None)? + at("qstr", "name", 8)?,
        inode_mode: at("inode", "i_mode", 2)?,
        inode_ino: at("inode", "i_ino", 8)?,
        socket_sk: at("socket", "sk", 8)?,
        sock_family: common("skc_family", 2)?,
        sock_daddr: common("skc_daddr", 4)?,
        sock_dport: common("skc_dport", 2)?,
        sock_v6_daddr: common("skc_v6_daddr", 16)?,
        sock_cookie: common("skc_cookie", 8)?,
        sock_type: at("sock", "sk_type", 2)?,
        sock_protocol: at("sock", "sk_protocol", 2)?,
        unix_peer: at("unix_sock", "peer", 8)?,
        unix_addr: at("unix_sock", "addr", 8)?,
        unix_address_len: at("unix_address", "len", 4)?,
        unix_address_name: btf.offset("unix_address", "name", None)?,
        task_thread_pid: at("task_struct", "thread_pid", 8)?,
        pid_level: at("pid", "level", 4)?,
        pid_numbers: btf.offset("pid", "numbers", None)?,
        upid_nr: at("upid", "nr", 4)?,
        upid_size: btf.structure_size("upid")?,
        task_fs: at("task_struct", "fs", 8)?,
        task_nsproxy: at("task_struct", "nsproxy", 8)?,
        fs_pwd: at("fs_struct", "pwd", 16)?,
        mm_exe_file: at("mm_struct", "exe_file", 8)?,
        file_path: at("file", "f_path", 16)?,
        path_mnt: at("path", "mnt", 8)?,
        path_dentry: at("path", "dentry", 8)?,
        vfsmount_root: at("vfsmount", "mnt_root", 8)?,
        mount_mnt: btf.offset("mount", "mnt", None)?,
        mount_parent: at("mount", "mnt_parent", 8)?,
        mount_mountpoint: at("mount", "mnt_mountpoint", 8)?,
        dentry_parent: at("dentry", "d_parent", 8)?,
        dentry_pprev: at("dentry", "d_hash", 16)? + at("hlist_bl_node", "pprev", 8)?,
        nsproxy_net: at("nsproxy", "net_ns", 8)?,
        net_inum: btf.offset("net", "ns", None)? + at("ns_common", "inum", 4)?,
        net_cookie: at("net", "net_cookie", 8)?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_machines_kernel_is_understood() {
        // Any kernel that tests run on has BTF; without it nothing of ACRFence works.
        let bytes = std::fs::read("/sys/kernel/btf/vmlinux").unwrap();
        let layout = read(&Btf::parse(&bytes).unwrap()).unwrap();
        assert_ne!(layout.task_tgid, layout.task_pid);
        assert!(layout.task_start_boottime > 0 && layout.task_start_boottime.is_multiple_of(8));
    }
}
