//! Versions and conditions on them.
//!
//! There are two sets of rules. `version` is lenient. A pre-release meets an ordering condition only if the condition
//! names a pre-release of the same version. `semver` orders pre-releases before their release, as Semantic Versioning
//! does. Both accept any number of parts and a leading `v`. They ignore everything after a `+`.

use std::cmp::Ordering;

/// The rules that versions are compared by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum VersionRules {
    Version,
    /// The rules of Semantic Versioning.
    Semver,
}

/// A list of conditions, all of which must hold.
#[derive(Debug)]
pub struct Conditions {
    rules: VersionRules,
    list: Vec<(Comparison, Version)>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Comparison {
    Equal,
    NotEqual,
    Greater,
    Less,
    GreaterOrEqual,
    LessOrEqual,
    /// `~>`: the last written part may be higher.
    Pessimistic,
}

impl Comparison {
    /// Longer signs come first, so a sign is not read as the beginning of another.
    const SIGNS: [(&'static str, Self); 7] = [
        ("!=", Self::NotEqual),
        (">=", Self::GreaterOrEqual),
        ("<=", Self::LessOrEqual),
        ("~>", Self::Pessimistic),
        ("=", Self::Equal),
        (">", Self::Greater),
        ("<", Self::Less),
    ];
}

impl Conditions {
    /// Parses conditions separated by commas; `None` if one of them is malformed.
    #[must_use]
    pub fn parse(text: &str, rules: VersionRules) -> Option<Self> {
        let one = |text: &str| {
            let text = text.trim();
            let (comparison, rest) = Comparison::SIGNS
                .into_iter()
                .find_map(|(sign, comparison)| Some((comparison, text.strip_prefix(sign)?)))
                .unwrap_or((Comparison::Equal, text));
            if comparison == Comparison::Pessimistic && rules == VersionRules::Semver {
                return None;
            }
            Some((comparison, Version::parse(rest.trim(), rules)?))
        };
        let list: Option<Vec<_>> = text.split(',').map(one).collect();
        Some(Self { rules, list: list? })
    }

    /// Whether `text` is a version that meets all conditions.
    #[must_use]
    pub fn accept(&self, text: &str) -> bool {
        Version::parse(text, VersionRules::Version).is_some_and(|version| {
            self.list
                .iter()
                .all(|(comparison, wanted)| holds(self.rules, &version, *comparison, wanted))
        })
    }
}

fn holds(rules: VersionRules, version: &Version, comparison: Comparison, wanted: &Version) -> bool {
    let order = version.order(wanted);
    match comparison {
        Comparison::Equal => return order == Ordering::Equal,
        Comparison::NotEqual => return order != Ordering::Equal,
        Comparison::Greater
        | Comparison::Less
        | Comparison::GreaterOrEqual
        | Comparison::LessOrEqual
        | Comparison::Pessimistic => {}
    }
    if rules == VersionRules::Version && !version.may_be_ordered_against(wanted) {
        return false;
    }
    match comparison {
        Comparison::Greater => order == Ordering::Greater,
        Comparison::Less => order == Ordering::Less,
        Comparison::GreaterOrEqual => order != Ordering::Less,
        Comparison::LessOrEqual => order != Ordering::Greater,
        Comparison::Pessimistic => order != Ordering::Less && version.is_within(wanted),
        Comparison::Equal | Comparison::NotEqual => false,
    }
}

/// A version.
#[derive(Debug)]
struct Version {
    parts: Vec<u64>,
    /// The number of parts that were written.
    written: usize,
    /// The pre-release part; empty for a release.
    pre_release: String,
}

impl Version {
    /// Parses a version; `None` if `text` is not one.
    fn parse(text: &str, rules: VersionRules) -> Option<Self> {
        let text = text.strip_suffix('?').unwrap_or(text);
        let text = text.strip_prefix('v').unwrap_or(text);
        let (text, build) = match text.split_once('+') {
            Some((text, build)) => (text, Some(build)),
            None => (text, None),
        };
        if build.is_some_and(|build| !are_identifiers(build)) {
            return None;
        }
        let end = text
            .find(|c: char| !c.is_ascii_digit() && c != '.')
            .unwrap_or(text.len());
        let (numbers, rest) = text.split_at(end);
        let pre_release = match rest.strip_prefix('-') {
            _ if rest.is_empty() => "",
            Some(after) if are_identifiers(after) => after,
            // Without Semantic Versioning, the dash before a letter may be missing, and a lone dash is an identifier.
            Some(_) | None
                if rules == VersionRules::Version
                    && are_identifiers(rest)
                    && !rest.starts_with(|c: char| c.is_ascii_digit()) =>
            {
                rest
            }
            Some(_) | None => return None,
        };
        let parts: Option<Vec<u64>> = numbers.split('.').map(|part| part.parse().ok()).collect();
        let mut parts = parts?;
        let written = parts.len();
        parts.resize(written.max(3), 0);
        Some(Self {
            parts,
            written,
            pre_release: pre_release.to_owned(),
        })
    }

