//! HCL's JSON syntax: `{"job": {"web": {"group": {"g": {…}}}}}`.
//!
//! JSON does not distinguish attributes from blocks, so the schema of job files does. An object below the name of a
//! block has the labels and then the body. A list has several such blocks. Texts are templates.

use std::collections::BTreeSet;

use muster_wire::api::job::JOB;
use muster_wire::api::job::schema::{BlockShape, FieldKind, Schema};

use crate::fault::{JobFileFault, from_parser};
use crate::number::Number;
use crate::syntax::json::{Key, Node, NodeKind};
use crate::syntax::{self, Attribute, Block, Body, ExprKind, Expression, Ident, Structure};

type ParseResult<T> = Result<T, JobFileFault>;

/// The contents that a body may have.
#[derive(Clone, Copy)]
enum BodyForm {
    /// A whole job file.
    File,
    Schema(&'static Schema),
    /// A `dynamic` block that generates blocks of this form.
    Dynamic(&'static Schema, bool),
    Variable,
    /// Attributes alone. Their texts may be templates.
    Values(bool),
}

/// The value of a key in a body.
enum Item {
    Attribute,
    /// The text of the value is an expression.
    Keyword,
    /// Blocks with this number of labels.
    Blocks(usize, BodyForm),
}

impl BodyForm {
    fn item(self, name: &str) -> Item {
        match self {
            Self::File => match name {
                "job" => Item::Blocks(1, Self::Schema(&JOB)),
                "variable" => Item::Blocks(1, Self::Variable),
                "variables" | "locals" => Item::Blocks(0, Self::Values(true)),
                _ => Item::Attribute,
            },
            Self::Schema(schema) => Self::in_schema(schema, name),
            Self::Dynamic(schema, is_free) => match name {
                "iterator" => Item::Keyword,
                "content" if is_free => Item::Blocks(0, Self::Values(true)),
                "content" => Item::Blocks(0, Self::Schema(schema)),
                _ => Item::Attribute,
            },
            Self::Variable => match name {
                "type" => Item::Keyword,
                "validation" => Item::Blocks(0, Self::Values(true)),
                _ => Item::Attribute,
            },
            Self::Values(_) => Item::Attribute,
        }
    }

    fn in_schema(schema: &'static Schema, name: &str) -> Item {
        if name == "dynamic" {
            return Item::Blocks(1, Self::Schema(schema));
        }
        match schema.in_file(name).map(|field| field.kind) {
            Some(FieldKind::Block(BlockShape::Free, _)) => Item::Blocks(0, Self::Values(true)),
            Some(FieldKind::Block(_, inner)) => {
                let labels = usize::from(!inner.label.is_empty());
                Item::Blocks(labels, Self::Schema(inner))
            }
            Some(FieldKind::Value(_)) | None => Item::Attribute,
        }
    }

    /// The form of the blocks that a `dynamic` block `name` generates.
    fn of_dynamic(schema: &'static Schema, name: &str) -> Self {
        match schema.in_file(name).map(|field| field.kind) {
            Some(FieldKind::Block(shape, inner)) => Self::Dynamic(inner, shape == BlockShape::Free),
            Some(FieldKind::Value(_)) | None => Self::Values(true),
        }
    }

    fn has_templates(self) -> bool {
        !matches!(self, Self::Values(false))
    }
}

/// The blocks of a job file.
pub(crate) fn job_file(node: &Node) -> ParseResult<Body> {
    let mut body = Body::default();
    add_body(&mut body, node, BodyForm::File)?;
    Ok(body)
}

/// The attributes of a file of values. As in Nomad, its texts are not templates.
pub(crate) fn values(node: &Node) -> ParseResult<Body> {
    let mut body = Body::default();
    add_body(&mut body, node, BodyForm::Values(false))?;
    Ok(body)
}

fn add_body(body: &mut Body, node: &Node, form: BodyForm) -> ParseResult<()> {
    match &node.kind {
        NodeKind::Object(entries) => {
            let mut names: BTreeSet<String> = body
                .attributes()
                .map(|known| known.key.name.clone())
                .collect();
            for (key, value) in entries {
                // A comment.
                if key.text == "//" {
                    continue;
                }
                let value = match form.item(&key.text) {
                    Item::Blocks(labels, inner) => {
                        add_blocks(body, key, value, labels, inner)?;
                        continue;
                    }
                    Item::Keyword => keyword(value)?,
                    Item::Attribute => expression(value, form.has_templates())?,
                };
                if !names.insert(key.text.clone()) {
                    let message = format!("a second attribute `{}`", key.text);
                    return Err(JobFileFault::at(key.span.clone(), message));
                }
                let key = ident(key);
                body.items
                    .push(Structure::Attribute(Attribute { key, value }));
            }
            Ok(())
        }
        NodeKind::List(items) => items.iter().try_for_each(|item| add_body(body, item, form)),
        _ => Err(JobFileFault::at(node.span.clone(), "expected an object")),
    }
}

/// Adds the blocks called `key`, of which `labels` labels are the names of objects.
fn add_blocks(
    body: &mut Body,
    key: &Key,
    node: &Node,
    labels: usize,
    form: BodyForm,
) -> ParseResult<()> {
    let mut found = Vec::new();
    let is_dynamic = key.text == "dynamic";
    labelled(node, labels, &mut Vec::new(), &mut |known, node| {
        let form = match (form, known.first()) {
            (BodyForm::Schema(schema), Some(name)) if is_dynamic => {
                BodyForm::of_dynamic(schema, &name.name)
            }
            (form, _) => form,
        };
        let mut inner = Body::default();
        add_body(&mut inner, node, form)?;
        found.push(Structure::Block(Block {
            ident: ident(key),
            labels: known.to_vec(),
            body: inner,
        }));
        Ok(())
    })?;
    body.items.append(&mut found);
    Ok(())
}

/// Calls `add` for each body below `left` labels.
fn labelled(
    node: &Node,
    left: usize,
    known: &mut Vec<Ident>,
    add: &mut dyn FnMut(&[Ident], &Node) -> ParseResult<()>,
) -> ParseResult<()> {
    match &node.kind {
        NodeKind::Null => Ok(()),
        NodeKind::List(items) => items
            .iter()
            .try_for_each(|item| labelled(item, left, known, add)),
        NodeKind::Object(entries) if left > 0 => {
            for (key, value) in entries {
                known.push(ident(key));
                labelled(value, left - 1, known, add)?;
                known.pop();
            }
            Ok(())
        }
        NodeKind::Object(_) => add(known, node),
        _ => {
            let message = "expected an object: this is a block";
            Err(JobFileFault::at(node.span.clone(), message))
        }
    }
}

fn ident(key: &Key) -> Ident {
    Ident {
        name: key.text.clone(),
        span: key.span.clone(),
    }
}

/// The expression in a text.
fn keyword(node: &Node) -> ParseResult<Expression> {
    match &node.kind {
        NodeKind::Text(text) => {
            syntax::parse_expression(text, node.span.start + 1).map_err(from_parser)
        }
        _ => Err(JobFileFault::at(node.span.clone(), "expected a text")),
    }
}

fn template(text: &str, place: &std::ops::Range<usize>) -> ParseResult<Expression> {
    syntax::parse_template(text, place.start + 1).map_err(|error| {
        // Escapes make a text shorter than its source.
        let mut fault = from_parser(error);
        fault.span = fault.span.start.min(place.end)..fault.span.end.min(place.end);
        fault
    })
}

fn expression(node: &Node, has_templates: bool) -> ParseResult<Expression> {
    let kind = match &node.kind {
        NodeKind::Null => ExprKind::Null,
        NodeKind::Bool(yes) => ExprKind::Bool(*yes),
        NodeKind::Number(digits) => match Number::parse(digits) {
            Some(number) => ExprKind::Number(number),
            None => {
                return Err(JobFileFault::at(
                    node.span.clone(),
                    "the number is out of range",
                ));
            }
        },
        NodeKind::Text(text) if has_templates => template(text, &node.span)?.kind,
        NodeKind::Text(text) => ExprKind::Text(text.clone()),
        NodeKind::List(items) => {
            let items = items.iter().map(|item| expression(item, has_templates));
            ExprKind::Tuple(items.collect::<ParseResult<_>>()?)
        }
        NodeKind::Object(entries) => {
            let mut written = Vec::with_capacity(entries.len());
            for (key, value) in entries {
                let name = if has_templates {
                    template(&key.text, &key.span)?.kind
                } else {
                    ExprKind::Text(key.text.clone())
                };
                let name = Expression::new(name, key.span.clone());
                written.push((name, expression(value, has_templates)?));
            }
            ExprKind::Object(written)
        }
    };
    Ok(Expression::new(kind, node.span.clone()))
}
