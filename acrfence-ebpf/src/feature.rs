//! Loaded only by `acrfence doctor`, never attached: they show whether this kernel allows kinds of
//! programs that ACRFence can do without.

use aya_ebpf::macros::{fentry, lsm};
use aya_ebpf::programs::{FEntryContext, LsmContext};

/// Whether fentry programs are allowed.
#[fentry(function = "do_exit")]
pub fn feature_fentry(_ctx: FEntryContext) -> u32 {
    0
}

/// Whether LSM programs are allowed.
#[lsm(hook = "bprm_check_security")]
pub fn feature_lsm(_ctx: LsmContext) -> i32 {
    0
}
