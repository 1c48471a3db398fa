//! Differences between two jobs, in the form of the response of `PUT /v1/job/:id/plan`.
//!
//! Jobs are compared in their JSON form, by the tables in `job/schema.rs`. So a field that this version only stores is
//! compared like any other. Form and words are Nomad's. Nomad marks some blocks as edited without listing the edits.
//! They are `migrate`, `spread`, `scaling`, `lifecycle`, `volume_mount` and a task's `restart`. Their edits are listed
//! here.

#![expect(missing_docs, reason = "fields carry Nomad's names and meaning")]

mod annotate;

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::api::job::group::GROUP;
use crate::api::job::schema::{BlockShape, Compared, FieldKind, Schema, ValueKind};
use crate::api::job::spec::JOB;
use crate::api::job::task::TASK;
use crate::api::null;

pub use annotate::{annotate, annotate_updates};

/// The kind of a difference.
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
    /// The numbers of instances created, updated and so on; only in a plan.
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

/// Compares `old` and `new`, each a job in its JSON form or absent. With `context`, unchanged values next to a change
/// are listed too.
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
    let body = JOB.compare(old_map, new_map, false, context);
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
    let body = GROUP.compare(old_map, new_map, false, context);
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
    let body = TASK.compare(object(old), object(new), false, context);
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

impl Schema {
    /// Compares two blocks of this schema. `own` decides whether unchanged fields are listed. `below` decides the same
    /// for nested blocks.
    fn compare(&self, old: Option<&Object>, new: Option<&Object>, own: bool, below: bool) -> Body {
        let is_in_both = old.is_some() && new.is_some();
        let mut body = Body {
            fields: fields(
                &self.values(old, is_in_both),
                &self.values(new, is_in_both),
                own,
            ),
            objects: Vec::new(),
        };
        for field in self.fields {
            let name = match field.compared {
                Compared::Object(name) | Compared::ObjectInContext(name) => name,
                Compared::Plain | Compared::InBoth | Compared::Hidden => continue,
            };
            let (old, new) = (value(old, field.json), value(new, field.json));
            match field.kind {
                FieldKind::Value(_) => {
                    let is_listed = field.compared == Compared::ObjectInContext(name);
                    body.objects.extend(
                        texts(name, list(old), list(new), below)
                            .filter(|diff| is_listed || diff.diff_type != DiffType::None),
                    );
                }
                FieldKind::Block(shape, inner) => {
                    for (old, new) in pairs(shape, old, new) {
                        if old != new {
                            body.objects.push(inner.block(shape, name, old, new, below));
                        }
                    }
                }
            }
        }
        // Names are in the order of the table. Objects of one name are ordered by their content.
        let rank = |object: &ObjectDiff| {
            let mut order = self.plan_order.iter();
            order.position(|name| *name == object.name)
        };
        body.objects
            .sort_by(|left, right| rank(left).cmp(&rank(right)).then_with(|| left.cmp(right)));
        body
    }

    fn block(
        &self,
        shape: BlockShape,
        name: &str,
        old: Option<&Value>,
        new: Option<&Value>,
        context: bool,
    ) -> ObjectDiff {
        let diff_type = DiffType::of(old.is_some(), new.is_some(), old == new);
        let body = if shape == BlockShape::Free {
            Body {
                fields: fields(&free_values(old), &free_values(new), context),
                objects: Vec::new(),
            }
        } else {
            self.compare(object(old), object(new), context, context)
        };
        body.named(name, diff_type)
    }

    /// The values by name; entries of maps as `Name[key]`. Fields outside the table are included.
    fn values(&self, of: Option<&Object>, is_in_both: bool) -> BTreeMap<String, String> {
        let mut values = BTreeMap::new();
        for (key, value) in of.into_iter().flatten() {
            let field = self.in_api(key);
            match field.map_or(Compared::Plain, |field| field.compared) {
                Compared::Hidden => continue,
                Compared::InBoth if !is_in_both => continue,
                Compared::InBoth
                | Compared::Plain
                | Compared::Object(_)
                | Compared::ObjectInContext(_) => {}
            }
            let is_map = field.is_some_and(|field| {
                field.compared == Compared::Plain
                    && matches!(
                        field.kind,
                        FieldKind::Value(ValueKind::TextMap)
                            | FieldKind::Block(BlockShape::Free, _)
                    )
            });
            match value {
                Value::Object(_) if is_map => flatten_value(key, value, &mut values),
                Value::Null | Value::Object(_) | Value::Array(_) => {}
                value => {
                    values.insert(key.clone(), text(value));
                }
            }
        }
        values
    }
}

