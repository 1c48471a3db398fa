//! Tables of block fields, from which all code for a block's fields is generated.
//!
//! A row of [`job_block`] is one field:
//!
//! ```text
//! json_field: JsonType = field("Json", "file", kind) => domain_field;
//! ```
//!
//! - `json_field: JsonType` is the field of the API's struct. [`JsonForm`] reads and writes it.
//! - `field("Json", "file", kind)` is its name in the API, its name in job files (empty if files do not have it) and its
//!   kind. `.plan("Name")` and `.hidden()` say how `job plan` compares it, see [`Compared`](super::schema::Compared).
//! - `domain_field` is the field of the domain's struct. A row without it is a field of Nomad that has no effect here,
//!   or a field that the reader and the writer of the block handle. `domain_field by function` reads it with a function
//!   instead, which returns `None` if the field is left out.
//!
//! The lines before the rows are about the whole block:
//!
//! - `@by_hand [field, …]`: fields of the domain's struct that are read and written by functions.
//! - `@also [field(…), …]`: fields of job files or of Nomad that the API's struct does not have.
//! - `@reader function;` and `@writer function;`: rules for more than one field. They call `read_fields` or `write_fields`.
//!
//! The table in `domain/src/job` has the default of each field and its effect on running instances. A plan shows this
//! effect as well. `.plan_effect(…)` is for a field whose effect differs in Nomad's plan.

use std::collections::BTreeMap;
use std::time::Duration;

use muster_domain::job::{
    ByteRate, DelayFunction, HealthCheck, JobType, PayloadUse, PolicyAction, PolicyProtocol,
    Propagation, ReconcileStrategy,
};
use muster_domain::resources::Mb;
use serde_json::Value;

use super::schema::Schema;
use crate::api::block::Block;
use crate::api::duration::nanos;

/// The JSON form of a value of the type `D` of the domain.
pub(in crate::api) trait JsonForm<D>: Sized {
    /// Reads the field `name` of `block`, which is `default` if it is left out.
    fn read(block: &mut Block<'_>, name: &'static str, default: &D) -> D;

    /// Writes the field.
    fn write(value: &D) -> Self;
}

/// A block of the API that holds the struct `D` of the domain. [`job_block`] implements it.
pub(in crate::api) trait BlockForm<D>: Sized {
    /// Returns the table of the block.
    fn schema() -> &'static Schema;

    /// Reads the fields of the table. Those left out are as in `default`.
    fn read_fields(block: &mut Block<'_>, default: &D) -> D;

    /// Reads the block by its table and by its other rules.
    fn read_content(block: &mut Block<'_>, default: &D) -> D {
        Self::read_fields(block, default)
    }

    /// Reads the block, and reports fields that it does not have.
    fn read_block(mut block: Block<'_>, default: &D) -> D {
        let read = Self::read_content(&mut block, default);
        block.finish(&Self::schema().names);
        read
    }

    /// Writes the fields of the table.
    fn write_fields(value: &D) -> Self;

    /// Writes the block by its table and by its other rules.
    fn write_block(value: &D) -> Self {
        Self::write_fields(value)
    }
}

/// A block that may be absent.
impl<D: Clone + Default, J: BlockForm<D>> JsonForm<Option<D>> for Option<J> {
    fn read(block: &mut Block<'_>, name: &'static str, default: &Option<D>) -> Option<D> {
        let own = block.block(name);
        let own = own.map(|own| J::read_block(own, &default.clone().unwrap_or_default()));
        own.or_else(|| default.clone())
    }

    fn write(value: &Option<D>) -> Self {
        value.as_ref().map(J::write_block)
    }
}

/// A list of blocks.
impl<D: Default, J: BlockForm<D>> JsonForm<Vec<D>> for Vec<J> {
    fn read(block: &mut Block<'_>, name: &'static str, _: &Vec<D>) -> Vec<D> {
        let items = block.blocks(name, J::schema().list_max).into_iter();
        items
            .map(|item| J::read_block(item, &D::default()))
            .collect()
    }

