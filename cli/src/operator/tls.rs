//! `muster operator tls`: the certificate authority of a cluster and its certificates, created offline.
//!
//! The authority's key stays on the machine where it was created. A server needs `ca.pem` and its own two files, which
//! cannot sign other certificates. No file is ever overwritten.

use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::{Args, Subcommand, ValueEnum};
use muster_link::tls::{Authority, CertificateSubject, Role, TlsError};
use serde_json::json;

use crate::exit::{CliError, CliResult, Exit};
use crate::output;

const DAY: Duration = Duration::from_hours(24);
/// Longest life of a certificate: the authority's own.
const DAYS_MAX: i64 = 3_650;

/// A command of `muster operator tls`.
#[derive(Debug, Subcommand)]
pub enum TlsCommand {
    /// Make a cluster's certificate authority: ca.pem for all machines, and the secret ca.key.
    ///
    /// Example: muster operator tls ca --cluster prod --out ca
    Ca(CaArgs),
    /// Make a certificate and its key, signed by the authority.
    ///
    /// Example: muster operator tls cert server --name s1 --ca ca --out s1
    Cert(CertArgs),
}

/// Arguments of `muster operator tls ca`.
#[derive(Debug, Args)]
pub struct CaArgs {
    /// Name of the cluster: letters, digits, hyphens. Every certificate contains it.
    #[arg(long, default_value = muster_link::tls::DEFAULT_CLUSTER, value_name = "NAME")]
    pub cluster: String,
    /// Output directory for ca.pem and ca.key.
    #[arg(long, value_name = "DIR")]
    pub out: PathBuf,
}

/// Arguments of `muster operator tls cert`.
#[derive(Debug, Args)]
pub struct CertArgs {
    /// Role of the certificate's owner.
    pub role: RoleArg,
    /// Name of the server, as in `muster server --name`: letters, digits, hyphens. Only for servers.
    #[arg(long, value_name = "NAME")]
    pub name: Option<String>,
    /// Further host name or address of the server, besides localhost. May be repeated. Only for servers.
    #[arg(long, value_name = "HOST")]
    pub host: Vec<String>,
    /// Directory with ca.pem and ca.key.
    #[arg(long, value_name = "DIR")]
    pub ca: PathBuf,
    /// Output directory for the certificate, its key and ca.pem, used as --tls-dir.
    #[arg(long, value_name = "DIR")]
    pub out: PathBuf,
    /// Private key to use instead of a new P-256 key, as PKCS#8 in PEM. With TLS 1.2, Diego's clients need an RSA
    /// key: `openssl genpkey -algorithm RSA -pkeyopt rsa_keygen_bits:2048 -out rsa.key`.
    #[arg(long, value_name = "FILE")]
    pub key: Option<PathBuf>,
    /// Days until the certificate expires.
    #[arg(long, default_value_t = 365, value_name = "DAYS", value_parser = clap::value_parser!(u32).range(1..=DAYS_MAX))]
    pub days: u32,
}

/// Roles that certificates are made for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum RoleArg {
    /// A server of the control plane.
    Server,
    /// Agents. One certificate may serve all of them.
    Agent,
    /// Users of the HTTP API.
    Operator,
}

/// Carries out `command`.
///
/// # Errors
///
/// [`CliError`].
pub(super) fn run(json: bool, command: &TlsCommand) -> CliResult {
    match command {
        TlsCommand::Ca(args) => ca(json, args),
        TlsCommand::Cert(args) => cert(json, args),
    }
}

fn ca(json: bool, args: &CaArgs) -> CliResult {
    refuse_to_overwrite(&args.out, &["ca.key", "ca.pem"])?;
    let authority = Authority::generate(&args.cluster).map_err(tls_error)?;
    authority.save(&args.out).map_err(tls_error)?;
    if json {
        output::print_json(&json!({
            "Cluster": args.cluster,
            "Certificate": args.out.join("ca.pem"),
            "Key": args.out.join("ca.key"),
        }))?;
        return Ok(Exit::Done);
    }
    let dir = args.out.display();
    output::print(&format!(
        "The authority of cluster {} is in {dir}.\n\
         Keep {dir}/ca.key to yourself: whoever has it can join the cluster.\n\
         Next: muster operator tls cert server --name s1 --ca {dir} --out s1\n",
        args.cluster
    ))?;
    Ok(Exit::Done)
}

