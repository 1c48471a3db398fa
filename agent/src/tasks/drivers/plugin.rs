//! Drivers from a directory of plugins: executables that speak Nomad's plugin protocol.
//!
//! Each plugin is started once and survives the agent. `<data>/drivers/<file name>.plugin.json` records its process
//! and its socket, and the next agent takes it over from there. A plugin that dies is started again, with a pause
//! that grows while it dies early. The waiting runners recover their tasks into it. It runs in the drivers' cgroup,
//! where its tasks stay unless it moves them. The driver is responsible for the limits of such tasks.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs;
use std::io;
use std::os::unix::fs::FileTypeExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures::future::join_all;
use muster_domain::error_chain::chain;
use muster_driver::plugin::{Client, FollowLog, PluginCommand, discover};
use muster_driver::{ConfigFault, HostInfo};
use muster_link::private;
use rustix::process::Signal;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use tokio::process::Child;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::introduce::{IntroduceError, introduce};
use super::pause::RestartBackoff;
use super::{DriverHealth, DriverSlot, Drivers, publish, unreachable, wait, watch_answers};
use crate::limits::{DRIVER_PING_INTERVAL, PLUGIN_START_DEADLINE};
use crate::tasks::process::ProcessId;

/// The usual prefixes of a plugin's file, before the driver's name.
const PREFIXES: [&str; 2] = ["nomad-driver-", "muster-driver-"];

/// The suffix of a record's name.
const RECORD_SUFFIX: &str = ".plugin.json";

/// The operator's settings of one driver.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PluginSettings {
    /// Arguments of its executable.
    pub args: Vec<String>,
    /// The driver's own configuration; null stands for its default.
    pub config: Value,
}

/// Why the drivers of a plugin directory cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum PluginError {
    /// The directory cannot be read.
    #[error("plugin_dir {}: cannot be read", dir.display())]
    Dir {
        dir: PathBuf,
        #[source]
        source: io::Error,
    },
    /// A driver rejects its configuration.
    #[error(
        "plugin {plugin:?}: its configuration is wrong: {}",
        super::introduce::listed(faults)
    )]
    Config {
        /// Name of its block.
        plugin: String,
        /// The faults, with `config` as the outermost name.
        faults: Vec<ConfigFault>,
    },
    /// A block names no existing driver.
    #[error("plugin {plugin:?}: the driver is unknown: use one of {known}")]
    Unknown {
        /// Name of the block.
        plugin: String,
        known: String,
    },
}

/// The record of a plugin's newest process.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Record {
    process: ProcessId,
    /// `None` until the plugin has reported it.
    socket: Option<PathBuf>,
}

impl Record {
    fn load(path: &Path) -> Option<Self> {
        serde_json::from_slice(&fs::read(path).ok()?).ok()
    }

    fn store(&self, path: &Path) -> io::Result<()> {
        let temporary = path.with_extension("new");
        private::write(&temporary, serde_json::to_vec(self)?)?;
        fs::rename(temporary, path)
    }
}

/// An executable with its settings.
#[derive(Clone, Debug)]
struct Plugin {
    launch: PluginCommand,
    client: Client,
    settings: PluginSettings,
    /// Name of the block with the settings.
    block: String,
    record: PathBuf,
}

/// A process that answers.
#[derive(Debug)]
enum PluginProcess {
    /// A process that this agent started.
    Child(Child),
    /// A process that an earlier agent started.
    Adopted(ProcessId),
}

/// Puts a process into the drivers' cgroup.
pub(crate) type CgroupPlacement = Arc<dyn Fn(u32) + Send + Sync>;

/// The parts of the agent that supervision needs.
#[derive(Clone)]
pub(crate) struct SupervisorContext {
    /// The facts about this node that drivers receive.
    pub(crate) host: Arc<HostInfo>,
    /// The directory of records, logs and sockets.
    pub(crate) dir: PathBuf,
    /// Puts a process into its cgroup.
    pub(crate) place: CgroupPlacement,
    /// The health of the drivers.
    pub(crate) health: watch::Sender<DriverHealth>,
    pub(crate) stop: CancellationToken,
}

