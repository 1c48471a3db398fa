//! The bytes of every kind of record, as in snapshots.
//!
//! A change here means that snapshots on disk can no longer be read: raise the version of the kind in
//! [`Record::KINDS`] and read the old bytes too. `MUSTER_BLESS=1` writes the file anew.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::PathBuf;

use super::*;

/// The first two records of each kind. The state has rows in every table, so there are records of every kind.
#[test]
fn records_keep_their_bytes() {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("testdata/snapshot.txt");
    let mut kinds: BTreeMap<usize, Vec<String>> = BTreeMap::new();
    let tag = Record::Cluster(ClusterTag::of_servers([1, 2, 3]));
    for mut record in records(&populated()).chain([tag]) {
        // A hash changes with the encoding of rows, which is independent of the header's.
        if let Record::Header(header) = &mut record {
            header.hash = StateHash {
                encoding: 1,
                nodes: 2,
                ..StateHash::default()
            };
        }
        let bytes = muster_wire::codec::encode(&record).unwrap();
        assert_eq!(usize::from(bytes[0]), record.kind());
        let of_kind = kinds.entry(record.kind()).or_default();
        if of_kind.len() < 2 {
            of_kind.push(bytes.iter().fold(String::new(), |mut text, byte| {
                write!(text, "{byte:02x}").unwrap();
                text
            }));
        }
    }
    let recorded = std::fs::read_to_string(&path).unwrap();
    let mut actual = String::new();
    for (kind, (name, version)) in Record::KINDS.iter().enumerate() {
        // Samples of older versions stay.
        for older in 1..*version {
            let prefix = format!("{} v{older} ", name.replace(' ', "_"));
            let samples = recorded.lines().filter(|line| line.starts_with(&prefix));
            samples.for_each(|line| writeln!(actual, "{line}").unwrap());
        }
        let of_kind = kinds
            .get(&kind)
            .unwrap_or_else(|| panic!("there are no {name}"));
        for bytes in of_kind {
            writeln!(actual, "{} v{version} {bytes}", name.replace(' ', "_")).unwrap();
        }
    }

    if std::env::vars_os().any(|(key, _)| key == "MUSTER_BLESS") {
        std::fs::write(&path, &actual).unwrap();
    }
    let expected = std::fs::read_to_string(&path).unwrap();

    assert_eq!(actual, expected);
}
