//! Loaded only by `acrfence doctor`, never attached: they show whether this kernel allows kinds of
//! programs that ACRFence can do without.

use aya_ebpf::macros::fentry;
use aya_ebpf::programs::FEntryContext;

/// Whether fentry programs are allowed.
#[fentry(function = "do_exit")]
pub fn feature_fentry(_ctx: FEntryContext) -> u32 {
    0
}
