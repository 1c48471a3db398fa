//! Reads the settings for collecting a task's output.

use muster_domain::job as domain;

use crate::api::block::Block;
use crate::api::job::table::BlockForm;
use crate::api::job::task::LogConfig;

/// The `LogConfig` block.
pub(in crate::api) fn read_logs(
    block: &mut Block<'_>,
    default: &domain::LogConfig,
) -> domain::LogConfig {
    let read = LogConfig::read_fields(block, default);
    let is_disabled = block.boolean("Disabled").unwrap_or_default();
    if !is_disabled && read.is_disabled() {
        let reason = "a task keeps at least 1 file; `Disabled` keeps nothing".to_owned();
        block.fault("MaxFiles", reason);
    }
    if is_disabled {
        // The other settings have no effect without collection.
        return domain::LogConfig::DISABLED;
    }
    read
}
