//! Enums whose values have names in files, in the API and in messages. One table holds the names.
//!
//! `text_enum!` generates the conversions. A derived name would change with the variant's name in the source, so each
//! name is written out.

/// An enum that is read from text.
pub trait TextEnum: Sized + 'static {
    /// The noun in messages, such as `job type`.
    const NOUN: &'static str;

    /// All names, in the order of the documentation.
    const NAMES: &'static [&'static str];

    /// The value with this name.
    #[must_use]
    fn from_name(name: &str) -> Option<Self>;

    /// The error message for an unknown name.
    #[must_use]
    fn unknown(text: &str) -> String {
        let quoted: Vec<String> = Self::NAMES.iter().map(|name| format!("`{name}`")).collect();
        let choices = match quoted.split_last() {
            Some((last, rest)) if !rest.is_empty() => format!("{} or {last}", rest.join(", ")),
            _ => quoted.concat(),
        };
        format!("unknown {} `{text}`: use {choices}", Self::NOUN)
    }
}

/// Adds names to an enum whose variants have no fields: `ALL`, `as_str` and `Display`.
///
/// With a noun, it also adds `from_name` and [`TextEnum`]. A name may be followed by others that are read as well.
///
/// ```
/// enum Size { Small, Large }
///
/// text_enum!(pub Size: "size" {
///     Small => "small",
///     Large => "large" | "big",
/// });
/// ```
#[macro_export]
macro_rules! text_enum {
    ($vis:vis $enum:ident { $($variant:ident => $name:literal,)+ }) => {
        impl $enum {
            /// All values, in the order of the documentation.
            #[allow(dead_code, reason = "not every enum is listed")]
            $vis const ALL: [Self; [$($name),+].len()] = [$(Self::$variant),+];

            /// The name of the value.
            #[must_use]
            $vis const fn as_str(self) -> &'static str {
                match self {
                    $(Self::$variant => $name,)+
                }
            }
        }

        impl ::std::fmt::Display for $enum {
            fn fmt(&self, f: &mut ::std::fmt::Formatter<'_>) -> ::std::fmt::Result {
                f.write_str(self.as_str())
            }
        }
    };
    ($vis:vis $enum:ident: $noun:literal {
        $($variant:ident => $name:literal $(| $other:literal)*,)+
    }) => {
        $crate::text_enum!($vis $enum { $($variant => $name,)+ });

        impl $enum {
            /// The value with this name.
            #[must_use]
            $vis fn from_name(name: &str) -> Option<Self> {
                match name {
                    $($name $(| $other)* => Some(Self::$variant),)+
                    _ => None,
                }
            }
        }

        impl $crate::text_enum::TextEnum for $enum {
            const NOUN: &'static str = $noun;
            const NAMES: &'static [&'static str] = &[$($name),+];

            fn from_name(name: &str) -> Option<Self> {
                Self::from_name(name)
            }
        }
    };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Clone, Copy, Debug, PartialEq)]
    enum Size {
        Small,
        Medium,
        Large,
    }

    text_enum!(Size: "size" {
        Small => "small",
        Medium => "medium",
        Large => "large" | "big",
    });

    #[derive(Clone, Copy, Debug, PartialEq)]
    enum Single {
        Only,
    }

    text_enum!(Single: "value" {
        Only => "only",
    });

    #[test]
    fn names_are_read_as_they_are_written() {
        for size in Size::ALL {
            assert_eq!(Size::from_name(size.as_str()), Some(size));
            assert_eq!(size.to_string(), size.as_str());
        }
        assert_eq!(Size::from_name("big"), Some(Size::Large));
        assert_eq!(Size::from_name("Small"), None);
    }

    #[test]
    fn unknown_text_is_answered_with_all_names() {
        assert_eq!(
            Size::unknown("huge"),
            "unknown size `huge`: use `small`, `medium` or `large`"
        );
        assert_eq!(Single::unknown(""), "unknown value ``: use `only`");
        assert_eq!(Single::from_name("only"), Some(Single::Only));
    }
}
