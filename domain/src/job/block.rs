//! Blocks of a job as a table, with one row per field.
//!
//! ```text
//! pub field: Type = default => InPlace;
//! ```
//!
//! `default` is the value of an omitted field. `InPlace` applies a change of the field to a running instance. `Replace`
//! replaces the instance. `SameIf(function)` calls a function that compares the old and the new value. No row of a
//! block has `=>` if the row of the block itself has the rule. A block whose fields are all empty by default derives
//! `Default` and needs no table.

/// Makes the struct of a block, its `Default`, and its rule for changes.
macro_rules! job_block {
    (
        $(#[$attr:meta])*
        pub struct $name:ident {
            $(
                $(#[$field_attr:meta])*
                pub $field:ident: $type:ty = $default:expr;
            )+
        }
    ) => {
        $(#[$attr])*
        #[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
        pub struct $name {
            $(
                $(#[$field_attr])*
                pub $field: $type,
            )+
        }

        /// The values of omitted fields, in a service job.
        impl Default for $name {
            fn default() -> Self {
                Self { $($field: $default,)+ }
            }
        }
    };
    (
        $(#[$attr:meta])*
        pub struct $name:ident {
            $(
                $(#[$field_attr:meta])*
                pub $field:ident: $type:ty = $default:expr => $change:ident $(($rule:path))?;
            )+
        }
    ) => {
        crate::job::block::job_block! {
            $(#[$attr])*
            pub struct $name {
                $(
                    $(#[$field_attr])*
                    pub $field: $type = $default;
                )+
            }
        }

        impl $name {
            /// Whether an instance started with `old` can keep running with `new`.
            #[must_use]
            pub fn updates_in_place(old: &Self, new: &Self) -> bool {
                $(
                    if !crate::job::block::is_same!($change $(($rule))?, &old.$field, &new.$field) {
                        return false;
                    }
                )+
                true
            }

            /// Whether any change of the field `name` applies to a running instance.
            #[must_use]
            pub fn is_in_place(name: &str) -> bool {
                $(
                    if name == stringify!($field) {
                        return stringify!($change) == "InPlace";
                    }
                )+
                false
            }
        }
    };
}

/// Whether a change of a value has no effect on a running instance.
macro_rules! is_same {
    (InPlace, $old:expr, $new:expr) => {
        true
    };
    (Replace, $old:expr, $new:expr) => {
        $old == $new
    };
    (SameIf($same:path), $old:expr, $new:expr) => {
        $same($old, $new)
    };
}

pub(crate) use {is_same, job_block};
