//! Generated expressions and files, evaluated here and by `hashicorp/hcl`.
//!
//! The reference is a Go program (`jobspec/oracle`), which is built and run once. A seed determines the cases. A case
//! with a different result is shrunk, printed and added to `oracle/cases.jsonl`. Cases of that file run first each
//! time. `MUSTER_ORACLE_CASES` sets the number of cases, `MUSTER_ORACLE_SEED` the seed.

mod generate;

use std::io::{BufRead as _, BufReader, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use muster_domain::fixture::recorded::skipped;
use serde_json::{Value as Json, json};

use crate::eval::Evaluator;
use crate::scope::Scope;
use crate::syntax::{self, Body};
use crate::value::{Type, Value};
use generate::{Case, Generator};

/// Cases of an ordinary run, and of a long one.
const CASES: usize = 20_000;
const CASES_LONG: usize = 1_000_000;
/// Cases that are sent before answers are read.
const BATCH: usize = 100;
/// Different cases that are shrunk before a run ends.
const DIFFERENCES_MAX: usize = 10;
const SEED: u64 = 20_261_128;

/// The Go program.
struct Oracle {
    process: Child,
    questions: Option<ChildStdin>,
    answers: BufReader<ChildStdout>,
}

impl Drop for Oracle {
    fn drop(&mut self) {
        drop(self.questions.take());
        drop(self.process.wait());
    }
}

/// An answer of either side.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Answer {
    Value(String),
    Refused(String),
    /// One side has no comparable result.
    Skipped,
}

impl Answer {
    fn agrees(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Value(a), Self::Value(b)) => a == b,
            (Self::Refused(_), Self::Refused(_)) | (Self::Skipped, _) | (_, Self::Skipped) => true,
            (_, _) => false,
        }
    }
}

impl Oracle {
    /// Builds and starts the program; `Err` is the reason why that is impossible here.
    fn start() -> Result<Self, String> {
        let manifest = Path::new(env!("CARGO_MANIFEST_DIR"));
        let binary = std::env::current_exe()
            .ok()
            .and_then(|test| Some(test.parent()?.join("jobspec-oracle")))
            .ok_or("the directory of the test is unknown")?;
        let built = Command::new("go")
            .args(["build", "-o"])
            .arg(&binary)
            .arg(".")
            .current_dir(manifest.join("oracle"))
            .output()
            .map_err(|error| format!("Go cannot be started: {error}"))?;
        if !built.status.success() {
            let reason = String::from_utf8_lossy(&built.stderr).into_owned();
            return Err(format!("the oracle cannot be built: {}", reason.trim()));
        }
        let mut process = Command::new(binary)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .map_err(|error| format!("the oracle cannot be started: {error}"))?;
        let (questions, answers) = (process.stdin.take(), process.stdout.take());
        Ok(Self {
            process,
            questions,
            answers: BufReader::new(answers.ok_or("the oracle has no output")?),
        })
    }

    /// Answers to `cases`, in their order.
    fn ask(&mut self, cases: &[(&str, String)]) -> Vec<Answer> {
        let mut text = String::new();
        for (kind, case) in cases {
            text.push_str(&json!({"kind": kind, "text": case}).to_string());
            text.push('\n');
        }
        let questions = self.questions.as_mut().expect("the oracle has an input");
        let answers = &mut self.answers;
        std::thread::scope(|scope| {
            // A second thread writes, so that full pipes cannot block both sides.
            scope.spawn(|| {
                questions
                    .write_all(text.as_bytes())
                    .expect("the oracle reads");
            });
            cases.iter().map(|_| read(answers)).collect()
        })
    }
}

fn read(answers: &mut BufReader<ChildStdout>) -> Answer {
    let mut line = String::new();
    answers.read_line(&mut line).expect("the oracle answers");
    let answer: Json = serde_json::from_str(&line).expect("an answer is JSON");
    if let Some(value) = answer["value"].as_str() {
        Answer::Value(value.to_owned())
    } else if let Some(error) = answer["error"].as_str() {
        Answer::Refused(error.to_owned())
    } else if answer.get("skip").is_some() {
        Answer::Skipped
    } else {
        // An empty body.
        Answer::Value(String::new())
    }
}

