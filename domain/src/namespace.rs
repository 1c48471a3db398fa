//! Namespaces of jobs with a special meaning.

/// The namespace of a job that sets none.
pub const DEFAULT_NAMESPACE: &str = "default";
/// The namespace of the jobs that run one-off tasks. No other job may be registered there.
pub const ONE_OFF_NAMESPACE: &str = "one-off-tasks";