/// Starts or takes over every plugin of `plugin_dir`, adds its driver, and supervises it from then on. A plugin
/// that cannot be started is tried again and again; its driver is unhealthy meanwhile.
pub(crate) async fn start_all(
    plugin_dir: &Path,
    settings: &BTreeMap<String, PluginSettings>,
    supervisor: &SupervisorContext,
    drivers: &mut Drivers,
    tasks: &mut JoinSet<()>,
) -> Result<Vec<Client>, PluginError> {
    let (programs, unused) = discover(plugin_dir).map_err(|source| PluginError::Dir {
        dir: plugin_dir.to_owned(),
        source,
    })?;
    for file in unused {
        tracing::warn!(path = %file.path.display(), reason = file.reason, "a file of the plugin directory is not used");
    }
    let first = programs.into_iter().map(|program| async {
        let plugin = Plugin::new(program, settings, &supervisor.dir).of_host(&supervisor.host);
        // The log is followed before the start, because its first lines show the result of the plugin's
        // configuration.
        let log = FollowLog::new(&plugin.launch.log());
        let process = plugin.begin(supervisor).await;
        (plugin, log, process)
    });
    let mut clients = Vec::new();
    for (mut plugin, mut log, process) in join_all(first).await {
        let introduced = plugin
            .introduce_first_process(process, settings, supervisor)
            .await;
        if introduced.is_err() {
            log.forward_lines(&plugin.block);
        }
        let (name, process) = introduced?;
        if drivers.named(&name).is_some() {
            tracing::error!(driver = name, program = %plugin.launch.program.display(), "a plugin is not used: there is another driver of its name");
            plugin.end(process).await;
            log.forward_lines(&name);
            continue;
        }
        let (generations, generation) = watch::channel(0);
        let slot = DriverSlot::watched(Arc::new(plugin.client.clone()), generation);
        drivers.add(&name, slot.recorded_at(&plugin.record));
        clients.push(plugin.client.clone());
        let supervised = supervise(plugin, name, log, process, generations, supervisor.clone());
        tasks.spawn(supervised);
    }
    Ok(clients)
}

/// Checks that every block names an existing driver.
pub(crate) fn check_names(
    settings: &BTreeMap<String, PluginSettings>,
    plugin_dir: Option<&Path>,
    drivers: &Drivers,
) -> Result<(), PluginError> {
    let files = plugin_dir.and_then(|dir| discover(dir).ok());
    let files: Vec<String> = files
        .into_iter()
        .flat_map(|(programs, _)| programs)
        .flat_map(|program| [file_name(&program), presumed_name(&program)])
        .collect();
    for name in settings.keys() {
        // A block for the native driver may stay in the configuration of a node that runs without it.
        let known = drivers.named(name).is_some() || name == super::native::NAME;
        if !known && !files.contains(name) {
            return Err(PluginError::Unknown {
                plugin: name.clone(),
                known: drivers.names(),
            });
        }
    }
    Ok(())
}

fn file_name(program: &Path) -> String {
    let name = program.file_name().unwrap_or_default();
    name.to_string_lossy().into_owned()
}

/// Returns the driver's name that the file suggests, without asking the driver.
fn presumed_name(program: &Path) -> String {
    let name = file_name(program);
    PREFIXES
        .iter()
        .find_map(|prefix| name.strip_prefix(prefix))
        .map_or_else(|| name.clone(), str::to_owned)
}

/// Returns the agent's own variables without those about the agent itself, because Nomad's drivers expect them.
fn environment() -> Vec<(OsString, OsString)> {
    std::env::vars_os()
        .filter(|(name, _)| !name.to_string_lossy().starts_with("MUSTER_"))
        .collect()
}

