//! The native driver in its own process, as in production.

use std::path::Path;
use std::process::Child;
use std::time::{Duration, Instant};

use anyhow::ensure;
use muster_driver::plugin::Client;
use tokio::runtime::{Builder, Runtime};

use super::child::child_command;

/// The word that makes a child of this program run [`child`].
pub(super) const CHILD: &str = "driver";

/// The longest time for the driver's process to answer.
const DRIVER_WAIT: Duration = Duration::from_secs(10);

/// Runs the driver's process.
pub(super) fn child(socket: &Path) -> anyhow::Result<()> {
    let runtime = Builder::new_multi_thread().enable_all().build()?;
    Ok(runtime.block_on(muster_driver_native::serve(socket))?)
}

/// The driver's process, and the connection to it.
pub(super) struct DriverProcess {
    child: Child,
    pub(super) client: Client,
}

impl DriverProcess {
    /// Starts a driver that listens in `dir`.
    pub(super) fn start(runtime: &Runtime, dir: &Path) -> anyhow::Result<Self> {
        let socket = dir.join("driver.sock");
        let _entered = runtime.enter();
        let client = Client::new("native", &socket);
        let child = child_command(CHILD, [socket.as_os_str()])?.spawn()?;
        let deadline = Instant::now() + DRIVER_WAIT;
        let started = Self { child, client };
        while let Err(error) = runtime.block_on(started.client.ping()) {
            ensure!(
                Instant::now() < deadline,
                "the driver's process does not answer: {error}"
            );
            std::thread::sleep(Duration::from_millis(5));
        }
        Ok(started)
    }

    pub(super) fn stop(&mut self, runtime: &Runtime) -> anyhow::Result<()> {
        runtime.block_on(self.client.shutdown())?;
        self.child.wait()?;
        Ok(())
    }
}

impl Drop for DriverProcess {
    fn drop(&mut self) {
        // The process has ended already unless a step before `stop` failed. Errors cannot be handled here.
        drop(self.child.kill());
        drop(self.child.wait());
    }
}
