//! Tests of validation as tables, of texts that clients compare, and of the job of every definition.

use std::time::Duration;

use serde_json::{Value, json};

use super::*;
use crate::fixture::definition;
use crate::job::{NetworkMode, PolicyAction};
use crate::resources::Mb;

/// The faulty fields of a good definition with the fields of `change`.
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
        &"x".repeat(256),
    ] {
        assert!(!is_guid(guid), "{guid}");
    }
}

#[test]
fn domains_are_short_and_of_one_line() {
    for domain in ["a", "cf-apps", "a b/ä", &"x".repeat(GUID_BYTES_MAX)] {
        assert!(is_domain(domain), "{domain}");
        assert_eq!(check("g", domain, &definition()), [], "{domain}");
    }
    for domain in ["", "a\nb", "a\0", "\u{7f}", &"x".repeat(GUID_BYTES_MAX + 1)] {
        assert!(!is_domain(domain), "{domain}");
        let faults = check("g", domain, &definition());
        assert_eq!(faults[0].path, "domain", "{domain}");
    }
    assert_eq!(check("", "d", &definition())[0].path, "task_guid");
}

/// Diego's security group rules as JSON, each with its expected validity.
#[test]
#[expect(clippy::too_many_lines, reason = "a table, a line a rule")]
fn each_egress_rule_is_judged() {
    let to = |destinations: &[&str]| {
        let mut rule = json!({"protocol": "all"});
        rule["destinations"] = json!(destinations);
        rule
    };
    let of = |protocol: &str, fields: Value| {
        let mut rule = json!({"protocol": protocol, "destinations": ["1.2.3.4"]});
        for (name, field) in fields.as_object().unwrap() {
            rule[name] = field.clone();
        }
        rule
    };
    let range = |start: u32, end: u32| json!({"port_range": {"start": start, "end": end}});
    let icmp = |kind: i32, code: i32| json!({"icmp_info": {"type": kind, "code": code}});
    let many = |count: u32| -> Vec<String> {
        let each = 0..count;
        each.map(|n| format!("10.{}.{}.0/24", n / 256, n % 256))
            .collect()
    };
    let texts = |items: &[String]| {
        items
            .iter()
            .map(String::as_str)
            .collect::<Vec<_>>()
            .join(",")
    };
    let mut good = vec![
        to(&["1.2.3.4"]),
        to(&["1.2.3.4/8"]),
        to(&["0.0.0.0/0"]),
        to(&["1.2.3.4/32"]),
        to(&["1.1.1.1-1.1.1.1"]),
        to(&["1.1.1.1-2.2.2.2"]),
        to(&["fd00::1", "fd00::/8", "fd00::1-fd00::9"]),
        to(&["1.1.1.1, fd00::1 ,2.2.2.2-3.3.3.3"]),
        to(&[&texts(&many(1_024))]),
        of("all", json!({"log": true, "annotations": ["a"]})),
    ];
    let mut bad = vec![
        to(&[]),
        to(&[""]),
        to(&["1.1.1.1,"]),
        to(&["1.2.3"]),
        to(&["1.2.3.4/"]),
        to(&["1.2.3.4/33"]),
        to(&["1.2.3.4/+8"]),
        to(&["1.2.3.4/-1"]),
        to(&["fd00::/129"]),
        to(&["2.2.2.2-1.1.1.1"]),
        to(&["1.1.1.1-fd00::1"]),
        to(&["1.1.1.1-2.2.2.2-3.3.3.3"]),
        to(&["1.1.1.1-"]),
        to(&["host.example"]),
        to(&[&texts(&many(1_025))]),
        of("", json!({})),
        of("gre", json!({})),
        of("TCP", json!({"ports": [1]})),
        of("all", json!({"ports": [1]})),
        of("all", range(1, 2)),
        of("all", icmp(0, 0)),
    ];
    for protocol in ["tcp", "udp"] {
        for fields in [
            json!({"ports": [1]}),
            json!({"ports": [65_535]}),
            json!({"ports": [1, 2, 3], "log": true}),
            range(1, 65_535),
            range(7, 7),
        ] {
            good.push(of(protocol, fields));
        }
        for fields in [
            json!({}),
            json!({"ports": []}),
            json!({"ports": [0]}),
            json!({"ports": [65_536]}),
            json!({"ports": vec![1; 1_025]}),
            json!({"ports": [1], "port_range": {"start": 1, "end": 2}}),
            json!({"ports": [1], "icmp_info": {"type": 1, "code": 1}}),
            range(0, 1),
            range(2, 1),
            range(1, 65_536),
            range(65_536, 65_536),
            icmp(0, 0),
        ] {
            bad.push(of(protocol, fields));
        }
    }
    for (protocol, destination, other) in [
        ("icmp", "1.2.3.4", "fd00::1"),
        ("icmpv6", "fd00::1", "1.2.3.4"),
    ] {
        let of = |protocol, fields| {
            let mut rule = of(protocol, fields);
            rule["destinations"] = json!([destination]);
            rule
        };
        for (kind, code) in [(0, 0), (-1, -1), (255, 255), (8, -1)] {
            good.push(of(protocol, icmp(kind, code)));
        }
        let mut family = of(protocol, icmp(0, 0));
        family["destinations"] = json!([other]);
        bad.push(family);
        for fields in [
            json!({}),
            json!({"ports": [1], "icmp_info": {"type": 1, "code": 1}}),
            json!({"port_range": {"start": 1, "end": 2}, "icmp_info": {"type": 1, "code": 1}}),
            icmp(256, 0),
            icmp(0, 256),
            icmp(-2, 0),
            icmp(0, -2),
        ] {
            bad.push(of(protocol, fields));
        }
    }
    for rule in good {
        assert_eq!(wrong(json!({"egress_rules": [rule]})), [""; 0], "{rule}");
    }
    for rule in bad {
        assert_eq!(
            wrong(json!({"egress_rules": [rule]})),
            ["egress_rules"],
            "{rule}"
        );
    }
    let rules = vec![to(&["1.1.1.1"]); 10_001];
    assert!(wrong(json!({"egress_rules": rules})).contains(&"egress_rules".to_owned()));
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
    let large = "x".repeat(DEFINITION_BYTES_MAX);
    let month = 30 * 24 * 60 * 60 * 1_000_u64;
    let callback = |url: &str| json!({"completion_callback_url": url});
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
        (callback("ftp://x"), "completion_callback_url"),
        (callback("http://"), "completion_callback_url"),
        (callback("http://a@/"), "completion_callback_url"),
        (callback("http://:80/"), "completion_callback_url"),
        (callback("http://x:0/"), "completion_callback_url"),
        (callback("http://x:65536/"), "completion_callback_url"),
        (callback("http://x/ä"), "completion_callback_url"),
        (callback("http://x/\r\ny"), "completion_callback_url"),
        (
            callback(&format!("http://x/{}", "y".repeat(8 * 1024))),
            "completion_callback_url",
        ),
        (
            json!({"env": [{"name": "A", "value": large}]}),
            "task_definition",
        ),
        (json!({"log_source": "a\nb"}), "log_source"),
        (json!({"log_guid": "x".repeat(256)}), "log_guid"),
        (json!({"metrics_guid": "\u{0}"}), "metrics_guid"),
        (json!({"start_timeout_ms": month + 1}), "start_timeout_ms"),
        (json!({"retention_ms": month + 1}), "retention_ms"),
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
        (run(json!({"user": "4294967295"})), "user"),
        (run(json!({"user": "-1"})), "user"),
        (run(json!({"env": [{"name": ""}]})), "env"),
        (json!({"action": {"serial": {"actions": []}}}), "actions"),
        (json!({"action": {"parallel": {"actions": []}}}), "actions"),
        (
            json!({"action": {"codependent": {"actions": []}}}),
            "actions",
        ),
        (
            json!({"action": {"try": {"action": {"serial": {"actions": []}}}}}),
            "actions",
        ),
        (
            json!({"action": {"emit_progress": {"action": {"run": {"path": "", "user": "u"}}}}}),
            "path",
        ),
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
        (download(json!({"user": "4294967295"})), "user"),
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
        (upload(json!({"to": "file:///"})), "to"),
        (upload(json!({"to": "file://host/x"})), "to"),
        (upload(json!({"to": "ftp://x/y"})), "to"),
        (upload(json!({"user": ""})), "user"),
        (upload(json!({"user": "4294967296"})), "user"),
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
        (
            json!({"egress_rules": [{"protocol": "icmp", "destinations": ["1.1.1.1"],
                "icmp_info": {"type": 256, "code": 0}}]}),
            "egress_rules",
        ),
    ];
    for (change, field) in table {
        assert_eq!(wrong(change.clone()), [field], "{change}");
    }
}

