//! The guest's file system: busybox and a few more programs, our binaries, the libraries they need, modules, a
//! command.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::{BufWriter, IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, bail};

use super::cpio::Archive;
use super::kernel::{Kernel, MODULES};
use crate::ebpf;
use crate::isolation_audits;
use crate::shell;
use crate::shell::artifact::Artifact;

const INIT: &str = include_str!("init.sh");

/// The path of the eBPF object in the guest. `init.sh` passes it to all programs.
const OBJECT: &str = "usr/lib/muster/muster-ebpf.o";

/// Empty folders: mount points of the first process, and folders that programs expect.
const DIRECTORIES: [&str; 12] = [
    "bin", "dev", "etc", "mnt", "proc", "root", "run", "sys", "tmp", "tests", "usr/bin", "var/tmp",
];

/// Programs of this machine that tests of file systems, limits and networks start. Tests without their program report
/// that they cannot run. A program replaces busybox's program of the same name.
const PROGRAMS: [&str; 4] = ["mkfs.ext4", "chattr", "stress-ng", "ip"];

/// The test that uses the external audit tools, and the included tools. The third tool's engine needs Python, which
/// the guest lacks.
const AUDIT_TEST: &str = "isolation";
const AUDIT_TOOLS: [&str; 3] = ["runtimetest", "procenv", "cepheus-enum.sh"];

/// Small files in `/etc`. `nobody` is the user to which tests drop their privileges.
const ETC: [(&str, &str); 4] = [
    (
        "passwd",
        "root:x:0:0:root:/root:/bin/sh\nnobody:x:65534:65534:nobody:/:/bin/sh\n",
    ),
    ("group", "root:x:0:\nnogroup:x:65534:\n"),
    ("hosts", "127.0.0.1 localhost guest\n::1 localhost\n"),
    ("resolv.conf", ""),
];

/// Writes the archive to `path`. The guest reads from its console only if this command has a terminal, and never
/// while it runs tests.
pub(crate) fn write(
    path: &Path,
    kernel: &Kernel,
    binaries: &[Artifact],
    command: &str,
    runs_tests: bool,
) -> anyhow::Result<()> {
    let file = File::create(path).with_context(|| format!("cannot make {}", path.display()))?;
    let mut tree = Tree {
        archive: Archive::new(BufWriter::new(file)),
        directories: BTreeSet::new(),
    };
    for directory in DIRECTORIES {
        tree.directory(directory)?;
    }
    for (name, content) in ETC {
        tree.file(&format!("etc/{name}"), 0o644, content.as_bytes())?;
    }
    tree.file("init", 0o755, INIT.as_bytes())?;
    tree.file("command", 0o644, command.as_bytes())?;
    if !runs_tests && std::io::stdin().is_terminal() {
        tree.file("interactive", 0o644, &[])?;
    }
    tree.program("bin/busybox", &busybox()?)?;

    let stripped = path.with_extension("stripped");
    let mut libraries = BTreeSet::new();
    for artifact in binaries {
        libraries.extend(shared_libraries(&artifact.executable)?);
        let source = strip(&artifact.executable, &stripped);
        tree.program(guest_path(artifact).trim_start_matches('/'), &source)?;
    }
    let object = ebpf::object();
    if object.is_file() {
        let content =
            std::fs::read(&object).with_context(|| format!("cannot read {}", object.display()))?;
        tree.file(OBJECT, 0o644, &content)?;
    }
    for name in PROGRAMS {
        if let Some(program) = shell::find_program(name) {
            libraries.extend(shared_libraries(&program)?);
            tree.program(&format!("bin/{name}"), &program)?;
        }
    }
    if binaries
        .iter()
        .any(|artifact| artifact.target == AUDIT_TEST)
        && isolation_audits::is_built()
    {
        for name in AUDIT_TOOLS {
            let tool = isolation_audits::folder().join(name);
            libraries.extend(shared_libraries(&tool)?);
            tree.program(&format!("judges/{name}"), &tool)?;
        }
    }
    for (number, module) in MODULES.iter().enumerate() {
        let name = module.rsplit('/').next().unwrap_or(module);
        let found = kernel.modules.join(name);
        if found.is_file() {
            tree.program(&format!("modules/{number}-{name}"), &found)?;
        }
    }
    for library in libraries {
        tree.program(library.to_string_lossy().trim_start_matches('/'), &library)?;
    }
    tree.archive
        .finish()
        .with_context(|| format!("cannot write {}", path.display()))
}

/// Returns the path of `artifact` in the guest.
pub(crate) fn guest_path(artifact: &Artifact) -> String {
    if artifact.is_test {
        format!("/tests/{}/{}", artifact.package, artifact.target)
    } else {
        format!("/usr/bin/{}", artifact.target)
    }
}

