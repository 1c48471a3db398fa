//! The data that all tasks of a driver share: its node, and the node's policy.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, RwLock};
use std::time::Instant;

use muster_domain::error_chain::chain;
use nix::unistd::geteuid;
use rustix::process::DumpableBehavior;
use tokio::sync::Semaphore;
use tracing::{info, warn};

use crate::cgroup::Hierarchy;
use crate::isolation::IsolationError;
use crate::isolation::mounts::MountNamespaceCache;
use crate::isolation::ranges::IdRanges;
use crate::isolation::template::{Template, TemplateError, TemplateKey};
use crate::isolation::view;
use crate::policy::Policy;
use crate::spawn::{OpenFiles, abstract_scope, user_namespace};
use crate::{init, limits, process, transfer_helper};

/// A driver's node.
#[derive(Debug)]
pub(crate) struct Node {
    pub(crate) boot_id: String,
    /// The limit of open files for tasks; `None` means the driver's own.
    pub(crate) open_files: Option<OpenFiles>,
    /// Ids of strict tasks.
    pub(crate) ranges: IdRanges,
    /// The host uses only cgroup v2, so a task can read its limits in its own cgroup.
    pub(crate) shows_cgroup: bool,
    pub(crate) hierarchy: Hierarchy,
    /// Permits for tasks whose cgroup directory is held open.
    pub(crate) cgroup_dir_permits: Arc<Semaphore>,
    /// The mounts of tasks that started recently.
    pub(crate) mount_namespaces: MountNamespaceCache,
    policy: RwLock<Arc<Policy>>,
    templates: Mutex<BTreeMap<TemplateKey, CachedTemplate>>,
    /// The Landlock scope under which a process reaches only its own abstract sockets; `None` if the kernel has no
    /// scopes. The descriptor is low, because every scoped child copies the files below it.
    scope: Option<OwnedFd>,
    init: OnceLock<OwnedFd>,
    porter: OnceLock<OwnedFd>,
    /// Permits for concurrent file transfers.
    pub(crate) transfer_permits: Arc<Semaphore>,
}

/// A template, and the time when it was last found to be current.
#[derive(Debug)]
struct CachedTemplate {
    template: Arc<Template>,
    checked_at: Instant,
}

/// Whether the machine supports a level of isolation, or the reason why it does not.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum IsolationSupport {
    Able,
    Unable(String),
}

impl Node {
    /// Reads the features of the machine.
    pub(crate) fn new(open_files: Option<OpenFiles>) -> io::Result<Self> {
        if geteuid().is_root()
            && let Err(error) =
                rustix::process::set_dumpable_behavior(DumpableBehavior::NotDumpable)
        {
            // A child shares the driver's memory until it runs its program, so no other process may read that memory.
            warn!(%error, "the driver's memory is open to tasks of its own user");
        }
        Ok(Self {
            boot_id: process::boot_id()?,
            open_files,
            ranges: IdRanges::default(),
            shows_cgroup: view::cgroups_are_unified(),
            hierarchy: Hierarchy::default(),
            cgroup_dir_permits: Arc::new(Semaphore::new(limits::CGROUPS_HELD_MAX)),
            mount_namespaces: MountNamespaceCache::new(),
            policy: RwLock::default(),
            templates: Mutex::default(),
            scope: abstract_scope()
                .inspect_err(|error| {
                    info!(%error, "tasks in the host's network reach its abstract sockets: that takes Linux 6.12 with Landlock");
                })
                .ok(),
            init: OnceLock::new(),
            porter: OnceLock::new(),
            transfer_permits: Arc::new(Semaphore::new(limits::TRANSFERS_MAX)),
        })
    }

    /// Returns the file that keeps a process from foreign abstract sockets, if the kernel supports it.
    pub(crate) fn scope(&self) -> Option<BorrowedFd<'_>> {
        self.scope.as_ref().map(AsFd::as_fd)
    }

    /// Returns the node's policy.
    pub(crate) fn policy(&self) -> Arc<Policy> {
        Arc::clone(&self.policy.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Sets the policy from now on. Running tasks keep their rights.
    pub(crate) fn set_policy(&self, policy: Policy) {
        *self.policy.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(policy);
    }

    /// Returns the root for `key`: an existing one, unless one of its source files has changed.
    pub(crate) fn template(&self, key: &TemplateKey) -> Result<Arc<Template>, TemplateError> {
        let mut templates = self
            .templates
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        let now = Instant::now();
        if let Some(cached) = templates.get_mut(key) {
            if now.duration_since(cached.checked_at) < limits::TEMPLATE_CHECK_INTERVAL {
                return Ok(Arc::clone(&cached.template));
            }
            if cached.template.is_current() {
                cached.checked_at = now;
                return Ok(Arc::clone(&cached.template));
            }
        }
        // The lock is held during the build, so that a hundred tasks that start together build the root once.
        let template = Arc::new(Template::build(key)?);
        if templates.len() >= limits::TEMPLATES_MAX {
            let oldest = templates
                .iter()
                .min_by_key(|(_, cached)| cached.checked_at)
                .map(|(key, _)| key.clone());
            if let Some(oldest) = oldest {
                templates.remove(&oldest);
            }
        }
        let cached = CachedTemplate {
            template: Arc::clone(&template),
            checked_at: now,
        };
        templates.insert(key.clone(), cached);
        Ok(template)
    }

    /// Returns the reaper's program.
    pub(crate) fn init_program(&self) -> Result<BorrowedFd<'_>, IsolationError> {
        if let Some(file) = self.init.get() {
            return Ok(file.as_fd());
        }
        let file = init::sealed_file().map_err(IsolationError::Init)?;
        Ok(self.init.get_or_init(|| file).as_fd())
    }

    /// Returns the porter's program.
    pub(crate) fn porter_program(&self) -> Result<BorrowedFd<'_>, IsolationError> {
        if let Some(file) = self.porter.get() {
            return Ok(file.as_fd());
        }
        let file = transfer_helper::sealed_file().map_err(IsolationError::Porter)?;
        Ok(self.porter.get_or_init(|| file).as_fd())
    }

    /// Returns whether contained tasks can run here.
    pub(crate) fn contained(&self) -> IsolationSupport {
        if !geteuid().is_root() {
            return IsolationSupport::Unable("the driver does not run as root".to_owned());
        }
        let key = TemplateKey {
            host_dirs: self.policy().host_dirs.clone(),
            ..TemplateKey::default()
        };
        match self.template(&key) {
            Ok(_template) => IsolationSupport::Able,
            Err(error) => IsolationSupport::Unable(chain(&error)),
        }
    }

    /// Returns whether strict tasks can run here.
    pub(crate) fn strict(&self) -> IsolationSupport {
        match self.contained() {
            IsolationSupport::Able => {
                match user_namespace(limits::FIRST_ID, limits::IDS_PER_TASK) {
                    Ok(_namespace) => IsolationSupport::Able,
                    Err(error) => {
                        IsolationSupport::Unable(format!("make a user namespace: {error}"))
                    }
                }
            }
            unable @ IsolationSupport::Unable(_) => unable,
        }
    }
}
