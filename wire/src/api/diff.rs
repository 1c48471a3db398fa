//! Differences between two jobs, in the form that `PUT /v1/job/:id/plan` answers.
//!
//! Jobs are compared in their JSON form, by the table in `diff/schema.rs`. So a field that this version only passes on
//! is compared like any other. Form and words are Nomad's. Nomad marks some blocks as edited without listing the edits:
//! `migrate`, `spread`, `scaling`, `lifecycle`, `volume_mount`, a task's `restart`. Their edits are listed here.

#![expect(missing_docs, reason = "fields carry Nomad's names and meaning")]

mod annotate;
mod schema;

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use self::schema::{Kind, ListItems};
use crate::api::null;

pub use annotate::{annotate, annotate_updates};

/// Whether something came, went, changed or stayed.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
pub enum DiffType {
    #[default]
    None,
    Added,
    Deleted,
    Edited,
}

impl DiffType {
    fn of(old: bool, new: bool, same: bool) -> Self {
        match (old, new) {
            (false, true) => Self::Added,
            (true, false) => Self::Deleted,
            _ if same => Self::None,
            _ => Self::Edited,
        }
    }
}

/// Two versions of a job.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct JobDiff {
    #[serde(rename = "Type")]
    pub diff_type: DiffType,
    #[serde(rename = "ID")]
    pub id: String,
    #[serde(with = "null")]
    pub fields: Vec<FieldDiff>,
    #[serde(with = "null")]
    pub objects: Vec<ObjectDiff>,
    #[serde(with = "null")]
    pub task_groups: Vec<GroupDiff>,
}

/// A task group of both.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct GroupDiff {
    #[serde(rename = "Type")]
    pub diff_type: DiffType,
    pub name: String,
    #[serde(with = "null")]
    pub fields: Vec<FieldDiff>,
    #[serde(with = "null")]
    pub objects: Vec<ObjectDiff>,
    #[serde(with = "null")]
    pub tasks: Vec<TaskDiff>,
    /// How many instances are created, updated and so on; only in a plan.
    #[serde(with = "null")]
    pub updates: BTreeMap<String, u64>,
}

/// A task of both.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct TaskDiff {
    #[serde(rename = "Type")]
    pub diff_type: DiffType,
    pub name: String,
    #[serde(with = "null")]
    pub fields: Vec<FieldDiff>,
    #[serde(with = "null")]
    pub objects: Vec<ObjectDiff>,
    /// The change's effects on its instances.
    #[serde(with = "null")]
    pub annotations: Vec<String>,
}

/// A block of both.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct ObjectDiff {
    pub name: String,
    #[serde(rename = "Type")]
    pub diff_type: DiffType,
    #[serde(with = "null")]
    pub fields: Vec<FieldDiff>,
    #[serde(with = "null")]
    pub objects: Vec<ObjectDiff>,
}

/// A value of both.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct FieldDiff {
    pub name: String,
    pub old: String,
    pub new: String,
    #[serde(rename = "Type")]
    pub diff_type: DiffType,
    /// The change's effects on instances.
    #[serde(with = "null")]
    pub annotations: Vec<String>,
}

/// The jobs are not versions of one job.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("can not diff jobs with different IDs: {old:?} and {new:?}")]
pub struct DiffJobsError {
    old: String,
    new: String,
}

/// Compares `old` and `new`, each a job in its JSON form or absent. With `context`, unchanged values are listed too
/// where something beside them changed.
///
/// # Errors
///
/// [`DiffJobsError`] if they have different ids.
pub fn jobs(
    old: Option<&Value>,
    new: Option<&Value>,
    context: bool,
) -> Result<JobDiff, DiffJobsError> {
    let id = |job: &Value| text(&job["ID"]);
    if let (Some(old), Some(new)) = (old, new)
        && id(old) != id(new)
    {
        return Err(DiffJobsError {
            old: id(old),
            new: id(new),
        });
    }
    let (old_map, new_map) = (object(old), object(new));
    let body = schema::JOB.compare(old_map, new_map, false, context);
    let task_groups: Vec<GroupDiff> = named(old_map, new_map, "TaskGroups")
        .into_iter()
        .map(|(name, old, new)| group(name, old, new, context))
        .collect();
    let same = body.is_empty()
        && task_groups
            .iter()
            .all(|group| group.diff_type == DiffType::None);
    Ok(JobDiff {
        diff_type: DiffType::of(old.is_some(), new.is_some(), same),
        id: new.or(old).map(id).unwrap_or_default(),
        fields: body.fields,
        objects: body.objects,
        task_groups,
    })
}

