//! The rules of `deny.toml` for third-party crates that need no database: licences, sources, banned crates,
//! wildcards, and crates in more than one version.
//!
//! `cargo deny` reads the same file and also knows advisories. It takes minutes to build, and needs a network to be
//! useful. A setting that this module does not read is an error, so that no rule is without effect.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::Context;
use semver::{Version, VersionReq};
use serde::Deserialize;
use serde::de::IgnoredAny;
use spdx::{Expression, Licensee, ParseMode};

use super::Finding;
use crate::shell;

const RULES_PATH: &str = "deny.toml";
const RULE: &str = "third-party";
/// The crate registry, as cargo names it in its metadata.
const REGISTRY: &str = "registry+https://github.com/rust-lang/crates.io-index";

/// The contents of `deny.toml`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Rules {
    graph: GraphRules,
    /// Settings that only `cargo deny` reads.
    #[serde(rename = "advisories")]
    _advisories: IgnoredAny,
    bans: BanRules,
    #[serde(rename = "sources")]
    _sources: SourceRules,
    licenses: LicenceRules,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct GraphRules {
    targets: Vec<String>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
struct BanRules {
    multiple_versions: Deny,
    wildcards: Deny,
    allow_wildcard_paths: True,
    deny: Vec<BannedCrate>,
    skip: Vec<SkippedVersion>,
}

/// The only value that this module supports.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Deny {
    Deny,
}

/// The only value that this module supports.
#[derive(Debug, Deserialize)]
#[serde(try_from = "bool")]
struct True;

impl TryFrom<bool> for True {
    type Error = &'static str;

    fn try_from(value: bool) -> Result<Self, Self::Error> {
        value.then_some(Self).ok_or("use true")
    }
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct BannedCrate {
    name: String,
    /// The affected versions. A missing requirement matches all versions.
    #[serde(default)]
    version: VersionReq,
    reason: String,
}

/// A version that may exist together with another one.
#[derive(Debug, Deserialize)]
#[serde(try_from = "RawSkippedVersion")]
struct SkippedVersion {
    name: String,
    version: VersionReq,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct RawSkippedVersion {
    /// The crate and its version as `NAME@VERSION`.
    #[serde(rename = "crate")]
    spec: String,
    /// The reason, which is required and only for readers.
    #[serde(rename = "reason")]
    _reason: String,
}

impl TryFrom<RawSkippedVersion> for SkippedVersion {
    type Error = String;

