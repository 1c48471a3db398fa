//! The guest's kernel: Debian's package for clouds, downloaded and unpacked, never installed.
//!
//! That kernel has the serial console, cgroup v2, BTF, eBPF and io_uring built in. The guest gets some of the
//! package's modules. They provide a file system with quota in a file, and a slow disk with a scheduler that supports
//! weights. Debian's archive has kernels of several series. The newest of each is found by its name, which changes
//! with every version.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, bail};

use crate::shell;

/// The tested series of kernels, as prefixes of their versions. They are the oldest that Muster supports, and Debian
/// 13's, which Debian 12's archive has too.
pub(crate) const SERIES: [&str; 2] = ["6.1", "6.12"];

/// The prefix of the names of kernel packages. The two constants below are their suffixes.
const PREFIX: &str = "linux-image-";
const FLAVOUR: &str = "-cloud-amd64";
const UNSIGNED: &str = "-unsigned";

/// Modules that the guest loads, as paths below `kernel` in the package. Some are compressed there. A required module
/// comes before the module that needs it.
pub(crate) const MODULES: [&str; 8] = [
    "drivers/block/loop.ko",
    "fs/configfs/configfs.ko",
    "drivers/block/null_blk/null_blk.ko",
    "block/bfq.ko",
    "fs/quota/quota_tree.ko",
    "fs/quota/quota_v2.ko",
    "fs/overlayfs/overlay.ko",
    "drivers/net/veth.ko",
];

/// The file that lists the modules of an unpacked kernel. A kernel with other modules is unpacked again.
const MODULES_LIST: &str = "modules.list";

/// An unpacked kernel.
#[derive(Clone, Debug)]
pub(crate) struct Kernel {
    /// The output of `uname -r` in the guest.
    pub(crate) release: String,
    /// The image that QEMU boots.
    pub(crate) image: PathBuf,
    /// The directory of its modules, which are loaded in the order of [`MODULES`].
    pub(crate) modules: PathBuf,
}

/// Returns the kernel of `series` that is unpacked in `cache`. If there is none, or with `refresh`, it downloads the
/// newest one that apt knows.
///
/// # Errors
///
/// When apt knows no such package, or it cannot be downloaded or unpacked.
pub(crate) fn fetch(cache: &Path, series: &str, refresh: bool) -> anyhow::Result<Kernel> {
    if !refresh && let Some(kernel) = unpacked(cache, series) {
        return Ok(kernel);
    }
    let package = match newest_package(series) {
        Ok(package) => package,
        Err(_) => {
            update().with_context(|| format!("cannot look for kernel {series} in the archive"))?;
            newest_package(series)?
        }
    };
    // apt and dpkg-deb work in a separate folder, which is renamed at the end. A folder named `kernel-…` is therefore
    // complete.
    let scratch = cache.join(format!("download-{}", std::process::id()));
    std::fs::create_dir_all(&scratch)
        .with_context(|| format!("cannot make {}", scratch.display()))?;
    let result = download(cache, &scratch, &package);
    std::fs::remove_dir_all(&scratch)
        .with_context(|| format!("cannot remove {}", scratch.display()))?;
    result?;
    unpacked(cache, series).with_context(|| format!("{package} holds no kernel image"))
}

/// Returns the kernel of `series` in `cache`, the last by name if there are several.
fn unpacked(cache: &Path, series: &str) -> Option<Kernel> {
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
            let has = std::fs::read_to_string(entry.path().join(MODULES_LIST)).unwrap_or_default();
            let whole = image.is_file() && has == MODULES.join("\n");
            (whole && is_in_series(&release, series)).then_some(Kernel {
                release,
                image,
                modules,
            })
        })
        .collect();
    kernels.sort_by_key(|kernel| version_key(&kernel.release));
    kernels.pop()
}

/// Returns the numbers in a release, so that 6.1.0-9 comes before 6.1.0-56.
fn version_key(release: &str) -> Vec<u64> {
    release
        .split(|c: char| !c.is_ascii_digit())
        .filter_map(|number| number.parse().ok())
        .collect()
}

/// Whether a kernel release belongs to `series`: 6.12.9 does not belong to 6.1.
fn is_in_series(release: &str, series: &str) -> bool {
    release
        .strip_prefix(series)
        .is_some_and(|rest| rest.starts_with('.'))
}

fn newest_package(series: &str) -> anyhow::Result<String> {
    let mut apt = Command::new("apt-cache");
    apt.args(["pkgnames", PREFIX]);
    let names = shell::capture(&mut apt).context("apt does not list Debian's packages")?;
    newest(&names, series).with_context(|| {
        format!(
            "Debian's archive, as apt knows it here, has no kernel {series} for clouds \
             ({PREFIX}{series}.*{FLAVOUR})"
        )
    })
}

