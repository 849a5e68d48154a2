//! Files of weights, mapped rather than read.

use std::fs::File;
use std::io;

use memmap2::Mmap;

/// Maps a whole file for reading.
pub fn map(file: &File) -> io::Result<Mmap> {
    // SAFETY: the mapping is read-only. Another process that truncates the file while it is mapped makes an
    // access fault, which no program that maps weights can prevent.
    unsafe { Mmap::map(file) }
}

/// Tells the system that the pages of `bytes` won't be read again soon, so that weights which were copied
/// into another layout don't count twice. Only a hint.
pub fn forget(bytes: &[u8]) {
    #[cfg(unix)]
    {
        const PAGE: usize = 16 << 10;
        let start = bytes.as_ptr().addr().next_multiple_of(PAGE);
        let end = bytes.as_ptr_range().end.addr() & !(PAGE - 1);
        if start < end {
            let at = bytes.as_ptr().with_addr(start).cast_mut().cast();
            // SAFETY: whole pages inside a live mapping of a file; the advice may drop them from memory, and
            // the next access reads the file again.
            unsafe { libc::madvise(at, end - start, libc::MADV_DONTNEED) };
        }
    }
}
