//! The eBPF object inside this binary.

/// The bytes that `build.rs` found; empty if the object was not built.
static OBJECT: &[u8] = aya::include_bytes_aligned!(concat!(env!("OUT_DIR"), "/muster-ebpf.o"));

/// The object, if this binary carries one.
pub(super) fn embedded() -> Option<&'static [u8]> {
    (!OBJECT.is_empty()).then_some(OBJECT)
}

/// A 64-bit FNV-1a hash over `parts`.
///
/// It tells apart what is ours: versions of the programs, nodes, allocations. Nobody has a reason to forge a
/// collision.
pub(crate) fn hash<'a>(parts: impl IntoIterator<Item = &'a [u8]>) -> u64 {
    const BASIS: u64 = 0xcbf2_9ce4_8422_2325;
    const PRIME: u64 = 0x0100_0000_01b3;
    parts.into_iter().flatten().fold(BASIS, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(PRIME)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The published test vector of FNV-1a for `foobar`.
    #[test]
    fn hash_is_fnv_1a() {
        assert_eq!(hash([b"foo".as_slice(), b"bar"]), 0x8594_4171_f739_67e8);
    }
}
