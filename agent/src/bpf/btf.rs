//! A reader of the kernel's type information (BTF), which gives the offset of a structure's field.
//!
//! The kernel's `Documentation/bpf/btf.rst` describes the format. Everything is read from one buffer and checked
//! against its end. Only the start of each type is stored.

use std::{fs, io};

use thiserror::Error;

/// The file in which the kernel provides its type information.
pub(crate) const VMLINUX: &str = "/sys/kernel/btf/vmlinux";

/// Types that are nested deeper than this count as broken data. Real types stay below ten.
const DEPTH_MAX: usize = 32;

const MAGIC: u32 = 0xeb9f;
const HEADER_LEN: usize = 24;
const TYPE_LEN: usize = 12;
const ENUMERATOR_LEN: usize = 8;

const KIND_INT: u32 = 1;
const KIND_ARRAY: u32 = 3;
const KIND_STRUCT: u32 = 4;
const KIND_UNION: u32 = 5;
const KIND_ENUM: u32 = 6;
const KIND_TYPEDEF: u32 = 8;
const KIND_VOLATILE: u32 = 9;
const KIND_CONST: u32 = 10;
const KIND_RESTRICT: u32 = 11;
const KIND_FUNC_PROTO: u32 = 13;
const KIND_VAR: u32 = 14;
const KIND_DATASEC: u32 = 15;
const KIND_DECL_TAG: u32 = 17;
const KIND_TYPE_TAG: u32 = 18;
const KIND_ENUM64: u32 = 19;

/// The reason why a fact about the kernel's types could not be found.
#[derive(Debug, Error)]
pub enum ReadTypesError {
    /// The file could not be read; the kernel was built without `CONFIG_DEBUG_INFO_BTF`.
    #[error("read the kernel's types from {path}: use a kernel built with CONFIG_DEBUG_INFO_BTF")]
    Read {
        path: String,
        /// The error of the kernel.
        #[source]
        source: io::Error,
    },
    /// The data does not match the format.
    #[error("the kernel's types are malformed at byte {at}: {what}")]
    Malformed {
        /// The offset, in bytes.
        at: usize,
        what: &'static str,
    },
    /// The kernel has no such structure.
    #[error("this kernel has no structure {structure}, which the eBPF programs read")]
    NoStructure { structure: String },
    /// The structure has no such field.
    #[error(
        "this kernel's structure {structure} has no field {field}, which the eBPF programs read"
    )]
    NoField { structure: String, field: String },
}

/// All types of a kernel.
#[derive(Debug)]
pub(super) struct KernelTypes {
    data: Vec<u8>,
    /// The start of each type; the type with id 1 is the first.
    starts: Vec<usize>,
    /// The start of each type of a kind that is looked up by name. A kernel has ten times as many types.
    structures: Vec<usize>,
    enumerations: Vec<usize>,
    typedefs: Vec<usize>,
    strings: usize,
}

/// One type's fixed part.
#[derive(Clone, Copy)]
struct Header {
    name: u32,
    kind: u32,
    members: usize,
    /// Whether members' offsets share their word with a width in bits.
    bitfields: bool,
    /// A size or another type's id, by kind.
    target: u32,
}

impl KernelTypes {
    /// Reads the types of the running kernel.
    ///
    /// # Errors
    ///
    /// [`ReadTypesError::Read`] if the kernel does not provide them, [`ReadTypesError::Malformed`] if they are not in
    /// the documented format.
    pub(super) fn of_running_kernel() -> Result<Self, ReadTypesError> {
        Self::in_file(VMLINUX)
    }

    fn in_file(path: &str) -> Result<Self, ReadTypesError> {
        let data = fs::read(path).map_err(|source| ReadTypesError::Read {
            path: path.to_owned(),
            source,
        })?;
        Self::parse(data)
    }

