//! Files and their names. Relative names of files begin at the directory of the job file.

use std::borrow::Cow;
use std::io::Read as _;
use std::path::{Path, PathBuf};

use muster_wire::limits::JOB_FILE_BYTES_MAX;

use super::call::{Args, CallFault, Function, Outcome, Param, argument, function, text_answer};
use super::encoding::to_base64;
use crate::limits::{FILESET_DEPTH_MAX, FILESET_ENTRIES_MAX};
use crate::value::{Type, Value};

pub(super) const FUNCTIONS: &[Function] = &[
    function("abspath", &[Param::Text], abspath),
    function("basename", &[Param::Text], |args| {
        text_answer(base(args.text(0)?))
    }),
    function("dirname", &[Param::Text], |args| {
        let path = args.text(0)?;
        let end = path.rfind('/').map_or(0, |slash| slash + 1);
        text_answer(clean(&path[..end]))
    }),
    function("file", &[Param::Text], |args| {
        match String::from_utf8(contents(args)?) {
            Ok(text) => text_answer(text),
            Err(_) => Err(argument(0, "the file is not UTF-8 text: use filebase64")),
        }
    }),
    function("filebase64", &[Param::Text], |args| {
        text_answer(to_base64(&contents(args)?))
    }),
    function(
        "fileescaped",
        &[Param::Text],
        |args| match String::from_utf8(contents(args)?) {
            Ok(text) => text_answer(text.replace("${", "$${").replace("%{", "%%{")),
            Err(_) => Err(argument(0, "the file is not UTF-8 text: use filebase64")),
        },
    ),
    function("fileexists", &[Param::Text], |args| {
        let path = read_path_argument(args, 0)?;
        match std::fs::metadata(&path) {
            Ok(found) if found.is_file() => Ok(Value::Bool(true)),
            Ok(_) => Err(argument(
                0,
                format!("{} is not a regular file", path.display()),
            )),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(Value::Bool(false)),
            Err(error) => Err(argument(0, format!("{}: {error}", path.display()))),
        }
    }),
    function("fileset", &[Param::Text, Param::Text], fileset),
    function("pathexpand", &[Param::Text], |args| {
        text_answer(expanded(args.text(0)?)?)
    }),
];

/// Removes `.`, `..` and doubled slashes lexically, as Go's `filepath.Clean`.
fn clean(path: &str) -> String {
    let is_absolute = path.starts_with('/');
    let mut parts: Vec<&str> = Vec::new();
    for part in path.split('/') {
        match part {
            "" | "." => {}
            ".." => match parts.last() {
                Some(last) if *last != ".." => {
                    parts.pop();
                }
                Some(_) | None if is_absolute => {}
                Some(_) | None => parts.push(".."),
            },
            part => parts.push(part),
        }
    }
    let joined = parts.join("/");
    match (is_absolute, joined.is_empty()) {
        (true, _) => format!("/{joined}"),
        (false, true) => ".".to_owned(),
        (false, false) => joined,
    }
}

fn base(path: &str) -> &str {
    if path.is_empty() {
        return ".";
    }
    let path = path.trim_end_matches('/');
    if path.is_empty() {
        return "/";
    }
    path.rsplit('/').next().unwrap_or(path)
}

fn abspath(args: &Args<'_>) -> Outcome {
    let path = args.text(0)?;
    if path.starts_with('/') {
        return text_answer(clean(path));
    }
    let here = std::env::current_dir()
        .map_err(|error| argument(0, format!("the working directory: {error}")))?;
    text_answer(clean(&format!("{}/{path}", here.to_string_lossy())))
}

/// `path` with a leading `~` as the home directory.
fn expanded(path: &str) -> Result<Cow<'_, str>, CallFault> {
    let Some(rest) = path.strip_prefix('~') else {
        return Ok(Cow::Borrowed(path));
    };
    if !rest.is_empty() && !rest.starts_with('/') {
        return Err(argument(
            0,
            "only `~` alone or before a slash is a home directory",
        ));
    }
    match std::env::home_dir() {
        Some(home) if rest.is_empty() => Ok(Cow::Owned(home.to_string_lossy().into_owned())),
        Some(home) => Ok(Cow::Owned(clean(&format!(
            "{}{rest}",
            home.to_string_lossy()
        )))),
        None => Err(argument(0, "the home directory is unknown")),
    }
}

/// The path in argument `at`.
fn read_path_argument(args: &Args<'_>, at: usize) -> Result<PathBuf, CallFault> {
    Ok(args.dir.join(expanded(args.text(at)?)?.as_ref()))
}

