//! Constraints that Nomad adds to a job by itself, for features that Muster serves without such an attribute.
//!
//! A job that was registered at a Nomad server and read from there has these constraints. They must not keep it from
//! running here.

use muster_domain::job::{Constraint, NetworkMode, Operand, TaskGroup};

/// Attributes with the version of a Nomad client, or of a service that the client reaches. Jobs that need Consul or
/// Vault are refused when they are registered.
const VERSIONS: [&str; 3] = [
    "${attr.consul.version}",
    "${attr.nomad.version}",
    "${attr.vault.version}",
];
const SERVICE_DISCOVERY: &str = "${attr.nomad.service_discovery}";
const CNI_PLUGIN: &str = "${attr.plugins.cni.version.";

/// Returns whether the constraint only requires a part of Nomad that Muster has in another form.
pub(super) fn is_implied(constraint: &Constraint, group: &TaskGroup) -> bool {
    let Constraint {
        left,
        operand,
        right,
    } = constraint;
    match operand {
        Operand::Semver | Operand::Version => {
            VERSIONS.contains(&left.as_str()) || (left.starts_with(CNI_PLUGIN) && !has_cni(group))
        }
        Operand::Equal => left == SERVICE_DISCOVERY && right == "true",
        Operand::NotEqual
        | Operand::Less
        | Operand::LessOrEqual
        | Operand::Greater
        | Operand::GreaterOrEqual
        | Operand::Regexp
        | Operand::IsSet
        | Operand::IsNotSet
        | Operand::SetContainsAll
        | Operand::SetContainsAny
        | Operand::DistinctHosts
        | Operand::DistinctProperty => false,
    }
}

/// Returns whether plugins of the node make the network of the group. Nomad's mode `bridge` needs plugins; Muster's
/// does not.
fn has_cni(group: &TaskGroup) -> bool {
    let network = group.network.as_ref();
    network.is_some_and(|network| matches!(network.mode, NetworkMode::Cni(_)))
}

#[cfg(test)]
mod tests {
    use muster_domain::fixture::job;

    use super::*;

    #[test]
    fn constraints_of_nomad_itself_are_known() {
        let group = &job("web").build().groups[0];
        let table = [
            (
                "${attr.plugins.cni.version.bridge}",
                "semver",
                ">= 0.4.0",
                true,
            ),
            ("${attr.nomad.version}", "semver", ">= 1.7.0-a", true),
            ("${attr.nomad.service_discovery}", "=", "true", true),
            ("${attr.nomad.service_discovery}", "=", "false", false),
            ("${attr.vault.version}", "semver", ">= 0.6.1", true),
            ("${attr.kernel.version}", "version", ">= 5.0", false),
            ("${attr.os.signals}", "set_contains", "SIGTERM", false),
        ];

        for (left, operand, right, expected) in table {
            let spec = job("web").constraint(left, operand, right).build();
            let implied = is_implied(&spec.constraints[0], group);
            assert_eq!(implied, expected, "{left} {operand} {right}");
        }
    }
}
