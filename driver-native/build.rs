//! Builds the static programs without a standard library that run inside tasks. This crate keeps them in memory: the
//! reaper of tasks with `init = true` (`src/init.rs`), and the porter of files (`src/transfer_helper.rs`).
//!
//! The compiler of this crate builds them for the same target and links them without start files.

use std::env;
use std::path::PathBuf;
use std::process::Command;

fn main() {
    build("muster-init", "init/main.rs");
    build("muster-porter", "porter/main.rs");
}

fn build(name: &str, source: &str) {
    println!("cargo::rerun-if-changed={source}");
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets OUT_DIR"));
    let target = env::var("TARGET").expect("cargo sets TARGET");
    let program = out.join(name);
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
        .args(["--edition=2024", "--crate-type=bin"])
        .arg(format!("--crate-name={}", name.replace('-', "_")))
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
        .arg(source);
    let status = rustc.status().expect("the compiler starts");
    assert!(status.success(), "{name} did not compile: {rustc:?}");
}
