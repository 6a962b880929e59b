//! Memory mapped from the system: in pages of which kind, and on which node of the machine.

use std::ffi::{c_long, c_ulong};
use std::io;
use std::num::NonZeroUsize;
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;

use nix::errno::Errno;
use nix::libc;
use nix::sys::mman::{MapFlags, MmapAdvise, ProtFlags, madvise, mmap_anonymous, munmap};

use crate::error::{Error, Result, Step};
use crate::units::format_size;

/// Where memory is to lie. The default leaves both to the system.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Placement {
    /// Size of the system's default huge pages, to use these (`MAP_HUGETLB`); `None` for pages of the base size.
    pub huge_page_bytes: Option<usize>,
    /// NUMA node, and no other (`MPOL_BIND`).
    pub numa_node: Option<u32>,
    /// Pages of the base size stay such: the kernel joins none into transparent huge pages (`MADV_NOHUGEPAGE`).
    pub unjoined: bool,
}

/// A private, zeroed mapping. Unmapped on drop.
#[derive(Debug)]
pub(super) struct Mapping {
    base: NonNull<u8>,
    /// In whole pages of its kind, as `munmap(2)` wants it for huge ones.
    len: usize,
}

/// Fewest bytes between two pages, for touching each.
const SMALLEST_PAGE: usize = 4096;

/// `MPOL_BIND` of `mbind(2)`.
const MPOL_BIND: c_long = 2;

/// Nodes a mask has room for, as many as kernels are built for.
const MOST_NODES: usize = 1024;

impl Mapping {
    /// Maps at least `len` bytes, whose pages are all there. `mmap(2)`, `mbind(2)`
    ///
    /// # Errors
    /// [`Step::RegisterMemory`]: `len` is 0, or there is not as much memory of that kind at that place.
    pub(super) fn new(len: usize, placement: Placement) -> Result<Self> {
        let populate =
            if placement == Placement::default() { MapFlags::MAP_POPULATE } else { MapFlags::empty() };
        let mapping = Self::map(len, placement, populate)?;
        if populate.is_empty() {
            mapping.populate(placement).map_err(|error| placement.refused("madvise", len, error))?;
        }
        Ok(mapping)
    }

    /// The same without the pages, which come when they are touched.
    ///
    /// # Errors
    /// [`Step::RegisterMemory`]: `len` is 0, or there is not as much address space, or as many huge pages.
    pub(super) fn reserve(len: usize, placement: Placement) -> Result<Self> {
        Self::map(len, placement, MapFlags::empty())
    }

    fn map(len: usize, placement: Placement, populate: MapFlags) -> Result<Self> {
        let Some(mut length) = NonZeroUsize::new(len) else {
            return Err(Error::failed(Step::RegisterMemory, "a buffer of 0 bytes cannot be mapped")
                .with_remedy("ask for at least one byte"));
        };
        let mut flags = MapFlags::MAP_PRIVATE | populate;
        if let Some(page) = placement.huge_page_bytes {
            flags |= MapFlags::MAP_HUGETLB;
            let whole = len.checked_next_multiple_of(page).and_then(NonZeroUsize::new);
            length = whole.ok_or_else(|| placement.refused("mmap", len, Errno::ENOMEM))?;
        }
        let access = ProtFlags::PROT_READ | ProtFlags::PROT_WRITE;
        // SAFETY: a new mapping at an address the kernel chooses overlaps no other.
        let base = unsafe { mmap_anonymous(None, length, access, flags) }
            .map_err(|error| placement.refused("mmap", len, error))?;
        let mapping = Self { base: base.cast(), len: length.get() };
        if let Some(node) = placement.numa_node {
            mapping.bind(node).map_err(|error| placement.refused("mbind", len, error))?;
        }
        if placement.unjoined {
            // SAFETY: the mapping is this value's own, and the advice changes none of its bytes. A kernel that does not
            // know it joins no pages.
            let _ = unsafe { madvise(mapping.base.cast(), mapping.len, MmapAdvise::MADV_NOHUGEPAGE) };
        }
        Ok(mapping)
    }

    /// Start of the memory.
    pub(super) fn base(&self) -> NonNull<u8> {
        self.base
    }

