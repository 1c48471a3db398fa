//! A function, its parameters, and the arguments and the result of a call.

use std::collections::BTreeMap;
use std::path::Path;

use crate::convert;
use crate::number::Number;
use crate::value::{Type, Value};

/// The answer of a function.
pub(super) type Outcome = Result<Value, CallFault>;

/// The reason why a call failed.
#[derive(Debug)]
pub(crate) struct CallFault {
    /// The argument that is wrong; `None` is the call as a whole.
    pub(crate) argument: Option<usize>,
    pub(crate) message: String,
}

/// A parameter of a function.
#[derive(Clone, Copy, Debug)]
pub(super) enum Param {
    Any,
    /// Any value, or null.
    Nullable,
    Number,
    Text,
    /// A list; its elements are converted to one type.
    List,
    Texts,
    Set,
}

impl Param {
    fn kind(self) -> Type {
        match self {
            Self::Any | Self::Nullable => Type::Any,
            Self::Number => Type::Number,
            Self::Text => Type::Text,
            Self::List => Type::list(Type::Any),
            Self::Texts => Type::list(Type::Text),
            Self::Set => Type::set(Type::Any),
        }
    }
}

/// A function and its parameters.
#[derive(Debug)]
pub(crate) struct Function {
    pub(super) name: &'static str,
    pub(super) params: &'static [Param],
    /// Parameters after `params` that may be left out.
    pub(super) optional: usize,
    /// The parameter of all further arguments, if there may be any.
    pub(super) rest: Option<Param>,
    pub(super) answer: fn(&Args<'_>) -> Outcome,
}

pub(super) const fn function(
    name: &'static str,
    params: &'static [Param],
    answer: fn(&Args<'_>) -> Outcome,
) -> Function {
    Function {
        name,
        params,
        optional: 0,
        rest: None,
        answer,
    }
}

/// A function with any number of arguments after `params`.
pub(super) const fn variadic(
    name: &'static str,
    params: &'static [Param],
    rest: Param,
    answer: fn(&Args<'_>) -> Outcome,
) -> Function {
    Function {
        name,
        params,
        optional: 0,
        rest: Some(rest),
        answer,
    }
}

impl Function {
    /// The answer to `args`.
    pub(crate) fn call(&self, args: &Args<'_>) -> Outcome {
        (self.answer)(args)
    }

    fn param(&self, at: usize) -> Option<Param> {
        self.params.get(at).copied().or(self.rest)
    }

    /// Refuses a wrong number of arguments.
    fn check_count(&self, count: usize) -> Result<(), CallFault> {
        let (most, least) = (self.params.len(), self.params.len() - self.optional);
        let is_more = self.rest.is_some();
        if count >= least && (is_more || count <= most) {
            return Ok(());
        }
        let wanted = if is_more {
            format!("at least {least}")
        } else if least == most {
            least.to_string()
        } else {
            format!("{least} to {most}")
        };
        let noun = if wanted == "1" {
            "argument"
        } else {
            "arguments"
        };
        Err(whole(format!("takes {wanted} {noun}, not {count}")))
    }
}

/// The arguments of a call.
#[derive(Debug)]
pub(crate) struct Args<'a> {
    pub(super) values: Vec<Value>,
    pub(super) dir: &'a Path,
}

impl<'a> Args<'a> {
    /// Creates the arguments of `function`; files are looked up in `dir`.
    pub(crate) fn new(
        function: &Function,
        values: Vec<Value>,
        dir: &'a Path,
    ) -> Result<Self, CallFault> {
        function.check_count(values.len())?;
        let mut converted = Vec::with_capacity(values.len());
        for (at, value) in values.into_iter().enumerate() {
            let param = function.param(at).unwrap_or(Param::Nullable);
            let value = convert::convert(value, &param.kind()).map_err(|fault| {
                argument(
                    at,
                    format!("argument {}{} {}", at + 1, fault.path, fault.message),
                )
            })?;
            if value.is_null() && !matches!(param, Param::Nullable) {
                return Err(argument(
                    at,
                    format!("argument {} must not be null", at + 1),
                ));
            }
            converted.push(value);
        }
        Ok(Self {
            values: converted,
            dir,
        })
    }

    pub(super) fn len(&self) -> usize {
        self.values.len()
    }

    pub(super) fn value(&self, at: usize) -> &Value {
        self.values.get(at).unwrap_or(&Value::NULL)
    }

    pub(super) fn text(&self, at: usize) -> Result<&str, CallFault> {
        match self.value(at) {
            Value::Text(text) => Ok(text),
            _ => Err(self.wrong(at, "a text")),
        }
    }

    pub(super) fn number(&self, at: usize) -> Result<&Number, CallFault> {
        match self.value(at) {
            Value::Number(number) => Ok(number),
            _ => Err(self.wrong(at, "a number")),
        }
    }

    /// A whole number of 64 bits.
    pub(super) fn whole(&self, at: usize) -> Result<i64, CallFault> {
        let number = self.number(at)?;
        number
            .as_i64()
            .ok_or_else(|| self.wrong(at, "a whole number"))
    }

    /// A whole number from 0.
    pub(super) fn count(&self, at: usize) -> Result<usize, CallFault> {
        usize::try_from(self.whole(at)?)
            .ok()
            .ok_or_else(|| self.wrong(at, "a whole number from 0"))
    }

    pub(super) fn items(&self, at: usize) -> Result<&[Value], CallFault> {
        self.value(at)
            .items()
            .ok_or_else(|| self.wrong(at, "a list"))
    }

    /// Texts of a list; null is not one.
    pub(super) fn texts(&self, at: usize) -> Result<Vec<&str>, CallFault> {
        let texts = self.items(at)?.iter().map(|item| match item {
            Value::Text(text) => Some(text.as_str()),
            _ => None,
        });
        let texts: Option<Vec<&str>> = texts.collect();
        texts.ok_or_else(|| self.wrong(at, "a list of texts without null"))
    }

    pub(super) fn entries(&self, at: usize) -> Result<&BTreeMap<String, Value>, CallFault> {
        self.value(at)
            .entries()
            .ok_or_else(|| self.wrong(at, "an object"))
    }

    pub(super) fn wrong(&self, at: usize, wanted: &str) -> CallFault {
        let found = self.value(at).describe();
        argument(
            at,
            format!("argument {} must be {wanted}, not {found}", at + 1),
        )
    }
}

/// A fault of one argument.
pub(super) fn argument(at: usize, message: impl Into<String>) -> CallFault {
    CallFault {
        argument: Some(at),
        message: message.into(),
    }
}

/// A fault of a call as a whole.
pub(super) fn whole(message: impl Into<String>) -> CallFault {
    CallFault {
        argument: None,
        message: message.into(),
    }
}

/// A text as an answer.
#[expect(clippy::unnecessary_wraps, reason = "it is the answer of a function")]
pub(super) fn text_answer(text: impl Into<String>) -> Outcome {
    Ok(Value::text(text))
}

/// A number as an answer; `None` is a fault.
pub(super) fn number_answer(number: Option<Number>) -> Outcome {
    number
        .map(Value::Number)
        .ok_or_else(|| whole("the result is undefined or out of range"))
}
