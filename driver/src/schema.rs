//! The schema of a configuration: what a driver expects in its blocks.
//!
//! The tree is that of HCL's decoder specifications. [`Schema`] checks a block against it.

use std::collections::BTreeMap;

use serde_json::{Number, Value};
use thiserror::Error;

mod compiled;
mod expression;
mod kind;
mod path;

pub use self::compiled::Schema;

/// One thing that is wrong with a configuration.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[error("`{field}` {message}")]
pub struct ConfigFault {
    /// The field it is about, from the outside in: `config.mount[1].source`.
    pub field: String,
    /// The fault in it.
    pub message: String,
}

/// A schema that makes no sense: a mistake of the driver.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[error("the driver's schema is wrong at `{place}`: {reason}")]
pub struct SchemaError {
    /// Where in the schema.
    pub place: String,
    pub reason: String,
}

/// A node of a schema.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Spec {
    /// An object with a value by each name.
    Object(BTreeMap<String, Spec>),
    /// An array of values.
    Array(Vec<Spec>),
    /// An attribute of the block.
    Attr {
        /// Name in the block.
        name: String,
        /// A type expression: `string`, `number`, `bool`, `list(string)`, `map(string)`, `any`, …
        type_expr: String,
        /// The block must have it.
        required: bool,
    },
    Block {
        /// Type of the nested block.
        name: String,
        /// It must be there.
        required: bool,
        /// The specification of its content.
        nested: Box<Spec>,
    },
    /// The attributes of one nested block, as a map.
    BlockAttrs {
        /// Type of the nested block.
        name: String,
        /// Type expression of every attribute.
        type_expr: String,
        /// It must be there.
        required: bool,
    },
    /// Nested blocks, as a list.
    BlockList {
        /// Type of the nested blocks.
        name: String,
        items_min: u64,
        /// The most; 0 is any number.
        items_max: u64,
        /// The specification of each value.
        nested: Box<Spec>,
    },
    /// Nested blocks, as a set.
    BlockSet {
        /// Type of the nested blocks.
        name: String,
        items_min: u64,
        /// The most; 0 is any number.
        items_max: u64,
        /// The specification of each value.
        nested: Box<Spec>,
    },
    /// Nested blocks, as a map by their labels.
    BlockMap {
        /// Type of the nested blocks.
        name: String,
        /// Names of the labels.
        labels: Vec<String>,
        /// The specification of each value.
        nested: Box<Spec>,
    },
    /// The first of two that is not null.
    Default {
        primary: Box<Spec>,
        /// Tried if the first is null.
        default: Box<Spec>,
    },
    /// A value given by an HCL expression.
    Literal(String),
}

impl Spec {
    /// An attribute that may be left out.
    pub fn optional(name: &str, type_expr: &str) -> Self {
        Self::Attr {
            name: name.to_owned(),
            type_expr: type_expr.to_owned(),
            required: false,
        }
    }

    /// An attribute that must be there.
    pub fn required(name: &str, type_expr: &str) -> Self {
        Self::Attr {
            name: name.to_owned(),
            type_expr: type_expr.to_owned(),
            required: true,
        }
    }

    /// An object of attributes, each under its own name.
    pub fn object<const N: usize>(attributes: [(&str, Self); N]) -> Self {
        Self::Object(
            attributes
                .into_iter()
                .map(|(name, spec)| (name.to_owned(), spec))
                .collect(),
        )
    }
}

/// `value` without the entries of objects that are null. To a schema an entry that is null and one
/// that is absent are the same; to most readers of configurations only the absent one is the default.
pub fn without_nulls(value: Value) -> Value {
    match value {
        Value::Object(entries) => Value::Object(
            entries
                .into_iter()
                .filter(|(_, value)| !value.is_null())
                .map(|(name, value)| (name, without_nulls(value)))
                .collect(),
        ),
        Value::Array(items) => Value::Array(items.into_iter().map(without_nulls).collect()),
        plain @ (Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_)) => plain,
    }
}

/// A number that is whole as a whole one: `1.0` is `1`, as in HCL, which knows one kind of number.
pub(crate) fn whole(number: &Number) -> Number {
    /// Below this every whole number has a value of its own in both kinds (2^53).
    const EXACT_MAX: f64 = 9_007_199_254_740_992.0;
    match number.as_f64() {
        Some(real) if number.is_f64() && real.fract() == 0.0 && real.abs() <= EXACT_MAX => {
            #[expect(
                clippy::cast_possible_truncation,
                reason = "whole and within 53 bits, checked above"
            )]
            let whole = real as i64;
            Number::from(whole)
        }
        _ => number.clone(),
    }
}
