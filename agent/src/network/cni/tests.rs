//! Networks by plugins that are scripts, and by those of Debian.

mod debian;

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use muster_domain::alloc::{ClientStatus, DesiredStatus};
use muster_domain::fixture::{job, node};
use muster_domain::id::LogIndex;
use muster_domain::job::NetworkMode;
use muster_domain::resources::{AllocatedPort, Holding};
use muster_driver::fixture::skipped;
use serde_json::{Value, json};

use super::*;

/// A result with one address.
const RESULT: &str = r#"{"cniVersion":"1.0.0","interfaces":[{"name":"eth0","sandbox":"/x"}],"ips":[{"interface":0,"address":"10.1.2.3/24"}]}"#;

/// Plugins and configurations in a temporary directory.
pub(super) struct TestPlugins {
    pub(super) dir: tempfile::TempDir,
    deadline: Duration,
}

impl TestPlugins {
    pub(super) fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        for part in ["bin", "config", "data"] {
            fs::create_dir(dir.path().join(part)).unwrap();
        }
        Self {
            dir,
            deadline: Duration::from_mins(1),
        }
    }

    /// Makes a plugin that logs its call and its input, and then runs `script`.
    fn plugin(&self, name: &str, script: &str) {
        let path = self.dir.path().join("bin").join(name);
        let log = self.dir.path().join("calls");
        let noted = format!(
            "#!/bin/sh\necho \"$CNI_COMMAND {name}\" >> {0}\ncat > {0}.{name}.$CNI_COMMAND\nenv | sort > {0}.{name}.$CNI_COMMAND.env\n{script}\n",
            log.display()
        );
        fs::write(&path, noted).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    }

    fn calls(&self) -> Vec<String> {
        let calls = fs::read_to_string(self.dir.path().join("calls")).unwrap_or_default();
        calls.lines().map(str::to_owned).collect()
    }

    fn input(&self, plugin: &str, command: &str) -> Value {
        let path = self.dir.path().join(format!("calls.{plugin}.{command}"));
        serde_json::from_slice(&fs::read(path).unwrap()).unwrap()
    }

    fn env(&self, plugin: &str, command: &str) -> String {
        let path = self
            .dir
            .path()
            .join(format!("calls.{plugin}.{command}.env"));
        fs::read_to_string(path).unwrap()
    }

    pub(super) fn network(&self, name: &str, config: &Value) {
        let path = self
            .dir
            .path()
            .join("config")
            .join(format!("{name}.conflist"));
        fs::write(path, config.to_string()).unwrap();
    }

    pub(super) fn open(&self) -> CniNetworks {
        let settings = CniSettings {
            path: vec![self.dir.path().join("bin"), "/usr/lib/cni".into()],
            config_dir: self.dir.path().join("config"),
            plugin_deadline: self.deadline,
        };
        CniNetworks::open(&self.dir.path().join("data"), settings)
    }

    fn namespace(&self) -> PathBuf {
        self.dir
            .path()
            .join(format!("data/cni/{}.netns", alloc_id()))
    }
}

impl Drop for TestPlugins {
    /// A failed test leaves no mount.
    fn drop(&mut self) {
        drop(namespace::remove(&self.namespace()));
    }
}

fn alloc_id() -> AllocId {
    AllocId::at(LogIndex(7), 0)
}

/// An allocation in the network `net` with a published port.
pub(super) fn desired(args: &[(&str, &str)]) -> DesiredAlloc {
    let mut spec = job("web").build();
    let args = args
        .iter()
        .map(|(key, value)| ((*key).to_owned(), (*value).to_owned()));
    spec.groups[0].network = Some(muster_domain::job::GroupNetwork {
        mode: NetworkMode::Cni(CniNetwork {
            name: "net".to_owned(),
            args: args.collect(),
        }),
        ports: Vec::new(),
        policy: None,
        dns: None,
        hostname: String::new(),
    });
    let mut version = (*job("web").version()).clone();
    version.spec = spec;
    DesiredAlloc {
        alloc_id: alloc_id(),
        alloc_modify_index: LogIndex(7),
        desired: DesiredStatus::Run,
        name_index: 0,
        group_at: 0,
        holding: Holding {
            ports: vec![AllocatedPort {
                label: "http".to_owned(),
                value: 28_080,
                to: 80,
                host_ip: String::new(),
            }],
            ..Holding::default()
        },
        deployment: None,
        canary: false,
        previous: None,
        client_status: ClientStatus::Pending,
        job: Arc::new(version),
    }
}

