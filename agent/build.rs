//! Embeds the eBPF object that `MUSTER_EBPF_EMBED` names, for a binary that is shipped as one file.
//!
//! Without the variable the object is not an input of the build: the agent reads a file when it starts
//! (`src/bpf/object.rs`), so that building the object afterwards compiles nothing again.

use std::{
    env, fs, io,
    path::{Path, PathBuf},
};

const EMBED_VAR: &str = "MUSTER_EBPF_EMBED";

/// The machine `EM_BPF` in bytes 18 and 19 of an ELF file.
const EM_BPF: [u8; 2] = [247, 0];

fn main() -> io::Result<()> {
    println!("cargo::rerun-if-env-changed={EMBED_VAR}");
    let bytes = match env::var_os(EMBED_VAR).filter(|path| !path.is_empty()) {
        Some(path) => object(&PathBuf::from(path))?,
        None => Vec::new(),
    };
    let out_dir = env::var_os("OUT_DIR").ok_or_else(|| io::Error::other("OUT_DIR is not set"))?;
    fs::write(Path::new(&out_dir).join("muster-ebpf.o"), bytes)
}

fn object(path: &Path) -> io::Result<Vec<u8>> {
    println!("cargo::rerun-if-changed={}", path.display());
    let refuse = |reason: &dyn std::fmt::Display| {
        let path = path.display();
        io::Error::other(format!("{EMBED_VAR}={path}: {reason}"))
    };
    let bytes = fs::read(path).map_err(|error| refuse(&error))?;
    if !bytes.starts_with(b"\x7fELF") || bytes.get(18..20) != Some(EM_BPF.as_slice()) {
        return Err(refuse(
            &"not an ELF file for the machine BPF; run `cargo xtask build-ebpf`",
        ));
    }
    Ok(bytes)
}
