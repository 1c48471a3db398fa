//! Reads a JSON object that a user sent, field by field.
//!
//! All faults are reported, not only the first. Faults are unknown fields, with the nearest known name, and Nomad's
//! fields that this version does not support. Faults are also wrong types, with the expected and the actual type. A
//! reader reads each known field and calls [`Block::finish`], which checks the fields that were not read.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fmt;
use std::ops::RangeInclusive;
use std::time::Duration;

use muster_domain::fault::Fault;
use muster_domain::text_enum::TextEnum;
use serde::de::{DeserializeSeed, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Number, Value};

use crate::api::duration;
use crate::api::job::unsupported::{FieldTreatment, Row};
use crate::api::read_error::{ReadJobError, SyntaxError};
use crate::limits;

/// The least similarity of a suggested name (Jaro-Winkler, 0 to 1). At 0.8 `Prioritee` still matches `Priority`, while
/// two unrelated names of one block do not match.
const ALIKE_MIN: f64 = 0.8;
/// Characters of a user's name or value that an answer repeats: more than any name of Nomad's has.
const SHOWN_CHARS: usize = 64;

/// Faults and warnings found while reading. At most [`limits::FAULTS_MAX`] of each are kept. Further faults are only
/// counted: a body of nothing but nonsense must not cost more than one of sense.
#[derive(Debug, Default)]
pub(super) struct ParseFindings {
    faults: Vec<Fault>,
    faults_more: usize,
    warnings: Vec<String>,
    /// Values that have no effect, or that the response spells differently: JSON text by JSON pointer.
    kept: BTreeMap<String, String>,
}

impl ParseFindings {
    /// Adds a fault. The reason is only computed if the fault is kept.
    fn fault(&mut self, at: String, reason: impl FnOnce() -> String) {
        if self.faults.len() < limits::FAULTS_MAX {
            self.faults.push(Fault::new(at, reason()));
        } else {
            self.faults_more += 1;
        }
    }

    fn warn(&mut self, warning: String) {
        if self.warnings.len() < limits::FAULTS_MAX {
            self.warnings.push(warning);
        }
    }

    /// Returns and removes the values that [`Block::keep`] kept since the last call.
    pub(super) fn take_kept(&mut self) -> BTreeMap<String, String> {
        std::mem::take(&mut self.kept)
    }

    /// The faults for which the body is refused, and the warnings about fields that are ignored.
    pub(super) fn into_parts(self) -> (Vec<Fault>, Vec<String>) {
        let Self {
            mut faults,
            faults_more,
            warnings,
            kept: _,
        } = self;
        if faults_more > 0 {
            faults.push(Fault::new(
                "request body",
                format!("has {faults_more} more faults"),
            ));
        }
        (faults, warnings)
    }
}

