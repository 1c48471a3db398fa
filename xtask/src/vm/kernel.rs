//! The guest's kernel: Debian's package for clouds, downloaded and unpacked, never installed.
//!
//! That kernel has the serial console, cgroup v2, BTF, eBPF and io_uring built in. Of the package's modules the guest
//! gets what a file system with quota in a file needs.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, bail};

use crate::shell;

/// Debian's package without content that depends on the newest kernel for clouds.
const META_PACKAGE: &str = "linux-image-cloud-amd64";

/// Modules that the guest loads, below `kernel` in the package; one that another needs comes before it.
pub(crate) const MODULES: [&str; 4] = [
    "drivers/block/loop.ko",
    "fs/quota/quota_tree.ko",
    "fs/quota/quota_v2.ko",
    "fs/overlayfs/overlay.ko",
];

/// A kernel that is unpacked.
#[derive(Clone, Debug)]
pub(crate) struct Kernel {
    /// What `uname -r` says in the guest.
    pub(crate) release: String,
    /// The image that QEMU boots.
    pub(crate) image: PathBuf,
    /// The directory of its modules, which are loaded in the order of [`MODULES`].
    pub(crate) modules: PathBuf,
}

/// The kernel unpacked in `cache`; the newest one that apt knows when there is none, or when
/// `refresh` asks for it.
///
/// # Errors
///
/// When apt does not know the package, or it cannot be downloaded or unpacked.
pub(crate) fn fetch(cache: &Path, refresh: bool) -> anyhow::Result<Kernel> {
    if !refresh && let Some(kernel) = unpacked(cache) {
        return Ok(kernel);
    }
    let package = match newest_package() {
        Ok(package) => package,
        Err(_) => {
            update()?;
            newest_package()?
        }
    };
    // apt and dpkg-deb work in a folder of their own, renamed at the end: a folder named `kernel-…`
    // is whole.
    let scratch = cache.join(format!("download-{}", std::process::id()));
    std::fs::create_dir_all(&scratch)
        .with_context(|| format!("cannot make {}", scratch.display()))?;
    let result = download(cache, &scratch, &package);
    std::fs::remove_dir_all(&scratch)
        .with_context(|| format!("cannot remove {}", scratch.display()))?;
    result?;
    unpacked(cache).with_context(|| format!("{package} holds no kernel image"))
}

/// The kernel in `cache`, the last by name if there are several.
fn unpacked(cache: &Path) -> Option<Kernel> {
    let mut kernels: Vec<Kernel> = std::fs::read_dir(cache)
        .ok()?
        .filter_map(|entry| {
            let entry = entry.ok()?;
            let release = entry
                .file_name()
                .to_str()?
                .strip_prefix("kernel-")?
                .to_owned();
            let (image, modules) = (entry.path().join("vmlinuz"), entry.path().join("modules"));
            (image.is_file() && modules.is_dir()).then_some(Kernel {
                release,
                image,
                modules,
            })
        })
        .collect();
    kernels.sort_by_key(|kernel| version_key(&kernel.release));
    kernels.pop()
}

/// The numbers in a release, so that 6.1.0-9 comes before 6.1.0-56.
fn version_key(release: &str) -> Vec<u64> {
    release
        .split(|c: char| !c.is_ascii_digit())
        .filter_map(|number| number.parse().ok())
        .collect()
}

fn newest_package() -> anyhow::Result<String> {
    let mut apt = Command::new("apt-cache");
    apt.args(["show", "--no-all-versions", META_PACKAGE]);
    let text = shell::capture(&mut apt).context("apt does not know Debian's kernel for clouds")?;
    parse_depends(&text).with_context(|| format!("{META_PACKAGE} depends on no kernel"))
}

/// The kernel's package in a line like `Depends: linux-image-6.1.0-56-cloud-amd64 (= 6.1.192-2)`.
fn parse_depends(text: &str) -> Option<String> {
    let depends = text
        .lines()
        .find_map(|line| line.strip_prefix("Depends: "))?;
    depends
        .split([',', ' '])
        .find(|word| word.starts_with("linux-image-") && word.ends_with("-amd64"))
        .map(str::to_owned)
}

fn download(cache: &Path, scratch: &Path, package: &str) -> anyhow::Result<()> {
    eprintln!("guest   downloading {package}");
    let apt = || {
        let mut apt = Command::new("apt-get");
        apt.args(["download", "-qq", package]).current_dir(scratch);
        apt
    };
    // A package list that is too old names a version that the archive has dropped.
    if shell::capture(&mut apt()).is_err() {
        update()?;
        shell::capture(&mut apt())?;
    }
    let archive = std::fs::read_dir(scratch)
        .context("cannot list what apt downloaded")?
        .filter_map(|entry| Some(entry.ok()?.path()))
        .find(|path| path.extension().is_some_and(|extension| extension == "deb"))
        .context("apt-get download left no package")?;
    let tree = scratch.join("tree");
    shell::capture(Command::new("dpkg-deb").arg("-x").args([&archive, &tree]))?;

    let release = package.trim_start_matches("linux-image-");
    let image = tree.join("boot").join(format!("vmlinuz-{release}"));
    let kernel = scratch.join("kernel");
    std::fs::create_dir(&kernel).context("cannot make a folder for the kernel")?;
    std::fs::rename(&image, kernel.join("vmlinuz"))
        .with_context(|| format!("{package} holds no {}", image.display()))?;
    let modules = kernel.join("modules");
    std::fs::create_dir(&modules).context("cannot make a folder for the kernel's modules")?;
    for module in MODULES {
        let found = tree
            .join("lib/modules")
            .join(release)
            .join("kernel")
            .join(module);
        let name = found.file_name().context("a module has a name")?;
        // A kernel that has it built in, or packs it, goes without; tests that need it say so.
        if found.is_file() {
            std::fs::copy(&found, modules.join(name))
                .with_context(|| format!("cannot copy {}", found.display()))?;
        }
    }
    let destination = cache.join(format!("kernel-{release}"));
    if destination.join("modules").is_dir() {
        return Ok(());
    }
    if destination.exists() {
        std::fs::remove_dir_all(&destination)
            .with_context(|| format!("cannot remove {}", destination.display()))?;
    }
    std::fs::rename(&kernel, &destination)
        .with_context(|| format!("cannot make {}", destination.display()))
}

/// Has apt read the archive's package lists again, which needs root.
fn update() -> anyhow::Result<()> {
    let mut direct = Command::new("apt-get");
    direct.args(["update", "-qq"]);
    let Err(error) = shell::capture(&mut direct) else {
        return Ok(());
    };
    if shell::find_program("sudo").is_none() {
        bail!("{error:#}; run as root: apt-get update");
    }
    shell::capture(Command::new("sudo").args(["-n", "apt-get", "update", "-qq"])).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kernel_package_is_read_from_the_meta_package() {
        let text = "Package: linux-image-cloud-amd64\nVersion: 6.1.192-2\n\
                    Depends: linux-image-6.1.0-56-cloud-amd64 (= 6.1.192-2)\n";

        assert_eq!(
            parse_depends(text).as_deref(),
            Some("linux-image-6.1.0-56-cloud-amd64")
        );
    }

    #[test]
    fn releases_compare_by_number() {
        assert!(version_key("6.1.0-9-cloud-amd64") < version_key("6.1.0-56-cloud-amd64"));
        assert!(version_key("6.1.0-56-cloud-amd64") < version_key("6.12.9+deb13-cloud-amd64"));
    }
}
