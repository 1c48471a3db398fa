//! The schema of a configuration: the content that a driver expects in its blocks.
//!
//! The tree is that of HCL's decoder specifications. [`Schema`] checks a block against the tree.

use std::collections::BTreeMap;

use serde_json::{Number, Value};
use thiserror::Error;

mod compiled;
mod expression;
mod kind;
mod path;

pub use self::compiled::Schema;

/// One fault in a configuration.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[error("`{field}` {message}")]
pub struct ConfigFault {
    /// The path of the faulty field, from the outside in: `config.mount[1].source`.
    pub field: String,
    /// The description of the fault.
    pub message: String,
}

/// An invalid schema: a mistake of the driver.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[error("the driver's schema is wrong at `{place}`: {reason}")]
pub struct SchemaError {
    /// The path of the fault in the schema.
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
        /// The block must have the attribute.
        required: bool,
    },
    Block {
        /// Type of the nested block.
        name: String,
        /// The nested block must be present.
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
        /// The nested block must be present.
        required: bool,
    },
    /// Nested blocks, as a list.
    BlockList {
        /// Type of the nested blocks.
        name: String,
        items_min: u64,
        /// The largest number of blocks; 0 means any number.
        items_max: u64,
        /// The specification of each value.
        nested: Box<Spec>,
    },
    /// Nested blocks, as a set.
    BlockSet {
        /// Type of the nested blocks.
        name: String,
        items_min: u64,
        /// The largest number of blocks; 0 means any number.
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
    /// The first of two values that is not null.
    Default {
        primary: Box<Spec>,
        /// The specification that applies if the first value is null.
        default: Box<Spec>,
    },
    /// A value given by an HCL expression.
    Literal(String),
}

impl Spec {
    /// Creates an attribute that may be left out.
    pub fn optional(name: &str, type_expr: &str) -> Self {
        Self::Attr {
            name: name.to_owned(),
            type_expr: type_expr.to_owned(),
            required: false,
        }
    }

    /// Creates an attribute that must be present.
    pub fn required(name: &str, type_expr: &str) -> Self {
        Self::Attr {
            name: name.to_owned(),
            type_expr: type_expr.to_owned(),
            required: true,
        }
    }

    /// Creates an object of attributes, each under its own name.
    pub fn object<const N: usize>(attributes: [(&str, Self); N]) -> Self {
        Self::Object(
            attributes
                .into_iter()
                .map(|(name, spec)| (name.to_owned(), spec))
                .collect(),
        )
    }
}

/// Returns `value` without the object entries that are null. A schema treats a null entry like an absent one; most
/// readers of configurations use the default only for an absent entry.
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

/// Converts a float with an integral value to an integer: `1.0` becomes `1`. HCL has one kind of number.
pub(crate) fn whole(number: &Number) -> Number {
    /// Below this bound (2^53), every integer is exact as a float.
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
