//! Builds the reaper of tasks with `init = true`: a static program without a standard library, which
//! `src/init.rs` keeps in memory.
//!
//! It is compiled by the compiler of this crate, for the same target, and linked without start files.

use std::env;
use std::path::PathBuf;
use std::process::Command;

const SOURCE: &str = "init/main.rs";

fn main() {
    println!("cargo::rerun-if-changed={SOURCE}");
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets OUT_DIR"));
    let target = env::var("TARGET").expect("cargo sets TARGET");
    let program = out.join("muster-init");
    let linker_options = [
        "-nostartfiles",
        "-nostdlib",
        "-static",
        "-Wl,--build-id=none",
        "-Wl,-z,norelro",
        "-Wl,-z,noseparate-code",
        "-Wl,-z,noexecstack",
        "-Wl,--gc-sections",
    ];
    let mut rustc = Command::new(env::var_os("RUSTC").expect("cargo sets RUSTC"));
    rustc
        .args([
            "--edition=2024",
            "--crate-type=bin",
            "--crate-name=muster_init",
        ])
        .args(["--target", &target])
        .args([
            "-Cpanic=abort",
            "-Copt-level=s",
            "-Clto=fat",
            "-Cstrip=symbols",
        ])
        .args(["-Crelocation-model=static", "-Ctarget-feature=+crt-static"])
        .args([
            "-Ccodegen-units=1",
            "-Cdebug-assertions=off",
            "-Coverflow-checks=off",
        ])
        .args(
            linker_options
                .iter()
                .map(|option| format!("-Clink-arg={option}")),
        )
        .arg("-o")
        .arg(&program)
        .arg(SOURCE);
    let status = rustc.status().expect("the compiler starts");
    assert!(status.success(), "the reaper did not compile: {rustc:?}");
}
