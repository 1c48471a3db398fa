//! Validation as a table, texts that clients compare, and that every definition makes a job.

use std::time::Duration;

use serde_json::{Value, json};

use super::*;
use crate::fixture::definition;
use crate::job::NetworkMode;

/// The fields that are wrong with a definition that differs from a good one in what `change` says.
fn wrong(change: Value) -> Vec<String> {
    let mut value = serde_json::to_value(definition()).unwrap();
    for (name, field) in change.as_object().unwrap() {
        value[name] = field.clone();
    }
    let definition: Definition = serde_json::from_value(value).unwrap();
    let faults = check("a-guid", "a-domain", &definition);
    faults.into_iter().map(|fault| fault.path).collect()
}

/// A definition's action of this kind, which differs from `good` in `fields`.
fn action(kind: &str, mut good: Value, fields: Value) -> Value {
    for (name, field) in fields.as_object().unwrap() {
        good[name] = field.clone();
    }
    json!({"action": {kind: good}})
}

fn a_download() -> Value {
    json!({"from": "http://x/y.tgz", "to": "/tmp", "user": "u"})
}

fn an_upload() -> Value {
    json!({"from": "/tmp/x", "to": "https://x/y", "user": "u"})
}

#[test]
fn a_good_definition_has_no_fault() {
    assert_eq!(check("a-guid_1", "apps", &definition()), []);
}

#[test]
fn guids_are_letters_digits_dash_and_underscore() {
    for guid in ["a", "A-b_9", &"x".repeat(GUID_BYTES_MAX)] {
        assert!(is_guid(guid), "{guid}");
    }
    for guid in [
        "",
        "abc def",
        "abc/def",
        "abc,def",
        "abc.def",
        "abc∆def",
        &"x".repeat(129),
    ] {
        assert!(!is_guid(guid), "{guid}");
    }
}

