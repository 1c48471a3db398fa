//! The node's policy for its tasks: the driver's own configuration.
//!
//! A job may ask for less isolation than the default, and this policy decides. The defaults are safe: no task runs
//! raw, has uid 0, or sees a path of the host. A task has no group of the host except its user's own.

use std::path::{Component, Path, PathBuf};

use muster_domain::account::{Account, AccountError, QuotedName};
use muster_domain::one_off::RESULT_BYTES_MAX;
use muster_driver::Spec;
use serde::{Deserialize, de};
use serde_json::Value;
use thiserror::Error;

use crate::field::field;
use crate::isolation::capabilities::{Capabilities, UnknownCapability};
use crate::limits;
use crate::user::AllowedGroups;

/// The user of a contained task that names no user.
const DEFAULT_USER: &str = "nobody";

/// The paths of the host that contained tasks see, read-only, where they exist. A star at the end matches any end of a
/// name. The entries of `/etc` are those that programs need to find libraries, names, users and certificates.
const HOST_DIRS: [&str; 37] = [
    "/usr",
    "/bin",
    "/sbin",
    "/lib",
    "/lib32",
    "/lib64",
    "/libx32",
    "/etc/alternatives",
    "/etc/ca-certificates",
    "/etc/ca-certificates.conf",
    "/etc/crypto-policies",
    "/etc/debian_version",
    "/etc/fonts",
    "/etc/gai.conf",
    "/etc/group",
    "/etc/host.conf",
    "/etc/hosts",
    "/etc/java*",
    "/etc/ld.so.cache",
    "/etc/ld.so.conf",
    "/etc/ld.so.conf.d",
    "/etc/localtime",
    "/etc/mime.types",
    "/etc/nginx",
    "/etc/nsswitch.conf",
    "/etc/os-release",
    "/etc/passwd",
    "/etc/perl",
    "/etc/pki/ca-trust",
    "/etc/pki/tls/certs",
    "/etc/protocols",
    "/etc/python*",
    "/etc/resolv.conf",
    "/etc/services",
    "/etc/ssl/certs",
    "/etc/ssl/openssl.cnf",
    "/etc/timezone",
];

/// The node's checked policy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Policy {
    /// Tasks may run without isolation, as any user. Such a job has root on this node.
    pub(crate) allow_raw: bool,
    /// Contained tasks may be uid 0.
    pub(crate) allow_uid0: bool,
    /// The capabilities that contained tasks may have at most.
    pub(crate) allow_caps: Capabilities,
    /// The groups of the host that contained tasks may have. A user's own group need not be listed.
    pub(crate) allow_groups: AllowedGroups,
    /// The entries of a root made of the host's directories.
    pub(crate) host_dirs: Vec<String>,
    /// The paths of the host that jobs may mount or use as their root.
    pub(crate) allow_paths: Vec<AllowedPath>,
    /// The user of a contained task that names no user.
    pub(crate) default_user: String,
    /// Directories of the host whose files every task may download by `file:` URLs, regardless of the files'
    /// permissions.
    pub(crate) allow_downloads: Vec<PathBuf>,
    /// Directories of the host that every task may upload files into by `file:` URLs.
    pub(crate) allow_uploads: Vec<PathBuf>,
    /// The driver may download from this machine and upload to it, for tasks. Tasks can then reach services that
    /// listen only for this machine.
    pub(crate) allow_local_transfers: bool,
    /// The file of the certificate authorities that HTTPS transfers are checked with; the default is the machine's.
    pub(crate) ca_file: Option<PathBuf>,
    /// Bytes of a result file that are kept. A longer result is cut.
    pub(crate) result_bytes_max: usize,
}

/// A path of the host that jobs may use, including everything below it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct AllowedPath {
    pub(crate) path: PathBuf,
    pub(crate) writable: bool,
}