impl Plugin {
    fn new(program: PathBuf, settings: &BTreeMap<String, PluginSettings>, dir: &Path) -> Self {
        let (file, presumed) = (file_name(&program), presumed_name(&program));
        let block = [&file, &presumed]
            .into_iter()
            .find(|name| settings.contains_key(*name))
            .unwrap_or(&presumed)
            .clone();
        let settings = settings.get(&block).cloned().unwrap_or_default();
        Self {
            launch: PluginCommand {
                program,
                args: settings.args.iter().map(OsString::from).collect(),
                env: environment(),
                dir: dir.to_owned(),
                name: file.clone(),
            },
            client: Client::new(&presumed, &dir.join(format!("{file}.sock"))),
            settings,
            block,
            record: dir.join(format!("{file}{RECORD_SUFFIX}")),
        }
    }

    fn of_host(mut self, host: &Arc<HostInfo>) -> Self {
        self.client = self.client.of_host(Arc::clone(host));
        self
    }

    /// Takes over the recorded process, or starts a new one.
    async fn begin(&self, supervisor: &SupervisorContext) -> Result<PluginProcess, String> {
        if let Some(record) = Record::load(&self.record) {
            if record.process.is_alive() {
                if let Some(socket) = &record.socket {
                    self.client.redirect(socket);
                    if self.client.ping().await.is_ok() {
                        return Ok(PluginProcess::Adopted(record.process));
                    }
                }
                tracing::error!(
                    driver = self.block,
                    pid = record.process.pid,
                    "a plugin does not answer and is killed"
                );
                record.process.signal(Signal::KILL);
                record.process.ended().await;
            }
            remove_socket(record.socket.as_deref());
        }
        let mut child = self.launch.spawn().map_err(|error| chain(&error))?;
        let answer = self.perform_handshake(&mut child, supervisor).await;
        match answer {
            Ok(()) => Ok(PluginProcess::Child(child)),
            Err(reason) => {
                if let Err(error) = child.kill().await {
                    tracing::warn!(%error, driver = self.block, "a plugin that does not answer cannot be killed");
                }
                Err(reason)
            }
        }
    }

    async fn perform_handshake(
        &self,
        child: &mut Child,
        supervisor: &SupervisorContext,
    ) -> Result<(), String> {
        let mut record = child.id().and_then(ProcessId::of).map(|process| Record {
            process,
            socket: None,
        });
        let store = |record: &Option<Record>| match record {
            Some(record) => record.store(&self.record).map_err(|error| chain(&error)),
            // The process has ended already, and the handshake reports that.
            None => Ok(()),
        };
        // An agent that dies before it knows the socket leaves a process that the next one can end.
        store(&record)?;
        if let Some(pid) = child.id() {
            (supervisor.place)(pid);
        }
        let until = Instant::now() + PLUGIN_START_DEADLINE;
        let socket = self.launch.handshake(child, PLUGIN_START_DEADLINE).await;
        let socket = socket.map_err(|error| chain(&error))?;
        self.client.redirect(&socket);
        if let Some(record) = &mut record {
            record.socket = Some(socket);
        }
        store(&record)?;
        loop {
            match self.client.ping().await {
                Ok(()) => return Ok(()),
                Err(error) if Instant::now() >= until => return Err(chain(&error)),
                Err(_) => tokio::time::sleep(DRIVER_PING_INTERVAL).await,
            }
        }
    }

