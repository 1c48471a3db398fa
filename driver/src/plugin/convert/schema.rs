//! Configuration schemas, to and from the protocol.

use crate::error::DriverError;
use crate::limits;
use crate::plugin::convert::protocol;
use crate::plugin::proto::hclspec;
use crate::schema::Spec;

pub(crate) fn spec_to_proto(spec: &Spec) -> hclspec::Spec {
    use hclspec::spec::Block as Wire;
    let nested = |spec: &Spec| Some(Box::new(spec_to_proto(spec)));
    let block = match spec {
        Spec::Object(attributes) => Wire::Object(hclspec::Object {
            attributes: attributes
                .iter()
                .map(|(name, spec)| (name.clone(), spec_to_proto(spec)))
                .collect(),
        }),
        Spec::Array(values) => Wire::Array(hclspec::Array {
            values: values.iter().map(spec_to_proto).collect(),
        }),
        Spec::Attr {
            name,
            type_expr,
            required,
        } => Wire::Attr(hclspec::Attr {
            name: name.clone(),
            r#type: type_expr.clone(),
            required: *required,
        }),
        Spec::Block {
            name,
            required,
            nested: inner,
        } => Wire::BlockValue(Box::new(hclspec::Block {
            name: name.clone(),
            required: *required,
            nested: nested(inner),
        })),
        Spec::BlockAttrs {
            name,
            type_expr,
            required,
        } => Wire::BlockAttrs(hclspec::BlockAttrs {
            name: name.clone(),
            r#type: type_expr.clone(),
            required: *required,
        }),
        Spec::BlockList {
            name,
            items_min,
            items_max,
            nested: inner,
        } => Wire::BlockList(Box::new(hclspec::BlockList {
            name: name.clone(),
            min_items: *items_min,
            max_items: *items_max,
            nested: nested(inner),
        })),
        Spec::BlockSet {
            name,
            items_min,
            items_max,
            nested: inner,
        } => Wire::BlockSet(Box::new(hclspec::BlockSet {
            name: name.clone(),
            min_items: *items_min,
            max_items: *items_max,
            nested: nested(inner),
        })),
        Spec::BlockMap {
            name,
            labels,
            nested: inner,
        } => Wire::BlockMap(Box::new(hclspec::BlockMap {
            name: name.clone(),
            labels: labels.clone(),
            nested: nested(inner),
        })),
        Spec::Default { primary, default } => Wire::Default(Box::new(hclspec::Default {
            primary: nested(primary),
            default: nested(default),
        })),
        Spec::Literal(value) => Wire::Literal(hclspec::Literal {
            value: value.clone(),
        }),
    };
    hclspec::Spec { block: Some(block) }
}

/// Returns `None` for a schema without a node: a driver without a schema sends that.
pub(crate) fn spec_from_proto(message: hclspec::Spec) -> Result<Option<Spec>, DriverError> {
    match message.block {
        None => Ok(None),
        Some(block) => spec_node(block, limits::SCHEMA_DEPTH_MAX).map(Some),
    }
}

fn spec_child(
    message: Option<Box<hclspec::Spec>>,
    depth_left: usize,
) -> Result<Box<Spec>, DriverError> {
    let block = message
        .and_then(|spec| spec.block)
        .ok_or_else(|| protocol("a configuration schema has an empty node"))?;
    Ok(Box::new(spec_node(block, depth_left)?))
}

fn spec_node(block: hclspec::spec::Block, depth_left: usize) -> Result<Spec, DriverError> {
    use hclspec::spec::Block as Wire;
    let depth_left = depth_left.checked_sub(1).ok_or_else(|| {
        protocol(format!(
            "a configuration schema is deeper than {} nodes",
            limits::SCHEMA_DEPTH_MAX
        ))
    })?;
    let child = |spec| spec_child(spec, depth_left);
    Ok(match block {
        Wire::Object(object) => Spec::Object(
            object
                .attributes
                .into_iter()
                .map(|(name, spec)| Ok((name, *child(Some(Box::new(spec)))?)))
                .collect::<Result<_, DriverError>>()?,
        ),
        Wire::Array(array) => Spec::Array(
            array
                .values
                .into_iter()
                .map(|spec| Ok(*child(Some(Box::new(spec)))?))
                .collect::<Result<_, DriverError>>()?,
        ),
        Wire::Attr(attr) => Spec::Attr {
            name: attr.name,
            type_expr: attr.r#type,
            required: attr.required,
        },
        Wire::BlockValue(block) => Spec::Block {
            name: block.name,
            required: block.required,
            nested: child(block.nested)?,
        },
        Wire::BlockAttrs(block) => Spec::BlockAttrs {
            name: block.name,
            type_expr: block.r#type,
            required: block.required,
        },
        Wire::BlockList(block) => Spec::BlockList {
            name: block.name,
            items_min: block.min_items,
            items_max: block.max_items,
            nested: child(block.nested)?,
        },
        Wire::BlockSet(block) => Spec::BlockSet {
            name: block.name,
            items_min: block.min_items,
            items_max: block.max_items,
            nested: child(block.nested)?,
        },
        Wire::BlockMap(block) => Spec::BlockMap {
            name: block.name,
            labels: block.labels,
            nested: child(block.nested)?,
        },
        Wire::Default(default) => Spec::Default {
            primary: child(default.primary)?,
            default: child(default.default)?,
        },
        Wire::Literal(literal) => Spec::Literal(literal.value),
    })
}
