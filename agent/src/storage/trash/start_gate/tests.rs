use std::sync::mpsc;

use super::*;

/// Longer than any test.
const LONG: Duration = Duration::from_mins(10);

#[test]
fn a_deletion_waits_for_starting_tasks() {
    let (way, stop, is_over) = (
        StartGate::new(LONG),
        AtomicBool::new(false),
        AtomicBool::new(false),
    );
    way.enter();
    way.enter();
    std::thread::scope(|scope| {
        let (ready, is_ready) = mpsc::sync_channel(1);
        let (way, stop, is_over) = (&way, &stop, &is_over);
        let deletion = scope.spawn(move || {
            ready.send(()).unwrap();
            Deletion::new(way).give_way(stop);
            is_over.load(Ordering::SeqCst)
        });
        is_ready.recv().unwrap();
        way.exit();
        is_over.store(true, Ordering::SeqCst);
        way.exit();
        assert!(
            deletion.join().unwrap(),
            "it went on while something started"
        );
    });
    // Another thread's deletion does not wait.
    Deletion::new(&way).give_way(&stop);
}

#[test]
fn deletion_wait_for_task_starts_is_bounded() {
    let (way, stop) = (
        StartGate::new(Duration::from_millis(1)),
        AtomicBool::new(false),
    );
    way.enter();
    let mut turn = Deletion::new(&way);

    turn.give_way(&stop);

    assert!(turn.until.is_some(), "it has waited enough");
    // The deletion then works for a while without waiting.
    turn.until = Some(Instant::now() + LONG);
    turn.give_way(&stop);
}

#[test]
fn stopping_deletion_does_not_wait() {
    let (way, stop) = (StartGate::new(LONG), AtomicBool::new(true));
    way.enter();
    Deletion::new(&way).give_way(&stop);
}
