//! Domains: what clients say is up to date.
//!
//! With Diego a fresh domain lets LRPs be removed that nobody desires; it has no effect on tasks, and so none here.
//! Each server remembers what it was told itself, in memory: enough for clients that want to see what they set, too
//! little to build on.

use std::collections::BTreeMap;
use std::sync::PoisonError;
use std::time::Duration;

use muster_domain::fault::Fault;
use muster_domain::id::Timestamp;
use muster_domain::one_off::GUID_BYTES_MAX;

use super::proto::error::Kind;
use super::proto::{Anything, DomainsResponse, Error, UpsertDomainRequest, UpsertDomainResponse};
use super::{Context, Table};
use crate::limits;

pub(super) fn routes(table: Table) -> Table {
    table
        .on("/v1/domains/list", list)
        .on("/v1/domains/upsert", upsert)
}

/// Domains that are fresh, until when; `None` means for ever.
#[derive(Debug, Default)]
pub(super) struct Domains {
    fresh: BTreeMap<String, Option<Timestamp>>,
}

impl Domains {
    /// Notes that `domain` is fresh for `ttl`, for ever if that is zero. Whether there was room for it.
    fn upsert(&mut self, domain: String, ttl: Duration, now: Timestamp) -> bool {
        self.forget(now);
        let full = self.fresh.len() >= limits::BBS_DOMAINS_MAX;
        if full && !self.fresh.contains_key(&domain) {
            return false;
        }
        let until = (!ttl.is_zero()).then(|| now.plus(ttl));
        self.fresh.insert(domain, until);
        true
    }

    fn list(&mut self, now: Timestamp) -> Vec<String> {
        self.forget(now);
        self.fresh.keys().cloned().collect()
    }

    fn forget(&mut self, now: Timestamp) {
        self.fresh
            .retain(|_, until| until.is_none_or(|until| until > now));
    }
}

async fn list(context: Context, _: Anything) -> Result<DomainsResponse, Error> {
    let now = context.control.monotonic();
    let mut domains = context
        .domains
        .lock()
        .unwrap_or_else(PoisonError::into_inner);
    Ok(DomainsResponse {
        error: None,
        domains: domains.list(now),
    })
}

async fn upsert(
    context: Context,
    request: UpsertDomainRequest,
) -> Result<UpsertDomainResponse, Error> {
    let UpsertDomainRequest { domain, ttl } = request;
    if domain.is_empty() || domain.len() > GUID_BYTES_MAX {
        let reason = format!("must have 1 to {GUID_BYTES_MAX} bytes");
        return Err(Error::invalid(&[Fault::new("domain", reason)]));
    }
    let now = context.control.monotonic();
    let ttl = Duration::from_secs(u64::from(ttl));
    let mut domains = context
        .domains
        .lock()
        .unwrap_or_else(PoisonError::into_inner);
    if domains.upsert(domain, ttl, now) {
        Ok(UpsertDomainResponse::default())
    } else {
        let max = limits::BBS_DOMAINS_MAX;
        let full = format!("{max} domains are fresh already: let some end by their ttl");
        Err(Error::of(Kind::InvalidRequest, full))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn a_domain_is_fresh_until_its_ttl_ends() {
        let mut domains = Domains::default();
        let start = Timestamp(0);

        assert!(domains.upsert("short".to_owned(), SECOND, start));
        assert!(domains.upsert("ever".to_owned(), Duration::ZERO, start));

        assert_eq!(domains.list(start), ["ever", "short"]);
        assert_eq!(domains.list(start.plus(SECOND)), ["ever"]);
    }

    #[test]
    fn domains_are_bounded_and_room_comes_back() {
        let mut domains = Domains::default();
        for number in 0..limits::BBS_DOMAINS_MAX {
            assert!(domains.upsert(number.to_string(), SECOND, Timestamp(0)));
        }

        assert!(!domains.upsert("more".to_owned(), SECOND, Timestamp(0)));
        assert!(domains.upsert("0".to_owned(), SECOND, Timestamp(0)));
        assert!(domains.upsert("more".to_owned(), SECOND, Timestamp(0).plus(SECOND)));
    }
}
