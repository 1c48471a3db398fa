//! `cargo xtask build-ebpf`: compiles `ebpf/programs` into the object that the agent loads.
//!
//! The programs need `core` built for the eBPF target, which the workspace's own toolchain cannot do. A rustup
//! nightly with `rust-src` can. Without one, Debian's `rustc-web` with `rust-web-src` can, if unstable features are
//! allowed. Both link with bpf-linker. The build uses a separate folder, so that it and the workspace's builds do not
//! invalidate each other.

use std::{
    fs, io,
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, bail};

use crate::shell;

/// The target's name. It is little-endian, like every machine that Muster supports.
const TARGET: &str = "bpfel-unknown-none";

/// The package and its program.
const PACKAGE: &str = "muster-ebpf-programs";
const PROGRAM: &str = "muster-ebpf";

/// The newest LLVM whose code the bpf-linker of `setup` can read.
pub(crate) const LLVM_MAJOR: u32 = 22;

/// The oldest compiler that builds the programs: `rust-version` of the workspace.
const RUSTC_MIN: (u32, u32) = (1, 95);

/// The path of Debian's compiler.
const DEBIAN_RUSTC: &str = "/usr/bin/rustc";
const DEBIAN_CARGO: &str = "/usr/bin/cargo";

/// Bytes 18 and 19 of an object for eBPF, `EM_BPF` of the ELF format.
const EM_BPF: [u8; 2] = [247, 0];

/// A compiler that can build `core` for the eBPF target.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Compiler {
    /// A rustup toolchain with this name.
    Rustup(String),
    /// Debian's `rustc-web` and `cargo-web`.
    Debian,
}

/// Builds the object and returns its path. It is fast when nothing has changed.
///
/// # Errors
///
/// When the compiler or the linker is missing, or the programs do not compile.
pub(crate) fn build() -> anyhow::Result<PathBuf> {
    let compiler = compiler().context(
        "no compiler that can build eBPF programs: run `cargo xtask setup`, or \
         `rustup toolchain install nightly --component rust-src`",
    )?;
    let linker = linker().context("bpf-linker not found: run `cargo xtask setup`")?;
    let build_dir = shell::target_dir().join("ebpf-build");
    shell::run(&mut command(&compiler, &linker, &build_dir))?;

    let built = build_dir.join(TARGET).join("release").join(PROGRAM);
    let object = object();
    install(&built, &object)?;
    Ok(object)
}

/// Returns the path of the object. A program in the target folder looks for the object there.
pub(crate) fn object() -> PathBuf {
    shell::target_dir().join("ebpf").join("muster-ebpf.o")
}

/// Returns the compiler to use, if there is one.
pub(crate) fn compiler() -> Option<Compiler> {
    rustup_nightly()
        .map(Compiler::Rustup)
        .or_else(|| debian_works().then_some(Compiler::Debian))
}

/// Returns the path of bpf-linker if it is installed and starts. It needs the LLVM with which it was built.
pub(crate) fn linker() -> Option<PathBuf> {
    let in_cargo_home = cargo_home().map(|home| home.join("bin/bpf-linker"));
    shell::find_program("bpf-linker")
        .into_iter()
        .chain(in_cargo_home)
        .find(|path| shell::capture(Command::new(path).arg("--version")).is_ok())
}

fn cargo_home() -> Option<PathBuf> {
    std::env::var_os("CARGO_HOME")
        .map(PathBuf::from)
        .or_else(|| {
            let home = std::env::var_os("HOME")?;
            Some(Path::new(&home).join(".cargo"))
        })
}

/// Returns the command that compiles the programs.
fn command(compiler: &Compiler, linker: &Path, build_dir: &Path) -> Command {
    let mut command = match compiler {
        Compiler::Rustup(toolchain) => {
            let mut command = Command::new("rustup");
            command.args(["run", toolchain, "cargo"]);
            command
        }
        Compiler::Debian => {
            let mut command = Command::new(DEBIAN_CARGO);
            command
                .env("RUSTC", DEBIAN_RUSTC)
                .env("RUSTC_BOOTSTRAP", "1");
            command
        }
    };
    command
        .args([
            "build",
            "--quiet",
            "--release",
            "--locked",
            "--package",
            PACKAGE,
        ])
        .args(["--target", TARGET, "-Z", "build-std=core", "--target-dir"])
        .arg(build_dir)
        .current_dir(shell::root())
        .env(
            "RUSTFLAGS",
            format!(
                "-Cdebuginfo=2 -Clink-arg=--btf -Clinker={}",
                linker.display()
            ),
        );
    // The variables that `cargo run` and rustup set for their children describe the other compiler.
    let foreign = [
        "CARGO",
        "CARGO_ENCODED_RUSTFLAGS",
        "CARGO_TARGET_DIR",
        "LD_LIBRARY_PATH",
        "RUSTC_WORKSPACE_WRAPPER",
        "RUSTC_WRAPPER",
        "RUSTDOC",
        "RUSTUP_TOOLCHAIN",
    ];
    for name in foreign {
        command.env_remove(name);
    }
    if matches!(compiler, Compiler::Rustup(_)) {
        command.env_remove("RUSTC").env_remove("RUSTC_BOOTSTRAP");
    }
    command
}

/// Returns the first rustup nightly that has the sources of `core` and an LLVM that the linker can read.
fn rustup_nightly() -> Option<String> {
    let list = shell::capture(Command::new("rustup").args(["toolchain", "list"])).ok()?;
    nightlies(&list)
        .into_iter()
        .find(|toolchain| {
            let rustc = |arguments: &[&str]| {
                let mut command = Command::new("rustup");
                command.args(["run", toolchain, "rustc"]).args(arguments);
                shell::capture(&mut command).ok()
            };
            rustc(&["--print", "sysroot"]).is_some_and(|root| has_core(Path::new(root.trim())))
                && rustc(&["-vV"]).is_some_and(|version| is_usable(&version))
        })
        .map(str::to_owned)
}