    /// Introduces the first process of the plugin, and returns it with its driver's name. Only a wrong
    /// configuration is an error, because an operator is present to correct it.
    async fn introduce_first_process(
        &mut self,
        process: Result<PluginProcess, String>,
        settings: &BTreeMap<String, PluginSettings>,
        supervisor: &SupervisorContext,
    ) -> Result<(String, Option<PluginProcess>), PluginError> {
        let presumed = presumed_name(&self.launch.program);
        let failed = |reason: String| {
            tracing::error!(
                driver = presumed,
                reason,
                "a plugin cannot be used; it is tried again"
            );
            publish(&supervisor.health, &presumed, unreachable(&reason));
        };
        let process = match process {
            Ok(process) => process,
            Err(reason) => {
                failed(reason);
                return Ok((presumed, None));
            }
        };
        // The block may be named for the driver instead of the file.
        if let Ok(info) = muster_driver::TaskDriver::plugin_info(&self.client).await
            && !settings.contains_key(&self.block)
            && let Some(own) = settings.get(&info.name)
        {
            self.settings.config = own.config.clone();
            self.block = info.name;
        }
        match introduce(&self.client, &self.settings.config).await {
            Ok(info) => Ok((info.name, Some(process))),
            Err(IntroduceError::Config(faults)) => {
                self.end(Some(process)).await;
                Err(PluginError::Config {
                    plugin: self.block.clone(),
                    faults,
                })
            }
            Err(error) => {
                failed(chain(&error));
                self.end(Some(process)).await;
                Ok((presumed, None))
            }
        }
    }

    /// Ends an unusable process.
    async fn end(&self, process: Option<PluginProcess>) {
        let ended = async {
            match process {
                Some(PluginProcess::Child(mut child)) => drop(child.wait().await),
                Some(PluginProcess::Adopted(process)) => process.ended().await,
                None => {}
            }
        };
        if let Err(error) = self.client.shutdown().await {
            tracing::warn!(%error, driver = self.block, "a plugin could not be asked to end");
        }
        if tokio::time::timeout(END_DEADLINE, ended).await.is_err()
            && let Some(record) = Record::load(&self.record)
        {
            record.process.signal(Signal::KILL);
        }
        self.forget();
    }

    /// Removes the files of an ended process.
    fn forget(&self) {
        if let Some(record) = Record::load(&self.record) {
            remove_socket(record.socket.as_deref());
            drop(fs::remove_file(&self.record));
        }
    }
}

/// Time that a plugin has to end after a request. It is Nomad's time.
const END_DEADLINE: Duration = Duration::from_secs(2);

/// Removes the path only if it is a socket, because the plugin chose the path.
fn remove_socket(socket: Option<&Path>) {
    let Some(socket) = socket else { return };
    let is_socket = |meta: fs::Metadata| meta.file_type().is_socket();
    if fs::symlink_metadata(socket).is_ok_and(is_socket) {
        drop(fs::remove_file(socket));
    }
}

/// Restarts the plugin when it dies, until the agent stops. `generations` receives the number of its process,
/// 0 while it does not answer.
async fn supervise(
    plugin: Plugin,
    name: String,
    log: FollowLog,
    first: Option<PluginProcess>,
    generations: watch::Sender<u64>,
    supervisor: SupervisorContext,
) {
    let following = log.run(&name);
    let supervising = async {
        let mut generation = 0;
        let mut pause = RestartBackoff::new();
        let mut next = first;
        while !supervisor.stop.is_cancelled() {
            let lived = match plugin
                .answering(next.take(), generation > 0, &name, &supervisor)
                .await
            {
                Ok(process) => {
                    generation += 1;
                    generations.send_replace(generation);
                    tracing::info!(driver = name, life = generation, "a plugin answers");
                    let answered = Instant::now();
                    let _ended = supervisor
                        .stop
                        .run_until_cancelled(plugin.ended(process, &name, &supervisor))
                        .await;
                    if supervisor.stop.is_cancelled() {
                        return;
                    }
                    generations.send_replace(0);
                    tracing::warn!(driver = name, "a plugin has ended; it is started again");
                    plugin.forget();
                    answered.elapsed()
                }
                Err(reason) => {
                    tracing::error!(driver = name, reason, "a plugin cannot be started");
                    publish(&supervisor.health, &name, unreachable(&reason));
                    Duration::ZERO
                }
            };
            wait(pause.after(lived), &supervisor.stop).await;
        }
    };
    tokio::select! {
        () = following => {}
        () = supervising => {}
    }
}