#[test]
fn supported_transfers_are_valid() {
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
    for to in [
        "http://x",
        "https://u:p@[::1]:8/y?z",
        "file:///srv/results/x",
    ] {
        let change = action("upload", an_upload(), json!({"to": to}));
        assert_eq!(wrong(change), [""; 0], "{to}");
    }
}

/// A task's disk bounds its transfers. The driver has bounds of its own for a task that sets no disk.
#[test]
fn the_disk_of_a_task_bounds_its_transfers() {
    let config = |disk_mb| {
        let mut definition = definition();
        definition.disk_mb = disk_mb;
        let job = job("g", "d", &definition, OneOffTimings::default());
        let config = &job.groups[0].tasks[0].config_json;
        serde_json::from_str::<Value>(config).unwrap()["disk_mb"].clone()
    };
    assert_eq!((config(7), config(0)), (json!(7), Value::Null));
}

#[test]
fn all_faults_are_listed() {
    let found = wrong(json!({"rootfs": "", "memory_mb": -1, "privileged": true}));

    assert_eq!(found, ["rootfs", "memory_mb", "privileged"]);
}

#[test]
fn oversized_action_tree_is_rejected() {
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

/// The deepest tree of lists passes the readers of JSON, also as a part of another value.
#[test]
fn largest_tree_and_guid_are_accepted() {
    let leaf = json!({"run": {"path": "x", "user": "u"}});
    let mut deep = leaf.clone();
    for _ in 1..ACTION_DEPTH_MAX {
        deep = json!({"serial": {"actions": [deep]}});
    }
    let text = json!({"outer": [deep]}).to_string();
    let outer: Value = serde_json::from_str(&text).unwrap();
    assert_eq!(wrong(json!({"action": outer["outer"][0]})), [""; 0]);
    let wide = vec![leaf; ACTIONS_MAX - 1];
    assert_eq!(
        wrong(json!({"action": {"serial": {"actions": wide}}})),
        [""; 0]
    );
    let mut large = definition();
    large.env = large_env();
    let guid = "g".repeat(GUID_BYTES_MAX);
    assert_eq!(check(&guid, &guid, &large), []);
}

/// Half of the largest allowed environment.
fn large_env() -> Vec<EnvVar> {
    let variables = 0..DEFINITION_BYTES_MAX / 2 / 1024;
    let variables = variables.map(|at| EnvVar {
        name: format!("V{at}"),
        value: "x".repeat(1_000),
    });
    variables.collect()
}

/// Diego reads 0 as no limit. Placement counts the least that a job may ask for.
#[test]
fn zero_memory_and_disk_are_unlimited() {
    let of = |memory_mb, disk_mb| {
        let mut definition = definition();
        (definition.memory_mb, definition.disk_mb) = (memory_mb, disk_mb);
        assert_eq!(check("g", "d", &definition), []);
        let job = job("g", "d", &definition, OneOffTimings::default());
        let ask = job.groups[0].ask();
        let limit = job.groups[0].tasks[0].resources.memory_limit();
        let is_unlimited = has_unlimited_disk(&job);
        (ask.memory_mb, ask.disk_mb, limit, is_unlimited)
    };

    assert_eq!(of(0, 0), (4, 10, None, true));
    assert_eq!(of(64, 20), (64, 20, Some(Mb(64)), false));
}

#[test]
fn unsupported_field_is_rejected_by_name() {
    let mut value = serde_json::to_value(definition()).unwrap();
    value["image_layers"] = json!([]);

    let error = serde_json::from_value::<Definition>(value).unwrap_err();

    assert!(error.to_string().contains("image_layers"), "{error}");
}

#[test]
fn egress_rules_choose_the_network() {
    let network = |rules: Value| {
        let mut definition = definition();
        definition.egress_rules = serde_json::from_value(rules).unwrap();
        assert_eq!(check("g", "d", &definition), []);
        job("g", "d", &definition, OneOffTimings::default()).groups[0]
            .network
            .as_ref()
            .unwrap()
            .mode
            .clone()
    };
    let all = |to: &str| json!([{"protocol": "all", "destinations": [to]}]);
    assert_eq!(network(json!([])), NetworkMode::None);
    let everything = ["0.0.0.0/0", "0.0.0.0-255.255.255.255", "1.1.1.1, 0.0.0.0/0"];
    let some = ["127.0.0.1", "fd00::/8", "1.1.1.1, ::1"];
    for to in everything.into_iter().chain(some) {
        assert_eq!(network(all(to)), NetworkMode::Bridge, "{to}");
    }
}

/// A rule with a log does not change the allowed destinations. The policy sets no default, so all packets pass as
/// without a policy.
#[test]
fn logged_rule_for_everything_sets_no_default() {
    let policy = |rules: Value| {
        let mut definition = definition();
        definition.egress_rules = serde_json::from_value(rules).unwrap();
        assert_eq!(check("g", "d", &definition), []);
        let network = job("g", "d", &definition, OneOffTimings::default()).groups[0]
            .network
            .clone();
        network.unwrap().policy
    };
    let all = |log: bool| json!({"protocol": "all", "destinations": ["0.0.0.0/0"], "log": log});
    let web = json!({"protocol": "tcp", "destinations": ["1.1.1.1"], "ports": [80], "log": true});
    assert_eq!(policy(json!([all(false)])), None);

    let logged = policy(json!([web, all(true)])).unwrap();

    assert_eq!(
        (logged.egress.default, logged.ingress.default),
        (None, None)
    );
    assert_eq!(logged.ingress.rules, []);
    let rules = logged.egress.rules.iter();
    let rules: Vec<_> = rules
        .map(|rule| (rule.name.as_str(), rule.action, rule.log))
        .collect();
    assert_eq!(
        rules,
        [
            ("egress_rules[0]", PolicyAction::Allow, true),
            ("egress_rules[1]", PolicyAction::Allow, true),
        ]
    );
}

#[test]
fn client_task_labels_are_copied_to_meta() {
    let meta = |change: Value| {
        let mut value = serde_json::to_value(definition()).unwrap();
        for (name, field) in change.as_object().unwrap() {
            value[name] = field.clone();
        }
        let definition: Definition = serde_json::from_value(value).unwrap();
        let meta = job("g", "apps", &definition, OneOffTimings::default()).meta;
        meta.into_iter()
            .map(|(key, value)| format!("{key}={value}"))
            .collect::<Vec<_>>()
    };
    assert_eq!(meta(json!({})), ["domain=apps"]);
    assert_eq!(
        meta(json!({"log_guid": "l", "log_source": "APP", "metrics_guid": "m"})),
        [
            "domain=apps",
            "log_guid=l",
            "log_source=APP",
            "metrics_guid=m"
        ]
    );
}

#[test]
fn rules_for_some_destinations_become_a_policy() {
    let mut definition = definition();
    definition.egress_rules = serde_json::from_value(json!([
        {"protocol": "tcp", "destinations": ["10.0.0.1-10.0.0.6, fd00::/64"], "ports": [80, 443]},
        {"protocol": "udp", "destinations": ["1.1.1.1"], "port_range": {"start": 1, "end": 99},
            "log": true},
        {"protocol": "icmp", "destinations": ["8.8.8.8"], "icmp_info": {"type": 8, "code": -1}},
        {"protocol": "icmp", "destinations": ["9.9.9.9"], "icmp_info": {"type": -1, "code": 3}},
    ]))
    .unwrap();
    assert_eq!(check("g", "d", &definition), []);

    let job = job("g", "d", &definition, OneOffTimings::default());

    let network = job.groups[0].network.as_ref().unwrap();
    assert_eq!(network.mode, NetworkMode::Bridge);
    let policy = network.policy.as_ref().unwrap();
    assert_eq!(policy.ingress.default, Some(PolicyAction::Deny));
    assert_eq!(policy.egress.default, Some(PolicyAction::Deny));
    let rules: Vec<String> = policy
        .egress
        .rules
        .iter()
        .map(|rule| {
            let texts = |items: Vec<String>| items.join(" ");
            let peers = texts(rule.peers.iter().map(ToString::to_string).collect());
            let ports = texts(rule.ports.iter().map(ToString::to_string).collect());
            format!(
                "{} {} {peers} [{ports}] {:?} {:?} {}",
                rule.name,
                rule.protocol.as_str(),
                rule.icmp_type,
                rule.icmp_code,
                rule.log
            )
        })
        .collect();
    assert_eq!(
        rules,
        [
            "egress_rules[0] tcp 10.0.0.1/32 10.0.0.2/31 10.0.0.4/31 10.0.0.6/32 fd00::/64 [80 443] None None false",
            "egress_rules[1] udp 1.1.1.1/32 [1-99] None None true",
            "egress_rules[2] icmp 8.8.8.8/32 [] Some(8) None false",
            "egress_rules[3] icmp 9.9.9.9/32 [] None None false",
        ]
    );
}

#[test]
fn tags_are_compared_as_a_set() {
    let constraint = |tags: &[&str]| {
        let mut definition = definition();
        definition.placement_tags = tags.iter().map(|tag| (*tag).to_owned()).collect();
        job("g", "d", &definition, OneOffTimings::default()).constraints[0].to_string()
    };
    assert_eq!(constraint(&[]), "${meta.placement_tags} is_not_set ");
    assert_eq!(constraint(&["b", "a", "b"]), "${meta.placement_tags} = a,b");
}

/// Diego compares an empty tag like any other. A node without tags does not have it.
#[test]
fn empty_placement_tag_is_accepted() {
    let mut definition = definition();
    definition.placement_tags = vec![String::new()];

    assert_eq!(check("g", "d", &definition), []);
    let job = job("g", "d", &definition, OneOffTimings::default());
    assert_eq!(job.constraints[0].to_string(), "${meta.placement_tags} = ");
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
fn long_reason_is_cut_and_marked() {
    let cut = reason(&"ä".repeat(600));

    assert!(
        cut.len() <= REASON_BYTES_MAX && cut.ends_with("ä(truncated)"),
        "{cut}"
    );
    assert_eq!(reason("short"), "short");
}

/// The agent may have lost its server up to its limit before it dies. Only then does the driver start to count.
#[test]
fn disconnect_times_fit_within_lost_after() {
    let definition = definition();
    for lost_after in [LOST_AFTER_MIN, LOST_AFTER, LOST_AFTER_MAX] {
        let times = OneOffTimings {
            lost_after,
            ..OneOffTimings::default()
        };
        let disconnect = job("g", "d", &definition, times).groups[0].disconnect;
        let agent = disconnect.stop_on_client_after.unwrap();
        let driver = disconnect.stop_without_agent_after().unwrap();

        assert!(agent + driver <= lost_after, "{lost_after:?}");
        assert!(driver >= LOST_AFTER_MIN / 3, "{lost_after:?}: {driver:?}");
    }
    let long = crate::job::Disconnect {
        stop_on_client_after: Some(LOST_AFTER_MAX),
        ..crate::job::Disconnect::default()
    };
    assert_eq!(long.stop_without_agent_after(), Some(LOST_AFTER_MAX));
}