/// Sets the network up as [`CniNetworks::ensure`] does, without an agent.
pub(super) async fn set_up(
    networks: &CniNetworks,
    desired: &DesiredAlloc,
) -> Result<(OwnedFd, AddResult), CniError> {
    let group = desired.group().unwrap();
    let cni = wanted(group).unwrap();
    let (list, text) = networks.find(&cni.name)?;
    let env = TaskEnv::of_alloc(desired, &node("n1").build());
    let args = request::args(desired, group, cni, &env);
    let runtime = request::runtime(desired, group, "127.0.0.1", &env);
    let mut record = CniRecord::new(text, args, runtime);
    networks.dir.prepare().unwrap();
    networks
        .make_and_add(desired.alloc_id, &list, &mut record)
        .await
}

fn is_root(test: &str) -> bool {
    let is_root = nix::unistd::geteuid().is_root();
    if !is_root {
        skipped(test, "needs root for network namespaces");
    }
    is_root
}

fn chained() -> Value {
    json!({"cniVersion": "1.0.0", "name": "net", "plugins": [
        {"type": "first", "color": "red"},
        {"type": "second", "capabilities": {"portMappings": true}},
    ]})
}

#[tokio::test]
async fn plugins_run_in_order_and_back() {
    if !is_root("plugins_run_in_order_and_back") {
        return;
    }
    let place = TestPlugins::new();
    place.plugin("first", &format!("echo '{RESULT}'"));
    place.plugin("second", &format!("echo '{RESULT}'"));
    place.network("net", &chained());
    let networks = place.open();
    let desired = desired(&[
        ("COLOR", "blue"),
        ("IgnoreUnknown", "no"),
        ("NOMAD_JOB_ID", "forged"),
    ]);

    let (_namespace, result) = set_up(&networks, &desired).await.unwrap();
    let is_mounted = namespace::open(&place.namespace()).unwrap().is_some();
    let record = locked(&networks.records)[&alloc_id()].clone();
    networks.check(alloc_id(), &record).await.unwrap();
    networks.release(alloc_id()).await.unwrap();
    networks.release(alloc_id()).await.unwrap();

    assert_eq!(result.address(), Some("10.1.2.3".parse().unwrap()));
    assert!(is_mounted);
    assert_eq!(
        place.calls(),
        [
            "ADD first",
            "ADD second",
            "CHECK first",
            "CHECK second",
            "DEL second",
            "DEL first"
        ]
    );
    let first = place.input("first", "ADD");
    let own: Value = serde_json::from_str(RESULT).unwrap();
    assert_eq!(
        first,
        json!({"cniVersion": "1.0.0", "name": "net", "type": "first", "color": "red"})
    );
    let second = place.input("second", "ADD");
    assert_eq!(second["prevResult"], own);
    let mapping = |protocol: &str| json!({"hostPort": 28_080, "containerPort": 80, "protocol": protocol, "hostIP": "127.0.0.1"});
    assert_eq!(
        second["runtimeConfig"],
        json!({"portMappings": [mapping("tcp"), mapping("udp")]})
    );
    assert_eq!(place.input("first", "DEL")["prevResult"], own);
    let env = place.env("first", "ADD");
    for line in [
        "CNI_IFNAME=eth0".to_owned(),
        format!("CNI_CONTAINERID={}", alloc_id()),
        format!("CNI_NETNS={}", place.namespace().display()),
        format!("CNI_PATH={}/bin:/usr/lib/cni", place.dir.path().display()),
        format!(
            "CNI_ARGS=IgnoreUnknown=true;COLOR=blue;NOMAD_ALLOC_ID={};NOMAD_GROUP_NAME={};NOMAD_JOB_ID=web;NOMAD_NAMESPACE=default;NOMAD_REGION=global",
            alloc_id(),
            desired.group().unwrap().name
        ),
    ] {
        assert!(env.lines().any(|it| it == line), "{line}\n{env}");
    }
    assert!(!place.namespace().exists());
    assert!(!networks.has(alloc_id()) && place.open().orphans(&BTreeSet::new()).is_empty());
}