/// An archive that creates missing parent folders.
struct Tree<W> {
    archive: Archive<W>,
    directories: BTreeSet<String>,
}

impl<W: Write> Tree<W> {
    fn directory(&mut self, path: &str) -> anyhow::Result<()> {
        let ends = path
            .match_indices('/')
            .map(|(at, _)| at)
            .chain([path.len()]);
        for end in ends {
            let directory = &path[..end];
            if self.directories.insert(directory.to_owned()) {
                self.archive.directory(directory, 0o755)?;
            }
        }
        Ok(())
    }

    fn file(&mut self, path: &str, mode: u32, content: &[u8]) -> anyhow::Result<()> {
        if let Some((directory, _)) = path.rsplit_once('/') {
            self.directory(directory)?;
        }
        self.archive
            .file(path, mode, content)
            .with_context(|| format!("cannot add {path}"))
    }

    fn program(&mut self, path: &str, source: &Path) -> anyhow::Result<()> {
        let content =
            std::fs::read(source).with_context(|| format!("cannot read {}", source.display()))?;
        self.file(path, 0o755, &content)
    }
}

/// Returns the busybox of this machine if the guest can run it: it must be statically linked.
fn busybox() -> anyhow::Result<PathBuf> {
    let path =
        shell::find_program("busybox").context("busybox not found; run: cargo xtask setup")?;
    if !shared_libraries(&path)?.is_empty() {
        bail!(
            "{} needs shared libraries; install the package busybox-static",
            path.display()
        );
    }
    Ok(path)
}

/// Returns the libraries of `program` and the loader, by their paths on this machine.
fn shared_libraries(program: &Path) -> anyhow::Result<BTreeSet<PathBuf>> {
    let output = Command::new("ldd")
        .arg(program)
        .output()
        .context("cannot start ldd")?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    if !output.status.success() {
        let complaint = String::from_utf8_lossy(&output.stderr).into_owned() + &text;
        if complaint.contains("not a dynamic executable") {
            return Ok(BTreeSet::new());
        }
        bail!(
            "ldd {} ended with {}: {}",
            program.display(),
            output.status,
            complaint.trim()
        );
    }
    parse_ldd(&text)
}

/// Parses `name => path (address)` and `path (address)`. A library that the kernel provides has no path.
fn parse_ldd(text: &str) -> anyhow::Result<BTreeSet<PathBuf>> {
    let mut libraries = BTreeSet::new();
    for line in text.lines() {
        if line.contains("=> not found") {
            bail!(
                "a shared library is missing on this machine: {}",
                line.trim()
            );
        }
        let path = line.split_once("=>").map_or(line, |(_, path)| path);
        let path = path.split(" (").next().unwrap_or_default().trim();
        if path.starts_with('/') {
            libraries.insert(PathBuf::from(path));
        }
    }
    Ok(libraries)
}

/// Copies `program` without debug information, which is most of a debug build. The names in a backtrace stay. If this
/// machine has no `strip`, returns the program itself.
fn strip(program: &Path, copy: &Path) -> PathBuf {
    let status = Command::new("strip")
        .arg("--strip-debug")
        .arg("-o")
        .arg(copy)
        .arg(program)
        .status();
    match status {
        Ok(status) if status.success() => copy.to_path_buf(),
        _ => program.to_path_buf(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn libraries_and_loader_are_found() {
        let text = "\tlinux-vdso.so.1 (0x00007ffd)\n\
                    \tlibc.so.6 => /lib/x86_64-linux-gnu/libc.so.6 (0x00007f01)\n\
                    \t/lib64/ld-linux-x86-64.so.2 (0x00007f02)\n";

        let libraries = parse_ldd(text).unwrap();

        let expected = [
            "/lib/x86_64-linux-gnu/libc.so.6",
            "/lib64/ld-linux-x86-64.so.2",
        ];
        assert_eq!(libraries, expected.map(PathBuf::from).into());
    }

    #[test]
    fn missing_library_is_an_error() {
        assert!(parse_ldd("\tlibz.so.1 => not found\n").is_err());
    }

    #[test]
    fn first_process_names_the_object() {
        assert!(INIT.contains(&format!("MUSTER_EBPF_OBJECT=/{OBJECT}\n")));
    }

    #[test]
    fn folders_on_the_way_are_made_once() {
        let mut bytes = Vec::new();
        let mut tree = Tree {
            archive: Archive::new(&mut bytes),
            directories: BTreeSet::new(),
        };

        tree.file("a/b/one", 0o644, b"").unwrap();
        tree.file("a/b/two", 0o644, b"").unwrap();

        assert_eq!(tree.directories, ["a", "a/b"].map(String::from).into());
    }
}
