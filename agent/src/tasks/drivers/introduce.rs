//! The exchange between host and driver at the beginning of each life of a driver. The driver reports its identity
//! and its configuration schema, and the host sends the configuration.

use muster_driver::{ConfigFault, DriverError, PluginInfo, Schema, SchemaError, TaskDriver};
use serde_json::Value;

/// The version of the drivers' interface that this host speaks.
const API_VERSION: &str = "v0.1.0";

/// Why a driver that answers cannot be used.
#[derive(Debug, thiserror::Error)]
pub(crate) enum IntroduceError {
    #[error(transparent)]
    Driver(#[from] DriverError),
    /// The driver's schema is invalid.
    #[error(transparent)]
    Schema(#[from] SchemaError),
    /// The driver uses another version.
    #[error(
        "driver {name} speaks versions {offered} of the drivers' interface, this agent speaks {API_VERSION}"
    )]
    ApiVersion {
        name: String,
        /// The versions that the driver offers.
        offered: String,
    },
    /// The configuration in the agent does not fit the driver.
    #[error("its configuration is wrong: {}", listed(.0))]
    Config(Vec<ConfigFault>),
}

/// Joins all faults in one line.
pub(crate) fn listed(faults: &[ConfigFault]) -> String {
    let faults: Vec<String> = faults.iter().map(ToString::to_string).collect();
    faults.join("; ")
}

/// Requests the identity of `driver`, and sends it its configuration. `config` is the block of the agent's
/// configuration, or null.
pub(crate) async fn introduce(
    driver: &dyn TaskDriver,
    config: &Value,
) -> Result<PluginInfo, IntroduceError> {
    let info = driver.plugin_info().await?;
    if !info
        .api_versions
        .iter()
        .any(|version| version == API_VERSION)
    {
        return Err(IntroduceError::ApiVersion {
            name: info.name,
            offered: info.api_versions.join(", "),
        });
    }
    let config = match driver.config_schema().await? {
        Some(spec) => Schema::new(&spec)?
            .decode("config", config)
            .map_err(IntroduceError::Config)?,
        None if config.is_null() => Value::Null,
        None => {
            return Err(IntroduceError::Config(vec![ConfigFault {
                field: "config".to_owned(),
                message: format!("driver {} has no configuration", info.name),
            }]));
        }
    };
    driver.set_config(config).await?;
    Ok(info)
}