#[test]
fn references_in_arguments_and_resolvers_are_filled_in() {
    let mut desired = desired(&[
        ("NODE", "${node.unique.name}"),
        ("RACK", "r-${meta.rack}"),
        ("JOB", "${NOMAD_JOB_NAME}"),
        ("UNKNOWN", "${meta.none}"),
        ("SPLIT", "${meta.split}"),
    ]);
    let version = Arc::make_mut(&mut desired.job);
    let network = version.spec.groups[0].network.as_mut().unwrap();
    network.dns = Some(DnsConfig {
        servers: vec!["${meta.resolver}".to_owned()],
        searches: vec![
            "${node.datacenter}.test".to_owned(),
            "${meta.split}".to_owned(),
        ],
        options: vec!["ndots:${meta.dots}".to_owned()],
    });
    let mut spec = node("n1").build();
    for (key, value) in [
        ("rack", "7"),
        ("split", "a;b=c"),
        ("resolver", "10.0.0.53"),
        ("dots", "2"),
    ] {
        spec.meta.insert(key.to_owned(), value.to_owned());
    }
    let env = TaskEnv::of_alloc(&desired, &spec);
    let group = desired.group().unwrap();

    let args = request::args(&desired, group, wanted(group).unwrap(), &env);
    let runtime = request::runtime(&desired, group, "127.0.0.1", &env);

    let own = |key: &str| {
        let mut pairs = args.split(';').filter_map(|pair| pair.split_once('='));
        pairs.find(|(it, _)| *it == key).map(|(_, value)| value)
    };
    assert_eq!(own("NODE"), Some("n1"));
    assert_eq!(own("RACK"), Some("r-7"));
    assert_eq!(own("JOB"), Some("web"));
    assert_eq!(own("UNKNOWN"), Some("${meta.none}"));
    assert_eq!(own("SPLIT"), None, "{args}");
    let search = format!("{}.test", spec.datacenter);
    assert_eq!(
        runtime["dns"],
        json!({"servers": ["10.0.0.53"], "searches": [search], "options": ["ndots:2"]})
    );
}

/// The second plugin fails in each possible way: the error has the reason, and the first plugin's work is undone.
#[tokio::test]
async fn half_a_network_is_undone_with_a_reason() {
    if !is_root("half_a_network_is_undone_with_a_reason") {
        return;
    }
    for (script, words) in [
        (
            r#"[ $CNI_COMMAND = ADD ] || exit 0; echo '{"cniVersion":"1.0.0","code":7,"msg":"no port","details":"28080"}'; exit 1"#,
            "CNI plugin second failed: code 7: no port; 28080",
        ),
        (
            "[ $CNI_COMMAND = ADD ] || exit 0; echo oops >&2; exit 3",
            "CNI plugin second failed: exit status: 3: oops",
        ),
        (
            "echo hello",
            "CNI plugin second failed: it printed no result of CNI (expected value",
        ),
        ("exit 0", "it printed no result of CNI (EOF"),
        (
            "[ $CNI_COMMAND = ADD ] || exit 0; kill -9 $$",
            "CNI plugin second failed: signal: 9",
        ),
        (
            "[ $CNI_COMMAND = ADD ] || exit 0; head -c 400000 /dev/zero",
            "it printed more than 262144 bytes",
        ),
        (
            r#"echo '{"cniVersion":"1.0.0"}'"#,
            "the CNI network `net` gave the allocation no address",
        ),
    ] {
        let place = TestPlugins::new();
        place.plugin("first", &format!("echo '{RESULT}'"));
        place.plugin("second", script);
        place.network("net", &chained());
        let networks = place.open();

        let error = set_up(&networks, &desired(&[])).await.unwrap_err();

        let message = chain(&error);
        assert!(message.contains(words), "{script}: {message}");
        assert_eq!(
            place.calls(),
            ["ADD first", "ADD second", "DEL second", "DEL first"],
            "{script}"
        );
        assert!(
            !networks.has(alloc_id()) && !place.namespace().exists(),
            "{script}"
        );
    }
}

/// The children, which hold the plugin's output open, are killed, too.
#[tokio::test]
async fn a_plugin_that_hangs_is_killed() {
    if !is_root("a_plugin_that_hangs_is_killed") {
        return;
    }
    let mut place = TestPlugins::new();
    place.deadline = Duration::from_millis(500);
    let pids = place.dir.path().join("pids");
    let hang = format!(
        "[ $CNI_COMMAND = ADD ] || exit 0; sleep 1000 & echo $! > {}; wait",
        pids.display()
    );
    place.plugin("first", &hang);
    place.plugin("second", "exit 0");
    place.network("net", &chained());
    let networks = place.open();

    let error = set_up(&networks, &desired(&[])).await.unwrap_err();

    assert_eq!(
        chain(&error),
        "CNI plugin first failed: it did not end within 500ms and was killed"
    );
    assert_eq!(place.calls(), ["ADD first", "DEL second", "DEL first"]);
    let child = fs::read_to_string(pids).unwrap();
    let state = fs::read_to_string(format!("/proc/{}/stat", child.trim()));
    assert!(
        state.is_err_and(|_| true) || is_dead(child.trim()),
        "{child} runs"
    );
}

