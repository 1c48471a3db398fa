//! The rule about imports: files of a crate must not import each other in a large circle.
//!
//! A file imports another by a path in `use` or in code. A parent that names an item of its child imports it, and so
//! does a child that names an item of its parent. Items of a crate's root, and tests, do not count.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use super::finding::Finding;
use super::source::{SourceFile, is_word};

/// The most files that may import each other in a circle.
const CIRCLE_FILES_MAX: usize = 6;

/// The names of a module's path from the crate's root.
type ModulePath = Vec<String>;

/// Finds circles of more than [`CIRCLE_FILES_MAX`] files.
pub(crate) fn check(files: &[SourceFile]) -> Vec<Finding> {
    let roots: BTreeSet<&str> = files.iter().filter_map(|file| root(&file.path)).collect();
    let findings = roots.into_iter().flat_map(|root| check_crate(root, files));
    findings.collect()
}

/// Returns the folder of the crate's modules, or `None` if the file is not in one.
fn root(path: &str) -> Option<&str> {
    const SRC: &str = "/src/";
    let at = path.find(SRC)?;
    Some(&path[..at + SRC.len()])
}

fn check_crate(root: &str, files: &[SourceFile]) -> Vec<Finding> {
    let modules: BTreeMap<ModulePath, &SourceFile> = files
        .iter()
        .filter(|file| file.is_rust())
        .filter_map(|file| Some((module_path(file.path.strip_prefix(root)?)?, file)))
        .collect();
    let imports: BTreeMap<&ModulePath, BTreeSet<&ModulePath>> = modules
        .iter()
        .filter(|(_, file)| !is_test(file))
        .map(|(module, file)| (module, imports(module, file, &modules)))
        .collect();
    let mut findings = Vec::new();
    for circle in circles(&imports) {
        if circle.len() <= CIRCLE_FILES_MAX {
            continue;
        }
        let paths: Vec<&str> = circle
            .iter()
            .map(|module| modules[*module].path.as_str())
            .collect();
        let message = format!(
            "{} files import each other in a circle: {}: move the items that they share into a file of their own, so that at most {CIRCLE_FILES_MAX} are left",
            paths.len(),
            paths.join(", ")
        );
        findings.push(Finding {
            path: paths[0].to_owned(),
            line: 0,
            rule: "import-circle",
            message,
        });
    }
    findings
}

fn is_test(file: &SourceFile) -> bool {
    file.tests_from == 1
}

/// Returns the module of a file in `src`. `None` is the root.
fn module_path(path: &str) -> Option<ModulePath> {
    match path.strip_suffix(".rs")? {
        "lib" | "main" => None,
        path => Some(path.split('/').map(str::to_owned).collect()),
    }
}

/// Returns the other modules whose items `module` names.
fn imports<'a>(
    module: &ModulePath,
    file: &SourceFile,
    modules: &'a BTreeMap<ModulePath, &SourceFile>,
) -> BTreeSet<&'a ModulePath> {
    let mut imported = BTreeSet::new();
    for path in paths(file) {
        let Some(mut named) = absolute(module, &path, modules) else {
            continue;
        };
        // The last names of the path are items, not modules.
        while !named.is_empty() {
            if let Some((found, file)) = modules.get_key_value(&named) {
                if found != module && !is_test(file) {
                    imported.insert(found);
                }
                break;
            }
            named.pop();
        }
    }
    imported
}

/// Resolves `path`, as written in `module`, from the crate's root. Returns `None` if it is a local path or belongs to
/// another crate.
fn absolute(
    module: &ModulePath,
    path: &[String],
    modules: &BTreeMap<ModulePath, &SourceFile>,
) -> Option<ModulePath> {
    let mut base = module.clone();
    let mut rest = path;
    match rest.first()?.as_str() {
        "crate" => {
            base.clear();
            rest = &rest[1..];
        }
        "self" => rest = &rest[1..],
        "super" => {
            while rest.first().is_some_and(|name| name == "super") {
                base.pop()?;
                rest = &rest[1..];
            }
        }
        child => {
            let mut full = base.clone();
            full.push(child.to_owned());
            modules.get(&full)?;
        }
    }
    base.extend_from_slice(rest);
    Some(base)
}

