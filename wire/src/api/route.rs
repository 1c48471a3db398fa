//! A route of the HTTP API. The file of each noun lists its routes, and [`super::routes`] has them all.

/// A path and its allowed methods.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Route {
    /// The path. A segment in braces matches one segment. For a job's id it matches all segments between its neighbors.
    pub path: &'static str,
    pub methods: &'static [&'static str],
}

const READ: &[&str] = &["GET"];
const WRITE: &[&str] = &["PUT", "POST"];

impl Route {
    /// A route that is read.
    pub(crate) const fn read(path: &'static str) -> Self {
        Self {
            path,
            methods: READ,
        }
    }

    /// A route that is written.
    pub(crate) const fn write(path: &'static str) -> Self {
        Self {
            path,
            methods: WRITE,
        }
    }
}
