//! Expressions to JSON values, each kind checked where it stands.

use hcl_edit::Span as _;
use hcl_edit::expr::{Expression, ObjectKey};
use hcl_edit::template::{Element, Template};
use muster_wire::api::duration;
use serde_json::{Map, Number, Value};

use super::fault::JobFileFault;
use super::schema::Kind;

/// First words of references that the agent fills in when it starts the task, or the scheduler when
/// it compares a constraint.
const RUNTIME_ROOTS: [&str; 4] = ["attr", "env", "meta", "node"];

/// `expression` as a value of `kind`, for the field `field`.
pub(super) fn of_kind(
    field: &str,
    kind: Kind,
    expression: &Expression,
) -> Result<Value, JobFileFault> {
    let value = any(field, expression)?;
    let found = describe(&value);
    let wrong = || {
        JobFileFault::at(
            span(expression),
            format!("`{field}` must be {}, not {found}", kind.describe()),
        )
    };
    match (kind, value) {
        (_, Value::Null) => Ok(Value::Null),
        (Kind::Text, Value::String(text)) => Ok(Value::String(text)),
        (Kind::Int, Value::Number(number)) if number.is_i64() || number.is_u64() => {
            Ok(Value::Number(number))
        }
        (Kind::Duration, Value::String(text)) => match duration::parse(&text) {
            Ok(parsed) => Ok(Value::from(duration::nanos(parsed))),
            Err(error) => Err(JobFileFault::at(
                span(expression),
                format!("`{field}`: {error}"),
            )),
        },
        (Kind::Texts, Value::Array(items)) => {
            if items.iter().all(Value::is_string) {
                Ok(Value::Array(items))
            } else {
                Err(wrong())
            }
        }
        (Kind::TextMap, Value::Object(map)) => text_map(map).ok_or_else(wrong),
        (
            Kind::Text | Kind::Int | Kind::Duration | Kind::Texts | Kind::TextMap,
            Value::Bool(_)
            | Value::Number(_)
            | Value::String(_)
            | Value::Array(_)
            | Value::Object(_),
        ) => Err(wrong()),
    }
}

/// Numbers and booleans in a map of texts become texts, as in Nomad.
fn text_map(map: Map<String, Value>) -> Option<Value> {
    let mut texts = Map::new();
    for (key, value) in map {
        let text = match value {
            Value::String(text) => text,
            Value::Bool(yes) => yes.to_string(),
            Value::Number(number) => number.to_string(),
            Value::Null | Value::Array(_) | Value::Object(_) => return None,
        };
        texts.insert(key, Value::String(text));
    }
    Some(Value::Object(texts))
}

/// `expression` as a value of any shape.
pub(crate) fn any(field: &str, expression: &Expression) -> Result<Value, JobFileFault> {
    match expression {
        Expression::Null(_) => Ok(Value::Null),
        Expression::Bool(yes) => Ok(Value::Bool(*yes.value())),
        Expression::Number(number) => number_value(field, expression, number.value()),
        Expression::String(text) => Ok(Value::String(text.value().clone())),
        Expression::Array(items) => items
            .iter()
            .map(|item| any(field, item))
            .collect::<Result<Vec<_>, _>>()
            .map(Value::Array),
        Expression::Object(object) => {
            let mut map = Map::new();
            for (key, value) in object {
                let name = object_key(field, key)?;
                let inner = format!("{field}.{name}");
                map.insert(name, any(&inner, value.expr())?);
            }
            Ok(Value::Object(map))
        }
        Expression::StringTemplate(template) => {
            template_text(field, template).map(Value::String)
        }
        Expression::HeredocTemplate(heredoc) => {
            template_text(field, &heredoc.template).map(Value::String)
        }
        Expression::Parenthesis(inner) => any(field, inner.inner()),
        Expression::UnaryOp(operation) => {
            match (operation.operator.value(), any(field, &operation.expr)?) {
                (hcl_edit::expr::UnaryOperator::Neg, Value::Number(number)) => {
                    negate(&number).ok_or_else(|| not_yet(field, expression, "this expression"))
                }
                _ => Err(not_yet(field, expression, "this operator")),
            }
        }
        Expression::Variable(_) | Expression::Traversal(_) => {
            Err(not_yet(field, expression, "a reference to a variable or local")
                .help("write the value itself, or a runtime reference in quotes such as \"${NOMAD_PORT_http}\""))
        }
        Expression::FuncCall(_) => Err(not_yet(field, expression, "a function call")),
        Expression::Conditional(_) => Err(not_yet(field, expression, "a conditional")),
        Expression::BinaryOp(_) => Err(not_yet(field, expression, "an operator")),
        Expression::ForExpr(_) => Err(not_yet(field, expression, "a `for` expression")),
    }
}

fn negate(number: &Number) -> Option<Value> {
    if let Some(whole) = number.as_i64() {
        return whole.checked_neg().map(Value::from);
    }
    number.as_f64().map(|real| Value::from(-real))
}

fn number_value(
    field: &str,
    expression: &Expression,
    number: &hcl_edit::Number,
) -> Result<Value, JobFileFault> {
    if let Some(whole) = number.as_i64() {
        return Ok(Value::from(whole));
    }
    number
        .as_f64()
        .and_then(Number::from_f64)
        .map(Value::Number)
        .ok_or_else(|| {
            JobFileFault::at(
                span(expression),
                format!("`{field}`: the number is out of range"),
            )
        })
}

fn object_key(field: &str, key: &ObjectKey) -> Result<String, JobFileFault> {
    match key {
        ObjectKey::Ident(ident) => Ok(ident.value().to_string()),
        ObjectKey::Expression(expression) => match any(field, expression)? {
            Value::String(text) => Ok(text),
            Value::Null
            | Value::Bool(_)
            | Value::Number(_)
            | Value::Array(_)
            | Value::Object(_) => Err(JobFileFault::at(
                span(expression),
                format!("`{field}`: a key must be a text"),
            )),
        },
    }
}

/// Literal parts as they are; runtime references as they were written.
fn template_text(field: &str, template: &Template) -> Result<String, JobFileFault> {
    let mut text = String::new();
    for element in template {
        match element {
            Element::Literal(literal) => text.push_str(literal.value()),
            Element::Interpolation(interpolation) => {
                let written = interpolation.expr.to_string();
                let written = written.trim();
                let root: String = written
                    .chars()
                    .take_while(|c| c.is_alphanumeric() || *c == '_')
                    .collect();
                if root.starts_with("NOMAD_") || RUNTIME_ROOTS.contains(&root.as_str()) {
                    text.push_str("${");
                    text.push_str(written);
                    text.push('}');
                } else {
                    return Err(not_yet(field, &interpolation.expr, "this interpolation").help(
                        "runtime references start with NOMAD_, attr, env, meta or node; write $${…} for a literal",
                    ));
                }
            }
            Element::Directive(directive) => {
                return Err(JobFileFault::at(
                    directive.span().unwrap_or_default(),
                    format!("`{field}`: template directives are not supported yet"),
                ));
            }
        }
    }
    Ok(text)
}

fn not_yet(field: &str, expression: &Expression, what: &str) -> JobFileFault {
    JobFileFault::at(
        span(expression),
        format!("`{field}`: {what} is not supported yet"),
    )
}

pub(crate) fn span(expression: &Expression) -> std::ops::Range<usize> {
    expression.span().unwrap_or_default()
}

fn describe(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "a boolean",
        Value::Number(number) if number.is_f64() => "a fraction",
        Value::Number(_) => "a number",
        Value::String(_) => "a text",
        Value::Array(_) => "a list",
        Value::Object(_) => "an object",
    }
}
