//! Maps as bytes: the commands of `bpf(2)` that read and write them.
//!
//! aya opens and pins the maps. It has no batch look-up, so this module reads and writes all entries, in one way. Keys
//! and values are [`Plain`] types.

#![expect(unsafe_code, reason = "bpf(2) takes addresses of buffers")]

use std::{
    ffi::CString,
    fs::File,
    io,
    marker::PhantomData,
    ops::AddAssign,
    os::{
        fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd},
        unix::ffi::OsStrExt,
    },
    path::Path,
    thread,
};

use aya::maps::MapData;
use muster_domain::number;
use muster_ebpf_common::Plain;

use crate::bpf::limits::{BATCH_ENTRIES, INSERT_ATTEMPTS_MAX, INSERT_WAIT, KEYS_MAX};

const BPF_MAP_LOOKUP_ELEM: libc::c_long = 1;
const BPF_MAP_UPDATE_ELEM: libc::c_long = 2;
const BPF_MAP_DELETE_ELEM: libc::c_long = 3;
const BPF_MAP_GET_NEXT_KEY: libc::c_long = 4;
const BPF_OBJ_GET: libc::c_long = 7;
const BPF_PROG_TEST_RUN: libc::c_long = 10;
const BPF_MAP_LOOKUP_BATCH: libc::c_long = 24;
const BPF_MAP_UPDATE_BATCH: libc::c_long = 26;
const BPF_LINK_CREATE: libc::c_long = 28;
const BPF_ITER_CREATE: libc::c_long = 33;

/// The attach type of a program of iterators (`BPF_TRACE_ITER`).
const TRACE_ITER: u32 = 28;
/// A group and all groups below it, parents before children (`BPF_CGROUP_ITER_DESCENDANTS_PRE`).
const DESCENDANTS_FIRST: u32 = 2;

/// Do not replace an entry (`BPF_NOEXIST`).
const NO_EXIST: u64 = 1;
/// Run on the given CPU (`BPF_F_TEST_RUN_ON_CPU`).
const RUN_ON_CPU: u32 = 1;

/// The part of `union bpf_attr` for one entry.
#[repr(C)]
#[derive(Default)]
struct ElementAttr {
    map_fd: u32,
    pad: u32,
    key: u64,
    value: u64,
    flags: u64,
}

/// The part of `union bpf_attr` for a batch.
#[repr(C)]
#[derive(Default)]
struct BatchAttr {
    in_batch: u64,
    out_batch: u64,
    keys: u64,
    values: u64,
    count: u32,
    map_fd: u32,
    elem_flags: u64,
    flags: u64,
}

/// The part of `union bpf_attr` for `BPF_OBJ_GET`.
#[repr(C)]
#[derive(Default)]
struct ObjectAttr {
    pathname: u64,
    bpf_fd: u32,
    file_flags: u32,
}

/// The part of `union bpf_attr` for `BPF_LINK_CREATE` of an iterator.
#[repr(C)]
#[derive(Default)]
struct LinkIterAttr {
    prog_fd: u32,
    target_fd: u32,
    attach_type: u32,
    flags: u32,
    iter_info: u64,
    iter_info_len: u32,
    pad: u32,
}

/// The part of `union bpf_iter_link_info` for groups.
#[repr(C)]
struct CgroupIterInfo {
    order: u32,
    cgroup_fd: u32,
    cgroup_id: u64,
}

/// The part of `union bpf_attr` for `BPF_ITER_CREATE`.
#[repr(C)]
struct IterAttr {
    link_fd: u32,
    flags: u32,
}

/// The part of `union bpf_attr` for `BPF_PROG_TEST_RUN`.
#[repr(C)]
#[derive(Default)]
struct RunAttr {
    prog_fd: u32,
    retval: u32,
    data_size_in: u32,
    data_size_out: u32,
    data_in: u64,
    data_out: u64,
    repeat: u32,
    duration: u32,
    ctx_size_in: u32,
    ctx_size_out: u32,
    ctx_in: u64,
    ctx_out: u64,
    flags: u32,
    cpu: u32,
    batch_size: u32,
    pad: u32,
}

/// A pinned map from `K` to `V`, with one value or one per possible CPU, depending on the constructor.
#[derive(Debug)]
pub(super) struct PinnedMap<K, V> {
    data: MapData,
    /// Number of values of an entry: one, or one for each possible CPU.
    values: usize,
    types: PhantomData<fn() -> (K, V)>,
}

