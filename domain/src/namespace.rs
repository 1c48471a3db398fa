//! Namespaces of jobs that have a meaning of their own.

/// The namespace of a job that names none.
pub const DEFAULT_NAMESPACE: &str = "default";
/// The namespace of the jobs that run one-off tasks. Nobody else may register a job there.
pub const ONE_OFF_NAMESPACE: &str = "one-off-tasks";
