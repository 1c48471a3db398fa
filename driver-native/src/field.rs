//! The names of fields in messages.

/// Returns the name in a job file of the field at `path` in the block. An empty path means the block itself.
pub(crate) fn field(path: &str) -> String {
    let path = path.replacen("mounts", "mount", 1);
    match path.as_str() {
        "." | "" => "config".to_owned(),
        path => format!("config.{path}"),
    }
}
