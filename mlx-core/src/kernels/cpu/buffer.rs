//! Byte buffers for weights and activations: 64-byte aligned, zeroed, on huge pages where they are large.
//!
//! With one row, a stream of 4 KiB pages stops the prefetcher and misses the TLB every 64 lines: huge pages
//! are worth 1.2 to 1.6 times the speed. One matrix of a small model is less than a huge page, so weights are
//! cut from blocks that many share.

use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::sync::{Arc, Mutex};

use memmap2::MmapMut;

const LINE: usize = 64;
const HUGE: usize = 2 << 20;
/// Weights are cut from blocks of this size; larger ones have their own.
const BLOCK: usize = 16 << 20;

struct Block {
    pointer: *mut u8,
    size: usize,
    memory: Memory,
}

enum Memory {
    Heap(Layout),
    /// Pages come when they are written first, and go back as soon as the block is dropped.
    Pages(#[expect(dead_code, reason = "owns what the pointer points to")] MmapMut),
}

// SAFETY: a block is plain memory; who may touch which part is settled by `Buffer`, whose parts are disjoint.
unsafe impl Send for Block {}
// SAFETY: as above.
unsafe impl Sync for Block {}

impl Block {
    fn new(len: usize) -> Self {
        if HUGE <= len {
            return Self::of_pages(len.next_multiple_of(HUGE));
        }
        let size = len.max(1).next_multiple_of(LINE);
        let layout = Layout::from_size_align(size, LINE).expect("a size that fits memory");
        // SAFETY: the layout is not empty.
        let pointer = unsafe { alloc_zeroed(layout) };
        if pointer.is_null() {
            handle_alloc_error(layout);
        }
        Self { pointer, size, memory: Memory::Heap(layout) }
    }

    /// Whole huge pages, from a map that is large enough to begin one.
    fn of_pages(size: usize) -> Self {
        let mut pages = MmapMut::map_anon(size + HUGE).unwrap_or_else(|_| {
            handle_alloc_error(Layout::from_size_align(size, HUGE).expect("a size that fits memory"))
        });
        let start = pages.as_ptr().addr().next_multiple_of(HUGE) - pages.as_ptr().addr();
        let pointer = pages[start..].as_mut_ptr();
        #[cfg(target_os = "linux")]
        // SAFETY: whole pages that this block owns. Advice only: a refusal costs speed and nothing else.
        unsafe {
            libc::madvise(pointer.cast(), size, libc::MADV_HUGEPAGE)
        };
        Self { pointer, size, memory: Memory::Pages(pages) }
    }
}

/// Moves large memory that somebody else allocated to huge pages, where the system can: the pages around it as
/// well, since one layer's buffer is often smaller than a huge page, and its neighbours are other layers'.
pub(crate) fn onto_huge_pages<T>(memory: &mut [T]) {
    #[cfg(target_os = "linux")]
    {
        /// Linux 6.1.
        const MADV_COLLAPSE: libc::c_int = 25;
        let range = memory.as_mut_ptr_range();
        let (start, end) = (range.start as usize / HUGE * HUGE, (range.end as usize).next_multiple_of(HUGE));
        if HUGE / 8 <= size_of_val(memory) {
            // SAFETY: the call changes where pages lie and nothing of what they hold, whoever they belong to; what isn't
            // mapped is an error. A refusal costs speed and nothing else.
            unsafe { libc::madvise(start as *mut libc::c_void, end - start, MADV_COLLAPSE) };
        }
    }
    #[cfg(not(target_os = "linux"))]
    let _ = memory;
}

impl Drop for Block {
    fn drop(&mut self) {
        if let Memory::Heap(layout) = self.memory {
            // SAFETY: allocated with the same layout, freed once.
            unsafe { dealloc(self.pointer, layout) }
        }
    }
}

/// Zeroed memory of its own.
pub(super) struct Buffer {
    block: Arc<Block>,
    start: usize,
    len: usize,
}

impl Buffer {
    /// For weights: cut from a block that others share.
    pub(super) fn shared(len: usize) -> Self {
        static CURRENT: Mutex<Option<(Arc<Block>, usize)>> = Mutex::new(None);
        if BLOCK / 4 < len {
            return Self { block: Arc::new(Block::new(len)), start: 0, len };
        }
        let size = len.next_multiple_of(LINE);
        let mut current = CURRENT.lock().unwrap_or_else(|e| e.into_inner());
        let fits = current.as_ref().is_some_and(|(block, used)| used + size <= block.size);
        if !fits {
            *current = Some((Arc::new(Block::new(BLOCK)), 0));
        }
        let (block, used) = current.as_mut().expect("made right above");
        *used += size;
        Self { block: block.clone(), start: *used - size, len }
    }

    /// For activations: alone in its block, so that it can be reused.
    pub(super) fn alone(len: usize) -> Self {
        Self { block: Arc::new(Block::new(len)), start: 0, len }
    }

    /// Makes a buffer of [`Self::alone`] `len` bytes long; the contents are then whatever they were.
    pub(super) fn resize(&mut self, len: usize) {
        if self.block.size < len {
            *self = Self::alone(len + len / 2);
        }
        self.len = len;
    }

    pub(super) fn len(&self) -> usize {
        self.len
    }

    pub(super) fn as_ptr(&self) -> *const u8 {
        // SAFETY: `start` lies inside the block.
        unsafe { self.block.pointer.add(self.start) }
    }

    pub(super) fn as_slice(&self) -> &[u8] {
        // SAFETY: `len` bytes from there are this buffer's.
        unsafe { std::slice::from_raw_parts(self.as_ptr(), self.len) }
    }

    pub(super) fn as_mut_slice(&mut self) -> &mut [u8] {
        // SAFETY: as above, and no other buffer has them.
        unsafe { std::slice::from_raw_parts_mut(self.block.pointer.add(self.start), self.len) }
    }
}
