//! Domains: what clients say is up to date. One memory with the JSON API: [`crate::one_off::domain`].

use std::time::Duration;

use muster_domain::fault::Fault;

use super::proto::error::Kind;
use super::proto::{Anything, DomainsResponse, Error, UpsertDomainRequest, UpsertDomainResponse};
use super::{Context, Table};
use crate::one_off::domain::DomainRefusal;

pub(super) fn routes(table: Table) -> Table {
    table
        .on("/v1/domains/list", list)
        .on("/v1/domains/upsert", upsert)
}

async fn list(context: Context, _: Anything) -> Result<DomainsResponse, Error> {
    let control = &context.control;
    let fresh = control.domains().list(control.monotonic());
    Ok(DomainsResponse {
        error: None,
        domains: fresh.into_keys().collect(),
    })
}

async fn upsert(
    context: Context,
    request: UpsertDomainRequest,
) -> Result<UpsertDomainResponse, Error> {
    let UpsertDomainRequest { domain, ttl } = request;
    let ttl = Duration::from_secs(u64::from(ttl));
    let control = &context.control;
    match control.domains().upsert(domain, ttl, control.monotonic()) {
        Ok(()) => Ok(UpsertDomainResponse::default()),
        Err(refusal @ DomainRefusal::Name) => {
            Err(Error::invalid(&[Fault::new("domain", refusal.to_string())]))
        }
        Err(refusal @ DomainRefusal::Full) => Err(Error::of(Kind::InvalidRequest, refusal)),
    }
}
