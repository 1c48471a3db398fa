//! A fuzz target for job files. A file is refused with faults, or becomes a body that the API can read.

use std::path::Path;

use muster_wire::api::job::request;
use muster_wire::limits::FAULTS_MAX;
use serde_json::{Value, json};

use super::eval::Evaluator;
use super::{ConfigSpans, Inputs, parse};

/// Reads `data` as a job file. Referenced files are looked up in a directory without files.
///
/// # Panics
///
/// If a file is refused without a fault or with too many, or the second reading differs.
pub fn job_file(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else {
        return;
    };
    let name = "/nonexistent/job.hcl";
    let inputs = Inputs::default();
    match parse(name, text, &inputs) {
        Ok(job) => check(name, text, &job),
        Err(error) => {
            let shown = error.to_string();
            let lines = shown.lines().filter(|line| line.starts_with(name));
            assert!((1..=FAULTS_MAX + 1).contains(&lines.count()), "{shown}");
        }
    }
}

fn check(name: &str, text: &str, job: &Value) {
    // The server decides whether the job is valid.
    drop(request::read(json!({ "Job": job }).to_string().as_bytes()));
    let (file, evaluator) = (name.to_owned(), Evaluator::for_file(Path::new(name)));
    let places = ConfigSpans::parse(file, text.to_owned(), &Inputs::default(), evaluator);
    drop(places.of("group", "task", "`config.a[1].b` is wrong"));
    // Two functions answer otherwise each time.
    if !text.contains("uuidv4") && !text.contains("bcrypt") {
        let again = parse(name, text, &Inputs::default());
        assert_eq!(again.ok().as_ref(), Some(job));
    }
}

#[cfg(test)]
mod tests {
    use muster_domain::fixture::corpus::replay;

    #[test]
    fn files_of_the_corpus_are_read_or_refused() {
        replay("job_file", super::job_file);
    }
}