/// A driver configuration that cannot be used, with the name of the faulty field. The field is in backquotes and has
/// its name in the configuration file of a host.
#[derive(Debug, Error)]
pub(crate) enum PolicyError {
    #[error(
        "`{field}` of the native driver's configuration cannot be read (fields: allow_raw, allow_uid0, allow_caps, allow_groups, host_dirs, allow_paths, default_user, allow_downloads, allow_uploads, allow_local_transfers, ca_file, result_bytes_max)"
    )]
    Shape {
        field: String,
        #[source]
        source: serde_json::Error,
    },
    #[error("`config.allow_caps`: {0}")]
    Capability(#[from] UnknownCapability),
    #[error(
        "`config.allow_caps`: {names} cannot be allowed to contained tasks, because it is as good as no isolation; allow raw tasks if that is meant"
    )]
    Never { names: Capabilities },
    #[error("`config.{field}`: {} {reason}", QuotedName(account))]
    Account {
        field: &'static str,
        account: String,
        reason: AccountError,
    },
    #[error("`config.{field}`: {path:?} is not a plain absolute path; write it like /srv/data")]
    Path { field: &'static str, path: String },
    #[error(
        "`config.result_bytes_max`: {bytes} is outside 1 to {max}", max = limits::RESULT_BYTES_LIMIT
    )]
    ResultBytes { bytes: usize },
    #[error("`config.default_user` is empty; name a user, or leave the field out for nobody")]
    NoUser,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct PolicyConfig {
    allow_raw: Option<bool>,
    allow_uid0: Option<bool>,
    allow_caps: Option<Vec<String>>,
    allow_groups: Option<Vec<String>>,
    host_dirs: Option<Vec<String>>,
    allow_paths: Option<Vec<String>>,
    default_user: Option<String>,
    allow_downloads: Option<Vec<String>>,
    allow_uploads: Option<Vec<String>>,
    allow_local_transfers: Option<bool>,
    ca_file: Option<String>,
    result_bytes_max: Option<usize>,
}

impl Default for Policy {
    fn default() -> Self {
        Self {
            allow_raw: false,
            allow_uid0: false,
            allow_caps: Capabilities::default_of_root(),
            allow_groups: AllowedGroups::Listed(Vec::new()),
            host_dirs: HOST_DIRS.map(str::to_owned).to_vec(),
            allow_paths: Vec::new(),
            default_user: DEFAULT_USER.to_owned(),
            allow_downloads: Vec::new(),
            allow_uploads: Vec::new(),
            allow_local_transfers: false,
            ca_file: None,
            result_bytes_max: RESULT_BYTES_MAX,
        }
    }
}

impl Policy {
    /// Reads a configuration; null means the default.
    pub(crate) fn read(config: Value) -> Result<Self, PolicyError> {
        let given: PolicyConfig = match config {
            Value::Null => PolicyConfig::default(),
            config => parse(&muster_driver::without_nulls(config))?,
        };
        let default = Self::default();
        let allow_caps = match given.allow_caps {
            Some(names) => Capabilities::parse(names.iter().map(String::as_str))?,
            None => default.allow_caps,
        };
        let never = allow_caps.intersection(Capabilities::forbidden());
        if !never.is_empty() {
            return Err(PolicyError::Never { names: never });
        }
        let default_user = given.default_user.unwrap_or(default.default_user);
        if default_user.is_empty() {
            return Err(PolicyError::NoUser);
        }
        check_account("default_user", &default_user)?;
        let allow_groups = given.allow_groups.unwrap_or_default();
        for group in &allow_groups {
            check_account("allow_groups", group)?;
        }
        let host_dirs = given.host_dirs.unwrap_or(default.host_dirs);
        for path in &host_dirs {
            check_path("host_dirs", path)?;
        }
        Ok(Self {
            allow_raw: given.allow_raw.unwrap_or_default(),
            allow_uid0: given.allow_uid0.unwrap_or_default(),
            allow_caps,
            allow_groups: AllowedGroups::Listed(allow_groups),
            host_dirs,
            allow_paths: given
                .allow_paths
                .unwrap_or_default()
                .iter()
                .map(|path| AllowedPath::read(path))
                .collect::<Result<_, _>>()?,
            default_user,
            allow_downloads: check_paths("allow_downloads", given.allow_downloads)?,
            allow_uploads: check_paths("allow_uploads", given.allow_uploads)?,
            allow_local_transfers: given.allow_local_transfers.unwrap_or_default(),
            ca_file: match given.ca_file {
                Some(path) => Some(check_path("ca_file", &path)?),
                None => None,
            },
            result_bytes_max: match given.result_bytes_max {
                Some(bytes) if !(1..=limits::RESULT_BYTES_LIMIT).contains(&bytes) => {
                    return Err(PolicyError::ResultBytes { bytes });
                }
                Some(bytes) => bytes,
                None => default.result_bytes_max,
            },
        })
    }

