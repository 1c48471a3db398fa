//! The tree.

use std::ops::Range;

use crate::number::Number;

/// The contents of a file or of a block, in the order of the file.
#[derive(Clone, Debug, Default)]
pub struct Body {
    pub items: Vec<Structure>,
}

impl Body {
    /// The attributes.
    pub fn attributes(&self) -> impl Iterator<Item = &Attribute> {
        self.items.iter().filter_map(|item| match item {
            Structure::Attribute(attribute) => Some(attribute),
            Structure::Block(_) => None,
        })
    }

    /// The blocks.
    pub fn blocks(&self) -> impl Iterator<Item = &Block> {
        self.items.iter().filter_map(|item| match item {
            Structure::Attribute(_) => None,
            Structure::Block(block) => Some(block),
        })
    }
}

/// An item of a body.
#[derive(Clone, Debug)]
pub enum Structure {
    /// `key = value`
    Attribute(Attribute),
    /// `name "label" { … }`
    Block(Block),
}

/// A name or a label, without its quotes.
#[derive(Clone, Debug)]
pub struct Ident {
    pub name: String,
    /// Byte range in the file, with quotes.
    pub span: Range<usize>,
}

impl Ident {
    /// The text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.name
    }
}

/// `key = value`
#[derive(Clone, Debug)]
pub struct Attribute {
    pub key: Ident,
    pub value: Expression,
}

/// `name "label" { … }`
#[derive(Clone, Debug)]
pub struct Block {
    pub ident: Ident,
    pub labels: Vec<Ident>,
    pub body: Body,
}

impl Block {
    /// Whether the block is called `name`.
    #[must_use]
    pub fn has_ident(&self, name: &str) -> bool {
        self.ident.name == name
    }
}

/// An expression.
#[derive(Clone, Debug)]
pub struct Expression {
    pub(crate) kind: ExprKind,
    /// Byte range in the file.
    pub span: Range<usize>,
}

#[derive(Clone, Debug)]
pub(crate) enum ExprKind {
    Null,
    Bool(bool),
    Number(Number),
    /// A quoted text or a heredoc without expressions.
    Text(String),
    Template(Template),
    /// `"${x}"`: the value of `x`, of any type.
    Wrap(Box<Expression>),
    Tuple(Vec<Expression>),
    /// Keys with values. A name without quotes is a text.
    Object(Vec<(Expression, Expression)>),
    Paren(Box<Expression>),
    Not(Box<Expression>),
    Negate(Box<Expression>),
    /// Operators of one precedence, from left to right.
    Binary(Box<Expression>, Vec<(BinaryOperator, Expression)>),
    /// A name, with or without a path into its value.
    Reference(String, Vec<Step>),
    /// A path into a value that was computed.
    Path(Box<Expression>, Vec<Step>),
    Call(Call),
    Conditional(Box<[Expression; 3]>),
    For(Box<ForExpr>),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BinaryOperator {
    Or,
    And,
    Equal,
    NotEqual,
    Less,
    LessEqual,
    Greater,
    GreaterEqual,
    Plus,
    Minus,
    Times,
    Divide,
    Modulo,
}

impl BinaryOperator {
    /// Whether the result is a number.
    pub(crate) fn is_arithmetic(self) -> bool {
        matches!(
            self,
            Self::Plus | Self::Minus | Self::Times | Self::Divide | Self::Modulo
        )
    }
}

/// A step of a path.
#[derive(Clone, Debug)]
pub(crate) enum Step {
    Attribute(Ident),
    Index(Expression),
    /// `.*` and the steps that are applied to each element.
    AttributeSplat(Vec<Step>, Range<usize>),
    /// `[*]` and the steps that are applied to each element.
    FullSplat(Vec<Step>, Range<usize>),
}

#[derive(Clone, Debug)]
pub(crate) struct Call {
    pub(crate) name: Ident,
    pub(crate) args: Vec<Expression>,
    /// Whether the last argument is a list of arguments: `f(x...)`.
    pub(crate) expands: bool,
}

/// `[for k, v in list : value if condition]`
#[derive(Clone, Debug)]
pub(crate) struct ForExpr {
    pub(crate) names: ForPart,
    /// The key, if the result is an object.
    pub(crate) key: Option<Expression>,
    pub(crate) value: Expression,
    pub(crate) condition: Option<Expression>,
    /// Whether values of one key are collected.
    pub(crate) groups: bool,
}

/// `for k, v in list`
#[derive(Clone, Debug)]
pub(crate) struct ForPart {
    pub(crate) key: Option<String>,
    pub(crate) value: String,
    pub(crate) list: Expression,
}

/// A text with parts to evaluate.
#[derive(Clone, Debug, Default)]
pub(crate) struct Template {
    pub(crate) parts: Vec<Part>,
}

#[derive(Clone, Debug)]
pub(crate) enum Part {
    Literal(String),
    Interpolation(Expression),
    If(Box<Expression>, Template, Template),
    For(Box<ForPart>, Template),
}

impl Expression {
    pub(crate) fn new(kind: ExprKind, span: Range<usize>) -> Self {
        Self { kind, span }
    }

