//! The user of a task.

use std::ffi::CString;

use muster_domain::account::{ACCOUNT_ID_MAX, Account, AccountError, QuotedName};
use nix::unistd::{Gid, Group, Uid, User, geteuid, getgrouplist};
use thiserror::Error;

/// User and groups of a process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Identity {
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    pub(crate) groups: Vec<u32>,
}

/// The reason why a task cannot run as the user it names.
#[derive(Debug, Error)]
pub(crate) enum UserError {
    /// The user is neither an id nor a valid name.
    #[error("user {} {reason}", QuotedName(user))]
    Malformed { user: String, reason: AccountError },
    /// The group is neither an id nor a valid name.
    #[error("group {} {reason}", QuotedName(group))]
    MalformedGroup { group: String, reason: AccountError },
    /// The user is not in the database.
    #[error("user {user:?} is not known on this node; create it, or use a numeric uid")]
    Unknown { user: String },
    /// The database could not be read.
    #[error("look up user {user:?}")]
    Lookup {
        user: String,
        #[source]
        source: nix::Error,
    },
    /// The group is not in the database.
    #[error("group {group:?} is not known on this node; create it, or use a numeric gid")]
    UnknownGroup { group: String },
    /// The database could not be read.
    #[error("look up group {gid}")]
    LookupGroup {
        gid: u32,
        #[source]
        source: nix::Error,
    },
    /// The node does not list the group.
    #[error(
        "group {group:?} (gid {gid}) is not allowed on this node; leave the group out for the user's own, or allow it in the agent's configuration: plugin \"native\" {{ config {{ allow_groups = [\"{group}\"] }} }}"
    )]
    GroupNotAllowed { group: String, gid: u32 },
    /// The node must list the user's group, and does not.
    #[error(
        "user {user:?} has the group {group:?} (gid {gid}), which is not allowed on this node; name another user, or allow the group in the agent's configuration: plugin \"native\" {{ config {{ allow_groups = [\"{group}\"] }} }}"
    )]
    UsersGroupNotAllowed {
        user: String,
        group: String,
        gid: u32,
    },
    /// Only root may become another user.
    #[error("run as user {user:?}: the driver runs as uid {uid} and only root may change users")]
    NotRoot { user: String, uid: u32 },
}

/// The groups of the host that contained tasks may have, apart from their user's own group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum AllowedGroups {
    /// Every group: for processes next to a task that was allowed to start, and for tasks with separate ids.
    Any,
    /// These, by name or id.
    Listed(Vec<String>),
}

impl AllowedGroups {
    fn contain(&self, gid: u32, name: Option<&str>) -> bool {
        let Self::Listed(listed) = self else {
            return true;
        };
        listed.iter().any(|group| match Account::parse(group) {
            Ok(Account::Id(allowed)) => allowed == gid,
            Ok(Account::Name(allowed)) => name == Some(allowed),
            Err(_) => false,
        })
    }
}

impl Identity {
    /// Returns the identity for `user`, a name or a uid. `None` means the driver's own: for an empty name, or when
    /// `user` is the driver's user and the driver is not root.
    ///
    /// A uid without a database entry gets the group of the same number and no other.
    pub(crate) fn of(user: &str, group: Option<&str>) -> Result<Option<Self>, UserError> {
        if user.is_empty() && group.is_none() {
            return Ok(None);
        }
        let own = geteuid().to_string();
        let user = if user.is_empty() { &own } else { user };
        let mut identity = Self::look_up(user)?;
        if let Some(group) = group {
            identity.gid = look_up_group(group)?;
        }
        let own = geteuid();
        if own.is_root() {
            return Ok(Some(identity));
        }
        if identity.uid == own.as_raw() && group.is_none() {
            return Ok(None);
        }
        Err(UserError::NotRoot {
            user: user.to_owned(),
            uid: own.as_raw(),
        })
    }