#[test]
#[expect(clippy::too_many_lines, reason = "a table, a line a rule")]
fn each_field_has_its_rule() {
    let run = |fields| action("run", json!({"path": "/bin/true", "user": "vcap"}), fields);
    let download = |fields| action("download", a_download(), fields);
    let upload = |fields| action("upload", an_upload(), fields);
    let tcp = |fields: Value| {
        let mut rule = json!({"protocol": "tcp", "destinations": ["1.2.3.4"]});
        for (name, field) in fields.as_object().unwrap() {
            rule[name] = field.clone();
        }
        json!({"egress_rules": [rule]})
    };
    let long = "x".repeat(ANNOTATION_BYTES_MAX + 1);
    let table = [
        (json!({"rootfs": ""}), "rootfs"),
        (json!({"rootfs": "ploop"}), "rootfs"),
        (json!({"rootfs": ":invalid-url"}), "rootfs"),
        (json!({"rootfs": "docker:///busybox"}), "rootfs"),
        (json!({"rootfs": "preloaded:a/b"}), "rootfs"),
        (json!({"rootfs": "file://relative"}), "rootfs"),
        (json!({"env": [{"name": ""}]}), "env"),
        (json!({"env": [{"name": "A=B"}]}), "env"),
        (json!({"disk_mb": -1}), "disk_mb"),
        (json!({"memory_mb": -1}), "memory_mb"),
        (json!({"memory_mb": 1}), "memory_mb"),
        (json!({"max_pids": -1}), "max_pids"),
        (json!({"max_pids": 4097}), "max_pids"),
        (json!({"cpu_weight": 101}), "cpu_weight"),
        (json!({"privileged": true}), "privileged"),
        (
            json!({"completion_callback_url": "ftp://x"}),
            "completion_callback_url",
        ),
        (
            json!({"completion_callback_url": "http://"}),
            "completion_callback_url",
        ),
        (json!({"annotation": long}), "annotation"),
        (json!({"priority": 0}), "priority"),
        (json!({"priority": 101}), "priority"),
        (json!({"placement_tags": ["a,b"]}), "placement_tags"),
        (
            json!({"constraints": [{"attribute": "a", "operator": "~"}]}),
            "constraints",
        ),
        (
            json!({"constraints": [{"attribute": "a", "operator": "distinct_hosts"}]}),
            "constraints",
        ),
        (run(json!({"path": ""})), "path"),
        (run(json!({"user": ""})), "user"),
        (run(json!({"env": [{"name": ""}]})), "env"),
        (json!({"action": {"serial": {"actions": []}}}), "actions"),
        (
            json!({"action": {"timeout": {"timeout_ms": 0, "action": {"run": {"path": "x", "user": "u"}}}}}),
            "timeout_ms",
        ),
        (download(json!({"from": ""})), "from"),
        (download(json!({"from": "ftp://x/y"})), "from"),
        (download(json!({"from": "/x/y"})), "from"),
        (download(json!({"from": "http://"})), "from"),
        (download(json!({"from": "http://x/a b"})), "from"),
        (download(json!({"from": "file://"})), "from"),
        (download(json!({"from": "file://host/x"})), "from"),
        (download(json!({"to": ""})), "to"),
        (download(json!({"user": ""})), "user"),
        (
            download(json!({"checksum_algorithm": "md5"})),
            "checksum value",
        ),
        (
            download(json!({"checksum_value": "00"})),
            "checksum algorithm",
        ),
        (
            download(json!({"checksum_algorithm": "crc", "checksum_value": "00"})),
            "checksum algorithm",
        ),
        (
            download(json!({"checksum_algorithm": "md5", "checksum_value": "0".repeat(40)})),
            "checksum value",
        ),
        (
            download(json!({"checksum_algorithm": "md5", "checksum_value": "x".repeat(32)})),
            "checksum value",
        ),
        (upload(json!({"from": ""})), "from"),
        (upload(json!({"to": ""})), "to"),
        (upload(json!({"to": "file:///x"})), "to"),
        (upload(json!({"user": ""})), "user"),
        (tcp(json!({})), "egress_rules"),
        (tcp(json!({"ports": [0]})), "egress_rules"),
        (tcp(json!({"ports": [65536]})), "egress_rules"),
        (
            tcp(json!({"ports": [1], "port_range": {"start": 1, "end": 2}})),
            "egress_rules",
        ),
        (
            tcp(json!({"port_range": {"start": 2, "end": 1}})),
            "egress_rules",
        ),
        (
            tcp(json!({"ports": [1], "icmp_info": {"type": 1, "code": 1}})),
            "egress_rules",
        ),
        (
            tcp(json!({"ports": [1], "destinations": []})),
            "egress_rules",
        ),
        (
            tcp(json!({"ports": [1], "destinations": ["1.2.3"]})),
            "egress_rules",
        ),
        (
            tcp(json!({"ports": [1], "destinations": ["1.2.3.4/33"]})),
            "egress_rules",
        ),
        (
            tcp(json!({"ports": [1], "destinations": ["2.2.2.2-1.1.1.1"]})),
            "egress_rules",
        ),
        (tcp(json!({"protocol": "icmp"})), "egress_rules"),
        (tcp(json!({"protocol": "gre"})), "egress_rules"),
        (
            tcp(json!({"protocol": "all", "ports": [1]})),
            "egress_rules",
        ),
        // Well formed, and not to be enforced.
        (tcp(json!({"ports": [443]})), "egress_rules"),
    ];
    for (change, field) in table {
        assert_eq!(wrong(change.clone()), [field], "{change}");
    }
}

#[test]
fn transfers_that_can_be_carried_out_have_no_fault() {
    let sum = |algorithm: &str, digits: usize| json!({"checksum_algorithm": algorithm, "checksum_value": "aF".repeat(digits / 2)});
    for fields in [
        json!({}),
        json!({"from": "https://x:8/y?z#a"}),
        json!({"from": "file:///srv/x"}),
        sum("md5", 32),
        sum("sha1", 40),
        sum("sha256", 64),
    ] {
        let change = action("download", a_download(), fields);
        assert_eq!(wrong(change.clone()), [""; 0], "{change}");
    }
    assert_eq!(wrong(action("upload", an_upload(), json!({}))), [""; 0]);
}

