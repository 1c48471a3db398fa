//! Domains, which clients mark as up to date. The JSON API has the same table.

use std::time::Duration;

use muster_domain::one_off::check_domain;

use super::proto::{Anything, DomainsResponse, Error, UpsertDomainRequest, UpsertDomainResponse};
use super::{Context, Table};
use crate::handle::Consistency;
use crate::one_off;

pub(super) fn routes(table: Table) -> Table {
    table
        .on("/v1/domains/list", list)
        .on("/v1/domains/upsert", upsert)
}

async fn list(context: Context, _: Anything) -> Result<DomainsResponse, Error> {
    let control = &context.control;
    let state = control.read(Consistency::Leader).await?.state;
    let fresh = state.one_offs().fresh(control.now());
    Ok(DomainsResponse {
        error: None,
        domains: fresh.map(|(domain, _)| domain.to_owned()).collect(),
    })
}

async fn upsert(
    context: Context,
    request: UpsertDomainRequest,
) -> Result<UpsertDomainResponse, Error> {
    let UpsertDomainRequest { domain, ttl } = request;
    if let Some(fault) = check_domain(&domain) {
        return Err(Error::invalid(&[fault]));
    }
    let ttl = Duration::from_secs(u64::from(ttl));
    let (_, outcome) = one_off::upsert_domain(&context.control, None, domain, ttl).await?;
    outcome?;
    Ok(UpsertDomainResponse::default())
}