    /// Returns the identity for `user` in only one group: `group`, or the user's own.
    ///
    /// A group that the job names must be `allowed` or the user's own. The user's own group must be `allowed` if it is
    /// root's group. It must also be `allowed` if the uid has no database entry and a group of the host has that
    /// number. For example, uid 42 would be in Debian's `shadow`.
    pub(crate) fn with_one_group(
        user: &str,
        group: Option<&str>,
        allowed: &AllowedGroups,
    ) -> Result<Self, UserError> {
        let (uid, own_group, is_known) = match find(user)? {
            UserLookup::Entry(entry) => (entry.uid.as_raw(), entry.gid.as_raw(), true),
            UserLookup::Number(uid) => (uid, uid, false),
        };
        let gid = group.map_or(Ok(own_group), look_up_group)?;
        let name = group_name(gid)?;
        let is_own = gid == own_group
            && if is_known {
                gid != 0 || uid == 0
            } else {
                name.is_none()
            };
        if !is_own && !allowed.contain(gid, name.as_deref()) {
            let named = name.unwrap_or_else(|| gid.to_string());
            return Err(match group {
                Some(_) => UserError::GroupNotAllowed { group: named, gid },
                None => UserError::UsersGroupNotAllowed {
                    user: user.to_owned(),
                    group: named,
                    gid,
                },
            });
        }
        Ok(Self {
            uid,
            gid,
            groups: Vec::new(),
        })
    }

    fn look_up(user: &str) -> Result<Self, UserError> {
        match find(user)? {
            UserLookup::Entry(entry) => {
                let name = CString::new(entry.name).map_err(|_nul| UserError::Unknown {
                    user: user.to_owned(),
                })?;
                let failed = |source| lookup_failed(user, source);
                let groups = getgrouplist(&name, entry.gid).map_err(failed)?;
                Ok(Self {
                    uid: entry.uid.as_raw(),
                    gid: entry.gid.as_raw(),
                    groups: groups.into_iter().map(Gid::as_raw).collect(),
                })
            }
            UserLookup::Number(uid) => Ok(Self {
                uid,
                gid: uid,
                groups: vec![uid],
            }),
        }
    }
}

/// The result of a database lookup for a user.
enum UserLookup {
    Entry(User),
    /// No entry for this uid.
    Number(u32),
}

/// Looks up a name or a uid.
fn find(user: &str) -> Result<UserLookup, UserError> {
    let account = Account::parse(user).map_err(|reason| UserError::Malformed {
        user: user.to_owned(),
        reason,
    })?;
    let entry = match account {
        Account::Id(uid) => User::from_uid(Uid::from_raw(uid)),
        Account::Name(name) => User::from_name(name),
    };
    let entry = entry.map_err(|source| lookup_failed(user, source))?;
    match (entry, account) {
        (Some(entry), _) if entry.uid.as_raw().max(entry.gid.as_raw()) > ACCOUNT_ID_MAX => {
            Err(UserError::Malformed {
                user: user.to_owned(),
                reason: AccountError::Id,
            })
        }
        (Some(entry), _) => Ok(UserLookup::Entry(entry)),
        (None, Account::Id(uid)) => Ok(UserLookup::Number(uid)),
        (None, Account::Name(_)) => Err(UserError::Unknown {
            user: user.to_owned(),
        }),
    }
}

fn lookup_failed(user: &str, source: nix::Error) -> UserError {
    UserError::Lookup {
        user: user.to_owned(),
        source,
    }
}

fn look_up_group(group: &str) -> Result<u32, UserError> {
    let account = Account::parse(group).map_err(|reason| UserError::MalformedGroup {
        group: group.to_owned(),
        reason,
    })?;
    match account {
        Account::Id(gid) => Ok(gid),
        Account::Name(name) => match Group::from_name(name) {
            Ok(Some(entry)) if entry.gid.as_raw() <= ACCOUNT_ID_MAX => Ok(entry.gid.as_raw()),
            Ok(_) | Err(_) => Err(UserError::UnknownGroup {
                group: group.to_owned(),
            }),
        },
    }
}

