//! Jobs that are read and registered again.

use muster_domain::fixture::submission;
use serde_json::json;

use super::Client;
use crate::fixture;

/// Generated jobs.
const JOBS: u64 = 30;

#[tokio::test(flavor = "multi_thread")]
async fn read_job_registers_without_new_version() {
    let test = fixture::server().await;
    let client = Client::new(&test.server);
    for seed in 0..JOBS {
        let job_id = format!("job-{seed}");
        let path = format!("/v1/job/{job_id}");
        let sent = json!({ "Job": submission::job(&job_id, seed) });
        drop(client.put("/v1/jobs", &sent).await.json());
        let first = client.get(&path).await.json();

        let planned = json!({ "Job": first, "Diff": true });
        let plan = client.put(&format!("{path}/plan"), &planned).await.json();
        let again = json!({ "Job": first });
        drop(client.put("/v1/jobs", &again).await.json());
        let second = client.get(&path).await.json();

        assert_eq!(plan["Diff"]["Type"], "None", "{job_id}: {}", plan["Diff"]);
        for field in ["Version", "JobModifyIndex", "CreateIndex"] {
            assert_eq!(first[field], second[field], "{field} of {job_id}");
        }
        assert_eq!(
            first["TaskGroups"], second["TaskGroups"],
            "groups of {job_id}"
        );
    }
    test.server.shutdown().await;
}
