//! Values and their types, as in go-cty.
//!
//! A list in a file is a tuple, and braces make an object: each element has a type of its own. Functions and
//! conversions make lists, sets and maps, whose elements have one type.

use std::cmp::Ordering;
use std::collections::BTreeMap;
use std::fmt;

use serde_json::{Map, Value as Json};
use unicode_normalization::{IsNormalized, UnicodeNormalization as _, is_nfc_quick};

use crate::limits::VALUE_BYTES;
use crate::number::Number;

/// The type of a value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Type {
    /// Any type. It is the type of a `null` without a conversion.
    Any,
    Bool,
    Number,
    Text,
    List(Box<Type>),
    Set(Box<Type>),
    Map(Box<Type>),
    Tuple(Vec<Type>),
    /// Attributes by name; optional attributes are marked.
    Object(BTreeMap<String, Attribute>),
}

/// The type of an attribute of an object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Attribute {
    pub(crate) kind: Type,
    pub(crate) optional: bool,
}

/// A value.
#[derive(Clone, Debug)]
pub(crate) enum Value {
    Null(Type),
    Bool(bool),
    Number(Number),
    Text(String),
    List(Type, Vec<Value>),
    /// Elements in the order of the set, each once.
    Set(Type, Vec<Value>),
    Map(Type, BTreeMap<String, Value>),
    Tuple(Vec<Value>),
    Object(BTreeMap<String, Value>),
}

impl Type {
    pub(crate) fn list(of: Type) -> Self {
        Self::List(Box::new(of))
    }

    pub(crate) fn set(of: Type) -> Self {
        Self::Set(Box::new(of))
    }

    pub(crate) fn map(of: Type) -> Self {
        Self::Map(Box::new(of))
    }

    /// The type with all attributes required: the type of a value.
    pub(crate) fn without_optional(&self) -> Self {
        let inner = |of: &Type| Box::new(of.without_optional());
        match self {
            Self::Any | Self::Bool | Self::Number | Self::Text => self.clone(),
            Self::List(of) => Self::List(inner(of)),
            Self::Set(of) => Self::Set(inner(of)),
            Self::Map(of) => Self::Map(inner(of)),
            Self::Tuple(of) => Self::Tuple(of.iter().map(Self::without_optional).collect()),
            Self::Object(of) => Self::Object(
                of.iter()
                    .map(|(name, attribute)| {
                        let kind = attribute.kind.without_optional();
                        (
                            name.clone(),
                            Attribute {
                                kind,
                                optional: false,
                            },
                        )
                    })
                    .collect(),
            ),
        }
    }

    pub(crate) fn is_primitive(&self) -> bool {
        matches!(self, Self::Bool | Self::Number | Self::Text)
    }
}

impl fmt::Display for Type {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Any => f.write_str("any"),
            Self::Bool => f.write_str("bool"),
            Self::Number => f.write_str("number"),
            Self::Text => f.write_str("string"),
            Self::List(of) => write!(f, "list({of})"),
            Self::Set(of) => write!(f, "set({of})"),
            Self::Map(of) => write!(f, "map({of})"),
            Self::Tuple(of) => {
                let of: Vec<String> = of.iter().map(ToString::to_string).collect();
                write!(f, "tuple([{}])", of.join(", "))
            }
            Self::Object(of) => {
                let of: Vec<String> = of
                    .iter()
                    .map(|(name, attribute)| {
                        if attribute.optional {
                            format!("{name} = optional({})", attribute.kind)
                        } else {
                            format!("{name} = {}", attribute.kind)
                        }
                    })
                    .collect();
                write!(f, "object({{{}}})", of.join(", "))
            }
        }
    }
}

impl Value {
    /// A `null` of no type.
    pub(crate) const NULL: Self = Self::Null(Type::Any);

    /// A text, in Unicode's composed form as in go-cty.
    pub(crate) fn text(text: impl Into<String>) -> Self {
        let text = text.into();
        if text.is_ascii() || is_nfc_quick(text.chars()) == IsNormalized::Yes {
            return Self::Text(text);
        }
        Self::Text(text.nfc().collect())
    }

    /// A number that was counted.
    pub(crate) fn count(count: usize) -> Self {
        Self::Number(Number::counted(count))
    }

    /// A list of texts.
    pub(crate) fn texts(texts: impl IntoIterator<Item = String>) -> Self {
        Self::List(Type::Text, texts.into_iter().map(Self::text).collect())
    }

