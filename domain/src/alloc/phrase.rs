//! Numbers for texts that a million rows repeat.
//!
//! Code that writes one of these texts does not need the list. A text outside the list is stored in full. The numbers
//! are persisted in snapshots, so the list is append-only.

/// The texts, by number. The first is the empty one.
const PHRASES: &[&str] = &[
    "",
    // Descriptions of allocations by their agents.
    "no task has started",
    "tasks are running",
    "all tasks have ended",
    // Messages of task events.
    "the agent has the task",
    "cgroup, FIFOs and directories are being made",
    "the process runs",
    "found running after a restart of the agent",
    "stopped while no process ran",
    "the task was stopped",
    "another task of the allocation failed",
    "exit code 0",
    // Reasons of the control plane to stop.
    "the job is stopped",
    "the job was updated",
    "the job no longer has its group",
    "the job asks for fewer instances",
    "its node is down",
    "its node is gone",
    "alloc not needed due to job update",
    "alloc is lost since its node is down",
    "alloc is being migrated",
    "alloc was rescheduled because it failed",
    "alloc is being updated due to job update",
    "alloc not needed due to disconnected client reconnect",
    "its node is out of reach",
];

/// The number of `text`, if it is on the list.
#[must_use]
pub fn number(text: &str) -> Option<u8> {
    let at = PHRASES.iter().position(|phrase| *phrase == text)?;
    u8::try_from(at).ok()
}

/// The text of `number`.
#[must_use]
pub fn text(number: u8) -> Option<&'static str> {
    PHRASES.get(usize::from(number)).copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_phrase_is_found_by_its_number() {
        for (at, phrase) in PHRASES.iter().enumerate() {
            let at = u8::try_from(at).unwrap();

            assert_eq!(number(phrase), Some(at));
            assert_eq!(text(at), Some(*phrase));
        }
        assert!(PHRASES.len() < usize::from(u8::MAX));
    }
}