fn group(name: String, old: Option<&Value>, new: Option<&Value>, context: bool) -> GroupDiff {
    let (old_map, new_map) = (object(old), object(new));
    let mut body = schema::GROUP.compare(old_map, new_map, false, context);
    if old.is_none() || new.is_none() {
        // As Nomad has it: what a group that comes or goes has optionally is not told.
        body.fields
            .retain(|field| !schema::GROUP_OPTIONAL.contains(&field.name.as_str()));
    }
    GroupDiff {
        diff_type: DiffType::of(old.is_some(), new.is_some(), old == new),
        name,
        fields: body.fields,
        objects: body.objects,
        tasks: named(old_map, new_map, "Tasks")
            .into_iter()
            .map(|(name, old, new)| task(name, old, new, context))
            .collect(),
        updates: BTreeMap::new(),
    }
}

fn task(name: String, old: Option<&Value>, new: Option<&Value>, context: bool) -> TaskDiff {
    let body = schema::TASK.compare(object(old), object(new), false, context);
    TaskDiff {
        diff_type: DiffType::of(old.is_some(), new.is_some(), old == new),
        name,
        fields: body.fields,
        objects: body.objects,
        annotations: Vec::new(),
    }
}

/// Fields and blocks that differ.
#[derive(Debug, Default)]
struct Body {
    fields: Vec<FieldDiff>,
    objects: Vec<ObjectDiff>,
}

impl Body {
    fn is_empty(&self) -> bool {
        self.fields.is_empty() && self.objects.is_empty()
    }

    fn named(self, name: &str, diff_type: DiffType) -> ObjectDiff {
        ObjectDiff {
            name: name.to_owned(),
            diff_type,
            fields: self.fields,
            objects: self.objects,
        }
    }
}

type Object = Map<String, Value>;

impl Kind {
    /// Compares two blocks of this kind. `own` is whether fields that stayed are told, `below` the same
    /// for the blocks within.
    fn compare(&self, old: Option<&Object>, new: Option<&Object>, own: bool, below: bool) -> Body {
        let mut body = Body {
            fields: fields(&self.values(old), &self.values(new), own),
            objects: Vec::new(),
        };
        for (key, name, kind) in self.blocks {
            let value = |of: Option<&'_ Object>| {
                of.and_then(|of| of.get(*key))
                    .filter(|it| it.is_object())
                    .cloned()
            };
            let (old, new) = (value(old), value(new));
            if old != new {
                body.objects
                    .push(kind.block(name, old.as_ref(), new.as_ref(), below));
            }
        }
        for (key, name, items) in self.lists {
            items.compare(
                name,
                list(old, key),
                list(new, key),
                below,
                &mut body.objects,
            );
        }
        for (key, name, kind) in self.maps_of_blocks {
            let names: BTreeSet<&String> = [old, new]
                .into_iter()
                .flatten()
                .filter_map(|of| of.get(*key)?.as_object())
                .flat_map(Map::keys)
                .collect();
            for entry in names {
                let value = |of: Option<&'_ Object>| of?.get(*key)?.get(entry.as_str()).cloned();
                let (old, new) = (value(old), value(new));
                if old != new {
                    body.objects
                        .push(kind.block(name, old.as_ref(), new.as_ref(), below));
                }
            }
        }
        // Names in the order of the table, objects of one name by what they say.
        let rank = |object: &ObjectDiff| self.order.iter().position(|name| *name == object.name);
        body.objects
            .sort_by(|left, right| rank(left).cmp(&rank(right)).then_with(|| left.cmp(right)));
        body
    }

    fn block(
        &self,
        name: &str,
        old: Option<&Value>,
        new: Option<&Value>,
        context: bool,
    ) -> ObjectDiff {
        let diff_type = DiffType::of(old.is_some(), new.is_some(), old == new);
        self.compare(object(old), object(new), context, context)
            .named(name, diff_type)
    }

    /// Its values by name, maps laid out as `Name[key]`.
    fn values(&self, of: Option<&Object>) -> BTreeMap<String, String> {
        let mut values = BTreeMap::new();
        for (key, value) in of.into_iter().flatten() {
            if self.hidden.contains(&key.as_str()) {
                continue;
            }
            match value {
                Value::Object(map) if self.maps.contains(&key.as_str()) => {
                    for (entry, value) in map {
                        lay_out(&format!("{key}[{entry}]"), value, &mut values);
                    }
                }
                Value::Object(_) | Value::Array(_) if self.is_free => {
                    lay_out(key, value, &mut values);
                }
                Value::Null | Value::Object(_) | Value::Array(_) => {}
                value => {
                    values.insert(key.clone(), text(value));
                }
            }
        }
        values
    }
}

