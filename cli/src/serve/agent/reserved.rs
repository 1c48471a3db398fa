//! The block `reserved` of the agent's configuration: resources kept from tasks, under Nomad's names.

use std::collections::BTreeSet;

use muster_agent::node::Amount;

use super::file::{invalid_value, number, text_of};
use muster_jobspec::JobFileFault;
use muster_jobspec::syntax::{Attribute, Block, Structure};

/// Attributes of the block, as faults list them.
const ATTRIBUTES: &str = "cores, cpu, disk, memory, reserved_ports";

/// Largest amount of MHz or MiB that may be kept: more than any node has.
const AMOUNT_MAX: u64 = u32::MAX as u64;

/// The highest core that may be named: more than any node has.
const CORE_MAX: u16 = 8_191;

/// Resources reserved from tasks.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Reserved {
    pub(super) amount: Amount,
    /// Sorted.
    pub(super) cores: Vec<u16>,
    /// Sorted.
    pub(super) ports: Vec<u16>,
}

pub(super) fn read(block: &Block, faults: &mut Vec<JobFileFault>) -> Reserved {
    let mut reserved = Reserved::default();
    for structure in &block.body.items {
        let outcome = match structure {
            Structure::Attribute(attribute) => reserved.attribute(attribute),
            Structure::Block(inner) => {
                let message = format!("unknown block `{}` in reserved", inner.ident.as_str());
                let place = inner.ident.span.clone();
                Err(JobFileFault::at(place, message).help(format!("known here: {ATTRIBUTES}")))
            }
        };
        faults.extend(outcome.err());
    }
    reserved
}

impl Reserved {
    fn attribute(&mut self, attribute: &Attribute) -> Result<(), JobFileFault> {
        let name = attribute.key.as_str().to_string();
        let amount = || number(&name, attribute, 0, AMOUNT_MAX);
        match name.as_str() {
            "cpu" => self.amount.cpu_mhz = amount()?,
            "memory" => self.amount.memory_mb = amount()?,
            "disk" => self.amount.disk_mb = amount()?,
            "cores" => self.cores = numbers(&name, attribute, 0, CORE_MAX)?,
            "reserved_ports" => self.ports = numbers(&name, attribute, 1, u16::MAX)?,
            _ => {
                let place = attribute.key.span.clone();
                let message = format!("unknown field `{name}` in reserved");
                return Err(
                    JobFileFault::at(place, message).help(format!("known here: {ATTRIBUTES}"))
                );
            }
        }
        Ok(())
    }
}

/// Numbers and ranges from `min` to `max`, sorted, each once.
fn numbers(
    name: &str,
    attribute: &Attribute,
    min: u16,
    max: u16,
) -> Result<Vec<u16>, JobFileFault> {
    let text = text_of(name, attribute)?;
    let mut found = BTreeSet::new();
    for part in text.split(',').filter(|part| !part.trim().is_empty()) {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let range = first.trim().parse().ok().zip(last.trim().parse().ok());
        let range = range.filter(|(first, last)| min <= *first && first <= last && *last <= max);
        let Some((first, last)) = range else {
            let wanted =
                format!("numbers and ranges such as \"22,8000-8010\", each from {min} to {max}");
            return Err(invalid_value(attribute, &wanted));
        };
        found.extend(first..=last);
    }
    Ok(found.into_iter().collect())
}
