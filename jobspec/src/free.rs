//! Blocks with unknown keys: drivers' configurations.
//!
//! They become JSON in Nomad's form, which drivers' schemas expect. A nested block is an object in a list, as is an
//! attribute's object value. Labels become such objects around it. The place of each part is stored by its field name,
//! such as `config.mount[1].source`. The checker of a configuration reports faults by these names.

use std::collections::BTreeMap;
use std::ops::Range;

use serde_json::{Map, Value};

use crate::dynamic::{ExpandedBlock, Item};
use crate::eval::Evaluator;
use crate::fault::JobFileFault;
use crate::field;
use crate::scope::Scope;
use crate::syntax::{Attribute, Block, ExprKind, Expression};

/// The places of the parts of a configuration in its file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FieldSpans {
    by_field: BTreeMap<String, Range<usize>>,
}

impl FieldSpans {
    /// The place of `field`, or of its nearest parent that exists.
    pub fn of(&self, field: &str) -> Range<usize> {
        let mut field = field;
        loop {
            if let Some(place) = self.by_field.get(field) {
                return place.clone();
            }
            match field.rfind(['.', '[']) {
                Some(end) => field = &field[..end],
                None => return Range::default(),
            }
        }
    }

    fn put(&mut self, field: String, place: Range<usize>) {
        self.by_field.insert(field, place);
    }
}

/// Reads the keys of the block `name` in a file without variables and locals. Unreadable parts are added to `faults`.
pub fn read(
    name: &str,
    block: &Block,
    faults: &mut Vec<JobFileFault>,
) -> (Map<String, Value>, FieldSpans) {
    let found = ExpandedBlock::written(block, &Scope::default());
    read_in(name, &found, &Evaluator::new(""), faults)
}

/// Reads the keys of the block `name`. Unreadable parts are added to `faults`.
pub(crate) fn read_in(
    name: &str,
    block: &ExpandedBlock<'_>,
    evaluator: &Evaluator,
    faults: &mut Vec<JobFileFault>,
) -> (Map<String, Value>, FieldSpans) {
    let mut reader = Reader {
        evaluator,
        places: FieldSpans::default(),
        faults,
    };
    reader.places.put(name.to_owned(), block.place.clone());
    let map = reader.body(name, block);
    (map, reader.places)
}

struct Reader<'a> {
    evaluator: &'a Evaluator,
    places: FieldSpans,
    faults: &'a mut Vec<JobFileFault>,
}

