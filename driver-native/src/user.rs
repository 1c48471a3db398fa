//! Who a task runs as.

use std::ffi::CString;

use nix::unistd::{Gid, Group, Uid, User, geteuid, getgrouplist};
use thiserror::Error;

/// User and groups of a process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Identity {
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    pub(crate) groups: Vec<u32>,
}

/// Why a task cannot run as the user it names.
#[derive(Debug, Error)]
pub(crate) enum UserError {
    /// Not in the database.
    #[error("user {user:?} is not known on this node; create it, or use a numeric uid")]
    Unknown { user: String },
    /// The database could not be read.
    #[error("look up user {user:?}")]
    Lookup {
        user: String,
        #[source]
        source: nix::Error,
    },
    /// Not in the database.
    #[error("group {group:?} is not known on this node; create it, or use a numeric gid")]
    UnknownGroup { group: String },
    /// Only root may be somebody else.
    #[error("run as user {user:?}: the driver runs as uid {uid} and only root may change users")]
    NotRoot { user: String, uid: u32 },
}

impl Identity {
    /// The identity for `user`, a name or a uid. `None` is the driver's own: for an empty name, or
    /// when it is the driver's and the driver is not root.
    ///
    /// A uid that no database knows gets the group of the same number and no other.
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

    /// The identity for `user` in no group but one: `group`, or the user's own.
    pub(crate) fn alone(user: &str, group: Option<&str>) -> Result<Self, UserError> {
        let (uid, own_group) = match find(user)? {
            Found::Entry(entry) => (entry.uid.as_raw(), entry.gid.as_raw()),
            Found::Number(uid) => (uid, uid),
        };
        Ok(Self {
            uid,
            gid: group.map_or(Ok(own_group), look_up_group)?,
            groups: Vec::new(),
        })
    }

    fn look_up(user: &str) -> Result<Self, UserError> {
        match find(user)? {
            Found::Entry(entry) => {
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
            Found::Number(uid) => Ok(Self {
                uid,
                gid: uid,
                groups: vec![uid],
            }),
        }
    }
}

/// What the database says of a user.
enum Found {
    Entry(User),
    /// Nothing of this uid.
    Number(u32),
}

/// Looks up a name or a uid.
fn find(user: &str) -> Result<Found, UserError> {
    let number = user.parse::<u32>().ok();
    let entry = match number {
        Some(uid) => User::from_uid(Uid::from_raw(uid)),
        None => User::from_name(user),
    };
    match (entry.map_err(|source| lookup_failed(user, source))?, number) {
        (Some(entry), _) => Ok(Found::Entry(entry)),
        (None, Some(uid)) => Ok(Found::Number(uid)),
        (None, None) => Err(UserError::Unknown {
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
    let unknown = || UserError::UnknownGroup {
        group: group.to_owned(),
    };
    match group.parse::<u32>() {
        Ok(gid) => Ok(gid),
        Err(_not_a_number) => match Group::from_name(group) {
            Ok(Some(entry)) => Ok(entry.gid.as_raw()),
            Ok(None) | Err(_) => Err(unknown()),
        },
    }
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
    fn unknown_name_says_what_to_do() {
        let error = Identity::of("no-such-user", None).unwrap_err();

        assert_eq!(
            error.to_string(),
            "user \"no-such-user\" is not known on this node; create it, or use a numeric uid"
        );
    }

    #[test]
    fn contained_user_has_one_group() {
        let root = Identity::alone("root", None).unwrap();
        let other = Identity::alone("root", Some("4242")).unwrap();

        assert_eq!((root.gid, root.groups.len()), (0, 0));
        assert_eq!((other.uid, other.gid), (0, 4_242));
        assert!(Identity::alone("root", Some("no-such-group")).is_err());
    }
}