/// Whether a process has ended, even if no parent has waited for it.
fn is_dead(pid: &str) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let state = stat.rsplit(')').next().unwrap_or_default();
    state.is_empty() || state.trim_start().starts_with(['Z', 'X'])
}

#[tokio::test]
async fn missing_networks_and_plugins_are_named() {
    if !is_root("missing_networks_and_plugins_are_named") {
        return;
    }
    let place = TestPlugins::new();
    fs::write(place.dir.path().join("config/bad.conf"), "{}").unwrap();
    let networks = place.open();
    let unknown = chain(&set_up(&networks, &desired(&[])).await.unwrap_err());
    place.plugin("first", &format!("echo '{RESULT}'"));
    place.network("net", &chained());
    let missing = chain(&set_up(&networks, &desired(&[])).await.unwrap_err());

    assert!(
        unknown.contains("unknown CNI network `net`: put its configuration into"),
        "{unknown}"
    );
    assert!(
        unknown.contains("bad.conf: missing field `name`"),
        "{unknown}"
    );
    assert!(
        missing.contains("CNI plugin second failed: no such program in"),
        "{missing}"
    );
    assert_eq!(place.calls(), ["ADD first", "DEL first"]);
    assert!(!networks.has(alloc_id()));
}

/// A network that DEL fails to remove stays recorded, and the next call continues.
#[tokio::test]
async fn a_failed_removal_is_repeated() {
    if !is_root("a_failed_removal_is_repeated") {
        return;
    }
    let place = TestPlugins::new();
    let mark = place.dir.path().join("mended");
    place.plugin("first", &format!("echo '{RESULT}'"));
    let broken = format!(
        "[ $CNI_COMMAND = DEL ] && [ ! -e {} ] && exit 9; echo '{RESULT}'",
        mark.display()
    );
    place.plugin("second", &broken);
    place.network("net", &chained());
    let networks = place.open();
    set_up(&networks, &desired(&[])).await.unwrap();

    let refused = networks.release(alloc_id()).await;
    let is_kept = networks.has(alloc_id()) && place.namespace().exists();
    fs::write(mark, "").unwrap();
    // The next agent reads the records on disk.
    let next = place.open();
    let orphans = next.orphans(&BTreeSet::new());
    next.recover(orphans.clone()).await;

    assert!(refused.is_err() && is_kept);
    assert_eq!(orphans, [alloc_id()]);
    assert_eq!(
        place.calls(),
        [
            "ADD first",
            "ADD second",
            "DEL second",
            "DEL second",
            "DEL first"
        ]
    );
    assert!(!next.has(alloc_id()) && !place.namespace().exists());
}

/// A plugin that is broken for good keeps no allocation's data on the disk.
#[tokio::test]
async fn a_removal_that_always_fails_is_given_up() {
    if !is_root("a_removal_that_always_fails_is_given_up") {
        return;
    }
    let place = TestPlugins::new();
    place.plugin("first", &format!("echo '{RESULT}'"));
    place.plugin(
        "second",
        &format!("[ $CNI_COMMAND = DEL ] && exit 9; echo '{RESULT}'"),
    );
    place.network("net", &chained());
    let networks = place.open();
    set_up(&networks, &desired(&[])).await.unwrap();

    for _ in 1..CNI_REMOVALS_MAX {
        networks.release(alloc_id()).await.unwrap_err();
    }
    let is_kept = networks.has(alloc_id());
    networks.release(alloc_id()).await.unwrap();

    assert!(is_kept && !networks.has(alloc_id()));
    assert_eq!(place.calls().last().unwrap(), "DEL first");
    assert!(!place.namespace().exists());
}

/// An agent that was killed in the middle of ADD leaves a record without a result.
#[tokio::test]
async fn a_killed_agent_s_half_is_undone() {
    if !is_root("a_killed_agent_s_half_is_undone") {
        return;
    }
    let place = TestPlugins::new();
    place.plugin("first", "exit 0");
    place.plugin("second", "exit 0");
    place.network("net", &chained());
    let killed = place.open();
    killed.dir.prepare().unwrap();
    let text = chained().to_string();
    let record = CniRecord::new(text, "IgnoreUnknown=true".to_owned(), BTreeMap::new());
    killed.keep(alloc_id(), &record).await.unwrap();
    drop(killed.namespace(alloc_id(), &record).await.unwrap());
    drop(killed);

    let next = place.open();
    next.recover(next.orphans(&BTreeSet::new())).await;

    assert_eq!(place.calls(), ["DEL second", "DEL first"]);
    assert_eq!(place.input("first", "DEL").get("prevResult"), None);
    let env = place.env("first", "DEL");
    assert!(
        env.contains(&format!("CNI_NETNS={}", place.namespace().display())),
        "{env}"
    );
    assert!(!place.namespace().exists());
}