impl<K: Plain, V: Plain> PinnedMap<K, V> {
    /// A map with one value an entry.
    pub(super) fn shared(data: MapData) -> Self {
        Self {
            data,
            values: 1,
            types: PhantomData,
        }
    }

    /// A map with a value for each of `cpus` possible CPUs.
    pub(super) fn per_cpu(data: MapData, cpus: usize) -> Self {
        Self {
            data,
            values: cpus,
            types: PhantomData,
        }
    }

    /// The values of `key`; `None` if it has no entry.
    pub(super) fn lookup(&self, key: K) -> io::Result<Option<Vec<V>>> {
        let mut values = vec![0_u64; self.value_words()];
        let mut attr = ElementAttr {
            map_fd: raw(self.fd()),
            key: (&raw const key).expose_provenance() as u64,
            value: values.as_mut_ptr().expose_provenance() as u64,
            ..ElementAttr::default()
        };
        // SAFETY: the key is a live `K`, and the buffer has a rounded-up `V` for each value the
        // kernel writes; both outlive the call.
        match unsafe { bpf(BPF_MAP_LOOKUP_ELEM, &mut attr) } {
            Ok(_) => Ok(Some(self.split(&values).collect())),
            Err(error) if error.raw_os_error() == Some(libc::ENOENT) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// The sum of the values of `key`; `None` if it has no entry.
    pub(super) fn sum(&self, key: K) -> io::Result<Option<V>>
    where
        V: AddAssign,
    {
        Ok(self.lookup(key)?.map(total))
    }

    /// Creates an entry of zeros, or leaves an existing one. Returns whether it was created.
    pub(super) fn insert_zero(&self, key: K) -> io::Result<bool> {
        let zeros = vec![0; self.value_words()];
        match with_memory(|| self.update(key, &zeros, NO_EXIST)) {
            Ok(()) => Ok(true),
            Err(error) if error.raw_os_error() == Some(libc::EEXIST) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Sets every value of `key`.
    pub(super) fn set_all(&self, key: K, value: V) -> io::Result<()> {
        let mut words = vec![0_u64; self.value_words()];
        for slot in words.chunks_exact_mut(Self::words_each()) {
            // SAFETY: the slot is at least as long as a `V`, and words are aligned for any value
            // of `Plain` types, which consist of integers of at most 64 bits.
            unsafe { slot.as_mut_ptr().cast::<V>().write(value) };
        }
        self.update(key, &words, 0)
    }

    /// Sets the first CPU's value of `key`, and zeros the other values.
    pub(super) fn set_first(&self, key: K, value: V) -> io::Result<()> {
        let mut words = vec![0_u64; self.value_words()];
        // SAFETY: the buffer is at least as long as a `V`, and words are aligned for it as above.
        unsafe { words.as_mut_ptr().cast::<V>().write(value) };
        self.update(key, &words, 0)
    }

    /// Removes `key`. Returns whether it existed.
    pub(super) fn remove(&self, key: K) -> io::Result<bool> {
        let mut attr = ElementAttr {
            map_fd: raw(self.fd()),
            key: (&raw const key).expose_provenance() as u64,
            ..ElementAttr::default()
        };
        // SAFETY: the key is a live `K` and outlives the call.
        match unsafe { bpf(BPF_MAP_DELETE_ELEM, &mut attr) } {
            Ok(_) => Ok(true),
            Err(error) if error.raw_os_error() == Some(libc::ENOENT) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// The keys of all entries, each by a system call. An entry that is made or removed meanwhile may be missing or
    /// present. At most as many keys are returned as fit into a map of the node's.
    pub(super) fn keys(&self) -> io::Result<Vec<K>> {
        let mut keys: Vec<K> = Vec::new();
        loop {
            let mut next = K::default();
            let mut attr = ElementAttr {
                map_fd: raw(self.fd()),
                key: keys
                    .last()
                    .map_or(0, |key| std::ptr::from_ref(key).expose_provenance() as u64),
                value: (&raw mut next).expose_provenance() as u64,
                ..ElementAttr::default()
            };
            // SAFETY: the key, if there is one, and the room for the next are live values of `K`.
            match unsafe { bpf(BPF_MAP_GET_NEXT_KEY, &mut attr) } {
                Ok(_) if keys.len() < KEYS_MAX => keys.push(next),
                Ok(_) => return Ok(keys),
                Err(error) if error.raw_os_error() == Some(libc::ENOENT) => return Ok(keys),
                Err(error) => return Err(error),
            }
        }
    }

    /// Every entry with the sum of its values: see [`Self::visit`].
    pub(super) fn sums(&self, each: impl FnMut(K, V)) -> io::Result<()>
    where
        V: AddAssign,
    {
        self.first_sums(usize::MAX, each)
    }

    /// Like [`Self::sums`], for no more than `most` entries; of an array, the first ones.
    pub(super) fn first_sums(&self, most: usize, mut each: impl FnMut(K, V)) -> io::Result<()>
    where
        V: AddAssign,
    {
        self.visit(most, |key, values| each(key, total(values.copied())))
    }

    /// Visits up to `most` entries with their values; of an array, the first ones. One system call reads
    /// [`BATCH_ENTRIES`] of them.
    ///
    /// An entry that is made or removed meanwhile may be missing or present.
    pub(super) fn visit(
        &self,
        most: usize,
        mut each: impl FnMut(K, EntryValues<'_, V>),
    ) -> io::Result<()> {
        let mut left = most;
        let mut room = BATCH_ENTRIES.min(left);
        let mut keys = vec![K::default(); room];
        let mut words = vec![0_u64; room * self.value_words()];
        let mut position: Option<u64> = None;
        while left > 0 {
            let mut next = 0_u64;
            let mut attr = BatchAttr {
                in_batch: position
                    .as_ref()
                    .map_or(0, |at| std::ptr::from_ref(at).expose_provenance() as u64),
                out_batch: (&raw mut next).expose_provenance() as u64,
                keys: keys.as_mut_ptr().expose_provenance() as u64,
                values: words.as_mut_ptr().expose_provenance() as u64,
                count: number::count(room),
                map_fd: raw(self.fd()),
                ..BatchAttr::default()
            };
            // SAFETY: the buffers have room for `count` keys and values as the kernel lays them
            // out, and all outlive the call.
            let outcome = unsafe { bpf(BPF_MAP_LOOKUP_BATCH, &mut attr) };
            let last = match outcome {
                Ok(_) => false,
                Err(error) if error.raw_os_error() == Some(libc::ENOENT) => true,
                Err(error) if error.raw_os_error() == Some(libc::ENOSPC) => {
                    // A bucket has more entries than the buffer has room for. The same call is repeated with a larger
                    // buffer.
                    room *= 2;
                    keys.resize(room, K::default());
                    words.resize(room * self.value_words(), 0);
                    continue;
                }
                Err(error) => return Err(error),
            };
            let count = (attr.count as usize).min(room);
            let entries = words.chunks_exact(self.value_words());
            for (key, words) in keys[..count].iter().zip(entries) {
                each(*key, EntryValues::new(words));
            }
            left = left.saturating_sub(count);
            room = room.min(left);
            if last {
                return Ok(());
            }
            position = Some(next);
        }
        Ok(())
    }

    /// Sets many entries of a map with one value an entry, by one system call.
    pub(super) fn set_many(&self, entries: &[(K, V)]) -> io::Result<()> {
        assert_eq!(self.values, 1, "one value an entry");
        // The kernel takes values of such maps without padding.
        assert_eq!(
            size_of::<V>() % size_of::<u64>(),
            0,
            "values of whole words"
        );
        if entries.is_empty() {
            return Ok(());
        }
        let keys: Vec<K> = entries.iter().map(|(key, _)| *key).collect();
        let each = Self::words_each();
        let mut values = vec![0_u64; entries.len() * each];
        for (slot, (_, value)) in values.chunks_exact_mut(each).zip(entries) {
            // SAFETY: the slot is at least as long as a `V`, and words are aligned for it.
            unsafe { slot.as_mut_ptr().cast::<V>().write(*value) };
        }
        let count = u32::try_from(entries.len()).map_err(io::Error::other)?;
        with_memory(|| {
            let mut attr = BatchAttr {
                keys: keys.as_ptr().expose_provenance() as u64,
                values: values.as_ptr().expose_provenance() as u64,
                count,
                map_fd: raw(self.fd()),
                ..BatchAttr::default()
            };
            // SAFETY: the buffers hold `count` keys and values, and outlive the call.
            unsafe { bpf(BPF_MAP_UPDATE_BATCH, &mut attr) }.map(drop)
        })
    }

    fn update(&self, key: K, words: &[u64], flags: u64) -> io::Result<()> {
        assert_eq!(words.len(), self.value_words(), "a value for each CPU");
        let mut attr = ElementAttr {
            map_fd: raw(self.fd()),
            key: (&raw const key).expose_provenance() as u64,
            value: words.as_ptr().expose_provenance() as u64,
            flags,
            ..ElementAttr::default()
        };
        // SAFETY: the key is a live `K`, the buffer has a rounded-up `V` for each value the kernel
        // reads; both outlive the call.
        unsafe { bpf(BPF_MAP_UPDATE_ELEM, &mut attr) }.map(drop)
    }

    /// The values in `words`, as the kernel lays them out.
    fn split(&self, words: &[u64]) -> impl Iterator<Item = V> {
        words
            .chunks_exact(Self::words_each())
            .take(self.values)
            // SAFETY: the chunk is at least as long as a `V` and aligned for it, and every pattern
            // of bits is a valid `V` by the contract of `Plain`.
            .map(|chunk| unsafe { chunk.as_ptr().cast::<V>().read() })
    }

    /// Words of one value: the kernel rounds values of per-CPU maps up to eight bytes.
    const fn words_each() -> usize {
        size_of::<V>().div_ceil(size_of::<u64>())
    }

    const fn value_words(&self) -> usize {
        self.values * Self::words_each()
    }

    fn fd(&self) -> BorrowedFd<'_> {
        self.data.fd().as_fd()
    }
}

/// The values of one entry, at the place where the kernel wrote them. A caller may need only a small part of a large
/// value.
#[derive(Clone, Debug)]
pub(super) struct EntryValues<'a, V> {
    words: std::slice::ChunksExact<'a, u64>,
    types: PhantomData<&'a V>,
}

impl<'a, V: Plain> EntryValues<'a, V> {
    fn new(words: &'a [u64]) -> Self {
        Self {
            words: words.chunks_exact(size_of::<V>().div_ceil(size_of::<u64>())),
            types: PhantomData,
        }
    }
}

impl<'a, V: Plain> Iterator for EntryValues<'a, V> {
    type Item = &'a V;

    fn next(&mut self) -> Option<&'a V> {
        let words = self.words.next()?;
        // SAFETY: the chunk is at least as long as a `V` and aligned for it, it lives for 'a, and every pattern of
        // bits is a valid `V` by the contract of `Plain`.
        Some(unsafe { &*words.as_ptr().cast::<V>() })
    }
}

/// Opens the program or link that is pinned at `path`.
pub(super) fn open_pinned(path: &Path) -> io::Result<OwnedFd> {
    let path = CString::new(path.as_os_str().as_bytes()).map_err(io::Error::other)?;
    let mut attr = ObjectAttr {
        pathname: path.as_ptr().expose_provenance() as u64,
        ..ObjectAttr::default()
    };
    // SAFETY: the path is a string that ends with a zero and outlives the call.
    owned(unsafe { bpf(BPF_OBJ_GET, &mut attr) }?)
}

/// Takes the descriptor that a command returned.
fn owned(answer: libc::c_long) -> io::Result<OwnedFd> {
    let fd = i32::try_from(answer).map_err(io::Error::other)?;
    // SAFETY: the kernel gave this process a fresh descriptor that nothing else owns.
    Ok(unsafe { std::os::fd::FromRawFd::from_raw_fd(fd) })
}

/// Runs a raw tracepoint program once on `cpu`, in the context of the thread that runs there.
pub(super) fn run_on_cpu(program: BorrowedFd<'_>, cpu: u32) -> io::Result<()> {
    let mut attr = RunAttr {
        prog_fd: raw(program),
        flags: RUN_ON_CPU,
        cpu,
        ..RunAttr::default()
    };
    // SAFETY: the command reads nothing but the attributes here.
    unsafe { bpf(BPF_PROG_TEST_RUN, &mut attr) }.map(drop)
}

/// Runs an iterator program over the group `root` and all below it. Meanwhile the kernel blocks the creation and
/// removal of groups.
pub(super) fn walk_cgroups(program: BorrowedFd<'_>, root: BorrowedFd<'_>) -> io::Result<()> {
    let over = CgroupIterInfo {
        order: DESCENDANTS_FIRST,
        cgroup_fd: raw(root),
        cgroup_id: 0,
    };
    let mut attr = LinkIterAttr {
        prog_fd: raw(program),
        attach_type: TRACE_ITER,
        iter_info: (&raw const over).expose_provenance() as u64,
        iter_info_len: u32::try_from(size_of_val(&over)).map_err(io::Error::other)?,
        ..LinkIterAttr::default()
    };
    // SAFETY: the iterator's parameters outlive the call.
    let link = owned(unsafe { bpf(BPF_LINK_CREATE, &mut attr) }?)?;
    let mut attr = IterAttr {
        link_fd: raw(link.as_fd()),
        flags: 0,
    };
    // SAFETY: the command reads nothing but the attributes.
    let mut iterator = File::from(owned(unsafe { bpf(BPF_ITER_CREATE, &mut attr) }?)?);
    // The program prints nothing. It has visited all groups when the end is read.
    io::copy(&mut iterator, &mut io::sink()).map(drop)
}

/// Runs a device program with `packet` on `device`. Returns the program's answer and the packet after it. No packet is
/// sent.
/// is sent.
pub(super) fn run_on_packet(
    program: BorrowedFd<'_>,
    packet: &[u8],
    device: u32,
) -> io::Result<(u32, Vec<u8>)> {
    let mut context = [0_u32; CONTEXT_WORDS];
    context[CONTEXT_DEVICE] = device;
    let mut after = vec![0; packet.len() + PACKET_GROWTH];
    let length = |bytes: usize| u32::try_from(bytes).map_err(io::Error::other);
    let mut attr = RunAttr {
        prog_fd: raw(program),
        data_size_in: length(packet.len())?,
        data_size_out: length(after.len())?,
        data_in: packet.as_ptr().expose_provenance() as u64,
        data_out: after.as_mut_ptr().expose_provenance() as u64,
        ctx_size_in: length(size_of_val(&context))?,
        ctx_in: context.as_ptr().expose_provenance() as u64,
        ..RunAttr::default()
    };
    // SAFETY: the buffers are as long as the attributes say, and outlive the call.
    unsafe { bpf(BPF_PROG_TEST_RUN, &mut attr) }?;
    after.truncate(attr.data_size_out as usize);
    Ok((attr.retval, after))
}

/// Words of `struct __sk_buff`, and the index of the device's word.
const CONTEXT_WORDS: usize = 48;
const CONTEXT_DEVICE: usize = 10;
/// Most bytes that a program may add to a packet here.
const PACKET_GROWTH: usize = 64;

pub(super) fn total<V: Default + AddAssign>(values: impl IntoIterator<Item = V>) -> V {
    let mut total = V::default();
    for value in values {
        total += value;
    }
    total
}

/// Repeats `attempt` a bounded number of times while the kernel reports that it has no memory.
fn with_memory(mut attempt: impl FnMut() -> io::Result<()>) -> io::Result<()> {
    for _ in 1..INSERT_ATTEMPTS_MAX {
        match attempt() {
            Err(error) if error.raw_os_error() == Some(libc::ENOMEM) => thread::sleep(INSERT_WAIT),
            made => return made,
        }
    }
    attempt()
}

/// The first value of an entry, or the default.
pub(super) fn first<V: Plain>(values: Option<Vec<V>>) -> V {
    values
        .and_then(|values| values.first().copied())
        .unwrap_or_default()
}

fn raw(fd: BorrowedFd<'_>) -> u32 {
    u32::try_from(fd.as_raw_fd()).expect("an open descriptor is not negative")
}

/// Calls `bpf(2)`.
///
/// # Safety
///
/// `A` is the part of `union bpf_attr` that belongs to `command`, and its addresses are valid for the command's reads
/// and writes.
pub(super) unsafe fn bpf<A>(command: libc::c_long, attr: &mut A) -> io::Result<libc::c_long> {
    // SAFETY: the caller keeps the contract; the size is that of the attributes.
    let result = unsafe {
        libc::syscall(
            libc::SYS_bpf,
            command,
            std::ptr::from_mut(attr),
            size_of::<A>(),
        )
    };
    if result < 0 {
        Err(io::Error::last_os_error())
    } else {
        Ok(result)
    }
}