    /// The types in `data`.
    ///
    /// # Errors
    ///
    /// [`ReadTypesError::Malformed`] if they are not in the documented format.
    pub(super) fn parse(data: Vec<u8>) -> Result<Self, ReadTypesError> {
        let mut types = Self {
            data,
            starts: Vec::new(),
            structures: Vec::new(),
            enumerations: Vec::new(),
            typedefs: Vec::new(),
            strings: 0,
        };
        if types.word(0)? & 0xffff != MAGIC {
            return Err(ReadTypesError::Malformed {
                at: 0,
                what: "the magic number",
            });
        }
        let base = types.index(4)?;
        if base < HEADER_LEN {
            return Err(ReadTypesError::Malformed {
                at: 4,
                what: "a header of 24 bytes or more",
            });
        }
        let mut at = base.saturating_add(types.index(8)?);
        let end = at.saturating_add(types.index(12)?);
        types.strings = base.saturating_add(types.index(16)?);
        while at < end {
            let header = types.header_at(at)?;
            types.starts.push(at);
            match header.kind {
                KIND_STRUCT => types.structures.push(at),
                KIND_ENUM => types.enumerations.push(at),
                KIND_TYPEDEF => types.typedefs.push(at),
                _ => {}
            }
            at += TYPE_LEN + trailer_len(header);
        }
        Ok(types)
    }

    /// Returns the offset of `field` in `structure`, in bytes. Fields of unnamed inner structures are found.
    ///
    /// # Errors
    ///
    /// [`ReadTypesError::NoStructure`], [`ReadTypesError::NoField`], and
    /// [`ReadTypesError::Malformed`] for a field that does not begin at a byte.
    pub(super) fn offset_of(&self, structure: &str, field: &str) -> Result<u64, ReadTypesError> {
        let mut found = false;
        for &at in &self.structures {
            let header = self.header_at(at)?;
            if !self.is_named(header.name, structure) {
                continue;
            }
            found = true;
            // Several structures may have one name. The structure that has the field is used.
            if let Some(bits) = self.field_bits(at, header, field, 0)? {
                if bits % 8 != 0 {
                    return Err(ReadTypesError::Malformed {
                        at,
                        what: "a field at a whole byte",
                    });
                }
                return Ok(u64::from(bits / 8));
            }
        }
        let structure = structure.to_owned();
        if found {
            Err(ReadTypesError::NoField {
                structure,
                field: field.to_owned(),
            })
        } else {
            Err(ReadTypesError::NoStructure { structure })
        }
    }

    /// Returns the number of `name` in the enumeration `of`; `None` if there is none.
    ///
    /// # Errors
    ///
    /// [`ReadTypesError::Malformed`].
    pub(super) fn enumerator(&self, of: &str, name: &str) -> Result<Option<u32>, ReadTypesError> {
        for &at in &self.enumerations {
            let header = self.header_at(at)?;
            if !self.is_named(header.name, of) {
                continue;
            }
            for member in 0..header.members {
                let member_at = at + TYPE_LEN + member * ENUMERATOR_LEN;
                if self.is_named(self.word(member_at)?, name) {
                    return self.word(member_at + 4).map(Some);
                }
            }
        }
        Ok(None)
    }

    /// Returns the number of arguments that `tracepoint` passes to a program; `None` if there is no such tracepoint.
    ///
    /// # Errors
    ///
    /// [`ReadTypesError::Malformed`].
    pub(super) fn tracepoint_arguments(
        &self,
        tracepoint: &str,
    ) -> Result<Option<usize>, ReadTypesError> {
        let name = format!("btf_trace_{tracepoint}");
        for &at in &self.typedefs {
            let header = self.header_at(at)?;
            if !self.is_named(header.name, &name) {
                continue;
            }
            // The typedef of a tracepoint names a pointer to a function, whose first argument is the program's own.
            let (_, pointer) = self.resolve(header.target)?;
            let (_, function) = self.resolve(pointer.target)?;
            if function.kind == KIND_FUNC_PROTO {
                return Ok(function.members.checked_sub(1));
            }
        }
        Ok(None)
    }