    /// Pages that are not there yet will come from this node alone.
    fn bind(&self, node: u32) -> Result<(), Errno> {
        const BITS: usize = c_ulong::BITS as usize;
        let mut mask = [0 as c_ulong; MOST_NODES / BITS];
        let node = node as usize;
        *mask.get_mut(node / BITS).ok_or(Errno::EINVAL)? = 1 << (node % BITS);
        // SAFETY: mbind(2) changes nothing but where pages of this mapping come from, and reads a mask of MOST_NODES
        // bits; the kernel takes one off the number that it is told.
        let code = unsafe {
            libc::syscall(
                libc::SYS_mbind,
                self.base.as_ptr(),
                self.len,
                MPOL_BIND,
                mask.as_ptr(),
                MOST_NODES + 1,
                0 as c_long,
            )
        };
        Errno::result(code).map(drop)
    }

    /// Brings all pages in. A huge page that is missing is an error here, and would be SIGBUS at the first touch.
    fn populate(&self, placement: Placement) -> Result<(), Errno> {
        // SAFETY: the mapping is this value's own, and populating changes none of its bytes.
        match unsafe { madvise(self.base.cast(), self.len, MmapAdvise::MADV_POPULATE_WRITE) } {
            // Linux before 5.14 does not know the advice.
            Err(Errno::EINVAL) if placement.huge_page_bytes.is_none() => {
                for offset in (0..self.len).step_by(SMALLEST_PAGE) {
                    // SAFETY: within the mapping, which is zeroed and not shared yet.
                    unsafe { self.base.as_ptr().add(offset).write_volatile(0) };
                }
                Ok(())
            }
            populated => populated,
        }
    }
}

impl Placement {
    #[cold]
    fn refused(self, call: &str, len: usize, errno: Errno) -> Error {
        let huge = self.huge_page_bytes.map(|page| format!(" in huge pages of {}", format_size(page as u64)));
        let node = self.numa_node.map(|node| format!(" on NUMA node {node}"));
        let failed = Error::failed(
            Step::RegisterMemory,
            format!(
                "{call}({} of memory{}{}): {}",
                format_size(len as u64),
                huge.as_deref().unwrap_or_default(),
                node.as_deref().unwrap_or_default(),
                io::Error::from(errno)
            ),
        );
        match (call, errno, self.huge_page_bytes) {
            ("mbind", Errno::EPERM, _) => failed.with_remedy(
                "this process may not choose nodes: give a container CAP_SYS_NICE (--cap-add SYS_NICE), or leave \
                 --numa away",
            ),
            ("mbind", ..) => failed.with_remedy(
                "name a node that has memory (ls /sys/devices/system/node, `numactl -H`), or leave --numa away",
            ),
            (_, Errno::EINVAL, Some(_)) if call == "madvise" => {
                failed.with_remedy("huge pages need Linux 5.14 or newer here; leave --hugepages away")
            }
            (_, _, Some(page)) => {
                let pages = len.div_ceil(page);
                let place = match self.numa_node {
                    Some(node) => format!("/sys/devices/system/node/node{node}/hugepages/hugepages-{}kB", page >> 10),
                    None => format!("/sys/kernel/mm/hugepages/hugepages-{}kB", page >> 10),
                };
                failed.with_remedy(format!(
                    "reserve {pages} more huge pages (as root, echo a larger number > {place}/nr_hugepages), or leave \
                     --hugepages away"
                ))
            }
            _ => failed.with_remedy(
                "use smaller messages or fewer outstanding ones, or allow more memory (ulimit -v, cgroup)",
            ),
        }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the mapping is this value's own, and unmapped once; who lends it out sees to it that nobody uses it.
        let unmapped = unsafe { munmap(self.base.cast(), self.len) };
        debug_assert!(unmapped.is_ok(), "munmap: {unmapped:?}");
    }
}

/// Memory of this process alone, that no device knows: for what is compared with a device's. It lies where a
/// [`Region`](super::Region) of the same placement would.
#[derive(Debug)]
pub struct Bytes {
    mapping: Mapping,
    len: usize,
}