    /// Returns the policy for processes next to a task that was allowed to start.
    pub(crate) fn of_running_task(&self) -> Self {
        Self {
            allow_uid0: true,
            allow_caps: Capabilities::all(),
            allow_groups: AllowedGroups::Any,
            ..self.clone()
        }
    }

    /// Returns the schema that hosts use to check the configuration.
    pub(crate) fn schema() -> Spec {
        Spec::object([
            ("allow_raw", Spec::optional("allow_raw", "bool")),
            ("allow_uid0", Spec::optional("allow_uid0", "bool")),
            ("allow_caps", Spec::optional("allow_caps", "list(string)")),
            (
                "allow_groups",
                Spec::optional("allow_groups", "list(string)"),
            ),
            ("host_dirs", Spec::optional("host_dirs", "list(string)")),
            ("allow_paths", Spec::optional("allow_paths", "list(string)")),
            ("default_user", Spec::optional("default_user", "string")),
            (
                "allow_downloads",
                Spec::optional("allow_downloads", "list(string)"),
            ),
            (
                "allow_uploads",
                Spec::optional("allow_uploads", "list(string)"),
            ),
            (
                "allow_local_transfers",
                Spec::optional("allow_local_transfers", "bool"),
            ),
            ("ca_file", Spec::optional("ca_file", "string")),
            (
                "result_bytes_max",
                Spec::optional("result_bytes_max", "number"),
            ),
        ])
    }

    /// Returns the allowed path that contains `path`, and the rest of `path` below it.
    pub(crate) fn find_allowed_path<'a>(&self, path: &'a Path) -> Option<(&AllowedPath, &'a Path)> {
        self.allow_paths
            .iter()
            .filter_map(|allowed| Some((allowed, path.strip_prefix(&allowed.path).ok()?)))
            // The longest allowed path applies, which may be writable where a shorter one is not, or the reverse.
            .max_by_key(|(allowed, _)| allowed.path.as_os_str().len())
    }
}

impl AllowedPath {
    /// Parses `/path`, or `/path:rw` for a writable path.
    fn read(text: &str) -> Result<Self, PolicyError> {
        let (path, writable) = match text.strip_suffix(":rw") {
            Some(path) => (path, true),
            None => (text, false),
        };
        Ok(Self {
            path: check_path("allow_paths", path)?,
            writable,
        })
    }
}

fn parse(config: &Value) -> Result<PolicyConfig, PolicyError> {
    let wrong = |path: &str, source| PolicyError::Shape {
        field: field(path),
        source,
    };
    // A list would be read as the fields in their order.
    if !config.is_object() {
        return Err(wrong(".", de::Error::custom("it must be a block")));
    }
    serde_path_to_error::deserialize(config)
        .map_err(|error| wrong(&error.path().to_string(), error.into_inner()))
}

fn check_paths(
    field: &'static str,
    paths: Option<Vec<String>>,
) -> Result<Vec<PathBuf>, PolicyError> {
    let paths = paths.unwrap_or_default();
    paths.iter().map(|path| check_path(field, path)).collect()
}

fn check_account(field: &'static str, account: &str) -> Result<(), PolicyError> {
    match Account::parse(account) {
        Ok(_) => Ok(()),
        Err(reason) => Err(PolicyError::Account {
            field,
            account: account.to_owned(),
            reason,
        }),
    }
}