/// The namespace is gone after a reboot: plugins remove the rest.
#[tokio::test]
async fn a_namespace_that_is_gone_has_no_path() {
    if !is_root("a_namespace_that_is_gone_has_no_path") {
        return;
    }
    let place = TestPlugins::new();
    place.plugin("first", &format!("echo '{RESULT}'"));
    place.plugin("second", &format!("echo '{RESULT}'"));
    place.network("net", &chained());
    let networks = place.open();
    set_up(&networks, &desired(&[])).await.unwrap();
    namespace::remove(&place.namespace()).unwrap();
    fs::write(place.namespace(), "").unwrap();

    networks.release(alloc_id()).await.unwrap();

    let env = place.env("first", "DEL");
    assert!(env.lines().any(|line| line == "CNI_NETNS="), "{env}");
    assert!(!place.namespace().exists());
}

#[tokio::test]
async fn garbage_is_collected_from_version_1_1() {
    let place = TestPlugins::new();
    place.plugin("first", "exit 0");
    place.plugin("second", "exit 0");
    for (name, version, gc) in [
        ("net", "1.1.0", false),
        ("old", "1.0.0", false),
        ("off", "1.1.0", true),
    ] {
        let plugins = json!([{"type": if name == "net" { "first" } else { "second" }}]);
        place.network(
            name,
            &json!({"cniVersion": version, "name": name, "disableGC": gc, "plugins": plugins}),
        );
    }
    let networks = place.open();
    networks.dir.prepare().unwrap();
    let (_, text) = networks.find("net").unwrap();
    let record = CniRecord::new(text, String::new(), BTreeMap::new());
    networks.keep(alloc_id(), &record).await.unwrap();

    networks.collect().await;

    assert_eq!(place.calls(), ["GC first"]);
    let valid = json!([{"containerID": alloc_id().to_string(), "ifname": "eth0"}]);
    assert_eq!(
        place.input("first", "GC")["cni.dev/valid-attachments"],
        valid
    );
    assert!(!place.env("first", "GC").contains("CNI_CONTAINERID"));
}

/// A fault in one file and a plugin without a version do not hide the others.
#[tokio::test]
async fn plugins_and_networks_are_fingerprinted() {
    let place = TestPlugins::new();
    place.plugin("first", "echo 'CNI first plugin v1.4.0' >&2; exit 1");
    place.plugin(
        "second",
        r#"[ "$CNI_COMMAND" = VERSION ] && echo '{"supportedVersions":["0.4.0","1.0.0","0.3.1"]}'"#,
    );
    place.plugin("third", "echo nonsense");
    place.network("net", &chained());
    fs::write(place.dir.path().join("config/bad.conf"), "{}").unwrap();
    let mut networks = place.open();
    networks.settings.path.truncate(1);

    let attributes = networks.attributes().await;
    let calls = place.calls().len();
    let again = networks.attributes().await;

    let wanted = [
        ("network.cni.net", "1.0.0"),
        ("plugins.cni.version.first", "v1.4.0"),
        ("plugins.cni.version.second", "1.0.0"),
    ];
    let wanted = wanted.map(|(name, value)| (name.to_owned(), value.to_owned()));
    assert_eq!(attributes, BTreeMap::from(wanted));
    assert_eq!(again, attributes);
    assert_eq!(place.calls().len(), calls, "versions are asked for again");
}

/// Only its owner may change a program that the agent runs.
#[test]
fn programs_that_all_can_change_are_not_run() {
    let place = TestPlugins::new();
    place.plugin("first", "exit 0");
    let path = place.dir.path().join("bin");
    let found = |kind: &str| request::program(std::slice::from_ref(&path), kind).is_some();
    let before = found("first");
    fs::set_permissions(path.join("first"), fs::Permissions::from_mode(0o777)).unwrap();

    assert!(before && !found("first") && !found("second"));
    assert!(!found("."));
    assert!(!Path::new(&path).join("second").exists());
}