    /// The offset in bits of `field` in the structure at `at`.
    fn field_bits(
        &self,
        at: usize,
        header: Header,
        field: &str,
        depth: usize,
    ) -> Result<Option<u32>, ReadTypesError> {
        if depth > DEPTH_MAX {
            return Err(ReadTypesError::Malformed {
                at,
                what: "structures nested less deeply",
            });
        }
        for member in 0..header.members {
            let member_at = at + TYPE_LEN + member * TYPE_LEN;
            let name = self.word(member_at)?;
            let raw = self.word(member_at + 8)?;
            let bits = if header.bitfields {
                raw & 0x00ff_ffff
            } else {
                raw
            };
            if self.is_named(name, field) {
                return Ok(Some(bits));
            }
            if !self.is_named(name, "") {
                continue;
            }
            let (inner_at, inner) = self.resolve(self.word(member_at + 4)?)?;
            if matches!(inner.kind, KIND_STRUCT | KIND_UNION)
                && let Some(inner_bits) = self.field_bits(inner_at, inner, field, depth + 1)?
            {
                return Ok(Some(bits.saturating_add(inner_bits)));
            }
        }
        Ok(None)
    }

    /// Returns the type `id` without its typedefs and qualifiers.
    fn resolve(&self, id: u32) -> Result<(usize, Header), ReadTypesError> {
        let mut id = id;
        for _ in 0..DEPTH_MAX {
            let start = usize::try_from(id).ok().and_then(|id| id.checked_sub(1));
            let Some(&at) = start.and_then(|start| self.starts.get(start)) else {
                return Err(ReadTypesError::Malformed {
                    at: 0,
                    what: "a type with this id",
                });
            };
            let header = self.header_at(at)?;
            match header.kind {
                KIND_TYPEDEF | KIND_VOLATILE | KIND_CONST | KIND_RESTRICT | KIND_TYPE_TAG => {
                    id = header.target;
                }
                _ => return Ok((at, header)),
            }
        }
        Err(ReadTypesError::Malformed {
            at: 0,
            what: "a shorter chain of qualifiers",
        })
    }

    fn header_at(&self, at: usize) -> Result<Header, ReadTypesError> {
        let info = self.word(at + 4)?;
        Ok(Header {
            name: self.word(at)?,
            kind: (info >> 24) & 0x1f,
            members: (info & 0xffff) as usize,
            bitfields: info >> 31 == 1,
            target: self.word(at + 8)?,
        })
    }

    fn is_named(&self, name: u32, wanted: &str) -> bool {
        let start = self.strings.saturating_add(name as usize);
        self.data
            .get(start..)
            .and_then(|rest| rest.strip_prefix(wanted.as_bytes()))
            .is_some_and(|rest| rest.first() == Some(&0))
    }

    /// Reads the word at `at` as an index into the data.
    fn index(&self, at: usize) -> Result<usize, ReadTypesError> {
        self.word(at).map(|word| word as usize)
    }

    fn word(&self, at: usize) -> Result<u32, ReadTypesError> {
        self.data
            .get(at..)
            .and_then(|rest| rest.first_chunk())
            .map(|bytes| u32::from_ne_bytes(*bytes))
            .ok_or(ReadTypesError::Malformed {
                at,
                what: "four more bytes",
            })
    }
}

