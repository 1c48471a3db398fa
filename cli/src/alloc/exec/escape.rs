//! The escape sequence that a user types to hang up.

/// Looks for the escape character at the begin of a line.
#[derive(Debug)]
pub(super) struct Escape {
    character: Option<u8>,
    place: Place,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    LineBegin,
    InLine,
    /// The character was typed first in a line and is held back.
    Escaped,
}

/// The outcome of a piece of input.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Typed {
    /// For the command.
    pub(super) bytes: Vec<u8>,
    /// The user wants to hang up.
    pub(super) hangs_up: bool,
}

impl Escape {
    /// With `character`; `None` looks for nothing.
    pub(super) fn new(character: Option<u8>) -> Self {
        Self {
            character,
            place: Place::LineBegin,
        }
    }

    /// Takes what was typed.
    pub(super) fn take(&mut self, typed: Vec<u8>) -> Typed {
        let Some(character) = self.character else {
            return Typed {
                bytes: typed,
                hangs_up: false,
            };
        };
        let mut bytes = Vec::with_capacity(typed.len() + 1);
        for byte in typed {
            match self.place {
                Place::LineBegin if byte == character => {
                    self.place = Place::Escaped;
                    continue;
                }
                Place::Escaped if byte == b'.' => {
                    return Typed {
                        bytes,
                        hangs_up: true,
                    };
                }
                // Twice is once.
                Place::Escaped if byte == character => {}
                Place::Escaped => bytes.push(character),
                Place::LineBegin | Place::InLine => {}
            }
            bytes.push(byte);
            self.place = if matches!(byte, b'\n' | b'\r') {
                Place::LineBegin
            } else {
                Place::InLine
            };
        }
        Typed {
            bytes,
            hangs_up: false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn typed(parts: &[&str]) -> (String, bool) {
        let mut escape = Escape::new(Some(b'~'));
        let mut all = Vec::new();
        for part in parts {
            let Typed { bytes, hangs_up } = escape.take(part.as_bytes().to_vec());
            all.extend(bytes);
            if hangs_up {
                return (String::from_utf8(all).unwrap(), true);
            }
        }
        (String::from_utf8(all).unwrap(), false)
    }

    #[test]
    fn tilde_and_dot_hang_up_at_the_begin_of_a_line_only() {
        for (parts, bytes, hangs_up) in [
            (&["~."][..], "", true),
            (&["ls\r~."], "ls\r", true),
            (&["~", "."], "", true),
            (&["ls ~."], "ls ~.", false),
            (&["~~."], "~.", false),
            (&["~a~."], "~a~.", false),
            (&["~\r~."], "~\r", true),
        ] {
            assert_eq!(typed(parts), (bytes.to_owned(), hangs_up), "{parts:?}");
        }
    }

    #[test]
    fn nothing_is_looked_for_without_a_character() {
        let typed = Escape::new(None).take(b"~.".to_vec());

        assert_eq!(typed.bytes, b"~.");
        assert!(!typed.hangs_up);
    }
}
