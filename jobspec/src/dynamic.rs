//! The content of a body after the expansion of its `dynamic` blocks.

use std::collections::BTreeMap;
use std::ops::Range;

use crate::convert;
use crate::eval::{Evaluator, span};
use crate::fault::JobFileFault;
use crate::limits::VALUE_BYTES;
use crate::scope::Scope;
use crate::syntax::{Attribute, Block, Body, Expression, Structure};
use crate::value::Value;

/// An attribute or a block of a body.
#[derive(Debug)]
pub(crate) enum Item<'a> {
    Attribute(&'a Attribute),
    Block(ExpandedBlock<'a>),
}

/// A block, as written or as expanded from a `dynamic` block.
#[derive(Debug)]
pub(crate) struct ExpandedBlock<'a> {
    pub(crate) name: &'a str,
    /// The place of the block's name.
    pub(crate) place: Range<usize>,
    pub(crate) labels: Vec<String>,
    pub(crate) body: &'a Body,
    /// The names in scope inside the block.
    pub(crate) scope: Scope,
}

impl<'a> ExpandedBlock<'a> {
    /// Returns `block` as written.
    pub(crate) fn written(block: &'a Block, scope: &Scope) -> Self {
        let labels = block.labels.iter();
        Self {
            name: block.ident.as_str(),
            place: place(block),
            labels: labels.map(|label| label.name.clone()).collect(),
            body: &block.body,
            scope: scope.clone(),
        }
    }

    /// Returns its content. Faults of `dynamic` blocks are added to `faults`.
    pub(crate) fn items(
        &self,
        evaluator: &Evaluator,
        faults: &mut Vec<JobFileFault>,
    ) -> Vec<Item<'a>> {
        let mut items = Vec::new();
        for structure in &self.body.items {
            match structure {
                Structure::Attribute(attribute) => items.push(Item::Attribute(attribute)),
                Structure::Block(block) if block.has_ident("dynamic") => {
                    match expand(block, &self.scope, evaluator) {
                        Ok(blocks) => items.extend(blocks.into_iter().map(Item::Block)),
                        Err(fault) => faults.push(fault),
                    }
                }
                Structure::Block(block) => {
                    items.push(Item::Block(ExpandedBlock::written(block, &self.scope)));
                }
            }
        }
        items
    }
}

/// The parts of a `dynamic` block.
#[derive(Debug)]
struct DynamicBlock<'a> {
    name: &'a str,
    place: Range<usize>,
    for_each: &'a Expression,
    iterator: &'a str,
    labels: Option<&'a Expression>,
    content: &'a Body,
}

fn expand<'a>(
    block: &'a Block,
    scope: &Scope,
    evaluator: &Evaluator,
) -> Result<Vec<ExpandedBlock<'a>>, JobFileFault> {
    let parts = DynamicBlock::read(block)?;
    let mut blocks = Vec::new();
    for (key, value) in evaluator.elements(parts.for_each, scope)? {
        evaluator.charge(VALUE_BYTES, || parts.place.clone())?;
        let element = BTreeMap::from([("key".to_owned(), key), ("value".to_owned(), value)]);
        let scope = scope.with(parts.iterator, Value::Object(element));
        let labels = match parts.labels {
            Some(labels) => texts(labels, &scope, evaluator)?,
            None => Vec::new(),
        };
        blocks.push(ExpandedBlock {
            name: parts.name,
            place: parts.place.clone(),
            labels,
            body: parts.content,
            scope,
        });
    }
    Ok(blocks)
}

impl<'a> DynamicBlock<'a> {
    fn read(block: &'a Block) -> Result<Self, JobFileFault> {
        const FORM: &str =
            "write dynamic \"port\" { for_each = […] labels = [port.key] content { … } }";
        let at = place(block);
        let [name] = block.labels.as_slice() else {
            let message = "`dynamic` needs the name of the blocks it makes, and nothing else";
            return Err(JobFileFault::at(at, message).help(FORM));
        };
        let name = name.as_str();
        let (mut for_each, mut iterator, mut labels, mut content) = (None, name, None, None);
        for structure in &block.body.items {
            match structure {
                Structure::Attribute(attribute) => match attribute.key.as_str() {
                    "for_each" => for_each = Some(&attribute.value),
                    "labels" => labels = Some(&attribute.value),
                    "iterator" => match attribute.value.keyword() {
                        Some(name) => iterator = name,
                        None => {
                            let message = "`iterator` is a name without quotes";
                            return Err(JobFileFault::at(span(&attribute.value), message));
                        }
                    },
                    other => {
                        let message = format!("unknown field `{other}` in `dynamic`");
                        let at = attribute.key.span.clone();
                        return Err(JobFileFault::at(at, message).help(FORM));
                    }
                },
                Structure::Block(inner) if inner.has_ident("content") && content.is_none() => {
                    content = Some(&inner.body);
                }
                Structure::Block(inner) => {
                    let message = "`dynamic` holds one block, `content`";
                    return Err(JobFileFault::at(place(inner), message).help(FORM));
                }
            }
        }
        let (Some(for_each), Some(content)) = (for_each, content) else {
            let message = "`dynamic` needs `for_each` and a block `content`";
            return Err(JobFileFault::at(at, message).help(FORM));
        };
        Ok(Self {
            name,
            place: at,
            for_each,
            iterator,
            labels,
            content,
        })
    }
}

fn texts(
    expression: &Expression,
    scope: &Scope,
    evaluator: &Evaluator,
) -> Result<Vec<String>, JobFileFault> {
    let value = evaluator.eval(expression, scope)?;
    let items = value.items();
    let texts = items.and_then(|items| items.iter().map(convert::text).collect());
    texts.ok_or_else(|| JobFileFault::at(span(expression), "`labels` must be a list of texts"))
}

/// The place of the name of `block`.
pub(crate) fn place(block: &Block) -> Range<usize> {
    block.ident.span.clone()
}
