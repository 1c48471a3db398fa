//! How a plugin and its host find each other.
//!
//! The host starts the plugin with a cookie in its environment, which tells the plugin that it was
//! not started by a person. The plugin listens on a socket of its choice and prints one line:
//! `core version|plugin version|network|address|protocol|certificate`, where newer ones may add
//! fields. Neither side of a task driver encrypts: the socket is a file of root's.

use std::path::{Path, PathBuf};

use thiserror::Error;

/// Variable with the cookie.
pub(crate) const COOKIE_KEY: &str = "NOMAD_PLUGIN_MAGIC_COOKIE";
/// The cookie of Nomad's plugins. It is no secret: it keeps people from starting plugins by hand.
pub(crate) const COOKIE_VALUE: &str =
    "e4327c2e01eabfd75a8a67adb114fb34a757d57eee7728d857a8cec6e91a7255";
/// Variable with the plugin versions that a host speaks, with commas between.
pub(crate) const VERSIONS_KEY: &str = "PLUGIN_PROTOCOL_VERSIONS";
/// Variable with the directory for the plugin's socket; newer plugins look at it.
pub(crate) const SOCKET_DIR_KEY: &str = "PLUGIN_UNIX_SOCKET_DIR";
/// Variable of hosts that encrypt.
pub(crate) const CLIENT_CERT_KEY: &str = "PLUGIN_CLIENT_CERT";

/// Version of the handshake itself.
const CORE_VERSION: u32 = 1;
/// Version of Nomad's plugins.
pub(crate) const PLUGIN_VERSION: u32 = 2;

/// A handshake line that cannot be used.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum HandshakeError {
    /// It has too few fields: the program is no plugin.
    #[error("it printed {line:?}, which is not the first line of a plugin: is it a driver plugin?")]
    Malformed { line: String },
    /// It speaks something else.
    #[error("its first line {line:?} has {what} {found:?}, this host speaks {supported:?}")]
    Unsupported {
        line: String,
        what: &'static str,
        /// The text found there.
        found: String,
        supported: String,
    },
}

/// The socket that a handshake line names.
///
/// # Errors
///
/// [`HandshakeError`] for a line of something else than a plugin of Nomad's.
pub(crate) fn parse(line: &str) -> Result<PathBuf, HandshakeError> {
    let line = line.trim_end_matches(['\r', '\n']);
    let fields: Vec<&str> = line.split('|').map(str::trim).collect();
    let [core, plugin, network, address, rest @ ..] = fields.as_slice() else {
        return Err(HandshakeError::Malformed {
            line: line.chars().take(200).collect(),
        });
    };
    let check = |what, found: &str, supported: &str| {
        if found == supported {
            Ok(())
        } else {
            Err(HandshakeError::Unsupported {
                line: line.to_owned(),
                what,
                found: found.to_owned(),
                supported: supported.to_owned(),
            })
        }
    };
    check("handshake version", core, &CORE_VERSION.to_string())?;
    check("plugin version", plugin, &PLUGIN_VERSION.to_string())?;
    check("network", network, "unix")?;
    // Old plugins leave the field out and speak a protocol that no driver does any more.
    check("protocol", rest.first().unwrap_or(&"netrpc"), "grpc")?;
    check("certificate", rest.get(1).unwrap_or(&""), "")?;
    Ok(PathBuf::from(address))
}

/// The line that names `socket`, with its end.
pub(crate) fn line(socket: &Path) -> String {
    format!(
        "{CORE_VERSION}|{PLUGIN_VERSION}|unix|{}|grpc|\n",
        socket.display()
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn line_of_a_real_plugin_names_its_socket() {
        let with_certificate_field = parse("1|2|unix|/run/plugin4023356185|grpc|\n");
        let with_multiplexing = parse("1|2|unix|/run/plugin1|grpc||true\n");
        let short = parse("1|2|unix|/run/plugin2|grpc");

        assert_eq!(
            with_certificate_field,
            Ok(PathBuf::from("/run/plugin4023356185"))
        );
        assert_eq!(with_multiplexing, Ok(PathBuf::from("/run/plugin1")));
        assert_eq!(short, Ok(PathBuf::from("/run/plugin2")));
    }

    #[test]
    fn our_own_line_reads_back() {
        let socket = Path::new("/tmp/plugin1");

        assert_eq!(parse(&line(socket)).as_deref(), Ok(socket));
    }

    #[test]
    fn invalid_handshake_line_is_rejected_with_reason() {
        let refused = |line: &str| parse(line).unwrap_err().to_string();

        assert!(refused("usage: ls [OPTION]").contains("not the first line of a plugin"));
        assert!(refused("").contains("not the first line of a plugin"));
        assert!(refused("2|2|unix|/x|grpc|").contains("handshake version"));
        assert!(refused("1|1|unix|/x|grpc|").contains("plugin version"));
        assert!(refused("1|2|tcp|127.0.0.1:1|grpc|").contains("network"));
        assert!(refused("1|2|unix|/x").contains("protocol"));
        assert!(refused("1|2|unix|/x|netrpc|").contains("protocol"));
        assert!(refused("1|2|unix|/x|grpc|MIIB").contains("certificate"));
    }
}
