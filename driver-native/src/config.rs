//! A task's `config` block.

use muster_driver::Spec;
use serde::Deserialize;
use serde_json::Value;
use thiserror::Error;

/// What a job writes into `config { … }`.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct NativeConfig {
    /// Program to run: absolute, relative to the task's directory if it has a slash, or a name
    /// looked for in the task's directory and in `PATH`.
    pub(crate) command: String,
    /// Its arguments.
    #[serde(default, deserialize_with = "null_is_default")]
    pub(crate) args: Vec<String>,
    /// Where it runs: a path below the task's directory, or an absolute one.
    #[serde(default)]
    pub(crate) work_dir: Option<String>,
    /// The task cannot gain privileges by running set-user-id programs.
    #[serde(default, deserialize_with = "null_is_true")]
    pub(crate) no_new_privs: NoNewPrivs,
}

/// On unless a job says otherwise.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct NoNewPrivs(pub(crate) bool);

impl Default for NoNewPrivs {
    fn default() -> Self {
        Self(true)
    }
}

/// A `config` block that cannot be read.
#[derive(Debug, Error)]
pub(crate) enum ConfigError {
    /// A field is missing, unknown or of another type.
    #[error("read the task's config block (fields: command, args, work_dir, no_new_privs)")]
    Shape(#[from] serde_json::Error),
    /// No program is named.
    #[error("the task's config.command is empty; name a program")]
    EmptyCommand,
}

impl NativeConfig {
    pub(crate) fn read(config: &Value) -> Result<Self, ConfigError> {
        let config: Self = serde_json::from_value(config.clone())?;
        if config.command.is_empty() {
            return Err(ConfigError::EmptyCommand);
        }
        Ok(config)
    }

    /// The schema that hosts check the block against.
    pub(crate) fn schema() -> Spec {
        Spec::object([
            ("command", Spec::required("command", "string")),
            ("args", Spec::optional("args", "list(string)")),
            ("work_dir", Spec::optional("work_dir", "string")),
            ("no_new_privs", Spec::optional("no_new_privs", "bool")),
        ])
    }
}

/// Hosts that follow the schema send an absent field as null.
fn null_is_default<'de, D: serde::Deserializer<'de>>(from: D) -> Result<Vec<String>, D::Error> {
    Ok(Option::deserialize(from)?.unwrap_or_default())
}

fn null_is_true<'de, D: serde::Deserializer<'de>>(from: D) -> Result<NoNewPrivs, D::Error> {
    Ok(Option::deserialize(from)?.map_or_else(NoNewPrivs::default, NoNewPrivs))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn absent_and_null_fields_are_the_defaults() {
        let expected = NativeConfig {
            command: "/bin/true".to_owned(),
            args: Vec::new(),
            work_dir: None,
            no_new_privs: NoNewPrivs(true),
        };

        let absent = NativeConfig::read(&json!({"command": "/bin/true"}));
        let null = NativeConfig::read(&json!({
            "command": "/bin/true", "args": null, "work_dir": null, "no_new_privs": null
        }));

        assert_eq!(absent.unwrap(), expected);
        assert_eq!(null.unwrap(), expected);
    }

    #[test]
    fn unknown_field_is_named() {
        let error = NativeConfig::read(&json!({"command": "x", "arg": []})).unwrap_err();

        let ConfigError::Shape(source) = error else {
            panic!("{error}")
        };
        assert!(source.to_string().contains("`arg`"), "{source}");
    }

    #[test]
    fn missing_command_is_refused() {
        assert!(NativeConfig::read(&Value::Null).is_err());
        assert!(NativeConfig::read(&json!({"command": ""})).is_err());
    }
}
