//! Finds the place in a job file for a fault that a driver reported.
//!
//! A driver checks a task's `config` on the node, by fields such as `config.mount[1].source`. The author of the job has
//! a file with lines. This module maps the fields back to lines.

use std::collections::BTreeMap;
use std::path::Path;

use crate::decode::JobFile;
use crate::dynamic::{ExpandedBlock, Item};
use crate::eval::Evaluator;
use crate::fault::{load, position};
use crate::free::{self, FieldSpans};
use crate::variable::Inputs;

/// The first name of every field of a task's configuration.
const ROOT: &str = "config";

/// The places of the configurations of a job's tasks.
#[derive(Debug)]
pub struct ConfigSpans {
    file: String,
    text: String,
    /// By group and task.
    tasks: BTreeMap<(String, String), FieldSpans>,
}

impl ConfigSpans {
    /// The places in the job file at `path`, with the values of `inputs`. It is empty for the API's JSON, and for
    /// standard input, which can be read only once. It is also empty for a file that has changed since.
    #[must_use]
    pub fn read(path: &Path, inputs: &Inputs) -> Self {
        let (file, text) = if path == Path::new("-") {
            Default::default()
        } else {
            load(path).unwrap_or_default()
        };
        Self::parse(file, text, inputs, Evaluator::for_file(path))
    }

    pub(crate) fn parse(file: String, text: String, inputs: &Inputs, evaluator: Evaluator) -> Self {
        let mut tasks = BTreeMap::new();
        let body = match crate::read_syntax(&file, &text) {
            Ok(crate::ParsedFile::Hcl(body)) => Some(body),
            Ok(crate::ParsedFile::Api(_)) | Err(_) => None,
        };
        let opened = body
            .as_ref()
            .and_then(|body| JobFile::open(body, inputs, evaluator).ok());
        if let Some(opened) = opened {
            let evaluator = &opened.evaluator;
            for group in named(&opened.job, "group", evaluator) {
                for task in named(&group, "task", evaluator) {
                    put(&task, label(&group), evaluator, &mut tasks);
                }
            }
            // A task outside a group belongs to a group of the same name.
            for task in named(&opened.job, "task", evaluator) {
                put(&task, label(&task), evaluator, &mut tasks);
            }
        }
        Self { file, text, tasks }
    }

    /// The places of the fields that `words` about a task names in backquotes, as `file:line:column`.
    #[must_use]
    pub fn of(&self, group: &str, task: &str, words: &str) -> Vec<String> {
        let Some(places) = self.tasks.get(&(group.to_owned(), task.to_owned())) else {
            return Vec::new();
        };
        let quoted = words.split('`').skip(1).step_by(2);
        let fields = quoted.filter(|field| {
            let rest = field.strip_prefix(ROOT);
            rest.is_some_and(|rest| rest.is_empty() || rest.starts_with(['.', '[']))
        });
        fields
            .map(|field| {
                let (line, column) = position(&self.text, places.of(field).start);
                format!("{}:{line}:{column}: `{field}`", self.file)
            })
            .collect()
    }
}

/// The blocks called `name` in `block`. Unreadable parts were reported before the registration of the job.
fn named<'a>(
    block: &ExpandedBlock<'a>,
    name: &str,
    evaluator: &Evaluator,
) -> Vec<ExpandedBlock<'a>> {
    let items = block.items(evaluator, &mut Vec::new()).into_iter();
    let blocks = items.filter_map(|item| match item {
        Item::Block(block) => Some(block),
        Item::Attribute(_) => None,
    });
    blocks.filter(|block| block.name == name).collect()
}

fn label(block: &ExpandedBlock<'_>) -> String {
    block.labels.first().cloned().unwrap_or_default()
}

fn put(
    task: &ExpandedBlock<'_>,
    group: String,
    evaluator: &Evaluator,
    tasks: &mut BTreeMap<(String, String), FieldSpans>,
) {
    for config in named(task, ROOT, evaluator) {
        let (_config, places) = free::read_in(ROOT, &config, evaluator, &mut Vec::new());
        tasks.insert((group.clone(), label(task)), places);
    }
}

#[cfg(test)]
mod tests {
    use crate::*;

    const TEXT: &str = r#"job "web" {
  group "front" {
    task "proxy" {
      driver = "x"
      config {
        comand = "a"
        args   = ["b", []]
      }
    }
  }
  task "alone" {
    config {
      size = 1
    }
  }
}
"#;

    #[test]
    fn words_of_a_driver_have_their_lines() {
        let places = ConfigSpans::parse(
            "web.hcl".to_owned(),
            TEXT.to_owned(),
            &Inputs::default(),
            Evaluator::new(""),
        );
        let words = "the task's config is wrong: `config.comand` is unknown; `config.command` is missing; `config.args[1]` must be string, not `configuration`";

        let found = places.of("front", "proxy", words);

        assert_eq!(
            found,
            [
                "web.hcl:6:9: `config.comand`",
                "web.hcl:5:7: `config.command`",
                "web.hcl:7:24: `config.args[1]`",
            ]
        );
        assert_eq!(
            places.of("alone", "alone", "`config.size` is wrong"),
            ["web.hcl:13:7: `config.size`"]
        );
        assert!(places.of("front", "other", words).is_empty());
        assert!(places.of("front", "proxy", "exit code 1").is_empty());
    }
}
