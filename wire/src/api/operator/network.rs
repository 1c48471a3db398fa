//! The cluster's addition to the network policies of all tasks. Nomad has no such policy.

use muster_domain::id::LogIndex;
use muster_domain::job as domain;
use serde::{Deserialize, Serialize};

use crate::api::block;
use crate::api::job::request::read_policy;
use crate::api::policy::NetworkPolicy;
use crate::api::read_error::ReadJobError;

/// The answer to `GET /v1/operator/network/policy`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct ClusterPolicy {
    pub policy: NetworkPolicy,
    /// 0 while none was ever set.
    pub create_index: u64,
    pub modify_index: u64,
}

impl ClusterPolicy {
    /// `policy`, first written by `created` and last by `modified`.
    #[must_use]
    pub fn new(policy: &domain::NetworkPolicy, created: LogIndex, modified: LogIndex) -> Self {
        Self {
            policy: policy.into(),
            create_index: created.0,
            modify_index: modified.0,
        }
    }
}

/// The answer to `PUT /v1/operator/network/policy`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct ClusterPolicySetResponse {
    /// False if the policy was changed since the index that `?cas=` names.
    pub updated: bool,
    pub index: u64,
}

/// The policy in the body of `PUT /v1/operator/network/policy`, in the format of a job. It replaces the current policy,
/// so `{}` leaves all decisions to jobs and nodes.
///
/// # Errors
///
/// [`ReadJobError`] with every fault and its path.
pub fn read_cluster_policy(body: &[u8]) -> Result<domain::NetworkPolicy, ReadJobError> {
    let value = block::parse(body)?;
    read_policy(&value).map_err(ReadJobError::Faults)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_policy_reads_back() {
        let policy = muster_domain::fixture::network_policy();
        let shown = ClusterPolicy::new(&policy, LogIndex(5), LogIndex(7));

        let body = serde_json::to_vec(&shown.policy).unwrap();

        assert_eq!(read_cluster_policy(&body).unwrap(), policy);
        let nothing = domain::NetworkPolicy::default();
        assert_eq!(read_cluster_policy(b"{}").unwrap(), nothing);
    }

    #[test]
    fn faults_are_named_with_their_place() {
        for (body, part) in [
            ("[", "line 1"),
            (
                r#"{"Egress":{"Default":"perhaps"}}"#,
                "unknown action `perhaps`: use `allow` or `deny`",
            ),
            (r#"{"Engress":{}}"#, "Engress"),
            (
                r#"{"Egress":{"Rules":[{"Name":"a","Action":"deny","Peers":["10.0.0.0/33"]}]}}"#,
                "10.0.0.0/33",
            ),
        ] {
            let error = read_cluster_policy(body.as_bytes())
                .unwrap_err()
                .to_string();
            assert!(error.contains(part), "{error}");
        }
    }
}
