//! The list of deliberate violations of rules. It may only shrink.
//!
//! An entry names a rule, a file and the number of violations. If the file has more violations, all of its findings
//! are shown. If it has fewer, the entry is stale, and the message contains the correct entry.

use std::path::Path;

use anyhow::Context;
use serde::Deserialize;

use super::finding::Finding;

/// The path of the list.
pub(crate) const PATH: &str = "xtask/tidy-exceptions.toml";

/// One entry of the list.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Exception {
    rule: String,
    path: String,
    count: usize,
    /// The reason for the exception, for human readers.
    #[serde(rename = "reason")]
    _reason: String,
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct List {
    #[serde(default)]
    exception: Vec<Exception>,
}

/// Reads the list.
///
/// # Errors
///
/// When the file cannot be read, or an entry lacks a field.
pub(crate) fn read(path: &Path) -> anyhow::Result<Vec<Exception>> {
    let text =
        std::fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
    let list: List =
        toml::from_str(&text).with_context(|| format!("cannot understand {}", path.display()))?;
    Ok(list.exception)
}

/// Returns the findings that no exception covers, and one finding for each exception that covers too many.
pub(crate) fn apply(list: &[Exception], findings: Vec<Finding>) -> Vec<Finding> {
    let is_of = |exception: &Exception, finding: &Finding| {
        exception.rule == finding.rule && exception.path == finding.path
    };
    let count_of = |exception: &Exception| {
        findings
            .iter()
            .filter(|finding| is_of(exception, finding))
            .count()
    };
    let stale: Vec<Finding> = list
        .iter()
        .filter(|exception| count_of(exception) < exception.count)
        .map(|exception| stale(exception, count_of(exception)))
        .collect();
    let covered = |finding: &Finding| {
        list.iter()
            .any(|exception| is_of(exception, finding) && count_of(exception) <= exception.count)
    };
    let uncovered = findings.iter().filter(|finding| !covered(finding)).cloned();
    uncovered.chain(stale).collect()
}

fn stale(exception: &Exception, count: usize) -> Finding {
    let Exception {
        rule,
        path,
        count: listed,
        ..
    } = exception;
    let advice = match count {
        0 => "remove the entry".to_owned(),
        count => format!("write count = {count}"),
    };
    let message =
        format!("`{rule}` in {path} is listed {listed} times and found {count}: {advice}");
    Finding {
        path: PATH.to_owned(),
        line: 0,
        rule: "stale-exception",
        message,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn exception(count: usize) -> Exception {
        Exception {
            rule: "header".into(),
            path: "a.rs".into(),
            count,
            _reason: "old".into(),
        }
    }

    fn findings(count: usize) -> Vec<Finding> {
        let finding = |line| Finding {
            path: "a.rs".into(),
            line,
            rule: "header",
            message: String::new(),
        };
        (1..=count).map(finding).collect()
    }

    #[test]
    fn listed_findings_pass() {
        assert_eq!(apply(&[exception(2)], findings(2)), []);
    }

    #[test]
    fn one_more_than_listed_shows_them_all() {
        assert_eq!(apply(&[exception(2)], findings(3)).len(), 3);
    }

    #[test]
    fn fewer_than_listed_is_stale() {
        let left = apply(&[exception(2)], findings(1));

        assert_eq!(left.len(), 1);
        assert!(left[0].message.ends_with("write count = 1"), "{left:?}");
    }

    #[test]
    fn entry_without_a_reason_is_refused() {
        let text = "[[exception]]\nrule = \"header\"\npath = \"a.rs\"\ncount = 1\n";

        assert!(toml::from_str::<List>(text).is_err());
    }
}
