//! Bounds of what a job file may ask of the machine that reads it.

/// Bytes of values that a job file may make while it is read. A file is up to 1 MiB and a request up to
/// 4 MiB, so that this leaves room for what is computed and thrown away; a file that needs more doubles
/// something.
pub(super) const WORK_BYTES_MAX: usize = 64 << 20;
/// What each value and each block counts for beside its text, in bytes: about what JSON keeps for one.
pub(super) const VALUE_BYTES: usize = 32;
/// Locals in a file. Their order is found by passes over all of them.
pub(super) const LOCALS_MAX: usize = 1_000;
/// Lists and objects inside each other in a value that has a name. What reads values does so recursively.
pub(super) const VALUE_DEPTH_MAX: usize = 128;
/// Numbers that `range` makes; Nomad's bound.
pub(super) const RANGE_MAX: usize = 1_024;
/// Columns of a verb of `format`, and of an indentation: wider is a mistake.
pub(super) const WIDTH_MAX: usize = 1_024;
