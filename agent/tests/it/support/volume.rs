//! File systems of a test's own.

use std::path::Path;
use std::process::Command;

use super::skipped;

/// Makes ext4 in the file `image`, with so many inodes; says why the test cannot run if that fails.
pub(crate) fn make_ext4(test: &str, image: &Path, megabytes: u64, inodes: u32) -> bool {
    let file = std::fs::File::create(image).unwrap();
    file.set_len(megabytes << 20).unwrap();
    let mut mkfs = Command::new("mkfs.ext4");
    mkfs.args(["-q", "-m", "0", "-N", &inodes.to_string()]);
    done(test, mkfs.arg(image))
}

/// Mounts with `mount(8)`; says why the test cannot run if that fails.
pub(crate) fn mount(test: &str, args: &[&str], at: &Path) -> bool {
    done(test, Command::new("mount").args(args).arg(at))
}

fn done(test: &str, command: &mut Command) -> bool {
    let reason = match command.output() {
        Ok(done) if done.status.success() => return true,
        Ok(done) => String::from_utf8_lossy(&done.stderr).into_owned(),
        Err(error) => error.to_string(),
    };
    let program = command.get_program().to_string_lossy();
    skipped(test, &format!("{program}: {}", reason.trim()));
    false
}