fn contents(args: &Args<'_>) -> Result<Vec<u8>, CallFault> {
    let path = read_path_argument(args, 0)?;
    let failed = |reason: String| argument(0, format!("{}: {reason}", path.display()));
    let file = std::fs::File::open(&path).map_err(|error| failed(error.to_string()))?;
    let mut bytes = Vec::new();
    file.take(JOB_FILE_BYTES_MAX as u64 + 1)
        .read_to_end(&mut bytes)
        .map_err(|error| failed(error.to_string()))?;
    if bytes.len() > JOB_FILE_BYTES_MAX {
        return Err(failed(format!(
            "has more than {JOB_FILE_BYTES_MAX} bytes: put large data in an artifact"
        )));
    }
    Ok(bytes)
}

/// The regular files below a directory whose path matches a pattern.
fn fileset(args: &Args<'_>) -> Outcome {
    let dir = args.dir.join(args.text(0)?);
    let pattern = clean(args.text(1)?);
    let parts: Vec<Vec<char>> = pattern
        .split('/')
        .map(|part| part.chars().collect())
        .collect();
    let mut walk = GlobWalk {
        root: &dir,
        visited: 0,
        found: Vec::new(),
    };
    walk.enter(Path::new(""), &parts, 0)?;
    let found = walk.found.into_iter().map(Value::text).collect();
    Ok(Value::set(Type::Text, found))
}

struct GlobWalk<'a> {
    root: &'a Path,
    visited: usize,
    found: Vec<String>,
}

impl GlobWalk<'_> {
    /// Adds the files of the directory `below` that the rest of a pattern matches.
    fn enter(&mut self, below: &Path, parts: &[Vec<char>], depth: usize) -> Result<(), CallFault> {
        let Some((part, rest)) = parts.split_first() else {
            return Ok(());
        };
        if depth > FILESET_DEPTH_MAX {
            let message = format!("directories are nested deeper than {FILESET_DEPTH_MAX}");
            return Err(argument(0, message));
        }
        let is_any_depth = part.iter().collect::<String>() == "**";
        if is_any_depth && !rest.is_empty() {
            self.enter(below, rest, depth)?;
        }
        if part.iter().collect::<String>() == ".." {
            return self.enter(&below.join(".."), rest, depth + 1);
        }
        let Ok(entries) = std::fs::read_dir(self.root.join(below)) else {
            return Ok(());
        };
        for entry in entries.flatten() {
            self.visited += 1;
            if self.visited > FILESET_ENTRIES_MAX {
                let message = format!("more than {FILESET_ENTRIES_MAX} files");
                return Err(argument(0, message));
            }
            let name = entry.file_name();
            let Some(name) = name.to_str() else {
                continue;
            };
            let path = below.join(name);
            let Ok(kind) = std::fs::metadata(self.root.join(&path)) else {
                continue;
            };
            let letters: Vec<char> = name.chars().collect();
            if is_any_depth {
                if kind.is_dir() {
                    self.enter(&path, parts, depth + 1)?;
                } else if rest.is_empty() && kind.is_file() {
                    self.found.push(path.to_string_lossy().into_owned());
                }
            } else if is_match(part, &letters) {
                if !rest.is_empty() && kind.is_dir() {
                    self.enter(&path, rest, depth + 1)?;
                } else if rest.is_empty() && kind.is_file() {
                    self.found.push(path.to_string_lossy().into_owned());
                }
            }
        }
        Ok(())
    }
}

/// Whether `name` matches `pattern` of `*`, `?`, `[a-z]`, `{a,b}` and escaped characters.
fn is_match(pattern: &[char], name: &[char]) -> bool {
    let Some((first, rest)) = pattern.split_first() else {
        return name.is_empty();
    };
    match first {
        '*' => (0..=name.len()).any(|skipped| is_match(rest, &name[skipped..])),
        '?' => name
            .split_first()
            .is_some_and(|(_, name)| is_match(rest, name)),
        '[' => match (rest.iter().position(|c| *c == ']'), name.split_first()) {
            (Some(end), Some((c, name))) => {
                is_in_class(&rest[..end], *c) && is_match(&rest[end + 1..], name)
            }
            (_, _) => false,
        },
        '{' => match rest.iter().position(|c| *c == '}') {
            Some(end) => rest[..end].split(|c| *c == ',').any(|choice| {
                let whole: Vec<char> = choice.iter().chain(&rest[end + 1..]).copied().collect();
                is_match(&whole, name)
            }),
            None => false,
        },
        '\\' => match (rest.split_first(), name.split_first()) {
            (Some((wanted, rest)), Some((c, name))) => wanted == c && is_match(rest, name),
            (_, _) => false,
        },
        wanted => name
            .split_first()
            .is_some_and(|(c, name)| wanted == c && is_match(rest, name)),
    }
}

fn is_in_class(class: &[char], c: char) -> bool {
    let (negated, class) = match class.split_first() {
        Some(('^' | '!', class)) => (true, class),
        _ => (false, class),
    };
    let mut rest = class;
    let mut found = false;
    while let Some((first, after)) = rest.split_first() {
        rest = after;
        match after {
            ['-', last, after @ ..] => {
                found |= (*first..=*last).contains(&c);
                rest = after;
            }
            _ => found |= *first == c,
        }
    }
    found != negated
}