impl Plugin {
    /// Returns a process that answers and has its configuration. `first` was introduced already.
    async fn answering(
        &self,
        first: Option<PluginProcess>,
        known: bool,
        name: &str,
        supervisor: &SupervisorContext,
    ) -> Result<PluginProcess, String> {
        if let Some(first) = first {
            return Ok(first);
        }
        let process = self.begin(supervisor).await?;
        let error = match introduce(&self.client, &self.settings.config).await {
            Ok(info) if info.name == name => return Ok(process),
            Ok(info) => format!(
                "it calls itself {:?}{}",
                info.name,
                if known {
                    " since it was started again"
                } else {
                    "; start the agent again to use it under that name"
                }
            ),
            Err(error) => chain(&error),
        };
        self.end(Some(process)).await;
        Err(error)
    }

    async fn ended(&self, process: PluginProcess, name: &str, supervisor: &SupervisorContext) {
        let client = self.client.clone();
        let ended = async {
            match process {
                PluginProcess::Child(mut child) => {
                    let status = child.wait().await;
                    tracing::warn!(
                        driver = self.block,
                        ?status,
                        "the process of a plugin ended"
                    );
                }
                PluginProcess::Adopted(process) => process.ended().await,
            }
        };
        let attended = async {
            client.attend().await;
            std::future::pending::<()>().await;
        };
        let answers = watch_answers(&self.client, name, &supervisor.health);
        tokio::select! {
            () = ended => {}
            () = attended => {}
            () = answers => {}
        }
    }
}

/// The process of the plugin that is recorded at `path`.
pub(super) fn process_at(path: &Path) -> Option<ProcessId> {
    Some(Record::load(path)?.process)
}

/// The processes of plugins that `dir` records, with the files that go with them.
pub(crate) fn recorded(dir: &Path) -> Vec<(ProcessId, Vec<PathBuf>)> {
    let records = fs::read_dir(dir).into_iter().flatten().flatten();
    records
        .map(|entry| entry.path())
        .filter(|path| path.to_string_lossy().ends_with(RECORD_SUFFIX))
        .filter_map(|path| {
            let record = Record::load(&path)?;
            let socket = record.socket.filter(|socket| socket.exists());
            Some((
                record.process,
                [Some(path), socket].into_iter().flatten().collect(),
            ))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn driver_is_presumed_by_its_file() {
        assert_eq!(presumed_name(Path::new("/p/nomad-driver-podman")), "podman");
        assert_eq!(
            presumed_name(Path::new("/p/muster-driver-native")),
            "native"
        );
        assert_eq!(presumed_name(Path::new("/p/lxc")), "lxc");
    }

    #[tokio::test]
    async fn block_may_be_named_for_file_or_driver() {
        let settings = |name: &str| {
            let settings = PluginSettings {
                args: vec!["-x".to_owned()],
                config: Value::Bool(true),
            };
            BTreeMap::from([(name.to_owned(), settings)])
        };
        let program = PathBuf::from("/p/nomad-driver-podman");

        for name in ["podman", "nomad-driver-podman"] {
            let plugin = Plugin::new(program.clone(), &settings(name), Path::new("/d"));
            assert_eq!(plugin.block, name);
            assert_eq!(plugin.launch.args, [OsString::from("-x")]);
        }
        let other = Plugin::new(program, &settings("docker"), Path::new("/d"));
        assert_eq!(other.settings, PluginSettings::default());
    }

    #[tokio::test]
    async fn block_about_nothing_is_named() {
        let settings = BTreeMap::from([("dokcer".to_owned(), PluginSettings::default())]);
        let mut drivers = Drivers::default();
        let mock = Arc::new(muster_driver::mock::MockDriver::new());
        drivers.add("docker", DriverSlot::in_process(mock));

        let error = check_names(&settings, None, &drivers).unwrap_err();

        assert!(error.to_string().contains("dokcer"), "{error}");
        assert!(error.to_string().contains("docker"), "{error}");
    }
}
