//! The messages and services, generated from `driver/proto` by the build script.

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
    include!(concat!(env!("OUT_DIR"), "/protocol.rs"));
}

pub(crate) use generated::grpc::health::v1 as health;
pub(crate) use generated::hashicorp::nomad::plugins::base::proto as base;
pub(crate) use generated::hashicorp::nomad::plugins::drivers::proto as drivers;
pub(crate) use generated::hashicorp::nomad::plugins::shared::{hclspec, structs};
pub(crate) use generated::muster::driver::v1 as muster;
pub(crate) use generated::plugin as controller;
