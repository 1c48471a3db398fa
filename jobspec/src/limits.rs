//! Bounds on the resources that a job file may use while it is read.

/// Bytes of values that a job file may create while it is read. A file is up to 1 MiB and a request up to 4 MiB, so
/// there is room for intermediate values. Only a file that keeps doubling a value needs more.
pub(crate) const WORK_BYTES_MAX: usize = 64 << 20;
/// The cost of each value and each block besides its text, in bytes.
pub(crate) const VALUE_BYTES: usize = 32;
/// Locals in a file. Each pass of the sort by dependency visits all of them.
pub(crate) const LOCALS_MAX: usize = 1_000;
/// Lists and objects inside each other in a named value. Values are read recursively.
pub(crate) const VALUE_DEPTH_MAX: usize = 128;
/// Numbers that `range` makes; Nomad's bound.
pub(crate) const RANGE_MAX: usize = 1_024;
/// Columns of a verb of `format`, and of an indentation: wider is a mistake.
pub(crate) const WIDTH_MAX: usize = 1_024;
/// Levels of nested expressions, brackets and blocks. A bracket takes two levels; the parser and the evaluator are
/// recursive.
pub(crate) const SYNTAX_DEPTH_MAX: usize = 160;
/// Items of one list, object, path or text in a file.
pub(crate) const ITEMS_MAX: usize = 100_000;
/// Binary digits before or after the point of a number. HCL has no bound; digits are written out.
pub(crate) const NUMBER_BITS_MAX: u64 = 20_000;
/// Bytes of a text that is read as a number.
pub(crate) const NUMBER_TEXT_BYTES_MAX: usize = 8_192;
/// Files and directories that `fileset` visits.
pub(crate) const FILESET_ENTRIES_MAX: usize = 100_000;
/// Directories inside each other that `fileset` enters.
pub(crate) const FILESET_DEPTH_MAX: usize = 64;
/// Work factor of `bcrypt`: each step doubles its time, and 14 takes about a second.
pub(crate) const BCRYPT_COST_MAX: u32 = 14;
/// Bits of an RSA modulus in `rsadecrypt`.
pub(crate) const RSA_BITS_MAX: u64 = 8_192;
/// Values in a YAML document. Aliases repeat values, so the document may be small.
pub(crate) const YAML_VALUES_MAX: usize = 100_000;
