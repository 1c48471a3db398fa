//! `cargo xtask dist`: builds the released program in `target/package`.
//!
//! - `muster`: one file with the eBPF object in it, without symbols
//! - `muster.debug`: its symbols and line tables. The program contains a link to this file. Debuggers and our own
//!   backtraces use the link to find it beside the program.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, bail, ensure};
use serde_json::Value;

use crate::{ebpf, shell, steps};

/// Builds the released program and its symbols.
///
/// # Errors
///
/// When a part cannot be built, or the program does not contain its eBPF object.
pub(crate) fn run() -> anyhow::Result<()> {
    let Some(objcopy) = shell::find_program("objcopy") else {
        bail!("objcopy not found: install the package binutils");
    };
    let object = steps::run("build the eBPF object", ebpf::build)?;
    let built = steps::run("build muster for packages", || build(&object))?;
    let folder = shell::target_dir().join("package");
    fs::create_dir_all(&folder).with_context(|| format!("cannot make {}", folder.display()))?;
    let (program, symbols) = (folder.join("muster"), folder.join("muster.debug"));
    split(&objcopy, &built, &program, &symbols)?;
    let hash = embedded_object(&program)?;

    println!("\neBPF object {hash} is embedded");
    for path in [&built, &program, &symbols] {
        println!("{:>8.1} MiB  {}", mebibytes(path)?, path.display());
    }
    println!(
        "ship {}; keep {} beside it or for yourself",
        program.display(),
        symbols.display()
    );
    Ok(())
}

/// Builds only the package of the command line, so that features for tests are off.
fn build(object: &Path) -> anyhow::Result<PathBuf> {
    let mut cargo = shell::cargo();
    cargo
        .args(["build", "--locked", "--profile", "dist"])
        .args(["--package", "muster-cli", "--bin", "muster"])
        .env("MUSTER_EBPF_EMBED", object);
    shell::run(&mut cargo)?;
    Ok(shell::target_dir().join("dist/muster"))
}

/// Copies `built` to `program` without symbols, and its symbols to `symbols`.
fn split(objcopy: &Path, built: &Path, program: &Path, symbols: &Path) -> anyhow::Result<()> {
    let folder = symbols.parent().context("the symbols have no folder")?;
    let name = symbols.file_name().context("the symbols have no name")?;
    let mut keep = Command::new(objcopy);
    // The backtrace reader of Rust's standard library supports zlib.
    keep.args(["--only-keep-debug", "--compress-debug-sections=zlib"]);
    shell::run(keep.arg(built).arg(symbols))?;
    let mut strip = Command::new(objcopy);
    strip
        .arg("--strip-all")
        .arg("--add-gnu-debuglink")
        .arg(name);
    // objcopy reads the symbols to store their checksum in the link.
    shell::run(strip.arg(built).arg(program).current_dir(folder))
}

/// Returns the hash of the object in `program`, as `muster doctor` reports it.
fn embedded_object(program: &Path) -> anyhow::Result<String> {
    let mut doctor = Command::new(program);
    doctor
        .args(["--json", "doctor"])
        .env_remove("MUSTER_EBPF_OBJECT");
    // The exit status of `doctor` describes this machine and does not matter here.
    let output = doctor
        .output()
        .with_context(|| format!("cannot start {}", program.display()))?;
    let findings: Value = serde_json::from_slice(&output.stdout)
        .with_context(|| format!("what {} prints", shell::display(&doctor)))?;
    let detail = object_detail(&findings).context("muster doctor says nothing of ebpf.object")?;
    let (hash, source) = detail.split_once(", ").unwrap_or((detail, ""));
    ensure!(
        source.starts_with("embedded"),
        "{} does not hold the eBPF object: {detail}",
        program.display()
    );
    Ok(hash.to_owned())
}

fn object_detail(findings: &Value) -> Option<&str> {
    let findings = findings.as_array()?;
    let object = findings
        .iter()
        .find(|finding| finding["Name"] == "ebpf.object")?;
    object["Detail"].as_str()
}

fn mebibytes(path: &Path) -> anyhow::Result<f64> {
    let size = fs::metadata(path)
        .with_context(|| format!("cannot read {}", path.display()))?
        .len();
    Ok(size as f64 / 1_048_576.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn object_is_found_among_findings() {
        let findings = serde_json::json!([
            { "Name": "root", "Detail": "yes" },
            { "Name": "ebpf.object", "Detail": "0123, embedded in this binary" },
        ]);

        assert_eq!(
            object_detail(&findings),
            Some("0123, embedded in this binary")
        );
        assert_eq!(object_detail(&Value::Null), None);
    }
}
