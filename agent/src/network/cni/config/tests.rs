use super::*;

fn fault(text: &str) -> String {
    NetworkList::parse(text).unwrap_err()
}

#[test]
fn lists_and_single_plugins_are_read() {
    let list = NetworkList::parse(
        r#"{"cniVersion": "0.4.0", "name": "net-1", "disableCheck": true, "plugins": [
            {"type": "bridge", "bridge": "br0"},
            {"type": "portmap", "capabilities": {"portMappings": true, "ips": false}}]}"#,
    )
    .unwrap();
    let single =
        NetworkList::parse(r#"{"cniVersion": "1.0.0", "name": "one", "type": "ptp"}"#).unwrap();

    assert_eq!(
        (list.name.as_str(), list.version),
        ("net-1", CniVersion(0, 4, 0))
    );
    assert!(list.disable_check && !list.disable_gc);
    let kinds: Vec<&str> = list.plugins.iter().map(|it| it.kind.as_str()).collect();
    assert_eq!(kinds, ["bridge", "portmap"]);
    let portmap = &list.plugins[1];
    assert!(portmap.has_capability("portMappings") && !portmap.has_capability("ips"));
    assert_eq!(
        (single.plugins.len(), single.plugins[0].kind.as_str()),
        (1, "ptp")
    );
}

#[test]
fn the_newest_supported_version_is_taken() {
    for (versions, wanted) in [
        (r#""cniVersion": "1.1.0""#, CniVersion(1, 1, 0)),
        (r#""cniVersion": "0.3.1""#, CniVersion(0, 3, 1)),
        (
            r#""cniVersion": "1.0.0", "cniVersions": ["0.4.0", "1.1.0", "2.0.0"]"#,
            CniVersion(1, 1, 0),
        ),
        (r#""cniVersions": ["0.4.0", "9.0.0"]"#, CniVersion(0, 4, 0)),
    ] {
        let list =
            NetworkList::parse(&format!(r#"{{{versions}, "name": "n", "type": "ptp"}}"#)).unwrap();
        assert_eq!(list.version, wanted, "{versions}");
    }
    assert!(WITH_CHECK < WITH_GC);
}

#[test]
fn faults_have_reasons() {
    for (text, words) in [
        ("", "invalid JSON"),
        ("[]", "not a JSON object"),
        (
            r#"{"cniVersion": "1.0.0", "type": "ptp"}"#,
            "missing field `name`",
        ),
        (
            r#"{"cniVersion": "1.0.0", "name": "a/b", "type": "ptp"}"#,
            "invalid network name \"a/b\"",
        ),
        (
            r#"{"name": "a", "type": "ptp"}"#,
            "missing field `cniVersion`: use one of 0.3.0",
        ),
        (
            r#"{"cniVersion": "0.2.0", "name": "a", "type": "ptp"}"#,
            "unsupported cniVersion 0.2.0",
        ),
        (
            r#"{"cniVersion": "1.0.0", "name": "a"}"#,
            "invalid plugin type \"\"",
        ),
        (
            r#"{"cniVersion": "1.0.0", "name": "a", "type": "../sh"}"#,
            "invalid plugin type \"../sh\"",
        ),
        (
            r#"{"cniVersion": "1.0.0", "name": "a", "plugins": []}"#,
            "0 plugins",
        ),
        (
            r#"{"cniVersion": "1.0.0", "name": "a", "plugins": [1]}"#,
            "each plugin is a JSON object",
        ),
        (
            r#"{"cniVersion": "1.0.0", "name": "a", "plugins": {}}"#,
            "give a list of plugins",
        ),
        (
            r#"{"cniVersion": "1.1.0", "name": "a", "type": "b", "disableGC": 1}"#,
            "invalid field `disableGC`",
        ),
    ] {
        let found = fault(text);
        assert!(found.contains(words), "{text}: {found}");
    }
}

/// A bad file does not prevent the others from being read.
#[test]
fn a_directory_is_read_with_its_faults() {
    let dir = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| std::fs::write(dir.path().join(name), text).unwrap();
    write(
        "10-a.conflist",
        r#"{"cniVersion": "1.0.0", "name": "a", "plugins": [{"type": "ptp"}]}"#,
    );
    write(
        "20-b.conf",
        r#"{"cniVersion": "0.4.0", "name": "b", "type": "macvlan"}"#,
    );
    write("30-c.json", "nonsense");
    write(
        "40-a.json",
        r#"{"cniVersion": "1.0.0", "name": "a", "type": "bridge"}"#,
    );
    write("50-d.txt", "not read");
    write("60-e.conf", &" ".repeat(70_000));

    let NetworkDir { networks, faults } = read_dir(dir.path());
    let missing = read_dir(&dir.path().join("missing"));

    let names: Vec<&str> = networks
        .iter()
        .map(|(list, _)| list.name.as_str())
        .collect();
    assert_eq!(names, ["a", "b"]);
    let found: Vec<String> = faults
        .iter()
        .map(|(path, reason)| format!("{}: {reason}", path.file_name().unwrap().display()))
        .collect();
    assert_eq!(found.len(), 3, "{found:?}");
    assert!(found[0].starts_with("30-c.json: invalid JSON"), "{found:?}");
    assert_eq!(
        found[1],
        "40-a.json: network \"a\" is in an earlier file too"
    );
    assert_eq!(found[2], "60-e.conf: larger than 65536 bytes");
    assert_eq!(missing, NetworkDir::default());
}
