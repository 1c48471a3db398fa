//! The escape sequence that a user types to hang up.

/// Detects the escape character at the beginning of a line.
#[derive(Debug)]
pub(super) struct EscapeFilter {
    character: Option<u8>,
    place: EscapeState,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum EscapeState {
    LineBegin,
    InLine,
    /// The character was typed first in a line and is held back.
    Escaped,
}

/// The outcome of a piece of input.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct FilteredInput {
    /// Bytes for the command.
    pub(super) bytes: Vec<u8>,
    /// Whether the user ends the session.
    pub(super) hangs_up: bool,
}

impl EscapeFilter {
    /// Creates a filter for `character`; `None` detects nothing.
    pub(super) fn new(character: Option<u8>) -> Self {
        Self {
            character,
            place: EscapeState::LineBegin,
        }
    }

    /// Processes typed input.
    pub(super) fn filter_input(&mut self, typed: Vec<u8>) -> FilteredInput {
        let Some(character) = self.character else {
            return FilteredInput {
                bytes: typed,
                hangs_up: false,
            };
        };
        let mut bytes = Vec::with_capacity(typed.len() + 1);
        for byte in typed {
            match self.place {
                EscapeState::LineBegin if byte == character => {
                    self.place = EscapeState::Escaped;
                    continue;
                }
                EscapeState::Escaped if byte == b'.' => {
                    return FilteredInput {
                        bytes,
                        hangs_up: true,
                    };
                }
                // Twice is once.
                EscapeState::Escaped if byte == character => {}
                EscapeState::Escaped => bytes.push(character),
                EscapeState::LineBegin | EscapeState::InLine => {}
            }
            bytes.push(byte);
            self.place = if matches!(byte, b'\n' | b'\r') {
                EscapeState::LineBegin
            } else {
                EscapeState::InLine
            };
        }
        FilteredInput {
            bytes,
            hangs_up: false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn typed(parts: &[&str]) -> (String, bool) {
        let mut escape = EscapeFilter::new(Some(b'~'));
        let mut all = Vec::new();
        for part in parts {
            let FilteredInput { bytes, hangs_up } = escape.filter_input(part.as_bytes().to_vec());
            all.extend(bytes);
            if hangs_up {
                return (String::from_utf8(all).unwrap(), true);
            }
        }
        (String::from_utf8(all).unwrap(), false)
    }

    #[test]
    fn tilde_dot_disconnects_only_at_line_start() {
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
    fn escapes_need_an_escape_character() {
        let typed = EscapeFilter::new(None).filter_input(b"~.".to_vec());

        assert_eq!(typed.bytes, b"~.");
        assert!(!typed.hangs_up);
    }
}
