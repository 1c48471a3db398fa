//! The address on which a server answers clients of Diego's BBS in their protocol, if enabled.

use std::net::SocketAddr;
use std::path::PathBuf;

use clap::Args;
use muster_control::server::BbsConfig;

use super::super::absolute;
use crate::exit::CliError;

/// Diego's own wire for one-off tasks; off unless both are given.
#[derive(Debug, Args)]
#[command(next_help_heading = "Diego's clients")]
pub struct BbsArgs {
    /// HTTPS listen address for clients of Diego's BBS. Clients need a certificate.
    #[arg(long, value_name = "ADDR", requires = "bbs_tls_dir")]
    pub bbs: Option<SocketAddr>,
    /// Directory with ca.pem, server.pem and server.key. ca.pem signs the clients' certificates and may differ from
    /// the cluster's. Every client with such a certificate may do everything.
    #[arg(long, value_name = "DIR", requires = "bbs")]
    pub bbs_tls_dir: Option<PathBuf>,
}

impl BbsArgs {
    /// The configuration; `None` if the address is off.
    ///
    /// # Errors
    ///
    /// If the working directory was deleted.
    pub(super) fn config(&self) -> Result<Option<BbsConfig>, CliError> {
        let (Some(addr), Some(dir)) = (self.bbs, &self.bbs_tls_dir) else {
            return Ok(None);
        };
        let tls_dir = absolute(dir)?;
        Ok(Some(BbsConfig { addr, tls_dir }))
    }
}
