//! Tables of the fields of a block, from which everything that knows the block's fields is made.
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
//! - `domain_field` is the field of the domain's struct. A row without it is a field of Nomad that has no effect here.
//!
//! The table in `domain/src/job` has the default of each field, and whether an instance takes a change in place. A plan
//! says so as well. `.plan_says(…)` is for a field of which Nomad's plan says something else.

use std::collections::BTreeMap;
use std::time::Duration;

use muster_domain::job::{DelayFunction, HealthCheck};
use muster_domain::resources::Mb;

use crate::api::block::Block;
use crate::api::duration::nanos;

/// The JSON form of a value of the type `D` of the domain.
pub(super) trait JsonForm<D>: Sized {
    /// Reads the field `name` of `block`, which is `default` if it is left out.
    fn read(block: &mut Block<'_>, name: &'static str, default: &D) -> D;

    /// Writes the field.
    fn write(value: &D) -> Self;
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
                ($read)(block, name, default)
            }

            fn write(value: &$of) -> Self {
                ($write)(value)
            }
        }
    )+};
}

/// Implements [`JsonForm`] for enums that have names.
macro_rules! named_forms {
    ($($of:ty),+ $(,)?) => {
        crate::api::job::table::json_form! {$(
            String, of $of:
                |block: &mut crate::api::block::Block<'_>, name, default: &$of| {
                    block.choice(name).unwrap_or(*default)
                },
                |value: &$of| value.as_str().to_owned();
        )+}
    };
}

/// Makes the API's struct of a block, its reader, its writer and its schema.
macro_rules! job_block {
    (
        $(#[$block_attr:meta])*
        $json_type:ident of domain::$domain_type:ident;
        $(#[$table_attr:meta])*
        $vis:vis $table:ident { $($setting:ident: $value:expr),* $(,)? }
        $(
            $(#[$attr:meta])*
            $json_field:ident: $field_type:ty =
                field($json:literal, $file:literal, $kind:expr) $(.$method:ident($($arg:expr)?))*
                $(=> $field:ident)?;
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
            fields: &[$(
                crate::api::job::schema::field($json, $file, $kind)
                    $(.$method($($arg)?))*
                    $(.of(stringify!($field)))?,
            )+],
            $($setting: $value,)*
            ..crate::api::job::schema::Schema::EMPTY
        };

        impl From<&domain::$domain_type> for $json_type {
            fn from(block: &domain::$domain_type) -> Self {
                use crate::api::job::table::JsonForm;
                let domain::$domain_type { $($($field,)?)+ } = block;
                #[allow(clippy::needless_update, reason = "a block may have no field without a value")]
                Self {
                    $($($json_field: <$field_type as JsonForm<_>>::write($field),)?)+
                    ..Self::default()
                }
            }
        }

        impl $json_type {
            /// Reads the fields of a block. Those left out are as in `default`.
            pub(super) fn read_fields(
                block: &mut crate::api::block::Block<'_>,
                default: &domain::$domain_type,
            ) -> domain::$domain_type {
                use crate::api::job::table::JsonForm;
                domain::$domain_type {
                    $($($field: <$field_type as JsonForm<_>>::read(block, $json, &default.$field),)?)+
                }
            }
        }
    };
}

pub(super) use {job_block, json_form};

json_form! {
    String, of String:
        |block: &mut Block<'_>, name, default: &String| {
            block.word(name).unwrap_or_else(|| default.clone())
        },
        |value: &String| value.clone();
    bool, of bool:
        |block: &mut Block<'_>, name, default: &bool| block.boolean(name).unwrap_or(*default),
        |value: &bool| *value;
    u32, of u32:
        |block: &mut Block<'_>, name, default: &u32| {
            block.number(name, u32::MAX).unwrap_or(*default)
        },
        |value: &u32| *value;
    i64, of Duration:
        |block: &mut Block<'_>, name, default: &Duration| block.duration(name).unwrap_or(*default),
        |value: &Duration| nanos(*value);
    // Absent if it is 0.
    Option<i64>, of Duration:
        |block: &mut Block<'_>, name, default: &Duration| block.duration(name).unwrap_or(*default),
        |value: &Duration| (!value.is_zero()).then(|| nanos(*value));
    u32, of Mb:
        |block: &mut Block<'_>, name, default: &Mb| block.number(name, u32::MAX).map_or(*default, Mb),
        |value: &Mb| value.0;
    BTreeMap<String, String>, of BTreeMap<String, String>:
        |block: &mut Block<'_>, name, _: &BTreeMap<String, String>| block.texts(name),
        |value: &BTreeMap<String, String>| value.clone();
}

named_forms!(DelayFunction, HealthCheck);
