//! Edge cases of job files with the stored results (`testdata/corners.txt`), and the tables of the documentation.

use muster_domain::job::validate;
use muster_wire::api::job::request::{ReadJobError, lines, read};
use muster_wire::api::job::schema::{FieldKind, Schema};
use muster_wire::api::job::{JOB, Job, defaults, unsupported};
use serde_json::{Value, json};

use super::Inputs;

/// A job of type `job_type` with `text` in `block`.
fn file(job_type: &str, block: &str, text: &str) -> String {
    let of = |name: &str| if block == name { text } else { "" };
    // The text of the corner is placed on lines of its own.
    let (job, group, task) = (of("job"), of("group"), of("task"));
    let name = if job.contains("id =") {
        ""
    } else {
        "\n  id = \"corner\""
    };
    format!(
        "job \"corner\" {{{name}\n  type = \"{job_type}\"\n  group \"g\" {{\n    task \"t\" {{\n      driver = \"native\"\n{task}\n    }}\n{group}\n  }}\n{job}\n}}\n"
    )
}

/// `text` with each attribute and each block on a line of its own, as HCL requires.
fn on_lines(text: &str) -> String {
    let mut out = String::new();
    let (mut in_text, mut in_list) = (false, 0);
    let words: Vec<&str> = text.split(' ').collect();
    for (at, word) in words.iter().enumerate() {
        let begins_attribute = words.get(at + 1) == Some(&"=");
        let opens = words[at..].iter().take(3).any(|it| it.starts_with('{'))
            && word.chars().all(|c| c.is_ascii_lowercase() || c == '_')
            && !word.is_empty();
        let previous = at.checked_sub(1).map(|at| words[at]);
        if !in_text && in_list == 0 {
            let after_key = previous == Some("=");
            if (begins_attribute || (opens && !after_key) || *word == "}") && previous.is_some() {
                out.push('\n');
            }
        }
        out.push_str(word);
        out.push(' ');
        if word.matches('"').count() % 2 == 1 {
            in_text = !in_text;
        }
        in_list += word.matches('[').count();
        in_list -= word.matches(']').count().min(in_list);
        if *word == "{" {
            out.push('\n');
        }
    }
    out
}

/// Returns the stored job, or the reason for its refusal.
fn stored(body: &Value) -> Result<Value, String> {
    let read = read(body.to_string().as_bytes()).map_err(|error| match error {
        ReadJobError::Syntax(error) => error.to_string(),
        ReadJobError::Faults(faults) => lines(&faults),
    })?;
    let valid = validate(read.spec).map_err(|faults| lines(&faults))?;
    Ok(json!(Job::from_spec(valid.spec())))
}

fn check_corner(line: &str) -> Result<(), String> {
    let parts: Vec<&str> = line.split("||").map(str::trim).collect();
    let [place, text, expected] = parts.as_slice() else {
        return Err("is not three parts".to_owned());
    };
    let (job_type, block) = place.split_once(' ').ok_or("names no block")?;
    let file = file(job_type, block, &on_lines(text));
    let parsed = super::parse("corner.hcl", &file, &Inputs::default());
    let answer = parsed
        .map_err(|error| error.to_string())
        .and_then(|job| stored(&json!({ "Job": job })));
    if let Some(part) = expected.strip_prefix('!') {
        let part = part.trim();
        return match answer {
            Err(error) if error.contains(part) => Ok(()),
            Err(error) => Err(format!("is refused otherwise: {error}")),
            Ok(_) => Err("is taken".to_owned()),
        };
    }
    let job = answer?;
    let (path, value) = expected.split_once(" = ").ok_or("says no value")?;
    let path = defaults::expand(path);
    let value: Value = serde_json::from_str(value).map_err(|error| error.to_string())?;
    let found = job.pointer(&path).cloned().unwrap_or_default();
    if found != value {
        return Err(format!("has {found}"));
    }
    let again = stored(&json!({ "Job": job }))?;
    if again == job {
        Ok(())
    } else {
        Err(format!(
            "changes when it is registered again:\n{job}\n{again}"
        ))
    }
}

#[test]
fn corners_are_stored_as_nomad_stores_them() {
    let text = include_str!("../testdata/corners.txt");
    let rows = text
        .lines()
        .filter(|line| !line.is_empty() && !line.starts_with('#'));
    let wrong: Vec<String> = rows
        .clone()
        .filter_map(|line| {
            check_corner(line)
                .err()
                .map(|why| format!("{line}\n    {why}"))
        })
        .collect();
    assert!(rows.count() >= 150, "rows were lost");
    assert!(
        wrong.is_empty(),
        "{} rows:\n{}",
        wrong.len(),
        wrong.join("\n")
    );
}

/// Whether the block `block` has a field `name` in files, at any place below a job.
fn has_field(block: &str, name: &str) -> bool {
    fn find<'b>(owner: &str, at: &'b Schema, wanted: &str) -> Option<&'b Schema> {
        if owner == wanted {
            return Some(at);
        }
        let mut fields = at.fields.iter().filter(|field| !field.file.is_empty());
        fields.find_map(|field| match field.kind {
            FieldKind::Block(_, inner) => find(field.file, inner, wanted),
            FieldKind::Value(_) => None,
        })
    }
    find("job", &JOB, block).is_some_and(|schema| schema.in_file(name).is_some())
}

/// A file and the API accept, refuse and warn of the same fields.
#[test]
fn files_and_the_api_know_the_same_fields() {
    for (block, rows) in unsupported::BLOCKS {
        for row in rows.iter().filter(|row| !row.file.is_empty()) {
            let is_refused = matches!(row.answer, unsupported::FieldTreatment::Refused(_));
            let is_known = has_field(block, row.file);
            // A volume's are refused where both are read: by the API's reader.
            assert!(
                is_refused != is_known || block == "volume",
                "`{}` in `{block}`",
                row.file
            );
        }
    }
}

#[test]
fn documentation_has_the_tables() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/compatibility.md");
    let text = std::fs::read_to_string(path).unwrap();
    let mut expected = text.clone();
    for (name, table) in [
        ("defaults", defaults::table()),
        ("fields without effect", unsupported::table()),
    ] {
        let begin = format!("<!-- {name}: begin -->\n");
        let end = format!("<!-- {name}: end -->\n");
        let (before, rest) = expected.split_once(&begin).expect("begins");
        let (_, after) = rest.split_once(&end).expect("ends");
        expected = format!("{before}{begin}{table}{end}{after}");
    }
    if std::env::var_os("UPDATE_EXPECT").is_some() {
        std::fs::write(path, expected).unwrap();
        return;
    }
    assert_eq!(text, expected, "UPDATE_EXPECT=1 writes it");
}
