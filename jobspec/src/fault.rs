//! Faults of a job file: the problem, its place, and the remedy.

use std::fmt;
use std::io::Read as _;
use std::ops::Range;
use std::path::{Path, PathBuf};

use miette::{Diagnostic, LabeledSpan, NamedSource, SourceSpan};
use muster_wire::limits::{FAULTS_MAX, JOB_FILE_BYTES_MAX};

use crate::syntax::SyntaxError;

/// A fault in a job file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JobFileFault {
    /// Byte range in the file.
    pub span: Range<usize>,
    /// The problem; names the field.
    pub message: String,
    pub help: Option<String>,
}

impl JobFileFault {
    /// A fault at `span`.
    pub fn at(span: Range<usize>, message: impl Into<String>) -> Self {
        Self {
            span,
            message: message.into(),
            help: None,
        }
    }

    /// Adds the field `field` to the fault.
    #[must_use]
    pub fn about(mut self, field: &str) -> Self {
        self.message = format!("`{field}`: {}", self.message);
        self
    }

    /// Adds advice.
    #[must_use]
    pub fn help(mut self, help: impl Into<String>) -> Self {
        self.help = Some(help.into());
        self
    }
}

/// A job file could not be used.
#[derive(Debug)]
pub enum ReadJobFileError {
    /// The file cannot be read.
    Unreadable {
        path: PathBuf,
        source: std::io::Error,
    },
    /// The file is too large.
    TooLarge { path: PathBuf },
    /// The file is not UTF-8 text.
    NotText { path: PathBuf },
    /// The content of the file is faulty.
    Faulty {
        name: String,
        text: String,
        /// All faults; never empty.
        faults: Vec<JobFileFault>,
    },
}

impl ReadJobFileError {
    /// Creates the error from `faults` in `text`. Duplicates are removed, and the number is bounded.
    #[must_use]
    pub fn new(name: &str, text: &str, mut faults: Vec<JobFileFault>) -> Self {
        // A dynamic block reports the same fault for each of its elements.
        faults.dedup();
        let more = faults.len().saturating_sub(FAULTS_MAX);
        faults.truncate(FAULTS_MAX);
        if more > 0
            && let Some(last) = faults.last_mut()
        {
            last.message = format!("{}; {more} more", last.message);
        }
        Self::Faulty {
            name: name.to_owned(),
            text: text.to_owned(),
            faults,
        }
    }

    /// Each fault as a report with an extract of the file, for a terminal.
    #[must_use]
    pub fn reports(&self) -> Vec<miette::Report> {
        match self {
            Self::Faulty { name, text, faults } => faults
                .iter()
                .map(|fault| {
                    let source = NamedSource::new(name, text.clone()).with_language("HCL");
                    miette::Report::new(FaultReport {
                        fault: fault.clone(),
                    })
                    .with_source_code(source)
                })
                .collect(),
            Self::Unreadable { .. } | Self::TooLarge { .. } | Self::NotText { .. } => Vec::new(),
        }
    }
}

impl fmt::Display for ReadJobFileError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unreadable { path, source } => {
                write!(f, "{} cannot be read: {source}", path.display())
            }
            Self::TooLarge { path } => write!(
                f,
                "{} is above the limit of {JOB_FILE_BYTES_MAX} bytes: put large data in an artifact",
                path.display()
            ),
            Self::NotText { path } => {
                write!(f, "{} is not UTF-8 text", path.display())
            }
            Self::Faulty { name, text, faults } => {
                for (at, fault) in faults.iter().enumerate() {
                    if at > 0 {
                        f.write_str("\n")?;
                    }
                    let (line, column) = position(text, fault.span.start);
                    write!(f, "{name}:{line}:{column}: {}", fault.message)?;
                    if let Some(help) = &fault.help {
                        write!(f, " ({help})")?;
                    }
                }
                Ok(())
            }
        }
    }
}

impl std::error::Error for ReadJobFileError {}

/// A fault in the form that miette displays.
#[derive(Debug)]
struct FaultReport {
    fault: JobFileFault,
}

impl fmt::Display for FaultReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.fault.message)
    }
}

impl std::error::Error for FaultReport {}

impl Diagnostic for FaultReport {
    fn help<'a>(&'a self) -> Option<Box<dyn fmt::Display + 'a>> {
        self.fault
            .help
            .as_ref()
            .map(|help| Box::new(help) as Box<dyn fmt::Display>)
    }

    fn labels(&self) -> Option<Box<dyn Iterator<Item = LabeledSpan> + '_>> {
        let span = SourceSpan::from(self.fault.span.clone());
        Some(Box::new(std::iter::once(
            LabeledSpan::new_primary_with_span(Some("here".to_owned()), span),
        )))
    }
}

/// The name and text of the file at `path`; `-` is standard input.
///
/// # Errors
///
/// The file cannot be read, is too large or is not UTF-8 text.
pub fn load(path: &Path) -> Result<(String, String), ReadJobFileError> {
    let unreadable = |source| ReadJobFileError::Unreadable {
        path: path.to_owned(),
        source,
    };
    let mut bytes = Vec::new();
    let max = JOB_FILE_BYTES_MAX as u64 + 1;
    if path == Path::new("-") {
        std::io::stdin()
            .lock()
            .take(max)
            .read_to_end(&mut bytes)
            .map_err(unreadable)?;
    } else {
        let file = std::fs::File::open(path).map_err(unreadable)?;
        file.take(max).read_to_end(&mut bytes).map_err(unreadable)?;
    }
    if bytes.len() > JOB_FILE_BYTES_MAX {
        return Err(ReadJobFileError::TooLarge {
            path: path.to_owned(),
        });
    }
    match String::from_utf8(bytes) {
        Ok(text) => Ok((path.display().to_string(), text)),
        Err(_) => Err(ReadJobFileError::NotText {
            path: path.to_owned(),
        }),
    }
}

/// `fault` with the nearest of `known` to `name`, or with all of them.
pub(crate) fn nearest<'a>(
    fault: JobFileFault,
    name: &str,
    known: impl Iterator<Item = &'a str> + Clone,
) -> JobFileFault {
    let nearest = known
        .clone()
        .map(|known| (strsim::damerau_levenshtein(known, name), known))
        .filter(|(distance, known)| *distance <= known.len().div_ceil(3))
        .min();
    if let Some((_, known)) = nearest {
        return fault.help(format!("did you mean `{known}`?"));
    }
    let known: Vec<&str> = known.collect();
    if known.is_empty() {
        fault
    } else {
        fault.help(format!("known here: {}", known.join(", ")))
    }
}

/// A fault of the HCL parser.
#[must_use]
pub fn from_parser(error: SyntaxError) -> JobFileFault {
    JobFileFault::at(error.span, format!("invalid HCL: {}", error.message))
}

/// Line and column, both from 1, of the byte at `offset`.
pub(crate) fn position(text: &str, offset: usize) -> (usize, usize) {
    let before = text.get(..offset).unwrap_or(text);
    let line = before.matches('\n').count() + 1;
    let column = before
        .rsplit('\n')
        .next()
        .unwrap_or_default()
        .chars()
        .count()
        + 1;
    (line, column)
}