    /// The name, if the expression is a single unquoted word.
    pub(crate) fn keyword(&self) -> Option<&str> {
        match &self.kind {
            ExprKind::Reference(name, steps) if steps.is_empty() => Some(name),
            ExprKind::Null => Some("null"),
            ExprKind::Bool(true) => Some("true"),
            ExprKind::Bool(false) => Some("false"),
            _ => None,
        }
    }

    /// The text of a key that needs no evaluation.
    pub(crate) fn literal_key(&self) -> Option<&str> {
        match &self.kind {
            ExprKind::Text(text) => Some(text),
            _ => self.keyword(),
        }
    }
}

impl Expression {
    /// Calls `visit` with the expression and every expression inside it.
    pub(crate) fn walk(&self, visit: &mut dyn FnMut(&Expression)) {
        visit(self);
        match &self.kind {
            ExprKind::Null | ExprKind::Bool(_) | ExprKind::Number(_) | ExprKind::Text(_) => {}
            ExprKind::Template(template) => template.walk(visit),
            ExprKind::Wrap(inner)
            | ExprKind::Paren(inner)
            | ExprKind::Not(inner)
            | ExprKind::Negate(inner) => inner.walk(visit),
            ExprKind::Tuple(items) => items.iter().for_each(|item| item.walk(visit)),
            ExprKind::Object(entries) => {
                for (key, value) in entries {
                    key.walk(visit);
                    value.walk(visit);
                }
            }
            ExprKind::Binary(first, rest) => {
                first.walk(visit);
                for (_, operand) in rest {
                    operand.walk(visit);
                }
            }
            ExprKind::Reference(_, steps) => walk_steps(steps, visit),
            ExprKind::Path(source, steps) => {
                source.walk(visit);
                walk_steps(steps, visit);
            }
            ExprKind::Call(call) => call.args.iter().for_each(|arg| arg.walk(visit)),
            ExprKind::Conditional(parts) => parts.iter().for_each(|part| part.walk(visit)),
            ExprKind::For(each) => {
                each.names.list.walk(visit);
                each.value.walk(visit);
                each.key.iter().for_each(|key| key.walk(visit));
                each.condition
                    .iter()
                    .for_each(|condition| condition.walk(visit));
            }
        }
    }
}

fn walk_steps(steps: &[Step], visit: &mut dyn FnMut(&Expression)) {
    for step in steps {
        match step {
            Step::Attribute(_) => {}
            Step::Index(index) => index.walk(visit),
            Step::AttributeSplat(each, _) | Step::FullSplat(each, _) => walk_steps(each, visit),
        }
    }
}

impl Template {
    fn walk(&self, visit: &mut dyn FnMut(&Expression)) {
        for part in &self.parts {
            match part {
                Part::Literal(_) => {}
                Part::Interpolation(expression) => expression.walk(visit),
                Part::If(condition, yes, no) => {
                    condition.walk(visit);
                    yes.walk(visit);
                    no.walk(visit);
                }
                Part::For(names, inner) => {
                    names.list.walk(visit);
                    inner.walk(visit);
                }
            }
        }
    }
}
