//! Placeholder: says what is missing for building and testing, and installs it.

/// What `setup` may do.
#[derive(Debug)]
pub(crate) struct Options {
    /// Only name what is missing.
    pub(crate) check: bool,
    /// Install without asking.
    pub(crate) yes: bool,
}

/// Not written yet.
pub(crate) fn run(options: &Options) -> anyhow::Result<()> {
    anyhow::bail!(
        "setup is not written yet (check {}, yes {})",
        options.check,
        options.yes
    )
}
