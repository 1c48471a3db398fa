//! Assembles pieces of a log into whole lines with time and task. Pure.

use std::io::IsTerminal as _;

use muster_wire::api::time;

use super::Source;

/// The longest unfinished line in bytes; a longer line is printed as several lines.
const LINE_BYTES_MAX: usize = 64 << 10;

/// Colors of labels: bright colors without black, white and red. Red means an error.
const COLOURS: [u8; 5] = [92, 93, 94, 95, 96];

/// The format of printed lines.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Style {
    /// Whether each line has its time.
    pub(crate) times: bool,
    /// Whether labels have colors.
    pub(crate) colour: bool,
}

impl Style {
    /// In colour on a terminal, unless `NO_COLOR` is set.
    pub(crate) fn of_stdout(times: bool) -> Self {
        let wanted = std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
        let colour = wanted && std::io::stdout().is_terminal();
        Self { times, colour }
    }
}

/// The lines of one source.
#[derive(Debug)]
pub(crate) struct Lines {
    label: String,
    times: bool,
    /// The unfinished line.
    partial: Vec<u8>,
    /// Time of the start of the unfinished line.
    begun: Option<u64>,
}

impl Lines {
    pub(crate) fn new(source: &Source, style: Style) -> Self {
        Self {
            label: label(source, style.colour),
            times: style.times,
            partial: Vec::new(),
            begun: None,
        }
    }

    /// Appends to `out` the lines that `data`, received at `at`, completes.
    pub(crate) fn push(&mut self, at: Option<u64>, data: &[u8], out: &mut Vec<u8>) {
        for piece in data.split_inclusive(|byte| *byte == b'\n') {
            if self.partial.is_empty() {
                self.begun = at;
            }
            for piece in piece.chunks(LINE_BYTES_MAX) {
                if self.partial.len() + piece.len() > LINE_BYTES_MAX {
                    self.finish(out);
                    self.begun = at;
                }
                self.partial.extend_from_slice(piece);
            }
            if self.partial.last() == Some(&b'\n') {
                self.finish(out);
            }
        }
    }

    /// Discards the unfinished line for a later reader that starts at its beginning. Returns its length.
    pub(crate) fn discard_unfinished_line(&mut self) -> u64 {
        let bytes = self.partial.len();
        self.partial.clear();
        bytes as u64
    }

    /// Appends the line that is not finished, if there is one.
    pub(crate) fn finish(&mut self, out: &mut Vec<u8>) {
        if self.partial.is_empty() {
            return;
        }
        if self.times {
            let at = self.begun.map_or_else(|| "-".to_owned(), time::millis);
            out.extend_from_slice(at.as_bytes());
            out.push(b' ');
        }
        out.extend_from_slice(self.label.as_bytes());
        out.append(&mut self.partial);
        if out.last() != Some(&b'\n') {
            out.push(b'\n');
        }
    }
}

/// `web.0/server 68e42f3f | `; nothing for a source without a label.
fn label(source: &Source, colour: bool) -> String {
    if source.label.is_empty() {
        return String::new();
    }
    let bar = if source.stream == "stderr" { '!' } else { '|' };
    let text = format!("{} {bar}", source.label);
    if !colour {
        return format!("{text} ");
    }
    // The color of a task's output must not depend on the other outputs.
    let sum = source.label.bytes().fold(0_usize, |sum, byte| {
        sum.wrapping_mul(31).wrapping_add(usize::from(byte))
    });
    format!("\x1b[{}m{text}\x1b[0m ", COLOURS[sum % COLOURS.len()])
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000_000;

    fn lines(label: &str, style: Style) -> Lines {
        let source = Source {
            alloc_id: "68e42f3f".to_owned(),
            task: "server".to_owned(),
            stream: "stdout",
            label: label.to_owned(),
            runs: true,
        };
        Lines::new(&source, style)
    }

    const PLAIN: Style = Style {
        times: false,
        colour: false,
    };
    const TIMED: Style = Style {
        times: true,
        colour: false,
    };

    /// The stored output may end within a line. The follower then prints the whole line.
    #[test]
    fn partial_line_is_left_to_next_reader() {
        let mut lines = lines("t", PLAIN);
        let mut out = Vec::new();
        lines.push(None, b"whole\nhal", &mut out);

        let left = lines.discard_unfinished_line();
        lines.finish(&mut out);

        assert_eq!(left, 3);
        assert_eq!(String::from_utf8(out).unwrap(), "t | whole\n");
    }

    fn printed(lines: &mut Lines, pieces: &[(Option<u64>, &str)]) -> String {
        let mut out = Vec::new();
        for (at, piece) in pieces {
            lines.push(at.map(|at| at * SECOND), piece.as_bytes(), &mut out);
        }
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn a_line_is_printed_once_it_is_whole() {
        let mut lines = lines("web.0/server", PLAIN);

        assert_eq!(
            printed(&mut lines, &[(None, "one\ntw")]),
            "web.0/server | one\n"
        );
        assert_eq!(
            printed(&mut lines, &[(None, "o\n\n")]),
            "web.0/server | two\nweb.0/server | \n"
        );
    }

    #[test]
    fn line_has_timestamp_of_its_first_byte() {
        let mut lines = lines("", TIMED);

        let text = printed(
            &mut lines,
            &[(Some(1), "one\ntw"), (Some(2), "o\nsix\n"), (None, "ten\n")],
        );

        assert_eq!(
            text,
            "1970-01-01T00:00:01.000Z one\n1970-01-01T00:00:01.000Z two\n1970-01-01T00:00:02.000Z six\n- ten\n"
        );
    }

    #[test]
    fn the_last_line_needs_no_end() {
        let mut lines = lines("a", PLAIN);
        let mut out = Vec::new();
        lines.push(None, b"prompt>", &mut out);

        lines.finish(&mut out);
        lines.finish(&mut out);

        assert_eq!(out, b"a | prompt>\n");
    }

    #[test]
    fn unterminated_line_buffer_is_bounded() {
        let mut lines = lines("", PLAIN);
        let mut out = Vec::new();

        for _ in 0..1_000 {
            lines.push(None, &[b'x'; 1_000], &mut out);
            assert!(lines.partial.len() <= LINE_BYTES_MAX);
        }

        lines.finish(&mut out);
        out.retain(|byte| *byte == b'x');
        assert_eq!(out.len(), 1_000_000);
    }

    #[test]
    fn a_terminal_gets_the_label_in_colour() {
        let style = Style {
            times: false,
            colour: true,
        };
        let text = printed(&mut lines("a", style), &[(None, "x\n")]);

        assert!(
            text.starts_with("\x1b[9") && text.ends_with("a |\x1b[0m x\n"),
            "{text:?}"
        );
    }
}