    fn try_from(raw: RawSkippedVersion) -> Result<Self, Self::Error> {
        let spec = raw.spec;
        let (name, version) = spec
            .split_once('@')
            .ok_or_else(|| format!("`{spec}` names no version: use NAME@VERSION"))?;
        let version = VersionReq::parse(version)
            .map_err(|error| format!("invalid version in `{spec}`: {error}"))?;
        Ok(Self {
            name: name.to_owned(),
            version,
        })
    }
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct SourceRules {
    #[serde(rename = "unknown-registry")]
    _unknown_registry: Deny,
    #[serde(rename = "unknown-git")]
    _unknown_git: Deny,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct LicenceRules {
    #[serde(rename = "version")]
    _version: IgnoredAny,
    allow: Vec<Licence>,
    #[serde(default)]
    exceptions: Vec<LicenceException>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct LicenceException {
    allow: Vec<Licence>,
    #[serde(rename = "crate")]
    name: String,
}

/// A licence that is accepted.
#[derive(Debug, Deserialize)]
#[serde(try_from = "String")]
struct Licence(Licensee);

impl TryFrom<String> for Licence {
    type Error = String;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        Licensee::parse(&text)
            .map(Self)
            .map_err(|error| format!("unknown licence `{text}`: {}", error.reason))
    }
}

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
    version: Version,
    license: Option<String>,
    /// The source is `None` for a package of this workspace.
    source: Option<String>,
    dependencies: Vec<Dependency>,
}

#[derive(Debug, Deserialize)]
struct Dependency {
    name: String,
    req: VersionReq,
    /// The folder of a package of this workspace.
    path: Option<String>,
}

#[derive(Debug, Deserialize)]
struct Resolve {
    nodes: Vec<Node>,
}

#[derive(Debug, Deserialize)]
struct Node {
    id: String,
}

/// Reads `deny.toml`.
///
/// # Errors
///
/// When it cannot be read, or has a setting that is not supported.
pub(crate) fn rules() -> anyhow::Result<Rules> {
    let path = shell::root().join(RULES_PATH);
    let text = std::fs::read_to_string(&path).context("cannot read deny.toml")?;
    toml::from_str(&text).context("invalid deny.toml")
}

/// Reads from cargo the crates that are built on the targets of `rules`.
///
/// # Errors
///
/// When cargo fails, or its answer has another form.
pub(crate) fn metadata(rules: &Rules) -> anyhow::Result<Metadata> {
    let mut cargo = shell::cargo();
    cargo.args(["metadata", "--format-version", "1"]);
    for target in &rules.graph.targets {
        cargo.args(["--filter-platform", target]);
    }
    let text = shell::capture(&mut cargo)?;
    serde_json::from_str(&text).context("cannot understand cargo metadata")
}

/// Finds the crates that violate the rules, and the rules that match no crate.
pub(crate) fn check(rules: &Rules, metadata: &Metadata) -> Vec<Finding> {
    let used: BTreeSet<&str> = metadata
        .resolve
        .nodes
        .iter()
        .map(|node| node.id.as_str())
        .collect();
    let packages: Vec<&Package> = metadata
        .packages
        .iter()
        .filter(|package| used.contains(package.id.as_str()))
        .collect();
    let mut messages = Vec::new();
    for package in &packages {
        messages.extend(check_licence(&rules.licenses, package));
        messages.extend(check_source(package));
        messages.extend(check_bans(&rules.bans, package));
        messages.extend(check_wildcards(&rules.bans, package));
    }
    messages.extend(check_versions(&rules.bans, &packages));
    messages
        .into_iter()
        .map(|message| Finding {
            path: RULES_PATH.to_owned(),
            line: 0,
            rule: RULE,
            message,
        })
        .collect()
}

fn check_licence(rules: &LicenceRules, package: &Package) -> Option<String> {
    let Package {
        name,
        version,
        license,
        ..
    } = package;
    let Some(text) = license else {
        return Some(format!("{name} {version} names no licence"));
    };
    let expression = match Expression::parse_mode(text, ParseMode::LAX) {
        Ok(expression) => expression,
        Err(error) => {
            return Some(format!(
                "{name} {version}: cannot understand the licence `{text}`: {}",
                error.reason
            ));
        }
    };
    let exceptions = rules
        .exceptions
        .iter()
        .filter(|exception| exception.name == *name)
        .flat_map(|exception| &exception.allow);
    let allowed: Vec<&Licence> = rules.allow.iter().chain(exceptions).collect();
    let good = expression.evaluate(|asked| allowed.iter().any(|it| it.0.satisfies(asked)));
    (!good).then(|| format!("{name} {version} has the licence `{text}`, which is not allowed"))
}

fn check_source(package: &Package) -> Option<String> {
    let source = package.source.as_ref()?;
    (source != REGISTRY).then(|| {
        format!(
            "{} {} comes from {source}: use the crate registry",
            package.name, package.version
        )
    })
}

fn check_bans<'a>(
    rules: &'a BanRules,
    package: &'a Package,
) -> impl Iterator<Item = String> + use<'a> {
    let banned = rules
        .deny
        .iter()
        .filter(|ban| ban.name == package.name && ban.version.matches(&package.version));
    banned.map(|ban| {
        format!(
            "{} {} is banned: {}",
            package.name, package.version, ban.reason
        )
    })
}

fn check_wildcards<'a>(
    rules: &BanRules,
    package: &'a Package,
) -> impl Iterator<Item = String> + use<'a> {
    let (Deny::Deny, True) = (&rules.wildcards, &rules.allow_wildcard_paths);
    let of_ours = package.source.is_none();
    package
        .dependencies
        .iter()
        .filter(move |it| of_ours && it.path.is_none() && it.req == VersionReq::STAR)
        .map(|it| {
            format!(
                "{} takes any version of {}: name one",
                package.name, it.name
            )
        })
}