/// Returns the nightlies in the output of `rustup toolchain list`.
fn nightlies(list: &str) -> Vec<&str> {
    list.lines()
        .filter_map(|line| line.split_whitespace().next())
        .filter(|name| name.starts_with("nightly"))
        .collect()
}

/// Whether Debian's compiler is installed with sources and is new enough.
fn debian_works() -> bool {
    let rustc = |arguments: &[&str]| {
        let mut command = Command::new(DEBIAN_RUSTC);
        command.args(arguments).env_remove("LD_LIBRARY_PATH");
        shell::capture(&mut command).ok()
    };
    Path::new(DEBIAN_CARGO).is_file()
        && rustc(&["-vV"]).is_some_and(|version| is_usable(&version))
        && rustc(&["--print", "sysroot"]).is_some_and(|root| has_core(Path::new(root.trim())))
}

/// Whether the toolchain at `sysroot` has the sources that `-Z build-std` compiles.
fn has_core(sysroot: &Path) -> bool {
    let library = sysroot.join("lib/rustlib/src/rust/library");
    library.join("core/src/lib.rs").is_file() && library.join("Cargo.lock").is_file()
}

/// Whether a compiler is new enough for the programs and not too new for the linker, according to the output of
/// `rustc -vV`.
fn is_usable(version: &str) -> bool {
    let value = |name| {
        let text = version.lines().find_map(|line| line.strip_prefix(name))?;
        let mut numbers = text.trim().split(['.', '-']).map(str::parse::<u32>);
        Some((numbers.next()?.ok()?, numbers.next()?.ok()?))
    };
    let release = value("release:");
    let llvm = value("LLVM version:");
    release.is_some_and(|release| release >= RUSTC_MIN)
        && llvm.is_some_and(|(major, _)| major <= LLVM_MAJOR)
}

/// Copies the object to its place if it differs. The copy is atomic, because an agent may read the object meanwhile.
fn install(built: &Path, object: &Path) -> anyhow::Result<()> {
    let bytes = fs::read(built).with_context(|| format!("cannot read {}", built.display()))?;
    if !bytes.starts_with(b"\x7fELF") || bytes.get(18..20) != Some(EM_BPF.as_slice()) {
        bail!("{} is not an eBPF object", built.display());
    }
    match fs::read(object) {
        Ok(old) if old == bytes => return allow_only_owner(object),
        Ok(_) => {}
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => {
            return Err(error).with_context(|| format!("cannot read {}", object.display()));
        }
    }
    if let Some(directory) = object.parent() {
        fs::create_dir_all(directory)
            .with_context(|| format!("cannot make {}", directory.display()))?;
    }
    let scratch = object.with_extension(format!("o.{}", std::process::id()));
    fs::write(&scratch, bytes).with_context(|| format!("cannot write {}", scratch.display()))?;
    allow_only_owner(&scratch)?;
    fs::rename(&scratch, object).with_context(|| format!("cannot write {}", object.display()))
}

/// Removes write permission from everyone except the owner. The agent refuses an object that others may write.
fn allow_only_owner(path: &Path) -> anyhow::Result<()> {
    fs::set_permissions(path, fs::Permissions::from_mode(0o644))
        .with_context(|| format!("cannot set the mode of {}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nightlies_are_found_in_the_list() {
        let list = "stable-x86_64-unknown-linux-gnu (default)\n\
                    nightly-2026-05-20-x86_64-unknown-linux-gnu\n\
                    nightly-x86_64-unknown-linux-gnu (override)\n";

        assert_eq!(
            nightlies(list),
            [
                "nightly-2026-05-20-x86_64-unknown-linux-gnu",
                "nightly-x86_64-unknown-linux-gnu"
            ]
        );
    }

    #[test]
    fn incompatible_compiler_versions_are_skipped() {
        let version = |release: &str, llvm: &str| {
            is_usable(&format!(
                "rustc x\nrelease: {release}\nLLVM version: {llvm}\n"
            ))
        };

        assert!(version("1.96.0", "22.1.8"));
        assert!(version("1.97.0-nightly", "22.1.2"));
        assert!(
            !version("1.85.0", "19.1.7"),
            "older than the workspace asks for"
        );
        assert!(
            !version("1.99.0-nightly", "23.1.0"),
            "newer than the linker reads"
        );
        assert!(!is_usable("rustc 1.96.0"));
    }

    #[test]
    fn unchanged_ebpf_object_is_not_rewritten() {
        let dir = std::env::temp_dir().join(format!("muster-xtask-ebpf-{}", std::process::id()));
        let (built, object) = (dir.join("built"), dir.join("ebpf/object.o"));
        fs::create_dir_all(&dir).unwrap();
        let mut bytes = b"\x7fELF".to_vec();
        bytes.extend([0; 14]);
        bytes.extend(EM_BPF);
        fs::write(&built, &bytes).unwrap();
        let modified = || fs::metadata(&object).unwrap().modified().unwrap();

        install(&built, &object).unwrap();
        let first = modified();
        install(&built, &object).unwrap();

        assert_eq!(modified(), first);
        let mode = fs::metadata(&object).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o644);
        fs::write(&built, b"text").unwrap();
        assert!(install(&built, &object).is_err());
        fs::remove_dir_all(&dir).unwrap();
    }
}
