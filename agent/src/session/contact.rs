//! The time of the last contact with a leader, kept over the life of the agent: `contact` in the data directory.
//!
//! The file has one line, written in place and not synced. Its number is the machine's time since boot and means
//! nothing after another boot. The page cache outlives the agent, and only the agent's death must not lose the number.
//! A write that is lost or late leaves an older contact, with which the next agent stops sooner.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt as _, OpenOptionsExt as _};
use std::path::Path;
use std::time::{Duration, Instant};

use muster_domain::id::Timestamp;
use nix::time::{ClockId, clock_gettime};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::limits::CONTACT_WRITE_INTERVAL;

const FILE: &str = "contact";

/// The clock of [`muster_agent_core::heartbeat_lease`]: time since the boot at the agent's start, plus the time
/// that timers have measured since.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ContactClock {
    instant: Instant,
    since_boot: Timestamp,
}

impl ContactClock {
    fn start() -> Self {
        // Every kernel that runs an agent has this clock.
        let since_boot = clock_gettime(ClockId::CLOCK_BOOTTIME).map_or(Duration::ZERO, Into::into);
        Self {
            instant: Instant::now(),
            since_boot: Timestamp(0).plus(since_boot),
        }
    }

    /// The time at which the agent began.
    pub(crate) fn began(self) -> Timestamp {
        self.since_boot
    }

    /// The time at `instant`.
    pub(crate) fn at(self, instant: Instant) -> Timestamp {
        let since = instant.saturating_duration_since(self.instant);
        self.since_boot.plus(since)
    }

    /// Returns the instant of the time `at`, or the agent's beginning if that was later.
    pub(crate) fn instant(self, at: Timestamp) -> Instant {
        self.instant + at.since(self.since_boot)
    }
}

/// The contact file, and the contact that an earlier agent wrote.
#[derive(Debug)]
pub(crate) struct ContactFile {
    clock: ContactClock,
    boot_id: String,
    /// `None` if it cannot be written.
    file: Option<File>,
    earlier: Option<Timestamp>,
}

impl ContactFile {
    /// Reads the contact in `data_dir`. An unusable file affects only the next agent, which then has no earlier
    /// contact.
    pub(crate) fn open(data_dir: &Path, boot_id: &str) -> Self {
        let path = data_dir.join(FILE);
        let opened = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .open(&path);
        let read = opened.and_then(|file| Ok((io::read_to_string(&file)?, file)));
        let (text, file) = match read {
            Ok((text, file)) => (text, Some(file)),
            Err(error) => {
                tracing::warn!(%error, path = %path.display(), "the next agent will not know when a server last heard of the node");
                (String::new(), None)
            }
        };
        Self {
            clock: ContactClock::start(),
            boot_id: boot_id.to_owned(),
            file,
            earlier: parse(&text, boot_id),
        }
    }

    /// The agent's clock, and the contact of an earlier agent in this boot.
    pub(crate) fn known(&self) -> (ContactClock, Option<Timestamp>) {
        (self.clock, self.earlier)
    }

    /// Writes each `last_contact` to the file until `stop`.
    pub(crate) async fn follow(
        self,
        mut last_contact: watch::Receiver<Option<Instant>>,
        stop: CancellationToken,
    ) {
        let mut is_reported = false;
        let following = async {
            while last_contact.changed().await.is_ok() {
                let Some(sent) = *last_contact.borrow_and_update() else {
                    continue;
                };
                let written = self.write(self.clock.at(sent));
                if let Err(error) = &written
                    && !is_reported
                {
                    tracing::warn!(%error, "it is not stored when a server last heard of the node");
                }
                is_reported = written.is_err();
                tokio::time::sleep(CONTACT_WRITE_INTERVAL).await;
            }
        };
        stop.run_until_cancelled(following).await;
    }

    /// Writes a line. All lines have one length. A copy of so few bytes into the page cache is either complete or
    /// not begun.
    fn write(&self, contact: Timestamp) -> io::Result<()> {
        let Some(file) = &self.file else {
            return Ok(());
        };
        file.write_all_at(line(contact, &self.boot_id).as_bytes(), 0)
    }
}

fn line(contact: Timestamp, boot_id: &str) -> String {
    format!("{boot_id} {:020}\n", contact.0)
}

/// Returns the time in a line that was written in this boot.
fn parse(text: &str, boot_id: &str) -> Option<Timestamp> {
    let (boot, number) = text.strip_suffix('\n')?.split_once(' ')?;
    (boot == boot_id).then_some(())?;
    Some(Timestamp(number.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn contact_is_restored_only_within_same_boot() {
        let dir = tempfile::tempdir().unwrap();
        let first = ContactFile::open(dir.path(), "boot-1");
        let sent = first.clock.at(Instant::now());

        first.write(Timestamp(u64::MAX)).unwrap();
        first.write(sent).unwrap();

        assert_eq!(first.known().1, None);
        let again = ContactFile::open(dir.path(), "boot-1").known();
        assert_eq!(again.1, Some(sent));
        assert!(again.0.began() >= sent);
        assert_eq!(ContactFile::open(dir.path(), "boot-2").known().1, None);
    }

    #[test]
    fn invalid_contact_lines_are_ignored() {
        let good = line(Timestamp(7), "boot");
        assert_eq!(parse(&good, "boot"), Some(Timestamp(7)));

        for bad in [
            "",
            "boot",
            "boot x\n",
            " 7\n",
            &good[..good.len() - 1],
            "boot 7 7\n",
        ] {
            assert_eq!(parse(bad, "boot"), None, "{bad:?}");
        }
    }

    /// Disk that cannot be written keeps no agent from starting.
    #[test]
    fn unopenable_contact_file_is_tolerated() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir(dir.path().join(FILE)).unwrap();

        let kept = ContactFile::open(dir.path(), "boot");

        assert_eq!(kept.known().1, None);
        kept.write(Timestamp(1)).unwrap();
    }

    #[test]
    fn the_clock_goes_there_and_back() {
        let clock = ContactClock::start();
        let later = Instant::now() + Duration::from_secs(3);

        assert_eq!(clock.instant(clock.at(later)), later);
        assert_eq!(clock.instant(Timestamp(0)), clock.instant);
    }
}
