//! The dependency table: the workspace crates that each crate may use, and the external crates that it must never
//! use.
//!
//! Direct dependencies are compared with the table. The "never" crates must not be reachable at all through normal
//! dependencies. Tests may use only the crates of their row.

use std::collections::{BTreeMap, VecDeque};

use anyhow::Context;
use serde::Deserialize;

use super::finding::Finding;
use crate::shell;

/// A row of the table. Names are without the prefix `muster-`.
#[derive(Debug)]
struct CrateRule {
    name: &'static str,
    /// Workspace crates on which this crate may depend.
    uses: &'static [&'static str],
    /// Other crates that this crate must not reach.
    never: &'static [&'static str],
}

/// Additional dependencies that only a crate's tests use, with the reason.
const TEST_USES: &[(&str, &str)] = &[
    // The agent's tests start the real driver as a separate process.
    ("agent", "driver-native"),
    // The golden file of the commands has the encoding of the log.
    ("control-core", "wire"),
];

const LIBRARIES: &[&str] = &[
    "agent",
    "agent-core",
    "control",
    "control-core",
    "domain",
    "driver",
    "driver-native",
    "ebpf-common",
    "jobspec",
    "link",
    "wire",
];

const PURE: &[&str] = &[
    "aya", "mio", "openraft", "quinn", "rand", "socket2", "tokio",
];

const ROWS: &[CrateRule] = &[
    CrateRule {
        name: "domain",
        uses: &[],
        never: PURE,
    },
    CrateRule {
        name: "wire",
        uses: &["domain"],
        never: PURE,
    },
    CrateRule {
        name: "link",
        uses: &["domain", "wire"],
        never: &["aya", "axum", "openraft"],
    },
    CrateRule {
        name: "driver",
        uses: &["domain"],
        never: &["aya", "openraft", "quinn"],
    },
    CrateRule {
        name: "driver-native",
        uses: &["domain", "driver"],
        never: &["aya", "openraft", "quinn"],
    },
    CrateRule {
        name: "control-core",
        uses: &["domain"],
        never: PURE,
    },
    CrateRule {
        name: "agent-core",
        // This crate contains the numbers that both eBPF programs and user space need. It depends on neither.
        uses: &["domain", "ebpf-common"],
        never: PURE,
    },
    CrateRule {
        name: "control-sim",
        uses: &["agent-core", "control-core", "domain", "wire"],
        never: &["aya", "mio", "openraft", "quinn", "socket2", "tokio"],
    },
    CrateRule {
        name: "control",
        uses: &["control-core", "domain", "link", "wire"],
        never: &["aya"],
    },
    CrateRule {
        name: "agent",
        uses: &[
            "agent-core",
            "domain",
            "driver",
            "ebpf-common",
            "link",
            "wire",
        ],
        never: &["openraft"],
    },
    CrateRule {
        name: "ebpf-common",
        uses: &[],
        never: &["openraft", "quinn", "tokio"],
    },
    CrateRule {
        name: "ebpf-programs",
        uses: &["ebpf-common"],
        never: &["openraft", "quinn", "tokio"],
    },
    CrateRule {
        name: "jobspec",
        uses: &["domain", "wire"],
        never: PURE,
    },
    CrateRule {
        name: "cli",
        uses: LIBRARIES,
        never: &[],
    },
    CrateRule {
        // The entry point of each fuzz target uses the crate that contains the target.
        name: "fuzz",
        uses: &["agent-core", "control", "driver", "jobspec", "wire"],
        never: &["aya"],
    },
    CrateRule {
        name: "perf",
        uses: LIBRARIES,
        never: &[],
    },
    CrateRule {
        name: "workspace-hack",
        uses: &["driver"],
        never: &[],
    },
    CrateRule {
        name: "xtask",
        uses: &[],
        never: &["openraft", "quinn", "tokio"],
    },
];

/// The fields of `cargo metadata` that this module reads.
#[derive(Debug, Deserialize)]
pub(crate) struct Metadata {
    packages: Vec<Package>,
    resolve: Resolve,
}

#[derive(Debug, Deserialize)]
struct Package {
    id: String,
    name: String,
    /// The source is `None` for a package of this workspace.
    source: Option<String>,
    dependencies: Vec<Dependency>,
}

#[derive(Debug, Deserialize)]
struct Dependency {
    name: String,
    kind: Option<String>,
}

#[derive(Debug, Deserialize)]
struct Resolve {
    nodes: Vec<Node>,
}

#[derive(Debug, Deserialize)]
struct Node {
    id: String,
    deps: Vec<Edge>,
}

#[derive(Debug, Deserialize)]
struct Edge {
    pkg: String,
    dep_kinds: Vec<EdgeKind>,
}

#[derive(Debug, Deserialize)]
struct EdgeKind {
    kind: Option<String>,
}

/// Reads the metadata from cargo.
///
/// # Errors
///
/// When cargo fails, or its answer has another form.
pub(crate) fn metadata() -> anyhow::Result<Metadata> {
    let text = shell::capture(shell::cargo().args(["metadata", "--format-version", "1"]))?;
    serde_json::from_str(&text).context("cannot understand cargo metadata")
}

