//! What a job can say and this version does not carry out yet. It is refused by name, never ignored.

use crate::fault::Fault;
use crate::job::JobSpec;

/// Everything in `spec` that would be ignored.
pub(super) fn check(spec: &JobSpec, faults: &mut Vec<Fault>) {
    for group in &spec.groups {
        if group.ephemeral_disk.migrate {
            faults.push(Fault::new(
                format!("group \"{}\" → ephemeral_disk", group.name),
                "`migrate` is not supported yet: leave it out; `sticky` keeps the data of a replacement on the same node",
            ));
        }
    }
}