fn cert(json: bool, args: &CertArgs) -> CliResult {
    let (role, subject) = subject(args)?;
    let files = [
        format!("{}.key", role.as_str()),
        format!("{}.pem", role.as_str()),
    ];
    refuse_to_overwrite(&args.out, &[&files[0], &files[1]])?;
    let authority = Authority::load(&args.ca).map_err(tls_error)?;
    check_authority(args)?;
    let life = DAY * args.days;
    match &args.key {
        Some(key) => authority.issue_for_key(&args.out, subject, life, key),
        None => authority.issue(&args.out, subject, life),
    }
    .map_err(tls_error)?;
    if !args.out.join("ca.pem").exists() {
        authority.save_certificate(&args.out).map_err(tls_error)?;
    }
    if json {
        output::print_json(&json!({
            "Cluster": authority.cluster(),
            "Role": role.as_str(),
            "Name": args.name,
            "Days": args.days,
            "Certificate": args.out.join(&files[1]),
            "Key": args.out.join(&files[0]),
        }))?;
        return Ok(Exit::Done);
    }
    let dir = args.out.display();
    let use_it = match args.role {
        RoleArg::Server => format!(
            "Next: muster server --cluster {} --name {} --tls-dir {dir} …\n",
            authority.cluster(),
            args.name.as_deref().unwrap_or_default()
        ),
        RoleArg::Agent => format!("Next: muster agent --tls-dir {dir} …\n"),
        RoleArg::Operator => String::new(),
    };
    output::print(&format!(
        "A certificate for {} of cluster {} is in {dir}; it ends in {} days.\n{use_it}",
        describe_subject(args),
        authority.cluster(),
        args.days
    ))?;
    Ok(Exit::Done)
}

fn describe_subject(args: &CertArgs) -> String {
    match (args.role, &args.name) {
        (RoleArg::Server, Some(name)) => format!("server {name}"),
        (RoleArg::Server, None) => "a server".to_owned(),
        (RoleArg::Agent, _) => "agents".to_owned(),
        (RoleArg::Operator, _) => "an operator".to_owned(),
    }
}

fn subject(args: &CertArgs) -> Result<(Role, CertificateSubject<'_>), CliError> {
    let usage = |message: &str| CliError::new(Exit::Usage, message);
    let subject = match (args.role, &args.name) {
        (RoleArg::Server, Some(name)) => CertificateSubject::Server {
            name,
            hosts: &args.host,
        },
        (RoleArg::Server, None) => {
            return Err(usage("a server's certificate needs the server's name")
                .help("add --name NAME, the same as for `muster server --name`"));
        }
        (RoleArg::Agent | RoleArg::Operator, Some(_)) => {
            return Err(usage("only a server's certificate has a name").help("leave --name out"));
        }
        (RoleArg::Agent | RoleArg::Operator, None) if !args.host.is_empty() => {
            return Err(usage("only a server's certificate has hosts").help("leave --host out"));
        }
        (RoleArg::Agent, None) => CertificateSubject::Agent,
        (RoleArg::Operator, None) => CertificateSubject::Operator,
    };
    Ok((subject.role(), subject))
}

/// Checks the authority. With another cluster's authority in the directory, the certificate would not match it.
fn check_authority(args: &CertArgs) -> Result<(), CliError> {
    let (ours, theirs) = (args.ca.join("ca.pem"), args.out.join("ca.pem"));
    if !theirs.exists() {
        return Ok(());
    }
    if std::fs::read(&ours)? == std::fs::read(&theirs)? {
        return Ok(());
    }
    Err(CliError::new(
        Exit::Refused,
        format!(
            "{} is of another authority than {}",
            theirs.display(),
            ours.display()
        ),
    )
    .help("give --out a directory of its own"))
}

fn refuse_to_overwrite(dir: &Path, names: &[&str]) -> Result<(), CliError> {
    let there = names.iter().map(|name| dir.join(name)).find(|path| {
        // A link that leads nowhere would be written through.
        path.symlink_metadata().is_ok()
    });
    match there {
        None => Ok(()),
        Some(path) => Err(CliError::new(
            Exit::Refused,
            format!(
                "{} is there already and is not written over",
                path.display()
            ),
        )
        .help("give another --out, or move the old files away")),
    }
}

fn tls_error(error: TlsError) -> CliError {
    let exit = match &error {
        TlsError::ClusterName { .. } | TlsError::ServerName { .. } => Exit::Usage,
        TlsError::Exists { .. } => Exit::Refused,
        TlsError::Read { .. }
        | TlsError::Write { .. }
        | TlsError::Malformed { .. }
        | TlsError::Generate { .. } => Exit::Failed,
    };
    CliError::from_chain(exit, &error)
}
