use std::sync::mpsc;

use super::*;

/// Longer than any test.
const LONG: Duration = Duration::from_mins(10);

#[test]
fn a_deletion_waits_for_starting_tasks() {
    let (gate, stop, is_over) = (
        StartGate::new(LONG),
        AtomicBool::new(false),
        AtomicBool::new(false),
    );
    gate.begin_start();
    gate.begin_start();
    std::thread::scope(|scope| {
        let (ready, is_ready) = mpsc::sync_channel(1);
        let (gate, stop, is_over) = (&gate, &stop, &is_over);
        let deletion = scope.spawn(move || {
            ready.send(()).unwrap();
            StartWait::new(gate).wait_for_starts(stop);
            is_over.load(Ordering::SeqCst)
        });
        is_ready.recv().unwrap();
        gate.end_start();
        is_over.store(true, Ordering::SeqCst);
        gate.end_start();
        assert!(
            deletion.join().unwrap(),
            "it went on while something started"
        );
    });
    // Another thread's deletion does not wait.
    StartWait::new(&gate).wait_for_starts(&stop);
}

#[test]
fn deletion_wait_for_task_starts_is_bounded() {
    let (gate, stop) = (
        StartGate::new(Duration::from_millis(1)),
        AtomicBool::new(false),
    );
    gate.begin_start();
    let mut start_wait = StartWait::new(&gate);

    start_wait.wait_for_starts(&stop);

    assert!(start_wait.no_wait_before.is_some(), "it has waited enough");
    // The deletion then works for a while without waiting.
    start_wait.no_wait_before = Some(Instant::now() + LONG);
    start_wait.wait_for_starts(&stop);
}

#[test]
fn stopping_deletion_does_not_wait() {
    let (gate, stop) = (StartGate::new(LONG), AtomicBool::new(true));
    gate.begin_start();
    StartWait::new(&gate).wait_for_starts(&stop);
}