    /// A set of `items`, which are of the type `of`.
    pub(crate) fn set(of: Type, items: Vec<Self>) -> Self {
        let mut items = items;
        items.sort_by(Value::set_order);
        items.dedup_by(|a, b| a.set_order(b) == Ordering::Equal);
        Self::Set(of, items)
    }

    pub(crate) fn is_null(&self) -> bool {
        matches!(self, Self::Null(_))
    }

    pub(crate) fn kind(&self) -> Type {
        match self {
            Self::Null(kind) => kind.clone(),
            Self::Bool(_) => Type::Bool,
            Self::Number(_) => Type::Number,
            Self::Text(_) => Type::Text,
            Self::List(of, _) => Type::list(of.clone()),
            Self::Set(of, _) => Type::set(of.clone()),
            Self::Map(of, _) => Type::map(of.clone()),
            Self::Tuple(items) => Type::Tuple(items.iter().map(Self::kind).collect()),
            Self::Object(entries) => Type::Object(
                entries
                    .iter()
                    .map(|(name, value)| {
                        let kind = value.kind();
                        (
                            name.clone(),
                            Attribute {
                                kind,
                                optional: false,
                            },
                        )
                    })
                    .collect(),
            ),
        }
    }

    /// Elements of a list, set or tuple.
    pub(crate) fn items(&self) -> Option<&[Self]> {
        match self {
            Self::List(_, items) | Self::Set(_, items) | Self::Tuple(items) => Some(items),
            _ => None,
        }
    }

    /// Entries of a map or object.
    pub(crate) fn entries(&self) -> Option<&BTreeMap<String, Self>> {
        match self {
            Self::Map(_, entries) | Self::Object(entries) => Some(entries),
            _ => None,
        }
    }

