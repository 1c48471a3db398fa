//! The messages, generated from `control/proto/bbs.proto` by the build script.

#[allow(
    clippy::all,
    clippy::pedantic,
    clippy::allow_attributes_without_reason,
    clippy::clone_on_ref_ptr,
    missing_docs,
    missing_debug_implementations,
    unreachable_pub,
    unused_qualifications,
    elided_lifetimes_in_paths,
    let_underscore_drop,
    trivial_numeric_casts,
    reason = "generated code"
)]
mod generated {
    include!(concat!(env!("OUT_DIR"), "/bbs.rs"));
}

pub(crate) use generated::*;
