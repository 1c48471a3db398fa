//! Rules about a line of Rust: patterns that may occur only in certain paths.

use super::finding::Finding;
use super::source::{SourceFile, is_word};

/// The pattern that a rule looks for.
#[derive(Clone, Copy, Debug)]
enum Pattern {
    /// A text outside comments, including strings.
    Text(&'static str),
    /// A path or word of the code, not part of a longer word.
    Word(&'static str),
    /// A use of the crate, `name::…` or `use name`, unless the file has a module of that name.
    Crate(&'static str),
    /// A call of a function of this name with a number as its first argument.
    BareNumber(&'static str),
}

/// A rule: its paths, its patterns, and the advice in its findings.
#[derive(Debug)]
struct Rule {
    name: &'static str,
    patterns: &'static [Pattern],
    /// The paths to which the rule applies. If it is empty, the rule applies to all.
    only: &'static [&'static str],
    /// The paths in which the patterns are allowed.
    rooms: &'static [&'static str],
    /// Whether the rule also applies to tests.
    tests: bool,
    advice: &'static str,
}

const CORES: &[&str] = &["control/core/src/", "agent/core/src/"];

/// Calls that open a file by its path and follow symbolic links.
const BY_PATH: &[Pattern] = &[
    Pattern::Word("File::create"),
    Pattern::Word("File::open"),
    Pattern::Word("File::options"),
    Pattern::Word("OpenOptions"),
    Pattern::Word("fs::copy"),
    Pattern::Word("fs::open"),
    Pattern::Word("fs::openat"),
    Pattern::Word("fs::read"),
    Pattern::Word("fs::read_dir"),
    Pattern::Word("fs::read_to_string"),
    Pattern::Word("fs::write"),
];

/// Paths of code that handles files written by tasks, or that writes files where tasks can write.
const TASK_PATHS: &[&str] = &[
    "agent/src/storage/disk/",
    "agent/src/storage/migrate/",
    "agent/src/storage/payload",
    "agent/src/storage/trash/",
    "driver-native/src/actions",
    "driver-native/src/exec",
    "driver-native/src/isolation/",
    "driver-native/src/porter",
    "driver-native/src/transfer",
];

const RULES: &[Rule] = &[
    Rule {
        name: "kernel-path",
        patterns: &[Pattern::Text("/sys/fs/cgroup")],
        only: &[],
        rooms: &[
            "agent/src/resources/cgroup",
            "agent/tests/vm",
            // This file describes the root that a task sees.
            "driver-native/src/isolation/view",
            "driver-native/tests/isolation/probe",
            // crun and runc look for cgroups at a fixed path.
            "perf/src/subject/task_start/oci",
            "xtask/src/vm",
            "xtask/src/tidy",
        ],
        tests: true,
        advice: "cgroup paths are known to agent/src/resources/cgroup alone: take the folder from there",
    },
    Rule {
        name: "aya-room",
        patterns: &[Pattern::Crate("aya")],
        only: &[],
        rooms: &["agent/src/bpf"],
        tests: true,
        advice: "aya types stay in agent/src/bpf: return a type of ours from there",
    },
    Rule {
        name: "openraft-room",
        patterns: &[Pattern::Crate("openraft")],
        only: &[],
        rooms: &[
            "control/src/raft",
            "control/tests/",
            "perf/src/subject/raft_commit",
        ],
        tests: true,
        advice: "openraft types stay in control/src/raft: return a type of ours from there",
    },
    Rule {
        name: "ring-room",
        patterns: &[Pattern::Crate("io_uring"), Pattern::Crate("tokio_uring")],
        only: &[],
        // The last two entries are test tasks that try to break this rule.
        rooms: &[
            "agent/src/ring",
            "perf/",
            "agent/tests/it/network_paths/tried.rs",
            "agent/tests/vm/network_paths.rs",
        ],
        tests: true,
        advice: "io_uring is driven from agent/src/ring: add what you need to its interface",
    },
    Rule {
        name: "task-open",
        patterns: &[
            Pattern::Word("openat2"),
            Pattern::Word("SYS_openat2"),
            Pattern::Word("ResolveFlags"),
        ],
        only: &[],
        rooms: &[
            "driver/src/beneath",
            // This file lists the allowed system calls by number.
            "driver-native/src/isolation/seccomp",
            // This test task tries forbidden calls.
            "driver-native/tests/isolation/probe",
        ],
        tests: true,
        advice: "what a task can put something else in the place of is opened by `muster_driver::beneath`: add what you need there",
    },
    Rule {
        name: "task-path",
        patterns: BY_PATH,
        only: TASK_PATHS,
        rooms: &[
            // These files handle namespaces, devices and the machine's own files, which no task can access.
            "driver-native/src/isolation/capabilities",
            "driver-native/src/isolation/mounts",
            "driver-native/src/isolation/template",
            "driver-native/src/isolation/view",
            // The operator names the certificates.
            "driver-native/src/transfer/http",
        ],
        tests: false,
        advice: "a task may have put a link there: open it beneath a directory, with `muster_driver::beneath` or the driver's `paths`",
    },
    Rule {
        name: "unsafe-room",
        patterns: &[Pattern::Word("unsafe")],
        only: &[],
        rooms: &[
            "agent/src/ring",
            "agent/src/sys",
            "agent/src/bpf",
            "agent/tests/vm/memory",
            "driver/src/mount",
            "driver-native/src/spawn",
            "driver-native/init/",
            "driver-native/porter/",
            "driver-native/tests/isolation/probe",
            "ebpf/",
            "perf/src/",
        ],
        tests: true,
        advice: "unsafe has its rooms: find a safe call in rustix or nix, or add one to agent/src/sys",
    },
    Rule {
        name: "pure-core",
        patterns: &[
            Pattern::Word("std::fs"),
            Pattern::Word("std::net"),
            Pattern::Word("std::process"),
            Pattern::Word("async"),
        ],
        only: CORES,
        rooms: &[],
        tests: false,
        advice: "a core does no I/O and waits for nothing: take the value as an argument, or return an effect",
    },
    Rule {
        name: "same-floats",
        patterns: &[Pattern::Word("powf")],
        only: CORES,
        rooms: &[],
        tests: true,
        advice: "powers come out differently from one C library or processor to the next, and plans with them: use libm",
    },
    Rule {
        name: "pure-nouns",
        patterns: &[
            Pattern::Word("std::fs"),
            Pattern::Word("std::process"),
            Pattern::Word("TcpStream"),
            Pattern::Word("TcpListener"),
            Pattern::Word("UdpSocket"),
            Pattern::Word("async"),
        ],
        only: &["domain/src/", "wire/src/", "control/sim/src/"],
        rooms: &["control/sim/src/main.rs"],
        tests: false,
        advice: "this crate does no I/O: let the shell (control, agent, cli) do it",
    },
    Rule {
        name: "client-command",
        patterns: &[
            Pattern::Crate("muster_agent"),
            Pattern::Crate("muster_control"),
            Pattern::Crate("muster_driver"),
            Pattern::Crate("muster_driver_native"),
        ],
        only: &["cli/src/"],
        rooms: &[
            "cli/src/doctor.rs",
            // The command reads the file of a snapshot while no server runs.
            "cli/src/operator/inspect.rs",
            "cli/src/serve.rs",
            "cli/src/serve/",
        ],
        tests: true,
        advice: "a client command knows wire and domain only: ask the server over HTTP",
    },
    Rule {
        name: "bare-bound",
        patterns: &[
            Pattern::BareNumber("channel"),
            Pattern::BareNumber("with_capacity"),
        ],
        only: &[],
        rooms: &[],
        tests: false,
        advice: "a bound has a name, a unit and a reason: make it a constant in limits.rs",
    },
];

/// Finds the violations of text rules in `file`.
pub(crate) fn check(file: &SourceFile) -> Vec<Finding> {
    if !file.is_rust() {
        return Vec::new();
    }
    let about =
        |rule: &&Rule| (rule.only.is_empty() || file.is_in(rule.only)) && !file.is_in(rule.rooms);
    RULES
        .iter()
        .filter(about)
        .flat_map(|rule| check_rule(file, rule))
        .collect()
}

fn check_rule(file: &SourceFile, rule: &Rule) -> Vec<Finding> {
    let mut findings = Vec::new();
    for pattern in rule.patterns {
        if let Pattern::Crate(name) = pattern
            && has_module(&file.code, name)
        {
            continue;
        }
        let view = if matches!(pattern, Pattern::Text(_)) {
            &file.uncommented
        } else {
            &file.code
        };
        for (index, line) in view.lines().enumerate() {
            let number = index + 1;
            let counts = rule.tests || number < file.tests_from;
            if counts && let Some(found) = find(line, *pattern) {
                findings.push(Finding {
                    path: file.path.clone(),
                    line: number,
                    rule: rule.name,
                    message: format!("`{found}`: {}", rule.advice),
                });
            }
        }
    }
    findings
}

/// Finds the first match of `pattern` in `line`.
fn find(line: &str, pattern: Pattern) -> Option<&str> {
    match pattern {
        Pattern::Text(text) => line.find(text).map(|at| &line[at..at + text.len()]),
        Pattern::Word(word) => words(line, word)
            .next()
            .map(|at| &line[at..at + word.len()]),
        Pattern::Crate(name) => words(line, name)
            .find(|at| is_crate_use(&line[..*at], &line[at + name.len()..]))
            .map(|at| &line[at..at + name.len()]),
        Pattern::BareNumber(name) => line.match_indices(name).find_map(|(at, _)| {
            // A watch channel holds one value and is not a queue.
            if line[..at].ends_with("watch::") {
                return None;
            }
            let end = first_argument(line, at + name.len())?;
            line[end..]
                .trim_start()
                .starts_with(|c: char| c.is_ascii_digit())
                .then_some(&line[at..end])
        }),
    }
}

/// Returns the positions of `word` in `line` where it is not part of a longer word.
fn words<'a>(line: &'a str, word: &'a str) -> impl Iterator<Item = usize> {
    line.match_indices(word)
        .map(|(at, _)| at)
        .filter(move |at| {
            !line[..*at].ends_with(is_word) && !line[at + word.len()..].starts_with(is_word)
        })
}

fn is_crate_use(before: &str, after: &str) -> bool {
    let before = before.trim_end();
    if before.ends_with("::") {
        // `::aya::…` names the crate as well, but `crate::x::aya` does not.
        return !before.trim_end_matches("::").ends_with(is_word) && after.starts_with("::");
    }
    after.starts_with("::") || before.ends_with("use") || before.ends_with("extern crate")
}

fn has_module(code: &str, name: &str) -> bool {
    words(code, name).any(|at| code[..at].trim_end().ends_with("mod"))
}

/// Returns the position of the first argument after a function's name: past `::<…>` and `(`.
fn first_argument(line: &str, name_end: usize) -> Option<usize> {
    let mut rest = &line[name_end..];
    if let Some(generics) = rest.strip_prefix("::<") {
        rest = &generics[generics.rfind(">(")? + 1..];
    }
    rest.strip_prefix('(')
        .map(|arguments| line.len() - arguments.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rules(path: &str, source: &str) -> Vec<(&'static str, usize)> {
        let file = SourceFile::new(path, source.as_bytes());
        check(&file)
            .into_iter()
            .map(|finding| (finding.rule, finding.line))
            .collect()
    }

    #[test]
    fn kernel_paths_stay_in_their_room() {
        let source = "//! x\nconst ROOT: &str = \"/sys/fs/cgroup\"; // not /sys/fs/cgroup\n// /sys/fs/cgroup\n";

        assert_eq!(rules("agent/src/logs.rs", source), [("kernel-path", 2)]);
        assert_eq!(rules("agent/src/resources/cgroup/memory.rs", source), []);
    }

    #[test]
    fn crates_are_distinguished_from_equally_named_modules() {
        assert_eq!(
            rules("agent/src/logs.rs", "use aya::Ebpf;\n"),
            [("aya-room", 1)]
        );
        assert_eq!(
            rules("agent/src/logs.rs", "fn f(x: &aya::Ebpf) {}\n"),
            [("aya-room", 1)]
        );
        assert_eq!(
            rules("agent/src/logs.rs", "use crate::aya::Ebpf;\nlet aya = 1;\n"),
            []
        );
        assert_eq!(
            rules(
                "agent/src/monitoring/fingerprint.rs",
                "mod io_uring;\nio_uring::probe();\n"
            ),
            []
        );
        assert_eq!(
            rules("control/src/http.rs", "use ::openraft::Raft;\n"),
            [("openraft-room", 1)]
        );
    }

    #[test]
    fn openat2_outside_beneath_module_is_flagged() {
        let source = "rustix::fs::openat2(&dir, name, flags, mode, ResolveFlags::BENEATH)?;\n";

        assert_eq!(
            rules("agent/src/node.rs", source),
            [("task-open", 1), ("task-open", 1)]
        );
        assert_eq!(rules("driver/src/beneath.rs", source), []);
        let by_number = "script.call(step, about, libc::SYS_openat2, args);\n";
        let view = "driver-native/src/isolation/view.rs";
        assert_eq!(rules(view, by_number), [("task-open", 1)]);
        let filter = "driver-native/src/isolation/seccomp.rs";
        assert_eq!(rules(filter, by_number), []);
    }

    #[test]
    fn task_files_opened_by_path_are_flagged() {
        let source = "let a = File::open(path)?;\nlet b = std::fs::read(path)?;\n\
                      let c = beneath::open(&dir, name, flags, Through::Dirs)?;\n\
                      let d = rustix::fs::open(path, flags, mode)?;\n";

        let found = [("task-path", 1), ("task-path", 2), ("task-path", 4)];
        let mut here = rules("agent/src/storage/migrate/pack.rs", source);
        here.sort_unstable();
        assert_eq!(here, found);
        assert_eq!(rules("agent/src/node.rs", source), []);
    }

    #[test]
    fn unsafe_in_words_and_strings_is_no_keyword() {
        let source = "#![expect(unsafe_code, reason = \"unsafe\")]\nunsafe { f() }\n";

        assert_eq!(
            rules("driver-native/src/lib.rs", source),
            [("unsafe-room", 2)]
        );
        assert_eq!(rules("driver-native/src/spawn.rs", source), []);
    }

    #[test]
    fn cores_may_read_files_in_their_tests_only() {
        let source = "use std::fs;\n\n#[cfg(test)]\nmod tests {\n    use std::fs;\n}\n";

        assert_eq!(rules("control/core/src/fsm.rs", source), [("pure-core", 1)]);
        assert_eq!(rules("control/core/src/fsm/tests.rs", source), []);
        assert_eq!(rules("control/src/fsm.rs", source), []);
    }

    #[test]
    fn cores_count_alike_everywhere() {
        let source = "let a = x.powf(y);\nlet b = libm::exp10(y);\n";

        assert_eq!(rules("control/core/src/a.rs", source), [("same-floats", 1)]);
        assert_eq!(rules("perf/src/a.rs", source), []);
    }

    #[test]
    fn bounds_have_names() {
        let source = "let a = channel(16);\nlet b = mpsc::channel::<Vec<u8>>(1);\n\
                      let c = oneshot::channel();\nlet d = Vec::with_capacity(QUEUE_MAX);\n";

        assert_eq!(
            rules("agent/src/node.rs", source),
            [("bare-bound", 1), ("bare-bound", 2)]
        );
    }

    #[test]
    fn client_commands_do_not_reach_into_the_agent() {
        let source = "use muster_agent::Node;\n";

        assert_eq!(rules("cli/src/job.rs", source), [("client-command", 1)]);
        assert_eq!(rules("cli/src/serve/agent.rs", source), []);
    }
}