/// The names that the oracle declares, too.
fn scope() -> Scope {
    let texts = ["c", "a", "b"].map(str::to_owned);
    let number = |number: u32| Value::from_json(json!(number));
    let map = [("j", 8), ("k", 7)].map(|(name, value)| (name.to_owned(), number(value)));
    Scope::default()
        .with("text", Value::text("Hello, wörld"))
        .with("count", number(3))
        .with("tuple", Value::from_json(json!([1, "b", true])))
        .with(
            "object",
            Value::from_json(json!({"a": 1, "b": "x", "c": [5]})),
        )
        .with("list", Value::texts(texts))
        .with(
            "set",
            Value::set(Type::Number, [10, 9, 1].map(number).to_vec()),
        )
        .with("map", Value::Map(Type::Number, map.into_iter().collect()))
}

/// Our answer to a case.
fn answer(kind: &str, text: &str) -> Answer {
    let evaluator = Evaluator::plain();
    let scope = scope();
    let mut written = String::new();
    let outcome = match kind {
        "expression" => syntax::parse_expression(text, 0)
            .map_err(|error| error.message)
            .and_then(|expression| {
                let value = evaluator.eval(&expression, &scope);
                let value = value.map_err(|fault| fault.message)?;
                write(&mut written, &value);
                Ok(())
            }),
        _ => syntax::parse_body(text)
            .map_err(|error| error.message)
            .and_then(|body| write_body(&mut written, &body, &evaluator, &scope)),
    };
    // HCL knows the type of more results without a value than the evaluator does.
    if evaluator.guesses.get() {
        return Answer::Skipped;
    }
    match outcome {
        Ok(()) => Answer::Value(written),
        Err(message) => Answer::Refused(message),
    }
}

fn write_body(
    text: &mut String,
    body: &Body,
    evaluator: &Evaluator,
    scope: &Scope,
) -> Result<(), String> {
    let mut attributes: Vec<_> = body.attributes().collect();
    attributes.sort_by_key(|attribute| attribute.key.as_str());
    for attribute in attributes {
        let value = evaluator.eval(&attribute.value, scope);
        let value = value.map_err(|fault| fault.message)?;
        text.push_str(attribute.key.as_str());
        text.push_str(" = ");
        write(text, &value);
        text.push_str("; ");
    }
    for block in body.blocks() {
        text.push_str(block.ident.as_str());
        for label in &block.labels {
            text.push(' ');
            write_text(text, label.as_str());
        }
        text.push_str(" { ");
        write_body(text, &block.body, evaluator, scope)?;
        text.push_str("} ");
    }
    Ok(())
}

/// Adds `value` in the form of the oracle.
fn write(text: &mut String, value: &Value) {
    let name = match value {
        Value::Null(_) => return text.push_str("null"),
        Value::Bool(yes) => return text.push_str(&yes.to_string()),
        Value::Number(number) => return text.push_str(&number.text()),
        Value::Text(found) => return write_text(text, found),
        Value::List(..) => "list[",
        Value::Set(..) => "set[",
        Value::Tuple(_) => "tuple[",
        Value::Map(..) => "map{",
        Value::Object(_) => "object{",
    };
    text.push_str(name);
    for item in value.items().unwrap_or_default() {
        write(text, item);
        text.push_str(", ");
    }
    for (key, item) in value.entries().into_iter().flatten() {
        write_text(text, key);
        text.push_str(": ");
        write(text, item);
        text.push_str(", ");
    }
    text.push(if value.entries().is_some() { '}' } else { ']' });
}

fn write_text(text: &mut String, found: &str) {
    text.push('"');
    for c in found.chars() {
        match c {
            '"' | '\\' => {
                text.push('\\');
                text.push(c);
            }
            ' '..='~' => text.push(c),
            c => text.extend(format!("\\u{{{:x}}}", u32::from(c)).chars()),
        }
    }
    text.push('"');
}

/// The smallest case made of parts of `case` whose results still differ.
fn reduce_case(oracle: &mut Oracle, case: Case) -> Case {
    let mut best = case;
    loop {
        let mut candidates = best.reduced_variants();
        candidates.truncate(2_000);
        let texts: Vec<_> = candidates.iter().map(Case::kind_and_text).collect();
        let answers = oracle.ask(&texts);
        let found = candidates
            .into_iter()
            .zip(answers)
            .find(|(candidate, theirs)| {
                let (kind, text) = candidate.kind_and_text();
                !answer(kind, &text).agrees(theirs)
            });
        match found {
            Some((smaller, _)) => best = smaller,
            None => return best,
        }
    }
}

