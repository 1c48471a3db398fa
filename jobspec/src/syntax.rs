//! The native syntax of HCL: parses text to a tree with the place of each part.
//!
//! The parser is our own because `hcl-edit` 0.10, its predecessor, has four faults. It cuts text out of indented
//! heredocs. It takes the lines after an empty heredoc for its text. It keeps escapes inside directives unresolved. It
//! limits numbers to 64 bits. The rules here are those of `hashicorp/hcl` v2, and a test compares the results of both
//! (`oracle`).

mod ast;
pub(crate) mod json;
mod parser;
mod template;
mod token;

use std::ops::Range;

pub use ast::{Attribute, Block, Body, Expression, Ident, Structure};
pub(crate) use ast::{BinaryOperator, Call, ExprKind, ForExpr, ForPart, Part, Step, Template};

use parser::Parser;

/// The place and the reason of a syntax error.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SyntaxError {
    /// Byte range in the text.
    pub span: Range<usize>,
    /// The reason, such as ``expected `]` ``.
    pub message: String,
}

impl SyntaxError {
    fn new(span: Range<usize>, message: impl Into<String>) -> Self {
        Self {
            span,
            message: message.into(),
        }
    }
}

/// Parses a file.
///
/// # Errors
///
/// The first syntax error.
pub fn parse_body(text: &str) -> Result<Body, SyntaxError> {
    Parser::new(text, 0).file()
}

/// Parses one expression at `offset` of its file.
pub(crate) fn parse_expression(text: &str, offset: usize) -> Result<Expression, SyntaxError> {
    Parser::new(text, offset).only_expression()
}

/// Parses a text with `${…}` and `%{…}` at `offset` of its file.
pub(crate) fn parse_template(text: &str, offset: usize) -> Result<Expression, SyntaxError> {
    Parser::new(text, offset).only_template()
}

#[cfg(test)]
mod tests;
