//! The handshake between a plugin and its host.
//!
//! The host starts the plugin with a cookie in its environment. The cookie shows the plugin that a host started it,
//! not a person. The plugin listens on a socket of its choice and prints one line:
//! `core version|plugin version|network|address|protocol|certificate`. Newer plugins may add fields. Neither side of a
//! task driver encrypts, because the socket file belongs to root.

use std::path::{Path, PathBuf};

use thiserror::Error;

/// The variable with the cookie.
pub(crate) const COOKIE_KEY: &str = "NOMAD_PLUGIN_MAGIC_COOKIE";
/// The cookie of Nomad's plugins. It is not a secret; it keeps people from starting plugins by hand.
pub(crate) const COOKIE_VALUE: &str =
    "e4327c2e01eabfd75a8a67adb114fb34a757d57eee7728d857a8cec6e91a7255";
/// The variable with the plugin versions that a host supports, separated by commas.
pub(crate) const VERSIONS_KEY: &str = "PLUGIN_PROTOCOL_VERSIONS";
/// The variable with the directory for the plugin's socket. Only newer plugins read it.
pub(crate) const SOCKET_DIR_KEY: &str = "PLUGIN_UNIX_SOCKET_DIR";
/// The variable that encrypting hosts set.
pub(crate) const CLIENT_CERT_KEY: &str = "PLUGIN_CLIENT_CERT";

/// The version of the handshake itself.
const CORE_VERSION: u32 = 1;
/// The version of Nomad's plugin protocol.
pub(crate) const PLUGIN_VERSION: u32 = 2;

/// A handshake line that cannot be used.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum HandshakeError {
    /// The line has too few fields: the program is not a plugin.
    #[error("it printed {line:?}, which is not the first line of a plugin: is it a driver plugin?")]
    Malformed { line: String },
    /// The plugin uses another version, network, protocol or encryption.
    #[error("its first line {line:?} has {what} {found:?}, this host speaks {supported:?}")]
    Unsupported {
        line: String,
        what: &'static str,
        /// The value of the unsupported field.
        found: String,
        supported: String,
    },
}

/// Returns the socket that a handshake line names.
///
/// # Errors
///
/// [`HandshakeError`] for a line that does not come from a Nomad plugin.
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
    // Old plugins omit the field and use a protocol that no driver uses any more.
    check("protocol", rest.first().unwrap_or(&"netrpc"), "grpc")?;
    check("certificate", rest.get(1).unwrap_or(&""), "")?;
    Ok(PathBuf::from(address))
}

/// Returns the handshake line for `socket`, with its newline.
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