    fn order(&self, other: &Self) -> Ordering {
        let longest = self.parts.len().max(other.parts.len());
        let part = |version: &Self, at: usize| version.parts.get(at).copied().unwrap_or(0);
        (0..longest)
            .map(|at| part(self, at).cmp(&part(other, at)))
            .find(|order| order.is_ne())
            .unwrap_or_else(|| order_pre_releases(&self.pre_release, &other.pre_release))
    }

    /// Whether `self` may be ordered against `wanted`. A pre-release is only compared with a pre-release of the same
    /// version.
    fn may_be_ordered_against(&self, wanted: &Self) -> bool {
        match (self.pre_release.is_empty(), wanted.pre_release.is_empty()) {
            (true, _) => true,
            (false, true) => false,
            (false, false) => self.parts == wanted.parts,
        }
    }

    /// Whether `self` differs from `wanted` in the last written part at most. The caller has checked that `self` is not
    /// lower.
    fn is_within(&self, wanted: &Self) -> bool {
        if !wanted.pre_release.is_empty() && self.pre_release.is_empty() {
            return false;
        }
        let fixed = wanted.written - 1;
        let last = wanted.parts.len() - 1;
        self.parts.len() >= wanted.parts.len()
            && self.parts[..fixed] == wanted.parts[..fixed]
            && self.parts[last] >= wanted.parts[last]
    }
}

/// Whether `text` consists of identifiers separated by dots. An identifier has letters, digits, dashes and tildes.
fn are_identifiers(text: &str) -> bool {
    text.split('.').all(|part| {
        !part.is_empty()
            && part
                .bytes()
                .all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'~'))
    })
}

/// Compares pre-release parts identifier by identifier. A release comes after its pre-releases.
fn order_pre_releases(this: &str, other: &str) -> Ordering {
    match (this.is_empty(), other.is_empty()) {
        (true, true) => return Ordering::Equal,
        (true, false) => return Ordering::Greater,
        (false, true) => return Ordering::Less,
        (false, false) => {}
    }
    let (mut left, mut right) = (this.split('.'), other.split('.'));
    loop {
        match (left.next(), right.next()) {
            (None, None) => return Ordering::Equal,
            (left, right) => {
                let order = order_identifiers(left.unwrap_or(""), right.unwrap_or(""));
                if order.is_ne() {
                    return order;
                }
            }
        }
    }
}

/// Compares two identifiers. Numbers come before words. If one identifier is missing, the version with the number is
/// later, and the version with the word is earlier.
fn order_identifiers(left: &str, right: &str) -> Ordering {
    if left == right {
        return Ordering::Equal;
    }
    let (left_number, right_number) = (left.parse::<i64>(), right.parse::<i64>());
    match (left, right) {
        ("", _) => {
            if right_number.is_ok() {
                Ordering::Less
            } else {
                Ordering::Greater
            }
        }
        (_, "") => {
            if left_number.is_ok() {
                Ordering::Greater
            } else {
                Ordering::Less
            }
        }
        _ => match (left_number, right_number) {
            (Ok(left), Ok(right)) => left.cmp(&right),
            (Ok(_), Err(_)) => Ordering::Less,
            (Err(_), Ok(_)) => Ordering::Greater,
            (Err(_), Err(_)) => left.cmp(right),
        },
    }
}
