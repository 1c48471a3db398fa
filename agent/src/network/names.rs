//! Host names and ports in an allocation's network.

use muster_domain::alloc::DesiredAlloc;
use muster_domain::job::{TaskGroup, is_hostname};

use crate::tasks::task_env::TaskEnv;

/// The port that a task listens on for the machine's port `value`.
pub(crate) fn inside_port(value: u16, to: u16) -> u16 {
    if to == 0 { value } else { to }
}

/// The host name in an allocation with its own network: the one of its job, if that is a host name.
pub(crate) fn host_name(desired: &DesiredAlloc, group: &TaskGroup, env: &TaskEnv) -> String {
    let asked = group
        .network
        .as_ref()
        .map(|it| env.interpolate(&it.hostname));
    let asked = asked.filter(|name| is_hostname(name));
    asked.unwrap_or_else(|| {
        let group = clean_name(&group.name);
        format!("{group}-{}", desired.alloc_id.short())
    })
}

/// A group's name as part of a host name.
pub(crate) fn clean_name(name: &str) -> String {
    let clean = |c: char| {
        if c.is_whitespace() || c == '/' {
            '-'
        } else {
            c
        }
    };
    name.chars().map(clean).collect()
}