/// The number of bytes that follow a type's fixed part.
fn trailer_len(header: Header) -> usize {
    match header.kind {
        KIND_INT | KIND_VAR | KIND_DECL_TAG => 4,
        KIND_ARRAY => TYPE_LEN,
        KIND_STRUCT | KIND_UNION | KIND_DATASEC | KIND_ENUM64 => header.members * TYPE_LEN,
        KIND_ENUM | KIND_FUNC_PROTO => header.members * ENUMERATOR_LEN,
        // Pointers, qualifiers, forward declarations, functions, floating point numbers.
        _ => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KIND_PTR: u32 = 2;

    /// Builds data in the format, one type a call.
    #[derive(Default)]
    struct Builder {
        types: Vec<u8>,
        strings: Vec<u8>,
    }

    impl Builder {
        fn new() -> Self {
            Self {
                types: Vec::new(),
                strings: vec![0],
            }
        }

        fn name(&mut self, name: &str) -> u32 {
            if name.is_empty() {
                return 0;
            }
            let at = u32::try_from(self.strings.len()).unwrap();
            self.strings.extend(name.as_bytes());
            self.strings.push(0);
            at
        }

        fn words(mut self, words: &[u32]) -> Self {
            self.types
                .extend(words.iter().flat_map(|word| word.to_ne_bytes()));
            self
        }

        fn composite(mut self, kind: u32, name: &str, members: &[(&str, u32, u32)]) -> Self {
            let name = self.name(name);
            let count = u32::try_from(members.len()).unwrap();
            let mut words = vec![name, kind << 24 | count, 0];
            for (name, id, bits) in members {
                words.extend([self.name(name), *id, *bits]);
            }
            self.words(&words)
        }

        fn build(self) -> KernelTypes {
            let types = u32::try_from(self.types.len()).unwrap();
            let strings = u32::try_from(self.strings.len()).unwrap();
            let head = [MAGIC | 1 << 16, 24, 0, types, types, strings];
            let mut data: Vec<u8> = head.iter().flat_map(|word| word.to_ne_bytes()).collect();
            data.extend(self.types);
            data.extend(self.strings);
            KernelTypes::parse(data).unwrap()
        }
    }

    /// Type ids: 1 `int`, 2 an unnamed union, 3 `const` of it, 4 `thread`.
    fn kernel() -> KernelTypes {
        let mut builder = Builder::new();
        let int = builder.name("int");
        builder
            .words(&[int, KIND_INT << 24, 4, 32])
            .composite(KIND_UNION, "", &[("code", 1, 0), ("signal", 1, 32)])
            .words(&[0, KIND_CONST << 24, 2])
            .composite(
                KIND_STRUCT,
                "thread",
                &[("pid", 1, 0), ("", 3, 64), ("tgid", 1, 128)],
            )
            .build()
    }

    #[test]
    fn field_is_found_by_name() {
        assert_eq!(kernel().offset_of("thread", "tgid").unwrap(), 16);
    }

    #[test]
    fn field_of_unnamed_union_adds_up() {
        assert_eq!(kernel().offset_of("thread", "signal").unwrap(), 12);
    }

    #[test]
    fn missing_field_and_structure_are_distinct_errors() {
        let no_field = kernel().offset_of("thread", "pi").unwrap_err();
        let no_structure = kernel().offset_of("threads", "pid").unwrap_err();

        assert!(
            matches!(no_field, ReadTypesError::NoField { .. }),
            "{no_field}"
        );
        assert!(
            matches!(no_structure, ReadTypesError::NoStructure { .. }),
            "{no_structure}"
        );
    }

    #[test]
    fn enumerator_is_found_in_its_enumeration() {
        let mut builder = Builder::new();
        let names = ["kinds", "KIND_LOW", "KIND_HIGH", "others"].map(|name| builder.name(name));
        let [kinds, low, high, others] = names;
        let types = builder
            .words(&[others, KIND_ENUM << 24 | 1, 4, high, 9])
            .words(&[kinds, KIND_ENUM << 24 | 2, 4, low, 0, high, 3])
            .build();

        assert_eq!(types.enumerator("kinds", "KIND_HIGH").unwrap(), Some(3));
        assert_eq!(types.enumerator("kinds", "KIND").unwrap(), None);
        assert_eq!(types.enumerator("kind", "KIND_LOW").unwrap(), None);
    }

    #[test]
    fn arguments_of_tracepoint_leave_out_the_first() {
        let mut builder = Builder::new();
        let typedef = builder.name("btf_trace_task_ended");
        let types = builder
            .words(&[0, KIND_FUNC_PROTO << 24 | 3, 0, 0, 0, 0, 0, 0, 0])
            .words(&[0, KIND_PTR << 24, 1])
            .words(&[typedef, KIND_TYPEDEF << 24, 2])
            .build();

        assert_eq!(types.tracepoint_arguments("task_ended").unwrap(), Some(2));
        assert_eq!(types.tracepoint_arguments("task_end").unwrap(), None);
    }

    #[test]
    fn missing_btf_error_names_file_and_kernel_config() {
        let error = KernelTypes::in_file("/nowhere/vmlinux")
            .unwrap_err()
            .to_string();

        assert!(error.contains("/nowhere/vmlinux"), "{error}");
        assert!(error.contains("CONFIG_DEBUG_INFO_BTF"), "{error}");
    }

    /// The last byte ends the last field's name, so every cut removes a needed byte.
    #[test]
    fn cut_off_data_is_refused() {
        let whole = kernel().data;

        for len in 0..whole.len() {
            let found = KernelTypes::parse(whole[..len].to_vec())
                .and_then(|types| types.offset_of("thread", "tgid"));
            assert!(found.is_err(), "cut at {len}");
        }
    }
}