/// What a transfer may take is the task's disk; the driver has bounds of its own for a task that names none.
#[test]
fn the_disk_of_a_task_bounds_its_transfers() {
    let config = |disk_mb| {
        let mut definition = definition();
        definition.disk_mb = disk_mb;
        let job = job("g", "d", &definition);
        let config = &job.groups[0].tasks[0].config_json;
        serde_json::from_str::<Value>(config).unwrap()["disk_mb"].clone()
    };
    assert_eq!((config(7), config(0)), (json!(7), Value::Null));
}

#[test]
fn all_faults_are_told() {
    let found = wrong(json!({"rootfs": "", "memory_mb": -1, "privileged": true}));

    assert_eq!(found, ["rootfs", "memory_mb", "privileged"]);
}

#[test]
fn a_tree_that_is_too_deep_or_too_large_is_refused() {
    let leaf = json!({"run": {"path": "x", "user": "u"}});
    let mut deep = leaf.clone();
    for _ in 0..ACTION_DEPTH_MAX {
        deep = json!({"try": {"action": deep}});
    }
    assert_eq!(wrong(json!({"action": deep})), ["action"]);
    let wide = vec![leaf; ACTIONS_MAX];
    assert_eq!(
        wrong(json!({"action": {"serial": {"actions": wide}}})),
        ["action"]
    );
}

#[test]
fn what_is_not_carried_out_is_unknown_by_name() {
    let mut value = serde_json::to_value(definition()).unwrap();
    value["image_layers"] = json!([]);

    let error = serde_json::from_value::<Definition>(value).unwrap_err();

    assert!(error.to_string().contains("image_layers"), "{error}");
}

#[test]
fn rules_that_let_everything_out_or_nothing_choose_the_network() {
    let network = |rules: Value| {
        let mut definition = definition();
        definition.egress_rules = serde_json::from_value(rules).unwrap();
        assert_eq!(check("g", "d", &definition), []);
        job("g", "d", &definition).groups[0]
            .network
            .as_ref()
            .unwrap()
            .mode
    };
    let all = |to: &str| json!([{"protocol": "all", "destinations": [to]}]);
    assert_eq!(network(json!([])), NetworkMode::None);
    assert_eq!(network(all("0.0.0.0/0")), NetworkMode::Host);
    assert_eq!(network(all("0.0.0.0-255.255.255.255")), NetworkMode::Host);
    assert_eq!(network(all("1.1.1.1, 0.0.0.0/0")), NetworkMode::Host);
}

#[test]
fn tags_are_compared_as_a_set() {
    let constraint = |tags: &[&str]| {
        let mut definition = definition();
        definition.placement_tags = tags.iter().map(|tag| (*tag).to_owned()).collect();
        job("g", "d", &definition).constraints[0].to_string()
    };
    assert_eq!(constraint(&[]), "${meta.placement_tags} is_not_set ");
    assert_eq!(constraint(&["b", "a", "b"]), "${meta.placement_tags} = a,b");
}

#[test]
fn durations_read_as_go_prints_them() {
    let table = [
        (0, "0s"),
        (1, "1ns"),
        (1_500, "1.5µs"),
        (500_000_000, "500ms"),
        (1_050_000, "1.05ms"),
        (2_000_000_000, "2s"),
        (2_500_000_000, "2.5s"),
        (60_000_000_000, "1m0s"),
        (90_500_000_000, "1m30.5s"),
        (3_600_000_000_000, "1h0m0s"),
    ];
    for (nanos, text) in table {
        assert_eq!(go_duration(Duration::from_nanos(nanos)), text);
    }
}

#[test]
fn a_long_reason_is_cut_and_says_so() {
    let cut = reason(&"ä".repeat(600));

    assert!(
        cut.len() <= REASON_BYTES_MAX && cut.ends_with("ä(truncated)"),
        "{cut}"
    );
    assert_eq!(reason("short"), "short");
}
