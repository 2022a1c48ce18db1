//! A counting allocator: how many bytes the one thread of this program holds, held at most, and how
//! often it asked.
//!
//! Counters are thread-local cells: counting must not cost what an atomic costs, and this program
//! has no second thread. Bytes are those asked for, without what an allocator adds for itself.

#![expect(unsafe_code, reason = "the trait of allocators is unsafe")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

thread_local! {
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
    static LIVE: Cell<i64> = const { Cell::new(0) };
    static PEAK: Cell<i64> = const { Cell::new(0) };
}

/// Calls of the allocator that gave memory, so far.
pub(crate) fn allocations() -> u64 {
    ALLOCATIONS.get()
}

/// Bytes held now.
pub(crate) fn live() -> i64 {
    LIVE.get()
}

/// Bytes held at most since [`restart_peak`].
pub(crate) fn peak() -> i64 {
    PEAK.get()
}

/// Forgets the peak so far.
pub(crate) fn restart_peak() {
    PEAK.set(live());
}

struct Counting;

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Counts bytes that came and went. Wraps rather than panics: an allocator must not unwind. The
/// cells need no destructor, so they can be used for as long as the thread runs.
fn count(came: usize, went: usize) {
    if came > 0 {
        ALLOCATIONS.set(ALLOCATIONS.get().wrapping_add(1));
    }
    let live = LIVE
        .get()
        .wrapping_add_unsigned(came as u64)
        .wrapping_sub_unsigned(went as u64);
    LIVE.set(live);
    if live > PEAK.get() {
        PEAK.set(live);
    }
}

// SAFETY: every call goes to the system's allocator as it came, so its promises are ours; counting
// neither allocates nor unwinds.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size(), 0);
        // SAFETY: the caller keeps the promises of `alloc`.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        count(layout.size(), 0);
        // SAFETY: the caller keeps the promises of `alloc_zeroed`.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        count(size, layout.size());
        // SAFETY: the caller keeps the promises of `realloc`.
        unsafe { System.realloc(pointer, layout, size) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        count(0, layout.size());
        // SAFETY: the caller keeps the promises of `dealloc`.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_comes_is_counted_and_what_goes_is_taken_off() {
        let (before, asked) = (live(), allocations());
        restart_peak();
        let bytes = std::hint::black_box(vec![1_u8; 1000]);
        assert_eq!((live() - before, allocations() - asked), (1000, 1));
        drop(bytes);
        assert_eq!((live() - before, peak() - before), (0, 1000));
    }
}