    /// The answer of `==`: types are equal and contents are.
    pub(crate) fn equals(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Null(_), Self::Null(_)) => true,
            (Self::Null(_), _) | (_, Self::Null(_)) => false,
            _ => self.kind() == other.kind() && self.same(other),
        }
    }

    /// Whether two values of one type are equal.
    fn same(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Null(_), Self::Null(_)) => true,
            (Self::Bool(a), Self::Bool(b)) => a == b,
            (Self::Number(a), Self::Number(b)) => a == b,
            (Self::Text(a), Self::Text(b)) => a == b,
            (Self::List(_, a), Self::List(_, b))
            | (Self::Set(_, a), Self::Set(_, b))
            | (Self::Tuple(a), Self::Tuple(b)) => {
                a.len() == b.len() && a.iter().zip(b).all(|(a, b)| a.same(b))
            }
            (Self::Map(_, a), Self::Map(_, b)) | (Self::Object(a), Self::Object(b)) => {
                a.len() == b.len()
                    && a.iter()
                        .zip(b)
                        .all(|((a_name, a), (b_name, b))| a_name == b_name && a.same(b))
            }
            _ => false,
        }
    }

    /// The order of two elements of a set: numbers by size, texts by bytes, others by their hash text.
    fn set_order(&self, other: &Self) -> Ordering {
        match (self, other) {
            (Self::Null(_), Self::Null(_)) => Ordering::Equal,
            (Self::Null(_), _) => Ordering::Greater,
            (_, Self::Null(_)) => Ordering::Less,
            (Self::Bool(a), Self::Bool(b)) => a.cmp(b),
            (Self::Number(a), Self::Number(b)) => a.order(b),
            (Self::Text(a), Self::Text(b)) => a.cmp(b),
            _ => {
                let (mut a, mut b) = (String::new(), String::new());
                self.add_hash(&mut a);
                other.add_hash(&mut b);
                a.cmp(&b).then_with(|| {
                    if self.same(other) {
                        Ordering::Equal
                    } else {
                        Ordering::Less
                    }
                })
            }
        }
    }

    /// The text by which go-cty orders the elements of a set.
    fn add_hash(&self, text: &mut String) {
        let mut each = |open: char, items: &[Self], close: char| {
            text.push(open);
            for item in items {
                item.add_hash(text);
                text.push(';');
            }
            text.push(close);
        };
        match self {
            Self::Null(_) => text.push('~'),
            Self::Bool(yes) => text.push(if *yes { 'T' } else { 'F' }),
            Self::Number(number) => text.push_str(&number.general(Some(10))),
            Self::Text(found) => text.push_str(&crate::quote::quoted(found)),
            Self::List(_, items) | Self::Set(_, items) => each('[', items, ']'),
            Self::Tuple(items) => each('<', items, '>'),
            Self::Map(_, entries) => {
                text.push('{');
                for (name, value) in entries {
                    text.push_str(&crate::quote::quoted(name));
                    text.push(':');
                    value.add_hash(text);
                    text.push(';');
                }
                text.push('}');
            }
            Self::Object(entries) => {
                text.push('<');
                for value in entries.values() {
                    value.add_hash(text);
                    text.push(';');
                }
                text.push('>');
            }
        }
    }

    /// The kind of a value in a message.
    pub(crate) fn describe(&self) -> &'static str {
        match self {
            Self::Null(_) => "null",
            Self::Bool(_) => "a boolean",
            Self::Number(number) if number.is_infinite() => "an infinite number",
            Self::Number(number) if !number.is_whole() => "a fraction",
            Self::Number(_) => "a number",
            Self::Text(_) => "a text",
            Self::List(..) | Self::Tuple(_) => "a list",
            Self::Set(..) => "a set",
            Self::Map(..) => "a map",
            Self::Object(_) => "an object",
        }
    }

    /// About how many bytes a value occupies.
    pub(crate) fn weight(&self) -> usize {
        let entries = |entries: &BTreeMap<String, Self>| -> usize {
            entries
                .iter()
                .map(|(name, value)| name.len() + value.weight())
                .sum()
        };
        VALUE_BYTES
            + match self {
                Self::Null(_) | Self::Bool(_) | Self::Number(_) => 0,
                Self::Text(text) => text.len(),
                Self::List(_, items) | Self::Set(_, items) | Self::Tuple(items) => {
                    items.iter().map(Self::weight).sum()
                }
                Self::Map(_, map) | Self::Object(map) => entries(map),
            }
    }

    /// The number of lists and objects inside each other.
    pub(crate) fn depth(&self) -> usize {
        match self {
            Self::Null(_) | Self::Bool(_) | Self::Number(_) | Self::Text(_) => 0,
            Self::List(_, items) | Self::Set(_, items) | Self::Tuple(items) => {
                1 + items.iter().map(Self::depth).max().unwrap_or(0)
            }
            Self::Map(_, entries) | Self::Object(entries) => {
                1 + entries.values().map(Self::depth).max().unwrap_or(0)
            }
        }
    }

    /// The value in JSON. Whole numbers are integers if 64 bits hold them; others are floats of 64 bits.
    ///
    /// # Errors
    ///
    /// A number that JSON cannot hold.
    pub(crate) fn to_json(&self) -> Result<Json, &'static str> {
        Ok(match self {
            Self::Null(_) => Json::Null,
            Self::Bool(yes) => Json::Bool(*yes),
            Self::Number(number) => {
                return number_to_json(number).ok_or("the number is out of range");
            }
            Self::Text(text) => Json::String(text.clone()),
            Self::List(_, items) | Self::Set(_, items) | Self::Tuple(items) => {
                Json::Array(items.iter().map(Self::to_json).collect::<Result<_, _>>()?)
            }
            Self::Map(_, entries) | Self::Object(entries) => {
                let mut map = Map::new();
                for (name, value) in entries {
                    map.insert(name.clone(), value.to_json()?);
                }
                Json::Object(map)
            }
        })
    }
}

fn number_to_json(number: &Number) -> Option<Json> {
    if let Some(whole) = number.as_i64() {
        return Some(Json::from(whole));
    }
    if let Some(whole) = number.as_u64() {
        return Some(Json::from(whole));
    }
    serde_json::Number::from_f64(number.to_double()).map(Json::Number)
}

#[cfg(test)]
impl Value {
    /// The value that a test writes in JSON.
    pub(crate) fn from_json(json: Json) -> Self {
        match json {
            Json::Null => Self::NULL,
            Json::Bool(yes) => Self::Bool(yes),
            Json::Number(number) => {
                Self::Number(Number::parse(&number.to_string()).expect("a number in JSON"))
            }
            Json::String(text) => Self::text(text),
            Json::Array(items) => Self::Tuple(items.into_iter().map(Self::from_json).collect()),
            Json::Object(entries) => Self::Object(
                entries
                    .into_iter()
                    .map(|(name, value)| (name, Self::from_json(value)))
                    .collect(),
            ),
        }
    }
}
