//! Results of CNI plugins.

use std::net::IpAddr;

use muster_domain::job::DnsConfig;
use serde::Deserialize;
use serde_json::Value;

use super::config::CniVersion;

/// The result of ADD.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct AddResult {
    /// The result as printed, which the next plugin receives.
    pub(super) value: Value,
    ips: Vec<Ip>,
    interfaces: Vec<Interface>,
    dns: Dns,
}

#[derive(Clone, Debug, PartialEq, Deserialize)]
struct Ip {
    address: String,
    interface: Option<usize>,
}

#[derive(Clone, Debug, PartialEq, Deserialize)]
struct Interface {
    #[serde(default)]
    sandbox: Option<String>,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
struct Dns {
    nameservers: Option<Vec<String>>,
    domain: Option<String>,
    search: Option<Vec<String>>,
    options: Option<Vec<String>>,
}

/// The output of a plugin. Plugins of older specifications print `null` for empty fields.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct PluginOutput {
    cni_version: Option<String>,
    ips: Option<Vec<Ip>>,
    interfaces: Option<Vec<Interface>>,
    dns: Option<Dns>,
}

impl AddResult {
    /// Reads the output of a plugin.
    ///
    /// # Errors
    ///
    /// A description of the fault.
    pub(super) fn parse(bytes: &[u8]) -> Result<Self, String> {
        let value: Value = serde_json::from_slice(bytes).map_err(|error| error.to_string())?;
        let printed = PluginOutput::deserialize(&value).map_err(|error| error.to_string())?;
        let PluginOutput {
            cni_version,
            ips,
            interfaces,
            dns,
        } = printed;
        let version = cni_version.unwrap_or_default();
        if CniVersion::parse(&version).is_none() {
            return Err(format!("unsupported cniVersion {version:?}"));
        }
        let ips = ips.unwrap_or_default();
        if let Some(ip) = ips.iter().find(|ip| ip.address().is_none()) {
            return Err(format!("invalid address {:?}", ip.address));
        }
        Ok(Self {
            value,
            ips,
            interfaces: interfaces.unwrap_or_default(),
            dns: dns.unwrap_or_default(),
        })
    }

    /// The address of the allocation: of a device in its namespace, IPv4 before IPv6.
    pub(super) fn address(&self) -> Option<IpAddr> {
        let is_inside = |ip: &&Ip| {
            ip.interface.is_none_or(|at| {
                let interface = self.interfaces.get(at);
                interface.is_some_and(|it| it.sandbox.as_ref().is_some_and(|path| !path.is_empty()))
            })
        };
        let mut inside: Vec<IpAddr> = self
            .ips
            .iter()
            .filter(is_inside)
            .filter_map(Ip::address)
            .collect();
        inside.sort_by_key(IpAddr::is_ipv6);
        inside.first().copied()
    }

    /// The resolver that the plugins ask for; `None` if they ask for none.
    pub(super) fn dns(&self) -> Option<DnsConfig> {
        let Dns {
            nameservers,
            domain,
            search,
            options,
        } = self.dns.clone();
        let mut searches = search.unwrap_or_default();
        if searches.is_empty() {
            searches.extend(domain.filter(|domain| !domain.is_empty()));
        }
        let is_word =
            |word: &String| !word.is_empty() && word.bytes().all(|byte| byte.is_ascii_graphic());
        searches.retain(is_word);
        let mut options = options.unwrap_or_default();
        options.retain(is_word);
        let servers = nameservers.unwrap_or_default();
        let dns = DnsConfig {
            servers: servers
                .into_iter()
                .filter(|text| text.parse::<IpAddr>().is_ok())
                .collect(),
            searches,
            options,
        };
        (dns != DnsConfig::default()).then_some(dns)
    }
}

impl Ip {
    fn address(&self) -> Option<IpAddr> {
        let (address, length) = self.address.split_once('/')?;
        let address: IpAddr = address.parse().ok()?;
        let bits = if address.is_ipv4() { 32 } else { 128 };
        let length: u8 = length.parse().ok()?;
        (length <= bits).then_some(address)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The output of Debian's `bridge` with `host-local`, shortened.
    const BRIDGE: &str = r#"{"cniVersion":"1.0.0","interfaces":[{"name":"mst0","mac":"e2:64:4d:df:4a:4a"},
        {"name":"veth1","mac":"46:ad:c9:d2:8e:79"},{"name":"eth0","mac":"96:cc:6c:5c:8b:c0","sandbox":"/run/x"}],
        "ips":[{"interface":1,"address":"10.9.9.9/24"},{"interface":2,"address":"fd00::2/64"},
        {"interface":2,"address":"10.222.0.2/24","gateway":"10.222.0.1"}],"routes":[{"dst":"0.0.0.0/0"}],
        "dns":{"nameservers":["10.0.0.53","nonsense"],"domain":"lab","options":["ndots:2","a b"]}}"#;

    #[test]
    fn the_inner_ipv4_address_is_chosen() {
        let result = AddResult::parse(BRIDGE.as_bytes()).unwrap();

        assert_eq!(result.address(), Some("10.222.0.2".parse().unwrap()));
        let dns = result.dns().unwrap();
        assert_eq!(dns.servers, ["10.0.0.53"]);
        assert_eq!(
            (dns.searches, dns.options),
            (vec!["lab".to_owned()], vec!["ndots:2".to_owned()])
        );
    }

    #[test]
    fn results_of_older_versions_are_read() {
        let text = r#"{"cniVersion":"0.4.0","interfaces":null,"ips":[{"version":"6","address":"fd00::2/64"}],"dns":{}}"#;
        let result = AddResult::parse(text.as_bytes()).unwrap();

        assert_eq!(result.address(), Some("fd00::2".parse().unwrap()));
        assert_eq!(result.dns(), None);
        let none = AddResult::parse(br#"{"cniVersion":"1.1.0"}"#).unwrap();
        assert_eq!(none.address(), None);
    }

    #[test]
    fn nonsense_is_refused_with_a_reason() {
        for (text, words) in [
            ("", "EOF"),
            ("hello", "expected value"),
            ("[]", "invalid"),
            ("{}", "unsupported cniVersion \"\""),
            (
                r#"{"cniVersion":"9.0.0"}"#,
                "unsupported cniVersion \"9.0.0\"",
            ),
            (
                r#"{"cniVersion":"1.0.0","ips":[{"address":"10.0.0.2"}]}"#,
                "invalid address \"10.0.0.2\"",
            ),
            (
                r#"{"cniVersion":"1.0.0","ips":[{"address":"10.0.0.2/40"}]}"#,
                "invalid address",
            ),
            (r#"{"cniVersion":"1.0.0","ips":5}"#, "invalid type"),
        ] {
            let error = AddResult::parse(text.as_bytes()).unwrap_err();
            assert!(error.contains(words), "{text}: {error}");
        }
    }
}