/// Finds the dependencies that violate the table.
pub(crate) fn check(metadata: &Metadata) -> Vec<Finding> {
    let names: BTreeMap<&str, &str> = metadata
        .packages
        .iter()
        .map(|package| (package.id.as_str(), package.name.as_str()))
        .collect();
    let mut findings = Vec::new();
    for package in metadata
        .packages
        .iter()
        .filter(|package| package.source.is_none())
    {
        let mut add = |message| {
            let path = "Cargo.toml".to_owned();
            findings.push(Finding {
                path,
                line: 0,
                rule: "dependency",
                message,
            });
        };
        let short = package
            .name
            .strip_prefix("muster-")
            .unwrap_or(&package.name);
        let Some(row) = ROWS.iter().find(|row| row.name == short) else {
            add(format!(
                "{} is not in the dependency table: add a row to xtask/src/tidy/crates.rs",
                package.name
            ));
            continue;
        };
        for dependency in &package.dependencies {
            let Some(other) = dependency.name.strip_prefix("muster-") else {
                continue;
            };
            let of_tests =
                dependency.kind.as_deref() == Some("dev") && TEST_USES.contains(&(short, other));
            if other != short && !row.uses.contains(&other) && !of_tests {
                let kind = dependency.kind.as_deref().unwrap_or("normal");
                add(format!(
                    "{} depends on muster-{other} ({kind}), and may use {:?} only: move the code, or pass the value in",
                    package.name, row.uses
                ));
            }
        }
        for never in row.never {
            if let Some(way) = shortest_path(metadata, &names, &package.id, never) {
                add(format!(
                    "{} reaches {never}: {}",
                    package.name,
                    way.join(" → ")
                ));
            }
        }
    }
    findings
}

/// Returns the shortest path from the package `from` to a package named `name`, through normal dependencies.
fn shortest_path<'a>(
    metadata: &'a Metadata,
    names: &BTreeMap<&'a str, &'a str>,
    from: &'a str,
    name: &str,
) -> Option<Vec<&'a str>> {
    let nodes: BTreeMap<&str, &Node> = metadata
        .resolve
        .nodes
        .iter()
        .map(|node| (node.id.as_str(), node))
        .collect();
    let mut predecessors: BTreeMap<&str, Option<&str>> = BTreeMap::from([(from, None)]);
    let mut queue = VecDeque::from([from]);
    while let Some(id) = queue.pop_front() {
        if names.get(id) == Some(&name) {
            let steps = std::iter::successors(Some(id), |step| predecessors[step]);
            let mut way: Vec<&str> = steps.map(|step| names[step]).collect();
            way.reverse();
            return Some(way);
        }
        let edges = nodes
            .get(id)
            .map(|node| node.deps.as_slice())
            .unwrap_or_default();
        for edge in edges
            .iter()
            .filter(|edge| edge.dep_kinds.iter().any(|kind| kind.kind.is_none()))
        {
            if !predecessors.contains_key(edge.pkg.as_str()) {
                predecessors.insert(&edge.pkg, Some(id));
                queue.push_back(&edge.pkg);
            }
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check_json(agent_core_uses: &str, kind: &str) -> Vec<String> {
        let text = format!(
            r#"{{"packages":[
                {{"id":"core","name":"muster-agent-core","source":null,
                  "dependencies":[{{"name":"{agent_core_uses}","kind":{kind}}}]}},
                {{"id":"helper","name":"helper","source":"registry","dependencies":[]}},
                {{"id":"tokio","name":"tokio","source":"registry","dependencies":[]}}],
              "resolve":{{"nodes":[
                {{"id":"core","deps":[{{"pkg":"helper","dep_kinds":[{{"kind":{kind}}}]}}]}},
                {{"id":"helper","deps":[{{"pkg":"tokio","dep_kinds":[{{"kind":null}}]}}]}},
                {{"id":"tokio","deps":[]}}]}}}}"#
        );
        let metadata: Metadata = serde_json::from_str(&text).unwrap();
        check(&metadata)
            .into_iter()
            .map(|finding| finding.message)
            .collect()
    }

    #[test]
    fn forbidden_crate_is_found_behind_another() {
        let found = check_json("helper", "null");

        assert_eq!(
            found,
            ["muster-agent-core reaches tokio: muster-agent-core → helper → tokio"]
        );
    }

    #[test]
    fn tests_may_use_crates_denied_to_code() {
        assert_eq!(check_json("helper", "\"dev\""), Vec::<String>::new());
    }

    #[test]
    fn crate_of_ours_outside_the_row_is_found() {
        let found = check_json("muster-link", "\"dev\"");

        assert_eq!(found.len(), 1);
        assert!(
            found[0].starts_with("muster-agent-core depends on muster-link (dev)"),
            "{found:?}"
        );
    }

    #[test]
    fn rows_name_crates_that_have_rows() {
        let known: Vec<&str> = ROWS.iter().map(|row| row.name).collect();

        assert!(
            ROWS.iter()
                .flat_map(|row| row.uses)
                .all(|name| known.contains(name))
        );
    }
}