/// All values of a free-form block.
fn free_values(of: Option<&Value>) -> BTreeMap<String, String> {
    let mut values = BTreeMap::new();
    for (key, value) in object(of).into_iter().flatten() {
        flatten_value(key, value, &mut values);
    }
    values
}

type Pair<'a> = (Option<&'a Value>, Option<&'a Value>);

/// The blocks of a field that are compared with each other.
fn pairs<'a>(shape: BlockShape, old: Option<&'a Value>, new: Option<&'a Value>) -> Vec<Pair<'a>> {
    match shape {
        BlockShape::One | BlockShape::Free => {
            let block = |of: Option<&'a Value>| of.filter(|it| it.is_object());
            vec![(block(old), block(new))]
        }
        BlockShape::Many | BlockShape::Conditions | BlockShape::Ports | BlockShape::Alone => {
            let (old, new) = (list(old), list(new));
            let went = only_in(old, new).map(|item| (Some(item), None));
            went.chain(only_in(new, old).map(|item| (None, Some(item))))
                .collect()
        }
        BlockShape::ManyByName => {
            let (old, new) = (list(old), list(new));
            let of = |list: &'a [Value], wanted: &str| {
                list.iter().rfind(|item| text(&item["Name"]) == wanted)
            };
            let all = old.iter().chain(new);
            let names: BTreeSet<String> = all.map(|item| text(&item["Name"])).collect();
            names
                .iter()
                .map(|name| (of(old, name), of(new, name)))
                .collect()
        }
        BlockShape::Named => {
            let (old, new) = (object(old), object(new));
            let all = [old, new].into_iter().flatten().flat_map(Map::keys);
            let names: BTreeSet<&String> = all.collect();
            names
                .into_iter()
                .map(|name| (value(old, name), value(new, name)))
                .collect()
        }
    }
}

/// The items of `list` that `other` does not have, each once.
fn only_in<'a>(list: &'a [Value], other: &'a [Value]) -> impl Iterator<Item = &'a Value> {
    let is_first = |at: usize, item: &Value| !list[..at].contains(item);
    let items = list.iter().enumerate();
    items
        .filter(move |(at, item)| is_first(*at, item) && !other.contains(item))
        .map(|(_, item)| item)
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
fn flatten_value(name: &str, value: &Value, values: &mut BTreeMap<String, String>) {
    match value {
        Value::Null => {}
        Value::Object(map) => {
            for (key, value) in map {
                flatten_value(&format!("{name}[{key}]"), value, values);
            }
        }
        Value::Array(list) => {
            for (at, value) in list.iter().enumerate() {
                flatten_value(&format!("{name}[{at}]"), value, values);
            }
        }
        value => {
            values.insert(name.to_owned(), text(value));
        }
    }
}

/// A value in human-readable form.
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

fn value<'a>(of: Option<&'a Object>, key: &str) -> Option<&'a Value> {
    of?.get(key)
}

fn list(value: Option<&Value>) -> &[Value] {
    value.and_then(Value::as_array).map_or(&[], Vec::as_slice)
}

/// The items of both lists by name, in the order of the names.
fn named<'a>(
    old: Option<&'a Object>,
    new: Option<&'a Object>,
    key: &str,
) -> Vec<(String, Option<&'a Value>, Option<&'a Value>)> {
    let mut items: BTreeMap<String, (Option<&Value>, Option<&Value>)> = BTreeMap::new();
    for item in list(value(old, key)) {
        items.entry(text(&item["Name"])).or_default().0 = Some(item);
    }
    for item in list(value(new, key)) {
        items.entry(text(&item["Name"])).or_default().1 = Some(item);
    }
    items
        .into_iter()
        .map(|(name, (old, new))| (name, old, new))
        .collect()
}

#[cfg(test)]
mod tests;