    fn write(value: &Vec<D>) -> Self {
        value.iter().map(J::write_block).collect()
    }
}

/// Reads the block `name`, which is `default` if it is left out.
pub(in crate::api) fn read_one<J: BlockForm<D>, D: Clone>(
    block: &mut Block<'_>,
    name: &'static str,
    default: &D,
) -> D {
    let own = block.block(name);
    own.map_or_else(|| default.clone(), |own| J::read_block(own, default))
}

/// Leaves a field to the reader of its block, which handles it after the other fields.
pub(in crate::api) fn later<D>(_: &mut Block<'_>, _: &'static str) -> Option<D> {
    None
}

/// Reads a number of percent.
pub(in crate::api) fn read_percent(block: &mut Block<'_>, name: &'static str) -> Option<u8> {
    block.number(name, 100)
}

/// The number in `value`, such as a count. The reader of the field reports any other value.
pub(in crate::api) fn small_number(value: &Value) -> Option<u32> {
    u32::try_from(value.as_u64()?).ok()
}

/// Refuses a text in the field `name` that is not `only`.
pub(in crate::api) fn check_word(
    block: &mut Block<'_>,
    name: &'static str,
    only: &str,
    meaning: &str,
) {
    if let Some(other) = block.word(name).filter(|word| word != only) {
        block.fault(
            name,
            format!("`{other}` is not supported: use `{only}`{meaning}"),
        );
    }
}

/// Implements [`JsonForm`] by a function that reads and one that writes.
macro_rules! json_form {
    ($($json:ty, of $of:ty: $read:expr, $write:expr;)+) => {$(
        impl crate::api::job::table::JsonForm<$of> for $json {
            fn read(
                block: &mut crate::api::block::Block<'_>,
                name: &'static str,
                default: &$of,
            ) -> $of {
                let read: fn(&mut crate::api::block::Block<'_>, &'static str, &$of) -> $of = $read;
                read(block, name, default)
            }

            fn write(value: &$of) -> Self {
                let write: fn(&$of) -> Self = $write;
                write(value)
            }
        }
    )+};
}

/// Implements [`JsonForm`] for blocks that are always written.
macro_rules! block_forms {
    ($($json:ident of $of:ty;)+) => {
        crate::api::job::table::json_form! {$(
            Option<$json>, of $of: crate::api::job::table::read_one::<$json, _>,
                |value| Some(<$json as crate::api::job::table::BlockForm<_>>::write_block(value));
        )+}
    };
}

/// Implements [`JsonForm`] for enums that have names.
macro_rules! named_forms {
    ($($of:ty),+ $(,)?) => {
        json_form! {$(
            String, of $of: |block, name, default| block.choice(name).unwrap_or(*default),
                |value| value.as_str().to_owned();
        )+}
    };
}

/// Implements [`JsonForm`] for numbers that may have any value of their type.
macro_rules! number_forms {
    ($($number:ident),+ $(,)?) => {
        json_form! {$(
            $number, of $number:
                |block, name, default| block.number(name, $number::MAX).unwrap_or(*default),
                |value| *value;
            Option<$number>, of Option<$number>:
                |block, name, default| block.number(name, $number::MAX).or(*default),
                |value| *value;
        )+}
    };
}

/// Reads one field of a table.
macro_rules! read_field {
    ($type:ty; $block:expr, $json:expr, $default:expr) => {
        <$type as crate::api::job::table::JsonForm<_>>::read($block, $json, $default)
    };
    ($type:ty; $block:expr, $json:expr, $default:expr; $read:path) => {
        $read($block, $json).unwrap_or_else(|| Clone::clone($default))
    };
}

/// Makes the API's struct of a block, its reader, its writer and its schema.
macro_rules! job_block {
    (
        $(#[$block_attr:meta])*
        $json_type:ident of $module:ident::$domain_type:ident;
        $(#[$table_attr:meta])*
        $vis:vis $table:ident { $($setting:ident: $value:expr),* $(,)? }
        $(@by_hand [$($by_hand:ident),+ $(,)?])?
        $(@also [$($also:expr),+ $(,)?])?
        $(@reader $reader:path;)?
        $(@writer $writer:path;)?
        $(
            $(#[$attr:meta])*
            $json_field:ident: $field_type:ty =
                field($json:literal, $file:literal, $kind:expr) $(.$method:ident($($arg:expr)?))*
                $(=> $field:ident $(by $read:path)?)?;
        )+
    ) => {
        $(#[$block_attr])*
        #[derive(Clone, Debug, Default, PartialEq, serde::Serialize, serde::Deserialize)]
        #[serde(default)]
        pub struct $json_type {
            $(
                $(#[$attr])*
                #[serde(rename = $json)]
                pub $json_field: $field_type,
            )+
        }

        $(#[$table_attr])*
        $vis static $table: crate::api::job::schema::Schema = crate::api::job::schema::Schema {
            fields: &[
                $(
                    crate::api::job::schema::field($json, $file, $kind)
                        $(.$method($($arg)?))*
                        $(.of(stringify!($field)))?,
                )+
                $($($also,)+)?
            ],
            $($setting: $value,)*
            ..crate::api::job::schema::Schema::EMPTY
        };

        impl crate::api::job::table::BlockForm<$module::$domain_type> for $json_type {
            fn schema() -> &'static crate::api::job::schema::Schema {
                &$table
            }

            fn read_fields(
                block: &mut crate::api::block::Block<'_>,
                default: &$module::$domain_type,
            ) -> $module::$domain_type {
                $module::$domain_type {
                    $($(
                        $field: crate::api::job::table::read_field!(
                            $field_type; block, $json, &default.$field $(; $read)?
                        ),
                    )?)+
                    $($($by_hand: Clone::clone(&default.$by_hand),)+)?
                }
            }

            $(
                fn read_content(
                    block: &mut crate::api::block::Block<'_>,
                    default: &$module::$domain_type,
                ) -> $module::$domain_type {
                    $reader(block, default)
                }
            )?

            fn write_fields(value: &$module::$domain_type) -> Self {
                use crate::api::job::table::JsonForm;
                let $module::$domain_type { $($($field,)?)+ $($($by_hand: _,)+)? } = value;
                #[allow(clippy::needless_update, reason = "a block may have no field without a value")]
                Self {
                    $($($json_field: <$field_type as JsonForm<_>>::write($field),)?)+
                    ..Self::default()
                }
            }

            $(
                fn write_block(value: &$module::$domain_type) -> Self {
                    $writer(value)
                }
            )?
        }
    };
}

pub(in crate::api) use {block_forms, job_block, json_form, read_field};

json_form! {
    String, of String: |block, name, default| block.word(name).unwrap_or_else(|| default.clone()),
        Clone::clone;
    bool, of bool: |block, name, default| block.boolean(name).unwrap_or(*default), |value| *value;
    Option<bool>, of bool: |block, name, default| block.boolean(name).unwrap_or(*default),
        |value| Some(*value);
    // Empty is left out, too.
    Vec<String>, of Vec<String>:
        |block, name, default| {
            let texts = block.strings(name);
            if texts.is_empty() { default.clone() } else { texts }
        },
        Clone::clone;
    BTreeMap<String, String>, of BTreeMap<String, String>: |block, name, _| block.texts(name),
        Clone::clone;
    i64, of Duration: |block, name, default| block.duration(name).unwrap_or(*default),
        |value| nanos(*value);
    // The field is absent if it is 0.
    Option<i64>, of Duration: |block, name, default| block.duration(name).unwrap_or(*default),
        |value| (!value.is_zero()).then(|| nanos(*value));
    Option<i64>, of Option<Duration>: |block, name, default| block.duration(name).or(*default),
        |value| value.map(nanos);
    u32, of Mb: |block, name, default| block.number(name, u32::MAX).map_or(*default, Mb),
        |value| value.0;
    Option<String>, of Option<ByteRate>: |block, name, default| read_byte_rate(block, name).or(*default),
        |value| value.map(|rate| rate.to_string());
}

number_forms!(u8, u16, u32);
named_forms!(
    DelayFunction,
    HealthCheck,
    JobType,
    PayloadUse,
    PolicyAction,
    PolicyProtocol,
    Propagation,
    ReconcileStrategy,
);

fn read_byte_rate(block: &mut Block<'_>, name: &'static str) -> Option<ByteRate> {
    let text = block.word(name)?;
    let rate = ByteRate::read(&text);
    if rate.is_none() {
        let reason = format!("`{text}` is not a rate such as 1mb: give a number and kb, mb or gb");
        block.fault(name, reason);
    }
    rate
}