/// Checks that a crate has one version, unless all others are listed. A listed version that does not exist is an
/// error too.
fn check_versions(rules: &BanRules, packages: &[&Package]) -> Vec<String> {
    let Deny::Deny = rules.multiple_versions;
    let mut versions: BTreeMap<&str, BTreeSet<&Version>> = BTreeMap::new();
    for package in packages {
        versions
            .entry(&package.name)
            .or_default()
            .insert(&package.version);
    }
    let mut messages = Vec::new();
    for skip in &rules.skip {
        let all = versions.get(skip.name.as_str());
        let found = all.is_some_and(|all| {
            all.len() > 1 && all.iter().any(|version| skip.version.matches(version))
        });
        if !found {
            let SkippedVersion { name, version } = skip;
            messages.push(format!(
                "no second version `{name}@{version}`: remove it from `skip`"
            ));
        }
    }
    for (name, all) in versions {
        let is_skipped = |version: &Version| {
            let mut skips = rules.skip.iter();
            skips.any(|skip| skip.name == name && skip.version.matches(version))
        };
        let rest: Vec<String> = all
            .into_iter()
            .filter(|version| !is_skipped(version))
            .map(ToString::to_string)
            .collect();
        if rest.len() > 1 {
            messages.push(format!(
                "{name} has the versions {}: use one, or add all but one to `skip` with the reason",
                rest.join(" and ")
            ));
        }
    }
    messages
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const RULES: &str = r#"
        [graph]
        targets = ["x86_64-unknown-linux-gnu"]
        [advisories]
        yanked = "deny"
        [bans]
        multiple-versions = "deny"
        wildcards = "deny"
        allow-wildcard-paths = true
        deny = [{ name = "bad", version = "<2", reason = "it is bad" }]
        skip = [{ crate = "old@1", reason = "others need it" }]
        [sources]
        unknown-registry = "deny"
        unknown-git = "deny"
        [licenses]
        version = 2
        allow = ["Apache-2.0", "MIT"]
        exceptions = [{ allow = ["NCSA"], crate = "fuzzer" }]
    "#;

    /// Returns the findings about packages, each given as `NAME VERSION LICENCE`. The version 1.0.0 of `old` is
    /// allowed.
    fn check_packages(packages: &[&str]) -> Vec<String> {
        let both_old = ["old 1.0.0 MIT", "old 2.0.0 MIT"];
        let packages: Vec<_> = packages
            .iter()
            .chain(&both_old)
            .map(|package| {
                let mut words = package.splitn(3, ' ');
                let mut word = || words.next().unwrap();
                let (name, version, license) = (word(), word(), word());
                json!({"id": package, "name": name, "version": version, "license": license,
                       "source": REGISTRY, "dependencies": []})
            })
            .collect();
        check_json(&json!(packages))
    }

    fn check_json(packages: &serde_json::Value) -> Vec<String> {
        let ids = packages.as_array().unwrap().iter();
        let nodes: Vec<_> = ids.map(|package| json!({"id": package["id"]})).collect();
        let metadata = json!({"packages": packages, "resolve": {"nodes": nodes}});
        let metadata = serde_json::from_value(metadata).unwrap();
        let rules: Rules = toml::from_str(RULES).unwrap();
        check(&rules, &metadata)
            .into_iter()
            .map(|finding| finding.message)
            .collect()
    }

    #[test]
    fn licences_are_read_as_expressions() {
        let found = check_packages(&[
            "a 1.0.0 GPL-3.0-only OR MIT",
            "b 1.0.0 Apache-2.0/MIT",
            "c 1.0.0 MIT AND Unicode-3.0",
            "fuzzer 1.0.0 MIT AND NCSA",
            "d 1.0.0 MIT AND NCSA",
        ]);

        assert_eq!(
            found,
            [
                "c 1.0.0 has the licence `MIT AND Unicode-3.0`, which is not allowed",
                "d 1.0.0 has the licence `MIT AND NCSA`, which is not allowed",
            ]
        );
    }

    #[test]
    fn banned_versions_are_found() {
        let found = check_packages(&["bad 1.9.0 MIT"]);

        assert_eq!(found, ["bad 1.9.0 is banned: it is bad"]);
        assert_eq!(check_packages(&["bad 2.0.0 MIT"]), Vec::<String>::new());
    }

    #[test]
    fn second_version_must_be_listed() {
        let found = check_packages(&["new 1.0.0 MIT", "new 2.0.0 MIT"]);

        assert_eq!(
            found,
            [
                "new has the versions 1.0.0 and 2.0.0: use one, or add all but one to `skip` with the reason"
            ]
        );
    }

    #[test]
    fn listed_version_must_be_there() {
        let package = json!({"id": "old", "name": "old", "version": "1.0.0", "license": "MIT",
                             "source": REGISTRY, "dependencies": []});

        assert_eq!(
            check_json(&json!([package])),
            ["no second version `old@^1`: remove it from `skip`"]
        );
    }

    #[test]
    fn other_sources_and_wildcards_are_found() {
        let found = check_json(&json!([
            {"id": "a", "name": "old", "version": "1.0.0", "license": "MIT", "dependencies": [],
             "source": "git+https://example.com/old"},
            {"id": "b", "name": "old", "version": "2.0.0", "license": "MIT", "dependencies": [],
             "source": REGISTRY},
            {"id": "c", "name": "muster-a", "version": "1.0.0", "license": "MIT", "source": null,
             "dependencies": [{"name": "old", "req": "*", "path": null},
                              {"name": "muster-b", "req": "*", "path": "/b"}]},
        ]));

        assert_eq!(
            found,
            [
                "old 1.0.0 comes from git+https://example.com/old: use the crate registry",
                "muster-a takes any version of old: name one",
            ]
        );
    }

    #[test]
    fn setting_without_effect_is_refused() {
        let text = RULES.replace("wildcards = \"deny\"", "wildcards = \"warn\"");

        let error = toml::from_str::<Rules>(&text).unwrap_err();

        assert!(
            error.to_string().contains("unknown variant `warn`"),
            "{error}"
        );
    }
}
