//! Compiles the plugin protocol with a compiler written in Rust, so that no `protoc` is needed.

use std::error::Error;

const FILES: [&str; 7] = [
    "hclspec.proto",
    "structs.proto",
    "base.proto",
    "driver.proto",
    "plugin.proto",
    "health.proto",
    "muster.proto",
];

fn main() -> Result<(), Box<dyn Error>> {
    for file in FILES {
        println!("cargo::rerun-if-changed=proto/{file}");
    }
    let descriptors = protox::compile(FILES, ["proto"])?;
    tonic_prost_build::configure()
        .btree_map(".")
        .include_file("protocol.rs")
        .compile_fds(descriptors)?;
    Ok(())
}
