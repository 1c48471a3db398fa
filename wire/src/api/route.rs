//! Every route of the HTTP API, for the server's table, its test and the command line.

/// A path and what may be done to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Route {
    /// The path. A segment in braces stands for one segment, or, where it is a job's id, for everything
    /// between its neighbours.
    pub path: &'static str,
    pub methods: &'static [&'static str],
}

const READ: &[&str] = &["GET"];
const WRITE: &[&str] = &["PUT", "POST"];

const fn read(path: &'static str) -> Route {
    Route {
        path,
        methods: READ,
    }
}

const fn write(path: &'static str) -> Route {
    Route {
        path,
        methods: WRITE,
    }
}

/// Every route.
pub const ROUTES: [Route; 75] = [
    Route {
        path: "/v1/jobs",
        methods: &["GET", "PUT", "POST"],
    },
    Route {
        path: "/v1/job/{job_id}",
        methods: &["GET", "PUT", "POST", "DELETE"],
    },
    read("/v1/job/{job_id}/actions"),
    read("/v1/job/{job_id}/allocations"),
    read("/v1/job/{job_id}/deployment"),
    read("/v1/job/{job_id}/deployments"),
    write("/v1/job/{job_id}/dispatch"),
    write("/v1/job/{job_id}/evaluate"),
    read("/v1/job/{job_id}/evaluations"),
    write("/v1/job/{job_id}/periodic/force"),
    write("/v1/job/{job_id}/plan"),
    write("/v1/job/{job_id}/revert"),
    Route {
        path: "/v1/job/{job_id}/scale",
        methods: &["GET", "PUT", "POST"],
    },
    read("/v1/job/{job_id}/services"),
    write("/v1/job/{job_id}/stable"),
    read("/v1/job/{job_id}/summary"),
    read("/v1/job/{job_id}/versions"),
    Route {
        path: "/v1/job/{job_id}/versions/{tag}/tag",
        methods: &["PUT", "POST", "DELETE"],
    },
    read("/v1/job/{job_id}/why"),
    write("/v1/validate/job"),
    read("/v1/evaluations"),
    read("/v1/evaluation/{eval_id}"),
    read("/v1/evaluation/{eval_id}/allocations"),
    read("/v1/allocations"),
    read("/v1/allocation/{alloc_id}"),
    write("/v1/allocation/{alloc_id}/stop"),
    read("/v1/nodes"),
    read("/v1/node/{node_id}"),
    read("/v1/node/{node_id}/allocations"),
    write("/v1/node/{node_id}/drain"),
    write("/v1/node/{node_id}/eligibility"),
    read("/v1/deployments"),
    read("/v1/deployment/{deployment_id}"),
    read("/v1/deployment/allocations/{deployment_id}"),
    write("/v1/deployment/allocation-health/{deployment_id}"),
    write("/v1/deployment/fail/{deployment_id}"),
    write("/v1/deployment/pause/{deployment_id}"),
    write("/v1/deployment/promote/{deployment_id}"),
    Route {
        path: "/v1/tasks",
        methods: &["GET", "PUT", "POST"],
    },
    Route {
        path: "/v1/tasks/{task_guid}",
        methods: &["GET", "DELETE"],
    },
    write("/v1/tasks/{task_guid}/cancel"),
    write("/v1/tasks/{task_guid}/resolving"),
    Route {
        path: "/v1/domains",
        methods: &["GET", "PUT", "POST"],
    },
    read("/v1/client/stats"),
    read("/v1/client/allocation/{alloc_id}/stats"),
    read("/v1/client/allocation/{alloc_id}/history"),
    read("/v1/client/allocation/{alloc_id}/network"),
    read("/v1/client/allocation/{alloc_id}/checks"),
    read("/v1/client/allocation/{alloc_id}/exec"),
    write("/v1/client/allocation/{alloc_id}/signal"),
    read("/v1/client/fs/logs/{alloc_id}"),
    read("/v1/agent/self"),
    read("/v1/agent/members"),
    read("/v1/agent/servers"),
    read("/v1/agent/health"),
    read("/v1/status/leader"),
    read("/v1/status/peers"),
    read("/v1/regions"),
    read("/v1/namespaces"),
    read("/v1/namespace/{name}"),
    write("/v1/search"),
    read("/v1/event/stream"),
    write("/v1/system/gc"),
    write("/v1/system/reconcile/summaries"),
    read("/v1/metrics"),
    read("/v1/operator/raft/configuration"),
    Route {
        path: "/v1/operator/raft/peer",
        methods: &["PUT", "POST", "DELETE"],
    },
    write("/v1/operator/raft/init"),
    write("/v1/operator/raft/transfer-leadership"),
    read("/v1/operator/autopilot/health"),
    read("/v1/operator/check"),
    write("/v1/operator/clock/confirm"),
    Route {
        path: "/v1/operator/snapshot",
        methods: &["GET", "PUT", "POST"],
    },
    Route {
        path: "/v1/operator/network/policy",
        methods: &["GET", "PUT", "POST"],
    },
    Route {
        path: "/v1/operator/scheduler/configuration",
        methods: &["GET", "PUT", "POST"],
    },
];
