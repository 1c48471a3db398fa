use crate::{SimConfig, run};

#[test]
fn the_same_seed_gives_the_same_trace() {
    let one = run(SimConfig::new(4_711));
    let other = run(SimConfig::new(4_711));

    assert_eq!(one.trace, other.trace);
    assert_eq!(one, other);
}

#[test]
fn different_seeds_differ() {
    assert_ne!(run(SimConfig::new(1)).trace, run(SimConfig::new(2)).trace);
}

#[test]
fn the_first_seeds_come_to_rest() {
    for seed in 1..=5 {
        let report = run(SimConfig::new(seed));

        assert_eq!(report.faults, Vec::<String>::new(), "seed {seed}");
        assert!(report.placed > 0, "seed {seed} placed nothing");
    }
}

/// Seeds that broke something once: `seeds.txt` says what.
#[test]
fn seeds_that_broke_something_stay_mended() {
    let lines = include_str!("../seeds.txt")
        .lines()
        .filter(|line| !line.starts_with('#'));
    for line in lines {
        let seed = line.split_whitespace().next().unwrap().parse().unwrap();

        let report = run(SimConfig::new(seed));

        assert_eq!(report.faults, Vec::<String>::new(), "{line}");
    }
}