// SAFETY: it owns its mapping, which belongs to the process and not to a thread.
unsafe impl Send for Bytes {}
// SAFETY: bytes are changed through an exclusive reference alone.
unsafe impl Sync for Bytes {}

impl Bytes {
    /// As many bytes, all zero.
    ///
    /// # Errors
    /// [`Step::RegisterMemory`]: `len` is 0, or there is not as much memory of that kind at that place.
    pub fn new(len: usize, placement: Placement) -> Result<Self> {
        Ok(Self { mapping: Mapping::new(len, placement)?, len })
    }
}

impl Deref for Bytes {
    type Target = [u8];

    #[inline(always)]
    fn deref(&self) -> &[u8] {
        // SAFETY: within the mapping, which lives as long as `self` and is never written but through `deref_mut`.
        unsafe { std::slice::from_raw_parts(self.mapping.base().as_ptr(), self.len) }
    }
}

impl DerefMut for Bytes {
    #[inline(always)]
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: within the mapping, which lives as long as `self`; the exclusive borrow makes this the only reference.
        unsafe { std::slice::from_raw_parts_mut(self.mapping.base().as_ptr(), self.len) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_zero_and_stay_as_written() {
        let mut bytes = Bytes::new(10_000, Placement::default()).unwrap();
        assert!(bytes.iter().all(|byte| *byte == 0));
        bytes[9_999] = 7;
        assert_eq!((bytes.len(), bytes[9_999]), (10_000, 7));
        assert!(Bytes::new(0, Placement::default()).is_err());
    }

    #[test]
    fn pages_are_all_there_or_none_is() {
        let resident = |mapping: &Mapping| {
            let mut pages = vec![0u8; mapping.len / SMALLEST_PAGE];
            // SAFETY: mincore(2) changes nothing of the mapping, and writes a byte for each page of it.
            let code =
                unsafe { libc::mincore(mapping.base.as_ptr().cast(), mapping.len, pages.as_mut_ptr()) };
            assert_eq!(code, 0);
            pages.iter().filter(|page| **page & 1 == 1).count()
        };
        let len = 16 * SMALLEST_PAGE;
        for placement in [Placement::default(), Placement { unjoined: true, ..Placement::default() }] {
            let untouched = Mapping::reserve(len, placement).unwrap();
            assert_eq!(resident(&untouched), 0);
            // SAFETY: within the mapping.
            unsafe { untouched.base.as_ptr().write_volatile(1) };
            assert_eq!(resident(&untouched), 1);
            assert_eq!(resident(&Mapping::new(len, placement).unwrap()), 16);
        }
    }

    #[test]
    fn a_node_that_is_not_there_is_refused_by_its_number() {
        for node in [777, 5000] {
            let placement = Placement { numa_node: Some(node), ..Placement::default() };
            let error = Bytes::new(4096, placement).unwrap_err();
            assert_eq!(error.step, Step::RegisterMemory);
            assert!(error.message.contains(&format!("NUMA node {node}")), "{error}");
            assert!(error.remedy.is_some());
        }
    }

    #[test]
    fn memory_on_the_first_node_is_there_and_usable() {
        let placement = Placement { numa_node: Some(0), ..Placement::default() };
        match Bytes::new(1 << 20, placement) {
            Ok(mut bytes) => {
                bytes.fill(3);
                assert!(bytes.iter().all(|byte| *byte == 3));
            }
            Err(error) => println!("not asked: {error}"),
        }
    }

    #[test]
    fn huge_pages_are_used_or_refused_with_what_to_reserve() {
        let page = 2 << 20;
        let placement = Placement { huge_page_bytes: Some(page), ..Placement::default() };
        match Bytes::new(page + 1, placement) {
            Ok(bytes) => assert_eq!((bytes.len(), bytes.as_ptr() as usize % page), (page + 1, 0)),
            Err(error) => {
                assert!(error.message.contains("in huge pages of 2 MiB"), "{error}");
                assert!(error.remedy.unwrap().contains("reserve 2 more huge pages"));
            }
        }
        // More than any machine has reserved.
        assert!(Bytes::new(1 << 46, placement).is_err());
    }
}