/// Reads the block in `body` with `fields`; a `None` from `fields` comes with a fault. Fields that are neither read nor
/// `known` are faults, too.
pub(super) fn read<T>(
    body: &[u8],
    known: &FieldNames,
    fields: impl FnOnce(&mut Block<'_>) -> Option<T>,
) -> Result<T, ReadJobError> {
    debug_assert!(
        known.harmless.is_empty(),
        "a harmless field needs an answer with warnings"
    );
    Ok(read_with_warnings(body, known, fields)?.0)
}

/// Reads the block as [`read`] does, with a warning for each harmless field.
pub(super) fn read_with_warnings<T>(
    body: &[u8],
    known: &FieldNames,
    fields: impl FnOnce(&mut Block<'_>) -> Option<T>,
) -> Result<(T, Vec<String>), ReadJobError> {
    let value = parse(body)?;
    let found = RefCell::new(ParseFindings::default());
    let read = Block::new(String::new(), &value, &found).and_then(|mut block| {
        let read = fields(&mut block);
        block.finish(known);
        read
    });
    let (faults, warnings) = found.into_inner().into_parts();
    match read {
        Some(read) if faults.is_empty() => Ok((read, warnings)),
        Some(_) | None => Err(ReadJobError::Faults(faults)),
    }
}

/// The value in `body`. A key that appears twice is an error, because it has no one meaning.
pub(super) fn parse(body: &[u8]) -> Result<Value, SyntaxError> {
    if body.iter().all(u8::is_ascii_whitespace) {
        return Err(SyntaxError::Empty);
    }
    let mut reader = serde_json::Deserializer::from_slice(body);
    UniqueKeysVisitor
        .deserialize(&mut reader)
        .and_then(|value| reader.end().map(|()| value))
        .map_err(|error| {
            let reason = error.to_string();
            let position = format!(" at line {} column {}", error.line(), error.column());
            SyntaxError::Malformed {
                line: error.line(),
                column: error.column(),
                reason: reason.strip_suffix(&position).unwrap_or(&reason).to_owned(),
            }
        })
}

/// Builds a [`Value`] and refuses duplicate keys. serde_json bounds the depth at 128.
struct UniqueKeysVisitor;

impl<'de> DeserializeSeed<'de> for UniqueKeysVisitor {
    type Value = Value;

    fn deserialize<D: serde::Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for UniqueKeysVisitor {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("any JSON value")
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_bool<E>(self, value: bool) -> Result<Value, E> {
        Ok(Value::Bool(value))
    }

    fn visit_i64<E>(self, value: i64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_u64<E>(self, value: u64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_f64<E: serde::de::Error>(self, value: f64) -> Result<Value, E> {
        Number::from_f64(value)
            .map(Value::Number)
            .ok_or_else(|| E::custom("the number is not finite"))
    }

    fn visit_str<E>(self, value: &str) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Value, A::Error> {
        let mut values = Vec::new();
        while let Some(value) = list.next_element_seed(Self)? {
            values.push(value);
        }
        Ok(Value::Array(values))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<Value, A::Error> {
        let mut map = Map::new();
        while let Some(key) = entries.next_key::<String>()? {
            let value = entries.next_value_seed(Self)?;
            if map.contains_key(&key) {
                return Err(serde::de::Error::custom(format!(
                    "the key \"{key}\" appears twice"
                )));
            }
            map.insert(key, value);
        }
        Ok(Value::Object(map))
    }
}

/// Names of fields that a reader accepts without reading them.
#[derive(Clone, Copy, Debug)]
pub(super) struct FieldNames {
    /// Written by the server and sent back by clients that edit what they read. Ignored.
    pub(super) derived: &'static [&'static str],
    /// Ignored with a warning that names it.
    pub(super) harmless: &'static [&'static str],
    pub(super) unsupported: &'static [&'static str],
    /// Fields of jobs that have no effect.
    pub(super) rows: &'static [Row],
}

impl FieldNames {
    /// No names.
    pub(super) const NONE: Self = Self {
        derived: &[],
        harmless: &[],
        unsupported: &[],
        rows: &[],
    };

    /// The names of `rows`, and no others.
    pub(super) const fn rows(rows: &'static [Row]) -> Self {
        Self { rows, ..Self::NONE }
    }
}

/// An object being read.
pub(super) struct Block<'v> {
    /// The path from the body, such as `Job.TaskGroups[0]`.
    pub(super) at: String,
    /// The JSON pointer from the kept block, such as `/TaskGroups/0`.
    pointer: String,
    map: &'v Map<String, Value>,
    found: &'v RefCell<ParseFindings>,
    asked: Vec<&'static str>,
}

impl<'v> Block<'v> {
    /// The block for the object `value` at path `at`. Any other value is a fault and reads as an empty object.
    pub(super) fn new(
        at: String,
        value: &'v Value,
        found: &'v RefCell<ParseFindings>,
    ) -> Option<Self> {
        match value {
            Value::Object(map) => Some(Self {
                at,
                pointer: String::new(),
                map,
                found,
                asked: Vec::new(),
            }),
            other => {
                let at = if at.is_empty() {
                    "request body".to_owned()
                } else {
                    at
                };
                found
                    .borrow_mut()
                    .fault(at, || type_error("an object", other));
                None
            }
        }
    }

    /// The object `value` of this block, at `key` from it.
    fn nested(&self, at: String, key: &str, value: &'v Value) -> Option<Self> {
        let block = Self::new(at, value, self.found)?;
        let pointer = format!("{}/{key}", self.pointer);
        Some(Self { pointer, ..block })
    }

    /// The block with pointers that begin here.
    pub(super) fn with_root_pointers(self) -> Self {
        Self {
            pointer: String::new(),
            ..self
        }
    }

    /// Whether all values are empty.
    pub(super) fn is_blank(&self) -> bool {
        self.map.values().all(is_empty)
    }

    /// Keeps `value` for the response of the field `name`.
    pub(super) fn keep(&self, name: &str, value: &Value) {
        let pointer = format!("{}/{name}", self.pointer);
        let mut found = self.found.borrow_mut();
        found.kept.insert(pointer, value.to_string());
    }

    /// Keeps the whole block as submitted.
    pub(super) fn keep_all(&self) {
        self.keep_as(&Value::Object(self.map.clone()));
    }

    /// Keeps `value` for the response of the whole block.
    pub(super) fn keep_as(&self, value: &Value) {
        let mut found = self.found.borrow_mut();
        found.kept.insert(self.pointer.clone(), value.to_string());
    }

    /// Adds a warning that the field `name` has no effect.
    pub(super) fn warn(&self, name: &str, reason: &str) {
        self.warn_at(&self.path(name), reason);
    }

    /// Adds the warning from the row of the field `name`. The reader calls it for a field that it reads.
    pub(super) fn warn_as_listed(&self, rows: &[Row], name: &str) {
        let row = rows.iter().find(|row| row.json == name);
        if let Some(FieldTreatment::Warned(effect)) = row.map(|row| row.answer) {
            self.warn(name, effect);
        }
    }

    /// Adds a warning that the value at `at` has no effect.
    pub(super) fn warn_at(&self, at: &str, reason: &str) {
        self.found.borrow_mut().warn(format!("{at} {reason}"));
    }

    /// Calls [`Self::finish`] and returns all values that [`Self::keep`] kept.
    pub(super) fn finish_keeping(self, known: &FieldNames) -> BTreeMap<String, String> {
        let found = self.found;
        self.finish(known);
        found.borrow_mut().take_kept()
    }

    /// Reports a fault of the field `name`.
    pub(super) fn fault(&self, name: &str, reason: impl Into<String>) {
        self.fault_because(name, || reason.into());
    }

    fn fault_because(&self, name: &str, reason: impl FnOnce() -> String) {
        self.found.borrow_mut().fault(self.path(name), reason);
    }

    /// The path of the field `name`.
    pub(super) fn path(&self, name: &str) -> String {
        if self.at.is_empty() {
            name.to_owned()
        } else {
            format!("{}.{name}", self.at)
        }
    }

    /// Returns the value of `name` unless it is absent or `null`.
    pub(super) fn value(&mut self, name: &'static str) -> Option<&'v Value> {
        self.asked.push(name);
        self.map.get(name).filter(|value| !value.is_null())
    }

    fn typed<T>(
        &mut self,
        name: &'static str,
        expected: impl fmt::Display,
        read: impl FnOnce(&'v Value) -> Option<T>,
    ) -> Option<T> {
        let value = self.value(name)?;
        let read = read(value);
        if read.is_none() {
            self.fault_because(name, || type_error(expected, value));
        }
        read
    }

    /// A text.
    pub(super) fn string(&mut self, name: &'static str) -> Option<String> {
        self.typed(name, "a text", Value::as_str).map(str::to_owned)
    }

    /// A text that is not empty.
    pub(super) fn word(&mut self, name: &'static str) -> Option<String> {
        self.string(name).filter(|text| !text.is_empty())
    }

    /// Reads a text that must not be empty if present.
    pub(super) fn filled(&mut self, name: &'static str) -> Option<String> {
        let text = self.string(name)?;
        if text.is_empty() {
            self.fault(name, "is empty: leave it out for the default");
        }
        Some(text).filter(|text| !text.is_empty())
    }

    /// The name of a value of `T`.
    pub(super) fn choice<T: TextEnum>(&mut self, name: &'static str) -> Option<T> {
        let word = self.word(name)?;
        self.choice_named(name, &word)
    }

    /// Reads the name of a `T`, which must not be empty if present.
    pub(super) fn non_empty_choice<T: TextEnum>(&mut self, name: &'static str) -> Option<T> {
        let word = self.filled(name)?;
        self.choice_named(name, &word)
    }

    /// Returns the `T` with the name `word`, which the field `name` holds.
    pub(super) fn choice_named<T: TextEnum>(
        &mut self,
        name: &'static str,
        word: &str,
    ) -> Option<T> {
        let value = T::from_name(word);
        if value.is_none() {
            self.fault_because(name, || T::unknown(word));
        }
        value
    }

    /// True or false.
    pub(super) fn boolean(&mut self, name: &'static str) -> Option<bool> {
        self.typed(name, "true or false", Value::as_bool)
    }

    /// A whole number within `T`.
    pub(super) fn number<T>(&mut self, name: &'static str, max: T) -> Option<T>
    where
        T: TryFrom<u64> + fmt::Display,
    {
        let expected = format_args!("a whole number from 0 to {max}");
        self.typed(name, expected, |value| {
            value.as_u64().and_then(|number| T::try_from(number).ok())
        })
    }

    /// A whole number within `bounds`, which may be below 0.
    pub(super) fn signed<T>(&mut self, name: &'static str, bounds: RangeInclusive<T>) -> Option<T>
    where
        T: TryFrom<i64> + fmt::Display + PartialOrd,
    {
        let (least, most) = (bounds.start(), bounds.end());
        let expected = format_args!("a whole number from {least} to {most}");
        self.typed(name, expected, |value| {
            let number = value.as_i64().and_then(|number| T::try_from(number).ok());
            number.filter(|number| bounds.contains(number))
        })
    }

    /// A duration: nanoseconds, or a text such as `30s`.
    pub(super) fn duration(&mut self, name: &'static str) -> Option<Duration> {
        self.typed(
            name,
            "nanoseconds from 0 on, or a text such as \"30s\"",
            |value| match value {
                Value::String(text) => duration::parse(text).ok(),
                other => other.as_u64().map(Duration::from_nanos),
            },
        )
    }

    /// A list of texts.
    pub(super) fn strings(&mut self, name: &'static str) -> Vec<String> {
        self.typed(name, "a list of texts", |value| {
            value
                .as_array()?
                .iter()
                .map(|item| item.as_str().map(str::to_owned))
                .collect()
        })
        .unwrap_or_default()
    }

    /// Reads an object whose values are texts.
    pub(super) fn texts(&mut self, name: &'static str) -> BTreeMap<String, String> {
        let Some(map) = self.typed(name, "an object with texts", Value::as_object) else {
            return BTreeMap::new();
        };
        let mut texts = BTreeMap::new();
        for (key, value) in map {
            match value {
                Value::String(text) => {
                    texts.insert(key.clone(), text.clone());
                }
                other => {
                    let at = format!("{name}.{}", shown(key));
                    self.fault_because(&at, || type_error("a text", other));
                }
            }
        }
        texts
    }

    /// An object.
    pub(super) fn block(&mut self, name: &'static str) -> Option<Block<'v>> {
        let value = self.value(name)?;
        self.nested(self.path(name), name, value)
    }

    /// A list of at most `max` objects. A longer one is a fault and not read.
    pub(super) fn blocks(&mut self, name: &'static str, max: usize) -> Vec<Block<'v>> {
        let Some(list) = self.typed(name, "a list of objects", Value::as_array) else {
            return Vec::new();
        };
        if list.len() > max {
            self.fault_because(name, || {
                format!("{} are too many: at most {max}", list.len())
            });
            return Vec::new();
        }
        let at = self.path(name);
        let items = list.iter().enumerate();
        items
            .filter_map(|(ordinal, item)| {
                let key = format!("{name}/{ordinal}");
                self.nested(format!("{at}[{ordinal}]"), &key, item)
            })
            .collect()
    }

    /// An object of at most `max` named objects. A larger one is a fault and not read.
    pub(super) fn named_blocks(
        &mut self,
        name: &'static str,
        max: usize,
    ) -> Vec<(String, Block<'v>)> {
        let Some(map) = self.typed(name, "an object of objects", Value::as_object) else {
            return Vec::new();
        };
        if map.len() > max {
            self.fault_because(name, || {
                format!("{} are too many: at most {max}", map.len())
            });
            return Vec::new();
        }
        let at = self.path(name);
        let items = map.iter();
        items
            .filter_map(|(key, item)| {
                let token = key.replace('~', "~0").replace('/', "~1");
                let pointer = format!("{name}/{token}");
                let block = self.nested(format!("{at}.{}", shown(key)), &pointer, item)?;
                Some((key.clone(), block))
            })
            .collect()
    }

    /// Reads the field `name`, which may repeat the id of the path and no other.
    pub(super) fn id_of_path(&mut self, name: &'static str, id: &str) {
        let named = self.word(name);
        if let Some(other) = named.filter(|named| named != id) {
            self.fault(
                name,
                format!("does not match: the path names {id}, not {other}"),
            );
        }
    }

    /// Checks the fields that were not read.
    pub(super) fn finish(self, known: &FieldNames) {
        let Self {
            map,
            found,
            ref asked,
            ..
        } = self;
        for (name, value) in map {
            let name = name.as_str();
            if asked.contains(&name) || known.derived.contains(&name) {
                continue;
            }
            let row = known.rows.iter().find(|row| row.json == name);
            if let Some(row) = row {
                if is_empty(value) {
                    continue;
                }
                match row.answer {
                    FieldTreatment::Refused(instead) => {
                        self.fault(name, format!("is not supported: {instead}"));
                    }
                    FieldTreatment::Warned(effect) => {
                        self.warn(name, effect);
                        self.keep(name, value);
                    }
                    FieldTreatment::Stored => self.keep(name, value),
                }
            } else if known.harmless.contains(&name) {
                if !is_empty(value) {
                    let warning = format!(
                        "{} is ignored: this version does not support it",
                        self.path(name)
                    );
                    found.borrow_mut().warn(warning);
                }
            } else if known.unsupported.contains(&name) {
                if !is_empty(value) {
                    self.fault(name, "is not supported yet: leave it out");
                }
            } else {
                let names = asked
                    .iter()
                    .chain(known.derived)
                    .chain(known.harmless)
                    .chain(known.unsupported)
                    .chain(known.rows.iter().map(|row| &row.json));
                self.fault_because(&shown(name), || unknown(name, names.copied()));
            }
        }
    }
}

/// Whether `value` is empty: null, false, 0, "", [], {} or composed only of these.
fn is_empty(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::Bool(value) => !value,
        Value::Number(number) => number.as_f64() == Some(0.0),
        Value::String(text) => text.is_empty(),
        Value::Array(list) => list.is_empty(),
        Value::Object(map) => map.values().all(is_empty),
    }
}

fn unknown<'a>(name: &str, names: impl Iterator<Item = &'a str>) -> String {
    let lower = shown(name).to_lowercase();
    let nearest = names
        .map(|known| (strsim::jaro_winkler(&known.to_lowercase(), &lower), known))
        .filter(|(alike, _)| *alike >= ALIKE_MIN)
        .max_by(|a, b| a.0.total_cmp(&b.0));
    match nearest {
        Some((_, known)) => format!("unknown field: did you mean `{known}`?"),
        None => "unknown field".to_owned(),
    }
}

/// The part of `text` that a response repeats.
fn shown(text: &str) -> String {
    text.chars().take(SHOWN_CHARS).collect()
}

fn type_error(expected: impl fmt::Display, got: &Value) -> String {
    let got = match got {
        Value::Null => "null".to_owned(),
        Value::Bool(value) => value.to_string(),
        Value::Number(number) => format!("the number {number}"),
        Value::String(text) => format!("the text {:?}", shown(text)),
        Value::Array(_) => "a list".to_owned(),
        Value::Object(_) => "an object".to_owned(),
    };
    format!("expected {expected}, got {got}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_twice_is_refused_with_its_place() {
        let error = parse(b"{\"Job\":{\n\"ID\":\"a\",\"ID\":\"b\"}}").unwrap_err();

        assert_eq!(
            error.to_string(),
            "request body: line 2, column 18: the key \"ID\" appears twice"
        );
    }

    #[test]
    fn depth_is_bounded() {
        let body = "[".repeat(100_000);

        assert!(
            parse(body.as_bytes())
                .unwrap_err()
                .to_string()
                .contains("recursion limit")
        );
    }

    #[test]
    fn an_empty_body_is_named() {
        assert_eq!(parse(b" \n").unwrap_err(), SyntaxError::Empty);
    }

    #[test]
    fn the_nearest_name_is_suggested() {
        let names = ["Priority", "Payload", "Periodic"];

        assert_eq!(
            unknown("priorty", names.into_iter()),
            "unknown field: did you mean `Priority`?"
        );
        assert_eq!(unknown("xyzzy", names.into_iter()), "unknown field");
    }
}