/// Returns the name of a group of the host; `None` if there is no such group.
fn group_name(gid: u32) -> Result<Option<String>, UserError> {
    let entry = Group::from_gid(Gid::from_raw(gid));
    let entry = entry.map_err(|source| UserError::LookupGroup { gid, source })?;
    Ok(entry.map(|entry| entry.name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn empty_user_is_the_drivers_own() {
        assert_eq!(Identity::of("", None).unwrap(), None);
    }

    #[test]
    fn name_and_number_are_the_same_user() {
        assert_eq!(
            Identity::look_up("root").unwrap(),
            Identity::look_up("0").unwrap()
        );
    }

    #[test]
    fn unknown_number_has_its_own_group_only() {
        let identity = Identity::look_up("3999999999").unwrap();

        assert_eq!(identity.gid, 3_999_999_999);
        assert_eq!(identity.groups, [3_999_999_999]);
    }

    #[test]
    fn unknown_user_error_suggests_a_fix() {
        let error = Identity::of("no-such-user", None).unwrap_err();

        assert_eq!(
            error.to_string(),
            "user \"no-such-user\" is not known on this node; create it, or use a numeric uid"
        );
    }

    #[test]
    fn contained_user_has_one_group() {
        let any = &AllowedGroups::Any;
        let root = Identity::with_one_group("root", None, any).unwrap();
        let other = Identity::with_one_group("root", Some("4242"), any).unwrap();

        assert_eq!((root.gid, root.groups.len()), (0, 0));
        assert_eq!((other.uid, other.gid), (0, 4_242));
        assert!(Identity::with_one_group("root", Some("no-such-group"), any).is_err());
    }

    fn listed(groups: &[&str]) -> AllowedGroups {
        AllowedGroups::Listed(groups.iter().map(|&group| group.to_owned()).collect())
    }

    #[test]
    fn groups_of_the_host_must_be_listed() {
        let none = &listed(&[]);

        for group in ["disk", "shadow", "adm", "root", "0", "6", "3999999999"] {
            let error = Identity::with_one_group("nobody", Some(group), none).unwrap_err();
            assert!(
                matches!(error, UserError::GroupNotAllowed { .. }),
                "{error}"
            );
        }
        for group in ["disk", "6"] {
            let identity = Identity::with_one_group("nobody", Some("disk"), &listed(&[group]));
            assert_eq!(identity.unwrap().gid, 6);
        }
    }

    #[test]
    fn own_group_of_a_user_needs_no_list() {
        let none = &listed(&[]);
        let nobody = Identity::with_one_group("nobody", None, none).unwrap();

        let named =
            Identity::with_one_group("nobody", Some(&nobody.gid.to_string()), none).unwrap();
        let unknown = Identity::with_one_group("3999999999", None, none).unwrap();

        assert_eq!(named, nobody);
        assert_eq!(unknown.gid, 3_999_999_999);
    }

    #[test]
    fn unknown_numeric_user_cannot_join_matching_group() {
        let ids = |file: &str| -> Vec<String> {
            let text = std::fs::read_to_string(file).unwrap();
            let third = |line: &str| line.split(':').nth(2).map(str::to_owned);
            text.lines().filter_map(third).collect()
        };
        let users = ids("/etc/passwd");
        let groups = ids("/etc/group").into_iter();
        let Some(number) = groups.into_iter().find(|group| !users.contains(group)) else {
            return;
        };

        let error = Identity::with_one_group(&number, None, &listed(&[])).unwrap_err();

        assert!(
            matches!(error, UserError::UsersGroupNotAllowed { .. }),
            "{error}"
        );
    }

    #[test]
    fn numbers_that_are_no_ids_are_refused() {
        for number in [
            "4294967295",
            "4294967296",
            "-1",
            "+0",
            "18446744073709551616",
        ] {
            let any = &AllowedGroups::Any;
            assert!(Identity::of(number, None).is_err(), "{number}");
            assert!(Identity::of("root", Some(number)).is_err(), "{number}");
            assert!(
                Identity::with_one_group(number, None, any).is_err(),
                "{number}"
            );
            assert!(
                Identity::with_one_group("root", Some(number), any).is_err(),
                "{number}"
            );
        }
    }
}
