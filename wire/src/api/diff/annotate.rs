//! A change's effects on instances, as far as they follow from the change alone.

use std::collections::BTreeMap;

use muster_domain::job::Task;

use super::{DiffType, FieldDiff, GroupDiff, JobDiff, TaskDiff};
use crate::api::job::schema::Effect;
use crate::api::job::task::TASK;

const CREATE: &str = "forces create";
const DESTROY: &str = "forces destroy";
const IN_PLACE: &str = "forces in-place update";
const DESTRUCTIVE: &str = "forces create/destroy update";

/// Adds the effects of the changes to `diff`.
pub fn annotate(diff: &mut JobDiff) {
    for group in &mut diff.task_groups {
        let group_type = group.diff_type;
        annotate_count(group);
        for task in &mut group.tasks {
            if let Some(word) = of_task(group_type, task) {
                task.annotations = vec![word.to_owned()];
            }
        }
    }
}

/// Adds the numbers of affected instances, by group and by effect. If a group updates instances in place and replaces
/// none, its task annotations change from replacement to in-place update. A replacement that is only needed for want of
/// room counts as in place there.
pub fn annotate_updates(diff: &mut JobDiff, mut updates: BTreeMap<String, BTreeMap<String, u64>>) {
    for group in &mut diff.task_groups {
        group.updates = updates.remove(&group.name).unwrap_or_default();
        let happens = |what: &str| group.updates.contains_key(what);
        if !happens("in-place update") || happens("create/destroy update") {
            continue;
        }
        let annotations = group
            .tasks
            .iter_mut()
            .flat_map(|task| &mut task.annotations);
        for word in annotations.filter(|word| *word == DESTRUCTIVE) {
            IN_PLACE.clone_into(word);
        }
    }
}

fn annotate_count(group: &mut GroupDiff) {
    let Some(count) = group.fields.iter_mut().find(|field| field.name == "Count") else {
        return;
    };
    let number = |text: &str| text.parse::<u64>().unwrap_or(0);
    let FieldDiff { old, new, .. } = &*count;
    let word = match number(old).cmp(&number(new)) {
        std::cmp::Ordering::Less => CREATE,
        std::cmp::Ordering::Greater => DESTROY,
        std::cmp::Ordering::Equal => return,
    };
    count.annotations = vec![word.to_owned()];
}

fn of_task(group: DiffType, task: &TaskDiff) -> Option<&'static str> {
    match (group, task.diff_type) {
        (_, DiffType::None) => return None,
        (DiffType::Added, DiffType::Added) => return Some(CREATE),
        (DiffType::Deleted, DiffType::Deleted) => return Some(DESTROY),
        _ => {}
    }
    let fields = task
        .fields
        .iter()
        .map(|field| (field.name.as_str(), &[][..]));
    let objects = task.objects.iter();
    let objects = objects.map(|object| (object.name.as_str(), &object.fields[..]));
    let in_place = fields.chain(objects).all(|(name, inner)| {
        let Some(field) = TASK.in_plan(name) else {
            return false;
        };
        match field.effect {
            Some(Effect::InPlace) => true,
            Some(Effect::InPlaceUnless(but)) => !inner.iter().any(|field| field.name == but),
            Some(Effect::Replace) => false,
            None => Task::is_in_place(field.domain),
        }
    });
    Some(if in_place { IN_PLACE } else { DESTRUCTIVE })
}