/// Returns all paths in a file before its tests. A `use` of several items has several.
fn paths(file: &SourceFile) -> Vec<Vec<String>> {
    let lines = file.code.lines().take(file.tests_from - 1);
    let code: Vec<&str> = lines.collect();
    let tokens = tokens(&code.join("\n"));
    let mut found = Vec::new();
    let mut at = 0;
    while at < tokens.len() {
        if tokens[at] == "use" {
            at = use_tree(&tokens, at + 1, &[], &mut found);
            continue;
        }
        let begun = at;
        let path = path(&tokens, &mut at);
        if path.is_empty() {
            at += 1;
            continue;
        }
        let is_visibility = begun > 1 && tokens[begun - 1] == "in" && tokens[begun - 2] == "(";
        let is_inner = begun > 0 && tokens[begun - 1] == "::";
        if path.len() > 1 && !is_visibility && !is_inner {
            found.push(path);
        }
    }
    found
}

/// Returns the path that begins at `at`, and moves `at` behind it.
fn path(tokens: &[String], at: &mut usize) -> Vec<String> {
    let mut path = Vec::new();
    while let Some(token) = tokens.get(*at)
        && token.chars().all(is_word)
    {
        path.push(token.clone());
        *at += 1;
        let has_more = tokens.get(*at).is_some_and(|token| token == "::")
            && tokens
                .get(*at + 1)
                .is_some_and(|token| token.chars().all(is_word));
        if !has_more {
            break;
        }
        *at += 1;
    }
    path
}

/// Adds the paths of the `use` tree at `at`, which are below `prefix`. Returns the position behind the tree.
fn use_tree(
    tokens: &[String],
    at: usize,
    prefix: &[String],
    found: &mut Vec<Vec<String>>,
) -> usize {
    let mut at = at;
    // A path that begins with `::` belongs to another crate.
    let is_foreign = prefix.is_empty() && tokens.get(at).is_some_and(|token| token == "::");
    at += usize::from(is_foreign);
    let mut full = prefix.to_vec();
    full.extend(path(tokens, &mut at));
    at += usize::from(tokens.get(at).is_some_and(|token| token == "::"));
    if tokens.get(at).is_some_and(|token| token == "{") {
        at += 1;
        while at < tokens.len() && tokens[at] != "}" {
            at = use_tree(tokens, at, &full, found);
            at += usize::from(tokens.get(at).is_some_and(|token| token == ","));
        }
        return at + 1;
    }
    if !is_foreign {
        found.push(full);
    }
    // The remaining tokens are a new name after `as`, or a star.
    while at < tokens.len() && !matches!(tokens[at].as_str(), "," | "}" | ";") {
        at += 1;
    }
    at
}

/// Splits code into words, `::`, and other characters without blanks.
fn tokens(code: &str) -> Vec<String> {
    let mut tokens: Vec<String> = Vec::new();
    let mut is_in_word = false;
    for c in code.chars() {
        let is_part = is_word(c);
        match tokens.last_mut() {
            Some(last) if is_part && is_in_word => last.push(c),
            Some(last) if c == ':' && last == ":" => last.push(c),
            _ if c.is_whitespace() => {
                // A single colon is not followed by a second one.
                if tokens.last().is_some_and(|last| last == ":") {
                    tokens.push(" ".to_owned());
                }
            }
            _ => tokens.push(c.to_string()),
        }
        is_in_word = is_part;
    }
    tokens
}

/// Returns the sets of modules in which each module imports every other one, directly or through others.
fn circles<'a>(
    imports: &BTreeMap<&'a ModulePath, BTreeSet<&'a ModulePath>>,
) -> Vec<BTreeSet<&'a ModulePath>> {
    let reached: BTreeMap<&ModulePath, BTreeSet<&ModulePath>> = imports
        .keys()
        .map(|module| (*module, reached_from(module, imports)))
        .collect();
    let mut circles: Vec<BTreeSet<&ModulePath>> = Vec::new();
    for (module, others) in &reached {
        if !others.contains(module) || circles.iter().any(|circle| circle.contains(module)) {
            continue;
        }
        let both = others.iter().filter(|other| {
            reached
                .get(**other)
                .is_some_and(|back| back.contains(module))
        });
        circles.push(both.copied().collect());
    }
    circles
}