fn recorded_cases_path() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("oracle/cases.jsonl")
}

/// Compares both answers to `cases`; one line for each difference.
fn differences(
    oracle: &mut Oracle,
    cases: &[(&str, String)],
    prints: bool,
) -> (Vec<usize>, usize, usize) {
    let answers = oracle.ask(cases);
    let mut different = Vec::new();
    let (mut skips, mut refusals) = (0, 0);
    for (at, ((kind, text), theirs)) in cases.iter().zip(answers).enumerate() {
        skips += usize::from(theirs == Answer::Skipped);
        refusals += usize::from(matches!(theirs, Answer::Refused(_)));
        let ours = answer(kind, text);
        if !ours.agrees(&theirs) {
            different.push(at);
            if prints {
                println!("different: {kind} {text}\n  hcl:  {theirs:?}\n  here: {ours:?}");
            }
        }
    }
    (different, skips, refusals)
}

#[test]
fn answers_are_those_of_hcl() {
    let mut oracle = match Oracle::start() {
        Ok(oracle) => oracle,
        Err(reason) => return skipped("answers_are_those_of_hcl", &reason),
    };
    let known = std::fs::read_to_string(recorded_cases_path()).expect("the kept cases can be read");
    let known: Vec<Json> = known
        .lines()
        .map(|line| serde_json::from_str(line).expect("a kept case is JSON"))
        .collect();
    let known: Vec<(&str, String)> = known
        .iter()
        .map(|case| {
            let kind = if case["kind"] == "body" {
                "body"
            } else {
                "expression"
            };
            (kind, case["text"].as_str().unwrap_or_default().to_owned())
        })
        .collect();
    let mut failed = 0;
    for batch in known.chunks(BATCH) {
        failed += differences(&mut oracle, batch, true).0.len();
    }
    assert_eq!(failed, 0, "kept cases differ; they are printed above");

    let named = |name: &str| std::env::var(name).ok().and_then(|text| text.parse().ok());
    let is_long = muster_domain::fixture::long();
    let total = named("MUSTER_ORACLE_CASES").unwrap_or(if is_long { CASES_LONG } else { CASES });
    let seed = named("MUSTER_ORACLE_SEED").map_or(SEED, |seed: usize| seed as u64);
    let mut generator = Generator::new(seed);
    let (mut values, mut skips, mut refusals) = (0, 0, 0);
    let mut found = std::collections::BTreeSet::new();
    while values < total && failed < DIFFERENCES_MAX {
        let cases: Vec<Case> = (0..BATCH).map(|_| generator.case()).collect();
        let texts: Vec<_> = cases.iter().map(Case::kind_and_text).collect();
        let (different, skipped, refused) = differences(&mut oracle, &texts, false);
        skips += skipped;
        refusals += refused;
        values += cases.len();
        for (at, case) in cases.into_iter().enumerate() {
            if different.contains(&at) {
                let (kind, text) = reduce_case(&mut oracle, case).kind_and_text();
                if !found.insert(text.clone()) {
                    continue;
                }
                failed += 1;
                println!("shrunk: {kind} {text}");
                differences(&mut oracle, &[(kind, text.clone())], true);
                let mut file = std::fs::OpenOptions::new()
                    .append(true)
                    .open(recorded_cases_path())
                    .expect("the kept cases can be written");
                writeln!(file, "{}", json!({"kind": kind, "text": text})).expect("it is written");
            }
        }
    }
    println!(
        "{} kept cases and {values} generated ones agree: {refusals} are refused by both, {skips} have no answer",
        known.len()
    );

    assert!(
        found.is_empty(),
        "differences are printed above and kept in oracle/cases.jsonl"
    );
}

#[test]
fn damaged_cases_cause_no_panic() {
    let mut generator = Generator::new(SEED);
    for _ in 0..3_000 {
        let (_, text) = generator.case().kind_and_text();
        let text = generator.damaged(&text);
        drop(answer("expression", &text));
        drop(answer("body", &text));
        drop(syntax::json::parse(&text, 0));
    }
}
