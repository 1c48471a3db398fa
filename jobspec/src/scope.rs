//! The names that an expression can use.

use std::collections::BTreeMap;
use std::rc::Rc;

use crate::value::Value;

/// Names with values; an inner name hides an outer one. Cheap to clone.
#[derive(Clone, Debug, Default)]
pub(crate) struct Scope {
    innermost: Option<Rc<Binding>>,
}

#[derive(Debug)]
struct Binding {
    name: String,
    value: Value,
    outer: Option<Rc<Binding>>,
}

impl Scope {
    /// The scope of a job file: its variables and locals.
    pub(crate) fn of_file(
        variables: BTreeMap<String, Value>,
        locals: BTreeMap<String, Value>,
    ) -> Self {
        let scope = Self::default().with("var", Value::Object(variables));
        scope.with("local", Value::Object(locals))
    }

    /// The scope with an additional name.
    pub(crate) fn with(&self, name: impl Into<String>, value: Value) -> Self {
        Self {
            innermost: Some(Rc::new(Binding {
                name: name.into(),
                value,
                outer: self.innermost.as_ref().map(Rc::clone),
            })),
        }
    }

    /// The scope with additional locals.
    ///
    /// # Panics
    ///
    /// If the scope is not that of a file, or is shared.
    pub(crate) fn with_locals(self, more: Vec<(String, Value)>) -> Self {
        let named = self.innermost.and_then(Rc::into_inner);
        let named = named.expect("the scope of a file is held once while its locals are read");
        let Value::Object(mut locals) = named.value else {
            unreachable!("the innermost name of a file is `local`, an object");
        };
        locals.extend(more);
        let file = Self {
            innermost: named.outer,
        };
        file.with("local", Value::Object(locals))
    }

    /// The value of `name`.
    pub(crate) fn find(&self, name: &str) -> Option<&Value> {
        let mut next = self.innermost.as_deref();
        while let Some(named) = next {
            if named.name == name {
                return Some(&named.value);
            }
            next = named.outer.as_deref();
        }
        None
    }
}