/// Returns the newest cloud kernel of `series` in `names`, one package per line. For equal versions it prefers the
/// package with a signed image. The unsigned one may be published earlier.
fn newest(names: &str, series: &str) -> Option<String> {
    let kernels = names.lines().filter(|name| {
        let release = release_of(name);
        name.starts_with(PREFIX) && is_in_series(release, series) && release.ends_with(FLAVOUR)
    });
    kernels
        .max_by_key(|name| (version_key(release_of(name)), !name.ends_with(UNSIGNED)))
        .map(str::to_owned)
}

/// Returns the kernel release of the package, as `uname -r` prints it.
fn release_of(package: &str) -> &str {
    let release = package.strip_prefix(PREFIX).unwrap_or(package);
    release.strip_suffix(UNSIGNED).unwrap_or(release)
}

fn download(cache: &Path, scratch: &Path, package: &str) -> anyhow::Result<()> {
    eprintln!("guest   downloading {package}");
    let apt = || {
        let mut apt = Command::new("apt-get");
        apt.args(["download", "-qq", package]).current_dir(scratch);
        apt
    };
    // An outdated package list names a version that the archive no longer has.
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

    let release = release_of(package);
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
        // A kernel with the module built in has no module file.
        copy_module(&found, &modules)?;
    }
    std::fs::write(kernel.join(MODULES_LIST), MODULES.join("\n"))
        .context("cannot say which modules there are")?;
    let destination = cache.join(format!("kernel-{release}"));
    if destination.exists() {
        std::fs::remove_dir_all(&destination)
            .with_context(|| format!("cannot remove {}", destination.display()))?;
    }
    std::fs::rename(&kernel, &destination)
        .with_context(|| format!("cannot make {}", destination.display()))
}

/// Copies a module into `folder`, decompressed. A module that is not in the package is left out.
fn copy_module(module: &Path, folder: &Path) -> anyhow::Result<()> {
    let name = module.file_name().context("a module has a name")?;
    let copy = folder.join(name);
    let packed = module.with_extension("ko.xz");
    if packed.is_file() {
        let mut busybox = Command::new("busybox");
        shell::capture(busybox.arg("unxz").arg(&packed))?;
    }
    if module.is_file() {
        std::fs::copy(module, &copy)
            .with_context(|| format!("cannot copy {}", module.display()))?;
    }
    Ok(())
}

/// Updates apt's package lists, which needs root.
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

    const NAMES: &str = "linux-image-6.1.0-9-cloud-amd64\n\
        linux-image-6.12.117+deb12-cloud-amd64-unsigned\n\
        linux-image-6.1.0-56-cloud-amd64\n\
        linux-image-6.1.0-56-cloud-amd64-unsigned\n\
        linux-image-6.12.117+deb12-cloud-amd64-dbg\n\
        linux-image-6.12-cloud-amd64\n\
        linux-image-6.12.99+deb12-cloud-amd64\n\
        linux-image-6.12.118+deb12-amd64\n";

    #[test]
    fn newest_kernel_of_series_is_selected() {
        assert_eq!(
            SERIES.map(|series| newest(NAMES, series)),
            [
                Some("linux-image-6.1.0-56-cloud-amd64".to_owned()),
                Some("linux-image-6.12.117+deb12-cloud-amd64-unsigned".to_owned())
            ]
        );
        assert_eq!(newest(NAMES, "6.18"), None);
    }

    #[test]
    fn unsigned_kernel_is_known_by_its_release() {
        assert_eq!(
            release_of("linux-image-6.12.117+deb12-cloud-amd64-unsigned"),
            "6.12.117+deb12-cloud-amd64"
        );
    }

    #[test]
    fn cached_kernel_matches_requested_series() {
        let cache = tempfile::tempdir().unwrap();
        for release in ["6.1.0-56-cloud-amd64", "6.12.117+deb12-cloud-amd64"] {
            let folder = cache.path().join(format!("kernel-{release}"));
            std::fs::create_dir_all(&folder).unwrap();
            std::fs::write(folder.join("vmlinuz"), []).unwrap();
            std::fs::write(folder.join(MODULES_LIST), MODULES.join("\n")).unwrap();
        }
        // This kernel lacks modules that the guest loads today.
        let old = cache.path().join("kernel-6.13.0-cloud-amd64");
        std::fs::create_dir_all(&old).unwrap();
        std::fs::write(old.join("vmlinuz"), []).unwrap();

        let releases = ["6.1", "6.12", "6"].map(|series| {
            let kernel = unpacked(cache.path(), series);
            kernel.map(|kernel| kernel.release)
        });

        assert_eq!(unpacked(cache.path(), "6.13").map(|it| it.release), None);
        let expected = ["6.1.0-56", "6.12.117+deb12", "6.12.117+deb12"];
        assert_eq!(
            releases,
            expected.map(|version| Some(format!("{version}-cloud-amd64")))
        );
    }

    #[test]
    fn releases_compare_by_number() {
        assert!(version_key("6.1.0-9-cloud-amd64") < version_key("6.1.0-56-cloud-amd64"));
        assert!(version_key("6.1.0-56-cloud-amd64") < version_key("6.12.9+deb13-cloud-amd64"));
    }
}
