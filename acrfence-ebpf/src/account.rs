//! Nothing is lost silently: `seen == submitted + aggregated + dropped[..]` for every sort.

use core::arch::asm;

use acrfence_common::{Counters, DropKey, DropReason, Sort};

use crate::maps::{COUNTERS, DROPS};

/// Counts that a hook has something to report.
#[inline(always)]
pub fn seen(sort: Sort) {
    with(sort, |counters| add(&mut counters.seen));
}

/// Counts that the report got through.
#[inline(always)]
pub fn submitted(sort: Sort) {
    with(sort, |counters| add(&mut counters.submitted));
}

/// Counts a write that only adds to its channel's totals.
#[inline(always)]
pub fn aggregated(sort: Sort) {
    with(sort, |counters| add(&mut counters.aggregated));
}

/// Counts that the report was lost, and whose it was.
#[inline(always)]
pub fn dropped(sort: Sort, reason: DropReason, agent: u32) {
    with(sort, |counters| add(&mut counters.dropped[reason as usize]));
    let key = DropKey {
        agent,
        sort: sort as u16,
        reason: reason as u16,
    };
    if let Some(count) = DROPS.get_ptr_mut(key) {
        add(count);
    } else if DROPS.insert(key, 1, NOEXIST).is_err()
        // Another CPU was first.
        && let Some(count) = DROPS.get_ptr_mut(key)
    {
        add(count);
    }
}

/// Adds one to a number in a map.
#[inline(always)]
pub fn add(number: *mut u64) {
    add_many(number, 1);
}

/// Adds to a number in a map, also when a hook of the same CPU interrupts.
#[inline(always)]
pub fn add_many(number: *mut u64, amount: u64) {
    // `core` offers no `fetch_add` for a target that lacks compare-and-swap in its oldest version.
    // SAFETY: the pointer comes from a map look-up; map values are aligned to 8 bytes.
    unsafe {
        asm!(
            "lock *(u64 *)({number} + 0) += {amount}",
            number = in(reg) number,
            amount = in(reg) amount,
            options(nostack),
        );
    }
}

const NOEXIST: u64 = aya_ebpf::bindings::BPF_NOEXIST as u64;

#[inline(always)]
fn with(sort: Sort, f: impl FnOnce(&mut Counters)) {
    if let Some(counters) = COUNTERS.get_ptr_mut(sort as u32) {
        // SAFETY: array entries live as long as the map; additions are atomic.
        f(unsafe { &mut *counters });
    }
}