impl ListItems {
    fn compare(
        &self,
        name: &str,
        old: &[Value],
        new: &[Value],
        context: bool,
        objects: &mut Vec<ObjectDiff>,
    ) {
        match self {
            Self::Texts => objects.extend(
                texts(name, old, new, context).filter(|diff| diff.diff_type != DiffType::None),
            ),
            Self::TextsInContext => objects.extend(texts(name, old, new, context)),
            Self::Set(kind) => {
                for (list, other, is_new) in [(old, new, false), (new, old, true)] {
                    for (at, item) in list.iter().enumerate() {
                        let is_first = !list[..at].contains(item);
                        if is_first && !other.contains(item) {
                            let (old, new) = if is_new {
                                (None, Some(item))
                            } else {
                                (Some(item), None)
                            };
                            objects.push(kind.block(name, old, new, context));
                        }
                    }
                }
            }
            Self::ByName(kind) => {
                let of = |list: &[Value], wanted: &str| {
                    list.iter()
                        .rfind(|item| text(&item["Name"]) == wanted)
                        .cloned()
                };
                let names: BTreeSet<String> = old
                    .iter()
                    .chain(new)
                    .map(|item| text(&item["Name"]))
                    .collect();
                for entry in names {
                    let (old, new) = (of(old, &entry), of(new, &entry));
                    if old != new {
                        objects.push(kind.block(name, old.as_ref(), new.as_ref(), context));
                    }
                }
            }
        }
    }
}

/// A list of texts, compared as a set.
fn texts(name: &str, old: &[Value], new: &[Value], context: bool) -> Option<ObjectDiff> {
    let set = |list: &[Value]| list.iter().map(text).collect::<BTreeSet<String>>();
    let (old, new) = (set(old), set(new));
    let mut fields = Vec::new();
    for item in old.union(&new) {
        let (was, is) = (old.contains(item), new.contains(item));
        let diff_type = DiffType::of(was, is, true);
        if diff_type == DiffType::None && !context {
            continue;
        }
        let shown = |shown: bool| if shown { item.clone() } else { String::new() };
        fields.push(FieldDiff {
            name: name.to_owned(),
            old: shown(was),
            new: shown(is),
            diff_type,
            annotations: Vec::new(),
        });
    }
    let (came, went) = (
        new.difference(&old).next().is_some(),
        old.difference(&new).next().is_some(),
    );
    let diff_type = match (came, went) {
        (false, false) if fields.is_empty() => return None,
        (false, false) => DiffType::None,
        (true, false) => DiffType::Added,
        (false, true) => DiffType::Deleted,
        (true, true) => DiffType::Edited,
    };
    sort_fields(&mut fields);
    Some(ObjectDiff {
        name: name.to_owned(),
        diff_type,
        fields,
        objects: Vec::new(),
    })
}

fn fields(
    old: &BTreeMap<String, String>,
    new: &BTreeMap<String, String>,
    context: bool,
) -> Vec<FieldDiff> {
    let names: BTreeSet<&String> = old.keys().chain(new.keys()).collect();
    let mut fields = Vec::new();
    for name in names {
        let (was, is) = (old.get(name), new.get(name));
        let (was, is) = (
            was.cloned().unwrap_or_default(),
            is.cloned().unwrap_or_default(),
        );
        let diff_type = DiffType::of(!was.is_empty(), !is.is_empty(), was == is);
        if diff_type == DiffType::None && !context {
            continue;
        }
        fields.push(FieldDiff {
            name: name.clone(),
            old: was,
            new: is,
            diff_type,
            annotations: Vec::new(),
        });
    }
    sort_fields(&mut fields);
    fields
}

fn sort_fields(fields: &mut [FieldDiff]) {
    fields.sort_by(|left, right| (&left.name, &left.old).cmp(&(&right.name, &right.old)));
}

/// A value within free-form configuration: `name[key][0]`.
fn lay_out(name: &str, value: &Value, values: &mut BTreeMap<String, String>) {
    match value {
        Value::Null => {}
        Value::Object(map) => {
            for (key, value) in map {
                lay_out(&format!("{name}[{key}]"), value, values);
            }
        }
        Value::Array(list) => {
            for (at, value) in list.iter().enumerate() {
                lay_out(&format!("{name}[{at}]"), value, values);
            }
        }
        value => {
            values.insert(name.to_owned(), text(value));
        }
    }
}

/// A value as people read it.
fn text(value: &Value) -> String {
    match value {
        Value::Null => String::new(),
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}

fn object(value: Option<&Value>) -> Option<&Object> {
    value.and_then(Value::as_object)
}

fn list<'a>(of: Option<&'a Object>, key: &str) -> &'a [Value] {
    of.and_then(|of| of.get(key)?.as_array())
        .map_or(&[], Vec::as_slice)
}

/// The items of both lists by name, in the order of the names.
fn named<'a>(
    old: Option<&'a Object>,
    new: Option<&'a Object>,
    key: &str,
) -> Vec<(String, Option<&'a Value>, Option<&'a Value>)> {
    let mut items: BTreeMap<String, (Option<&Value>, Option<&Value>)> = BTreeMap::new();
    for item in list(old, key) {
        items.entry(text(&item["Name"])).or_default().0 = Some(item);
    }
    for item in list(new, key) {
        items.entry(text(&item["Name"])).or_default().1 = Some(item);
    }
    items
        .into_iter()
        .map(|(name, (old, new))| (name, old, new))
        .collect()
}

#[cfg(test)]
mod tests;