fn check_path(field: &'static str, path: &str) -> Result<PathBuf, PolicyError> {
    if is_plain_absolute(Path::new(path)) {
        return Ok(PathBuf::from(path));
    }
    Err(PolicyError::Path {
        field,
        path: path.to_owned(),
    })
}

/// Returns whether the path is absolute, not the root, and without `..` and zero bytes.
pub(crate) fn is_plain_absolute(path: &Path) -> bool {
    let mut components = path.components();
    components.next() == Some(Component::RootDir)
        && components.clone().next().is_some()
        && components.all(|component| matches!(component, Component::Normal(_)))
        && !path.as_os_str().as_encoded_bytes().contains(&0)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn empty_policy_allows_nothing() {
        for config in [Value::Null, json!({}), json!({"allow_raw": null})] {
            let policy = Policy::read(config).unwrap();

            assert_eq!(policy, Policy::default());
            assert!(!policy.allow_raw && !policy.allow_uid0);
            assert!(policy.allow_paths.is_empty());
            assert!(policy.allow_downloads.is_empty() && policy.allow_uploads.is_empty());
            assert!(!policy.allow_local_transfers);
        }
    }

    #[test]
    fn a_field_that_cannot_be_used_is_named() {
        let cases = [
            (json!({"allow_root": true}), "`config.allow_root` of "),
            (json!({"allow_raw": "perhaps"}), "`config.allow_raw` of "),
            (json!({"allow_caps": ["KILL", 7]}), "`config.allow_caps[1]`"),
            (json!({"allow_caps": ["FLY"]}), "`config.allow_caps`: "),
            (json!({"allow_caps": ["BPF"]}), "`config.allow_caps`: "),
            (json!({"allow_paths": ["a"]}), "`config.allow_paths`: "),
            (json!({"default_user": ""}), "`config.default_user` is"),
            (json!({"default_user": "-1"}), "`config.default_user`: "),
            (
                json!({"allow_groups": ["4294967295"]}),
                "`config.allow_groups`: ",
            ),
            (json!([true]), "`config` of "),
            (
                json!({"result_bytes_max": 0}),
                "`config.result_bytes_max`: 0 is",
            ),
            (
                json!({"result_bytes_max": 262_145}),
                "`config.result_bytes_max`: 262145 is",
            ),
        ];

        for (config, words) in cases {
            let message = Policy::read(config.clone()).unwrap_err().to_string();
            assert!(message.starts_with(words), "{config}: {message}");
        }
    }

    #[test]
    fn machine_itself_cannot_be_allowed() {
        for name in ["SYS_ADMIN", "cap_sys_ptrace", "BPF"] {
            let error = Policy::read(json!({"allow_caps": [name]})).unwrap_err();

            assert!(matches!(error, PolicyError::Never { .. }), "{error}");
        }
    }

    #[test]
    fn strange_paths_are_refused() {
        for path in ["/", "relative", "/a/../b", "", "/a\0b"] {
            assert!(Policy::read(json!({"allow_paths": [path]})).is_err());
            assert!(Policy::read(json!({"host_dirs": [path]})).is_err());
            assert!(Policy::read(json!({"allow_downloads": [path]})).is_err());
            assert!(Policy::read(json!({"allow_uploads": [path]})).is_err());
            assert!(Policy::read(json!({"ca_file": path})).is_err());
        }
    }

    #[test]
    fn longest_allowance_decides() {
        let policy = Policy::read(json!({"allow_paths": ["/srv", "/srv/data:rw"]})).unwrap();

        let (read, rest) = policy.find_allowed_path(Path::new("/srv/other/x")).unwrap();
        assert!(!read.writable && rest == Path::new("other/x"));
        assert!(
            policy
                .find_allowed_path(Path::new("/srv/data/x"))
                .unwrap()
                .0
                .writable
        );
        assert!(policy.find_allowed_path(Path::new("/srvx")).is_none());
    }
}
