//! A stored job can be read and registered again without a change.

use muster_domain::fixture::{long, submission};
use muster_domain::job::JobSpec;
use serde_json::{Value, json};

use crate::api::diff::{self, DiffType};
use crate::api::job::Job;
use crate::api::job::tests::valid;

/// Generated jobs, and with `--long`.
const CASES: (u64, u64) = (1_200, 50_000);

/// Failures that are shrunk and reported.
const WRONG_MAX: usize = 5;

/// The job that is stored for `job`.
fn stored(job: &Value) -> Result<JobSpec, String> {
    valid(&json!({ "Job": job })).map_err(|faults| faults.join("\n"))
}

/// Fails if anything changes when the answer for `job` is registered again.
fn check(job: &Value) -> Result<(), String> {
    let first = stored(job).map_err(|why| format!("is refused: {why}"))?;
    let answer = json!(Job::from_spec(&first));
    let second =
        stored(&answer).map_err(|why| format!("the answer is refused: {why}\n{answer}"))?;
    let again = json!(Job::from_spec(&second));
    let bytes = |value: &Value| value.to_string();
    if bytes(&answer) != bytes(&again) {
        return Err(format!("the answer changes:\n{answer}\n{again}"));
    }
    if first != second {
        return Err(format!("the job changes:\n{first:?}\n{second:?}"));
    }
    let diff = diff::jobs(Some(&answer), Some(&again), true).map_err(|it| it.to_string())?;
    (diff.diff_type == DiffType::None)
        .then_some(())
        .ok_or_else(|| format!("there is a difference: {diff:?}"))
}

/// `value` without one field or item, in every way.
fn smaller(value: &Value) -> Vec<Value> {
    let mut ways = Vec::new();
    match value {
        Value::Object(map) => {
            for (name, inner) in map {
                let mut without = map.clone();
                without.remove(name);
                ways.push(Value::Object(without));
                for inner in smaller(inner) {
                    let mut with = map.clone();
                    with.insert(name.clone(), inner);
                    ways.push(Value::Object(with));
                }
            }
        }
        Value::Array(list) => {
            for (at, inner) in list.iter().enumerate() {
                let mut without = list.clone();
                without.remove(at);
                ways.push(Value::Array(without));
                for inner in smaller(inner) {
                    let mut with = list.clone();
                    with[at] = inner;
                    ways.push(Value::Array(with));
                }
            }
        }
        _ => {}
    }
    ways
}

/// The smallest job that changes, if `job` does.
fn shrunk(mut job: Value, mut why: String) -> (Value, String) {
    loop {
        let next = smaller(&job)
            .into_iter()
            .filter(|less| stored(less).is_ok())
            .find_map(|less| check(&less).err().map(|why| (less, why)));
        match next {
            Some(next) => (job, why) = next,
            None => return (job, why),
        }
    }
}

#[test]
fn generated_jobs_register_again_unchanged() {
    let cases = if long() { CASES.1 } else { CASES.0 };
    let mut wrong = Vec::new();
    for seed in 0..cases {
        let job = submission::job("again", seed);
        if let Err(why) = check(&job) {
            let (job, why) = if why.starts_with("is refused") {
                (job, why)
            } else {
                shrunk(job, why)
            };
            wrong.push(format!("seed {seed}: {why}\n{job}"));
        }
        if wrong.len() >= WRONG_MAX {
            break;
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
