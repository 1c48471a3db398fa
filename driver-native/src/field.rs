//! Names of fields in messages.

/// The name in a file of what stands at `path` in the block. What stands nowhere is the block itself.
pub(crate) fn field(path: &str) -> String {
    let path = path.replacen("mounts", "mount", 1);
    match path.as_str() {
        "." | "" => "config".to_owned(),
        path => format!("config.{path}"),
    }
}
