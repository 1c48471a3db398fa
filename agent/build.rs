//! Embeds the eBPF object, if it has been built.
//!
//! `cargo xtask build-ebpf` leaves it at `target/ebpf/muster-ebpf.o`; `MUSTER_EBPF_OBJECT` names
//! another one. Without it an empty file is embedded and the agent says that it carries none, so a
//! plain `cargo build` needs no eBPF toolchain.

use std::{
    env, fs, io,
    path::{Path, PathBuf},
};

const OBJECT_VAR: &str = "MUSTER_EBPF_OBJECT";

fn main() -> io::Result<()> {
    println!("cargo::rerun-if-env-changed={OBJECT_VAR}");
    let object = object_path()?;

    let bytes = match fs::read(&object) {
        Ok(bytes) => bytes,
        Err(error) if error.kind() == io::ErrorKind::NotFound => Vec::new(),
        Err(error) => return Err(error),
    };
    fs::write(
        Path::new(&variable("OUT_DIR")?).join("muster-ebpf.o"),
        bytes,
    )
}

/// Where the object is, and tells cargo to look there again.
fn object_path() -> io::Result<PathBuf> {
    if let Some(object) = env::var_os(OBJECT_VAR) {
        let object = PathBuf::from(object);
        println!("cargo::rerun-if-changed={}", object.display());
        return Ok(object);
    }
    // Cargo takes a file that is not there as changed each time, so it watches the directory,
    // which is made here if the object was never built.
    let directory = Path::new(&variable("CARGO_MANIFEST_DIR")?).join("../target/ebpf");
    fs::create_dir_all(&directory)?;
    println!("cargo::rerun-if-changed={}", directory.display());
    Ok(directory.join("muster-ebpf.o"))
}

fn variable(name: &str) -> io::Result<String> {
    env::var(name).map_err(|error| io::Error::other(format!("{name}: {error}")))
}
