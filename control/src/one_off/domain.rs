//! Domains: what clients say is up to date.
//!
//! With Diego a fresh domain lets LRPs be removed that nobody desires; it has no effect on tasks, and so none here.
//! Each server remembers what it was told itself, in memory, over JSON or Diego's wire: enough for clients that want
//! to see what they set, too little to build on.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use muster_domain::id::Timestamp;
use muster_domain::one_off::GUID_BYTES_MAX;

use crate::limits;

/// Why a domain is not noted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum DomainRefusal {
    /// Its name is empty or long.
    #[error("must have 1 to {GUID_BYTES_MAX} bytes")]
    Name,
    /// There is no room for it.
    #[error(
        "{} domains are fresh already: let some end by their ttl",
        limits::DOMAINS_MAX
    )]
    Full,
}

/// Domains that are fresh, until when; `None` means for ever. Times are of the monotonic clock.
#[derive(Debug, Default)]
pub(crate) struct Domains {
    fresh: Mutex<BTreeMap<String, Option<Timestamp>>>,
}

impl Domains {
    /// Notes that `domain` is fresh for `ttl`, for ever if that is zero.
    pub(crate) fn upsert(
        &self,
        domain: String,
        ttl: Duration,
        now: Timestamp,
    ) -> Result<(), DomainRefusal> {
        if domain.is_empty() || domain.len() > GUID_BYTES_MAX {
            return Err(DomainRefusal::Name);
        }
        let mut fresh = self.at(now);
        if fresh.len() >= limits::DOMAINS_MAX && !fresh.contains_key(&domain) {
            return Err(DomainRefusal::Full);
        }
        let until = (!ttl.is_zero()).then(|| now.plus(ttl));
        fresh.insert(domain, until);
        Ok(())
    }

    /// Those that are fresh, by name: for how long, `None` for ever.
    pub(crate) fn list(&self, now: Timestamp) -> BTreeMap<String, Option<Duration>> {
        let fresh = self.at(now);
        let left = |until: &Timestamp| until.since(now);
        let each = fresh.iter();
        each.map(|(name, until)| (name.clone(), until.as_ref().map(left)))
            .collect()
    }

    /// What is fresh at `now`.
    fn at(&self, now: Timestamp) -> MutexGuard<'_, BTreeMap<String, Option<Timestamp>>> {
        // Each change is one insertion or removal, so a panic elsewhere leaves the map whole.
        let mut fresh = self.fresh.lock().unwrap_or_else(PoisonError::into_inner);
        fresh.retain(|_, until| until.is_none_or(|until| until > now));
        fresh
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn a_domain_is_fresh_until_its_ttl_ends() {
        let domains = Domains::default();
        let start = Timestamp(0);
        let ever = ("ever".to_owned(), None);

        assert_eq!(domains.upsert("short".to_owned(), SECOND, start), Ok(()));
        assert_eq!(
            domains.upsert("ever".to_owned(), Duration::ZERO, start),
            Ok(())
        );

        let short = ("short".to_owned(), Some(SECOND));
        assert_eq!(domains.list(start), [ever.clone(), short].into());
        assert_eq!(domains.list(start.plus(SECOND)), [ever].into());
    }

    #[test]
    fn domains_are_bounded_and_room_comes_back() {
        let domains = Domains::default();
        let upsert = |name: &str, now| domains.upsert(name.to_owned(), SECOND, now);
        let start = Timestamp(0);
        for number in 0..limits::DOMAINS_MAX {
            assert_eq!(upsert(&number.to_string(), start), Ok(()));
        }

        assert_eq!(upsert("more", start), Err(DomainRefusal::Full));
        assert_eq!(upsert("0", start), Ok(()));
        assert_eq!(upsert("more", start.plus(SECOND)), Ok(()));
    }

    #[test]
    fn a_name_has_bounds() {
        let domains = Domains::default();
        let upsert = |bytes| domains.upsert("x".repeat(bytes), SECOND, Timestamp(0));

        assert_eq!(upsert(0), Err(DomainRefusal::Name));
        assert_eq!(upsert(GUID_BYTES_MAX), Ok(()));
        assert_eq!(upsert(GUID_BYTES_MAX + 1), Err(DomainRefusal::Name));
    }
}