impl Reader<'_> {
    fn body(&mut self, field: &str, block: &ExpandedBlock<'_>) -> Map<String, Value> {
        let mut map = Map::new();
        for item in block.items(self.evaluator, self.faults) {
            match item {
                Item::Attribute(attribute) => {
                    self.attribute(field, attribute, &block.scope, &mut map);
                }
                Item::Block(inner) => self.block(field, &inner, &mut map),
            }
        }
        map
    }

    fn attribute(
        &mut self,
        field: &str,
        attribute: &Attribute,
        scope: &Scope,
        map: &mut Map<String, Value>,
    ) {
        let key = attribute.key.as_str().to_owned();
        let field = format!("{field}.{key}");
        self.places.put(field.clone(), attribute.key.span.clone());
        let value = self.evaluator.eval(&attribute.value, scope);
        match value.and_then(|value| field::to_json(&value, &attribute.value)) {
            Ok(value) => {
                self.record_places(&field, &attribute.value);
                let value = match value {
                    Value::Object(entries) => {
                        self.record_places(&format!("{field}[0]"), &attribute.value);
                        Value::Array(vec![Value::Object(entries)])
                    }
                    other => other,
                };
                map.insert(key, value);
            }
            Err(fault) => self.faults.push(fault.about(&field)),
        }
    }

    /// Records the places of the parts of an expression.
    fn record_places(&mut self, field: &str, expression: &Expression) {
        match &expression.kind {
            ExprKind::Tuple(items) => {
                for (at, item) in items.iter().enumerate() {
                    let field = format!("{field}[{at}]");
                    self.places.put(field.clone(), item.span.clone());
                    self.record_places(&field, item);
                }
            }
            ExprKind::Object(entries) => {
                for (key, value) in entries {
                    let Some(name) = key.literal_key() else {
                        continue;
                    };
                    let field = format!("{field}.{name}");
                    self.places.put(field.clone(), key.span.clone());
                    self.record_places(&field, value);
                }
            }
            _ => {}
        }
    }

    fn block(&mut self, field: &str, block: &ExpandedBlock<'_>, map: &mut Map<String, Value>) {
        let key = block.name.to_owned();
        let place = block.place.clone();
        let list = map
            .entry(key.clone())
            .or_insert_with(|| Value::Array(Vec::new()));
        let Value::Array(blocks) = list else {
            let message = format!("`{field}.{key}` is a value above and a block here");
            self.faults
                .push(JobFileFault::at(block.place.clone(), message));
            return;
        };
        let mut field = format!("{field}.{key}[{}]", blocks.len());
        self.places.put(field.clone(), place.clone());
        for label in &block.labels {
            field = format!("{field}.{label}[0]");
            self.places.put(field.clone(), place.clone());
        }
        let inner = Value::Object(self.body(&field, block));
        let nested = block.labels.iter().rev().fold(inner, |inner, label| {
            let inner = Value::Array(vec![inner]);
            Value::Object(Map::from_iter([(label.clone(), inner)]))
        });
        if let Some(Value::Array(blocks)) = map.get_mut(&key) {
            blocks.push(nested);
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn read_text(text: &str) -> (Value, FieldSpans, Vec<JobFileFault>) {
        let body = crate::syntax::parse_body(text).unwrap();
        let block = body.blocks().next().unwrap();
        let mut faults = Vec::new();
        let (map, places) = read("config", block, &mut faults);
        (Value::Object(map), places, faults)
    }

    const TEXT: &str = r#"config {
  image = "redis"
  ports = ["a", 5]
  mount {
    source = "x"
  }
  mount {
    source = { nested = true }
  }
  volume "disk" "a" {
    size = 1
  }
  labels = { tier = "web" }
}
"#;

    #[test]
    fn blocks_are_lists_and_labels_are_keys() {
        let (value, _, faults) = read_text(TEXT);

        assert!(faults.is_empty());
        assert_eq!(
            value,
            json!({
                "image": "redis",
                "ports": ["a", 5],
                "mount": [{"source": "x"}, {"source": [{"nested": true}]}],
                "volume": [{"disk": [{"a": [{"size": 1}]}]}],
                "labels": [{"tier": "web"}],
            })
        );
    }

    #[test]
    fn everything_has_its_place() {
        let (_, places, _) = read_text(TEXT);
        let at = |field: &str| {
            let place = places.of(field);
            let line = TEXT[..place.start].matches('\n').count() + 1;
            (line, &TEXT[place])
        };

        assert_eq!(at("config.image"), (2, "image"));
        assert_eq!(at("config.ports[1]"), (3, "5"));
        assert_eq!(at("config.mount[1].source.nested"), (8, "nested"));
        assert_eq!(at("config.volume[0].disk[0].a[0].size"), (11, "size"));
        assert_eq!(at("config.labels.tier"), (13, "tier"));
        assert_eq!(at("config.labels[0].tier"), (13, "tier"));
        assert_eq!(at("config.mount[1].target"), (7, "mount"));
        assert_eq!(at("config.unknown"), (1, "config"));
    }

    #[test]
    fn name_is_a_value_or_a_block() {
        let (_, _, faults) = read_text("config {\n a = 1\n a {}\n}\n");

        assert_eq!(faults.len(), 1);
        assert!(faults[0].message.contains("`config.a`"), "{faults:?}");
    }
}
