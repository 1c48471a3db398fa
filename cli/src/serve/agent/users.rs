//! The block `users` of the agent's configuration: the users of tasks that name none, under Nomad's names.

use muster_agent::UserRange;

use super::file::number;
use muster_jobspec::JobFileFault;
use muster_jobspec::syntax::{Attribute, Block, Structure};

/// Attributes of the block, as faults list them.
const ATTRIBUTES: &str = "dynamic_user_max, dynamic_user_min";

/// The highest user there is: one more means none.
const USER_MAX: u64 = u32::MAX as u64 - 1;

/// Nomad's defaults for the range of dynamic users.
const DEFAULT_MIN: u32 = 80_000;
const DEFAULT_MAX: u32 = 89_999;

pub(super) fn read(
    block: &Block,
    faults: &mut Vec<JobFileFault>,
) -> Result<UserRange, JobFileFault> {
    let (mut min, mut max) = (DEFAULT_MIN, DEFAULT_MAX);
    let before = faults.len();
    for structure in &block.body.items {
        let outcome = match structure {
            Structure::Attribute(attribute) => match attribute.key.as_str() {
                name @ "dynamic_user_min" => user(name, attribute).map(|it| min = it),
                name @ "dynamic_user_max" => user(name, attribute).map(|it| max = it),
                name => {
                    let place = attribute.key.span.clone();
                    Err(
                        JobFileFault::at(place, format!("unknown field `{name}` in users"))
                            .help(format!("known here: {ATTRIBUTES}")),
                    )
                }
            },
            Structure::Block(inner) => {
                let message = format!("unknown block `{}` in users", inner.ident.as_str());
                let place = inner.ident.span.clone();
                Err(JobFileFault::at(place, message).help(format!("known here: {ATTRIBUTES}")))
            }
        };
        faults.extend(outcome.err());
    }
    if faults.len() > before {
        return Ok(UserRange::default());
    }
    UserRange::new(min, max).map_err(|error| {
        let place = block.ident.span.clone();
        JobFileFault::at(place, error.to_string())
    })
}

fn user(name: &str, attribute: &Attribute) -> Result<u32, JobFileFault> {
    let user = number(name, attribute, 1, USER_MAX)?;
    Ok(u32::try_from(user).expect("`USER_MAX` fits in 32 bits"))
}