fn reached_from<'a>(
    module: &ModulePath,
    imports: &BTreeMap<&'a ModulePath, BTreeSet<&'a ModulePath>>,
) -> BTreeSet<&'a ModulePath> {
    let mut reached = BTreeSet::new();
    let mut waiting: VecDeque<&ModulePath> = VecDeque::from([module]);
    while let Some(next) = waiting.pop_front() {
        for other in imports.get(next).into_iter().flatten() {
            if reached.insert(*other) {
                waiting.push_back(other);
            }
        }
    }
    reached
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(path: &str, content: &str) -> SourceFile {
        SourceFile::new(path, content.as_bytes())
    }

    fn imported(path: &str, content: &str) -> Vec<String> {
        let names = ["a", "a/b", "a/b/c", "a/d", "a/tests", "e", "e/f"];
        let files: Vec<SourceFile> = names
            .iter()
            .map(|name| {
                let text = if *name == path { content } else { "" };
                file(&format!("{name}.rs"), text)
            })
            .collect();
        let modules: BTreeMap<ModulePath, &SourceFile> = files
            .iter()
            .filter_map(|file| Some((module_path(&file.path)?, file)))
            .collect();
        let module = module_path(&format!("{path}.rs")).unwrap();
        imports(&module, modules[&module], &modules)
            .into_iter()
            .map(|module| module.join("::"))
            .collect()
    }

    /// Returns the files of a crate in which each of `count` files imports the next, and the last one the first.
    fn ring(count: usize) -> Vec<SourceFile> {
        (0..count)
            .map(|at| {
                let next = (at + 1) % count;
                let text = format!("use crate::m{next}::Item;\n");
                file(&format!("cli/src/m{at}.rs"), &text)
            })
            .collect()
    }

    #[test]
    fn paths_in_use_and_code_are_imports() {
        assert_eq!(
            imported("e", "use crate::a::{b::{self, c::X}, d as y};"),
            ["a::b", "a::b::c", "a::d"]
        );
        assert_eq!(imported("a/b", "use super::{Item, d};"), ["a", "a::d"]);
        assert_eq!(imported("a/b/c", "use super::super::Item;"), ["a"]);
        assert_eq!(imported("e", "fn x() { crate::a::d::y(); }"), ["a::d"]);
        assert_eq!(imported("e", "pub use f::Item;"), ["e::f"]);
        assert_eq!(imported("e", "mod f;\nfn x() { f::y(); }"), ["e::f"]);
    }

    #[test]
    fn other_paths_are_no_imports() {
        for text in [
            "use std::a::X;",
            "use ::f::X;",
            "// crate::a::X\nconst X: &str = \"crate::a\";",
            "pub(in crate::a) fn x() {}",
            "use crate::ROOT;",
            "#[cfg(test)]\nuse crate::a::tests::X;",
            "use self::Own;",
            "#[cfg(test)]\nmod tests {\n    use crate::a::X;\n}\n",
        ] {
            assert_eq!(imported("e", text), Vec::<String>::new(), "{text}");
        }
    }

    #[test]
    fn circles_above_the_limit_are_found() {
        assert_eq!(check(&ring(CIRCLE_FILES_MAX)), []);

        let findings = check(&ring(CIRCLE_FILES_MAX + 1));

        assert_eq!(findings.len(), 1);
        assert_eq!(findings[0].path, "cli/src/m0.rs");
        for at in 0..=CIRCLE_FILES_MAX {
            let path = format!("cli/src/m{at}.rs");
            assert!(findings[0].message.contains(&path), "{findings:?}");
        }
    }

    #[test]
    fn imports_in_one_direction_are_allowed() {
        let mut files = ring(CIRCLE_FILES_MAX);
        files.push(file("cli/src/user.rs", "use crate::m0::Item;\n"));
        let used = "use crate::m1::Item;\nuse crate::used::Item;\n";
        files[0] = file("cli/src/m0.rs", used);
        files.push(file("cli/src/used.rs", ""));

        assert_eq!(check(&files), []);
    }

    #[test]
    fn each_crate_is_checked_by_itself() {
        let mut files = ring(CIRCLE_FILES_MAX + 1);
        let half = files.split_off(2);
        files.extend(half.into_iter().map(|of_cli| {
            let path = of_cli.path.replace("cli/", "agent/core/");
            file(&path, &of_cli.raw)
        }));

        assert_eq!(check(&files), []);
        assert_eq!(root("agent/core/src/a/b.rs"), Some("agent/core/src/"));
        assert_eq!(root("agent/tests/it.rs"), None);
    }

    #[test]
    fn parents_and_children_make_circles() {
        let children = 0..CIRCLE_FILES_MAX;
        let parent: Vec<String> = children
            .clone()
            .map(|at| format!("mod m{at};\nuse m{at}::X{at};\n"))
            .collect();
        let mut files: Vec<SourceFile> = children
            .map(|at| file(&format!("cli/src/top/m{at}.rs"), "use super::Item;\n"))
            .collect();
        files.push(file("cli/src/top.rs", &parent.concat()));

        assert_eq!(check(&files).len(), 1);
    }
}
