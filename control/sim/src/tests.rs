use crate::{SimConfig, run};

#[test]
fn the_first_seeds_come_to_rest() {
    for seed in 1..=5 {
        let report = run(SimConfig::new(seed));

        assert_eq!(report.faults, Vec::<String>::new(), "seed {seed}");
        assert!(report.placed > 0, "seed {seed} placed nothing");
    }
}
