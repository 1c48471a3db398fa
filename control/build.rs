//! Compiles the messages of Diego's clients with a compiler written in Rust, so that no `protoc` is needed.

use std::error::Error;

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo::rerun-if-changed=proto/bbs.proto");
    let descriptors = protox::compile(["bbs.proto"], ["proto"])?;
    prost_build::Config::new()
        .btree_map(["."])
        .compile_fds(descriptors)?;
    Ok(())
}
