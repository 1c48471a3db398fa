//! `chroot_env` in the agent's file: host paths and their places in the roots of tasks.
//!
//! Nomad's files write it as a block with quoted paths as keys. HCL allows such keys only in values.

use muster_agent::ChrootEnv;
use serde_json::Value;

use super::file::invalid_value;
use muster_jobspec::syntax::Attribute;
use muster_jobspec::{JobFileFault, any, span};

const NAME: &str = "chroot_env";

/// Returns `text` with the block written as an attribute. All other bytes keep their places.
pub(super) fn as_attribute(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for line in text.split_inclusive('\n') {
        match block_in(line) {
            Some(blank) => {
                out.push_str(&line[..blank]);
                out.push('=');
                out.push_str(&line[blank + 1..]);
            }
            None => out.push_str(line),
        }
    }
    out
}

/// The position of a blank between the name and the brace, if the line begins the block.
fn block_in(line: &str) -> Option<usize> {
    let name = line.find(NAME)?;
    let (before, after) = (&line[..name], &line[name + NAME.len()..]);
    let is_alone = before
        .chars()
        .all(|one| one.is_whitespace() || one.is_alphanumeric() || "_{".contains(one));
    let is_word = !before.ends_with(|one: char| one.is_alphanumeric() || one == '_');
    let is_block = after.starts_with([' ', '\t']) && after.trim_start().starts_with('{');
    (is_alone && is_word && is_block).then_some(name + NAME.len())
}

/// The host paths in the attribute, with their places in roots.
pub(super) fn read(attribute: &Attribute) -> Result<ChrootEnv, JobFileFault> {
    let wanted = "host paths with their places in roots, such as { \"/usr\" = \"/usr\" }";
    let Value::Object(entries) = any(NAME, &attribute.value)? else {
        return Err(invalid_value(attribute, wanted));
    };
    let mut shown = Vec::with_capacity(entries.len());
    for (path, place) in entries {
        let Value::String(place) = place else {
            return Err(invalid_value(attribute, wanted));
        };
        shown.push((path, place));
    }
    ChrootEnv::new(shown).map_err(|(path, error)| {
        let message = format!("`{NAME}`: entry {path:?}: {error}");
        JobFileFault::at(span(&attribute.value), message)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_block_is_rewritten() {
        for (text, expected) in [
            ("chroot_env {\n", "chroot_env={\n"),
            (
                "client { chroot_env  { \"/a\" = \"/b\" } }",
                "client { chroot_env= { \"/a\" = \"/b\" } }",
            ),
            ("chroot_env = {", "chroot_env = {"),
            ("# chroot_env {", "# chroot_env {"),
            ("name = \"chroot_env {\"", "name = \"chroot_env {\""),
            ("my_chroot_env {", "my_chroot_env {"),
        ] {
            assert_eq!(as_attribute(text), expected);
        }
    }
}
