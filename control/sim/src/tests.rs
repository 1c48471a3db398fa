//! Complete runs: they come to rest, they are reproducible, and they find deliberate bugs.

mod bugs;

use crate::{Report, SimConfig, run};

fn well(config: SimConfig, name: &str) -> Report {
    let report = run(config);
    assert_eq!(report.faults, Vec::<String>::new(), "{name}");
    report
}

/// Each of these seeds found a fault of the scheduler, the state machine or the simulator.
#[test]
fn seeds_of_mended_faults_pass() {
    for seed in [
        124,
        135,
        493_852_471,
        658_886_383,
        739_455_447,
        847_542_155,
        1_246_361_755,
        1_313_895_241,
        1_346_681_546,
        1_346_682_128,
        3_129_742_910,
        2_026_587_766,
        3_838_720_416,
        3_838_720_445,
        3_838_721_602,
        4_084_413_378,
    ] {
        well(SimConfig::new(seed), &format!("seed {seed}"));
    }
}

#[test]
fn the_first_seeds_come_to_rest() {
    let (mut placed, mut collected, mut one_offs) = (0, 0, 0);
    let (mut placed_at_once, mut called) = (0, 0);
    let (mut forced, mut slices, mut cut_short) = (0, 0, 0);
    let (mut successful, mut failed, mut reverted, mut promoted) = (0, 0, 0, 0);
    for seed in 1..=20 {
        let report = well(SimConfig::new(seed), &format!("seed {seed}"));
        placed += report.placed;
        collected += report.collected;
        one_offs += report.one_offs;
        placed_at_once += report.placed_at_once;
        called += report.called;
        forced += report.forced;
        slices += report.slices;
        successful += report.rollouts.successful;
        failed += report.rollouts.failed;
        reverted += report.rollouts.reverted;
        promoted += report.rollouts.promoted;
        cut_short += report.cut_short.lost_leadership + report.cut_short.died;
    }

    assert!(placed > 1_000, "only {placed} instances were placed");
    assert!(collected > 1_000, "only {collected} objects were collected");
    assert!(one_offs > 50, "only {one_offs} one-off tasks began");
    assert!(
        placed_at_once > 20,
        "only {placed_at_once} tasks were placed as they were made"
    );
    assert!(called > 20, "only {called} callbacks were made");
    assert!(forced > 100, "only {forced} collections were asked for");
    assert!(
        successful > 20,
        "only {successful} deployments were successful"
    );
    assert!(failed > 20, "only {failed} deployments failed");
    assert!(reverted > 1, "only {reverted} jobs went back");
    assert!(promoted > 3, "only {promoted} deployments were promoted");
    assert!(slices > 500, "only {slices} slices followed others");
    assert!(
        cut_short > 10,
        "only {cut_short} collections were cut short"
    );
}

/// Checks that a collection survives a restart of the only server and continues from the log.
#[test]
fn gc_survives_crashes_of_single_server() {
    let mut died = 0;
    for seed in 1..=12 {
        let config = SimConfig {
            servers: 1,
            ..SimConfig::new(seed)
        };

        let report = well(config, &format!("seed {seed}, alone"));
        died += report.cut_short.died_alone;
    }

    assert!(died > 5, "it died only {died} times");
}

#[test]
fn one_three_and_five_servers_come_to_rest() {
    for servers in [1, 3, 5] {
        let config = SimConfig {
            servers,
            ..SimConfig::new(7)
        };

        let report = well(config, &format!("{servers} servers"));

        assert!(report.acknowledged_writes > 0 && report.reads > 0);
    }
}

#[test]
fn the_same_seed_gives_the_same_trace() {
    let one = run(SimConfig::new(4_711));
    let other = run(SimConfig::new(4_711));

    assert_eq!(one.trace, other.trace);
    assert_eq!(one, other);
}

/// The standard library seeds maps of random order per thread. A second thread would expose their use.
#[test]
fn another_thread_gives_the_same_trace() {
    let here = run(SimConfig::new(4_711));
    let there = std::thread::spawn(|| run(SimConfig::new(4_711)));

    assert_eq!(here.trace, there.join().unwrap().trace);
}

#[test]
fn different_seeds_differ() {
    assert_ne!(run(SimConfig::new(1)).trace, run(SimConfig::new(2)).trace);
}

/// Checks the seeds that once found a fault. `seeds.txt` describes each fault.
#[test]
fn seeds_that_broke_something_stay_mended() {
    let text = include_str!("../seeds.txt");
    for line in text.lines().filter(|line| !line.starts_with('#')) {
        let mut words = line.split_whitespace();
        let mut number = || words.next().unwrap().parse::<u64>().unwrap();
        let (seed, servers) = (number(), usize::try_from(number()).unwrap());

        well(
            SimConfig {
                servers,
                ..SimConfig::new(seed)
            },
            line,
        );
    }
}
