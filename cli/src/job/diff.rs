//! The differences between two versions of a job, as text in Nomad's shape.
//!
//! `+` marks an addition, `-` a removal, `+/-` a change. Unchanged fields are shown only next to changed ones. Texts
//! are quoted, so that no control character of a job file reaches the terminal.

use muster_wire::api::diff::{DiffType, FieldDiff, GroupDiff, JobDiff, ObjectDiff, TaskDiff};

/// The indentation of a nested block in columns.
const STEP: usize = 2;

/// The whole difference. An added or deleted block is listed line by line only with `verbose`.
pub(super) fn text(diff: &JobDiff, verbose: bool) -> String {
    let mut page = Page { lines: Vec::new() };
    let longest = longest(&diff.fields, &diff.objects);
    let marks = diff.task_groups.iter().map(|group| marker(group.diff_type));
    let mark = marks.map(str::len).fold(longest.mark, usize::max);
    page.line(format!(
        "{}Job: {:?}",
        padded_marker(diff.diff_type, 0),
        diff.id
    ));
    if diff.diff_type == DiffType::Edited || verbose {
        let has_lines = page.body(&diff.fields, &diff.objects, 0, Widths { mark, ..longest });
        if has_lines {
            page.line(String::new());
        }
    }
    for group in &diff.task_groups {
        page.group(group, mark, verbose);
        page.line(String::new());
    }
    page.lines.join("\n")
}

/// Widths of the columns before the values of a block's lines.
#[derive(Clone, Copy, Debug)]
struct Widths {
    mark: usize,
    name: usize,
}

fn longest(fields: &[FieldDiff], objects: &[ObjectDiff]) -> Widths {
    let names = fields.iter().map(|field| field.name.len());
    let types = fields.iter().map(|field| field.diff_type);
    let types = types.chain(objects.iter().map(|object| object.diff_type));
    Widths {
        mark: types.map(|kind| marker(kind).len()).max().unwrap_or(0),
        name: names.max().unwrap_or(0),
    }
}

fn marker(diff_type: DiffType) -> &'static str {
    match diff_type {
        DiffType::None => "",
        DiffType::Added => "+ ",
        DiffType::Deleted => "- ",
        DiffType::Edited => "+/- ",
    }
}

/// The marker, filled up to `width`.
fn padded_marker(diff_type: DiffType, width: usize) -> String {
    format!("{:width$}", marker(diff_type))
}

fn format_annotations(words: &[String]) -> String {
    if words.is_empty() {
        String::new()
    } else {
        format!(" ({})", words.join(", "))
    }
}

struct Page {
    lines: Vec<String>,
}

impl Page {
    fn line(&mut self, text: String) {
        self.lines.push(text.trim_end().to_owned());
    }

    fn group(&mut self, group: &GroupDiff, mark: usize, verbose: bool) {
        let updates: Vec<String> = group
            .updates
            .iter()
            .map(|(what, count)| format!("{count} {what}"))
            .collect();
        let head = padded_marker(group.diff_type, mark);
        self.line(format!(
            "{head}Task Group: {:?}{}",
            group.name,
            format_annotations(&updates)
        ));
        let longest = longest(&group.fields, &group.objects);
        let marks = group.tasks.iter().map(|task| marker(task.diff_type).len());
        let mark = marks.fold(longest.mark, usize::max);
        if group.diff_type == DiffType::Edited || verbose {
            self.body(
                &group.fields,
                &group.objects,
                STEP,
                Widths { mark, ..longest },
            );
        }
        for task in &group.tasks {
            self.task(task, mark, verbose);
        }
    }

    fn task(&mut self, task: &TaskDiff, mark: usize, verbose: bool) {
        let indent = " ".repeat(STEP);
        let head = padded_marker(task.diff_type, mark);
        self.line(format!(
            "{indent}{head}Task: {:?}{}",
            task.name,
            format_annotations(&task.annotations)
        ));
        let is_reported = match task.diff_type {
            DiffType::None => false,
            DiffType::Added | DiffType::Deleted => verbose,
            DiffType::Edited => true,
        };
        if is_reported {
            let widths = longest(&task.fields, &task.objects);
            self.body(&task.fields, &task.objects, 2 * STEP, widths);
        }
    }

    /// Fields, then blocks. False: there is nothing.
    fn body(
        &mut self,
        fields: &[FieldDiff],
        objects: &[ObjectDiff],
        indent: usize,
        widths: Widths,
    ) -> bool {
        for field in fields {
            self.field(field, indent, widths);
        }
        for object in objects {
            self.object(object, indent, widths.mark);
        }
        !fields.is_empty() || !objects.is_empty()
    }

    fn field(&mut self, field: &FieldDiff, indent: usize, widths: Widths) {
        let value = match field.diff_type {
            DiffType::Added | DiffType::None => format!("{:?}", field.new),
            DiffType::Deleted => format!("{:?}", field.old),
            DiffType::Edited => format!("{:?} => {:?}", field.old, field.new),
        };
        let head = padded_marker(field.diff_type, widths.mark);
        let name = format!("{}:", field.name);
        self.line(format!(
            "{:indent$}{head}{name:width$} {value}{}",
            "",
            format_annotations(&field.annotations),
            width = widths.name + 1
        ));
    }

    fn object(&mut self, object: &ObjectDiff, indent: usize, mark: usize) {
        let head = padded_marker(object.diff_type, mark);
        self.line(format!("{:indent$}{head}{} {{", "", object.name));
        let widths = longest(&object.fields, &object.objects);
        self.body(
            &object.fields,
            &object.objects,
            indent + mark + STEP,
            widths,
        );
        self.line(format!("{:width$}}}", "", width = indent + mark));
    }
}

#[cfg(test)]
mod tests;
