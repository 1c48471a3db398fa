//! A driver of remote tasks for tests, and the host of its tasks.
//!
//! `remote host SOCKET` is the host, a process of its own. It starts a process for each task and logs events to
//! `SOCKET.journal`. An agent starts the program from its `plugin_dir` as the driver. The driver runs the tasks on the
//! host that their `config` names.

mod driver;
mod host;

use std::error::Error;
use std::path::Path;
use std::sync::Arc;

use muster_driver::plugin;
use tokio_util::sync::CancellationToken;

fn main() -> Result<(), Box<dyn Error>> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = args.iter().map(String::as_str).collect();
    match words.as_slice() {
        ["host", socket] => host::serve(Path::new(socket)),
        [] if plugin::started_by_host() => serve_plugin(),
        _ => Err("usage: remote host SOCKET; an agent starts it as a plugin".into()),
    }
}

fn serve_plugin() -> Result<(), Box<dyn Error>> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    runtime.block_on(async {
        let (listener, _announced) = plugin::announce()?;
        let driver = Arc::new(driver::Remote::default());
        plugin::serve(driver, listener, CancellationToken::new()).await?;
        Ok(())
    })
}
