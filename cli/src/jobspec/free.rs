//! Blocks whose keys nobody here knows: drivers' configurations.
//!
//! They become JSON in the form that drivers' schemas are applied to: a nested block is an object in a
//! list, and its labels are objects around it. Where each thing stands in the file is kept beside it,
//! by the name that whoever checks the configuration calls it: `config.mount[1].source`.

use std::collections::BTreeMap;
use std::ops::Range;

use hcl_edit::Span as _;
use hcl_edit::expr::{Expression, ObjectKey};
use hcl_edit::structure::{Attribute, Block, BlockLabel, Body, Structure};
use serde_json::{Map, Value};

use super::fault::JobFileFault;
use super::value;

/// Where the parts of a configuration stand in their file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Places {
    by_field: BTreeMap<String, Range<usize>>,
}

impl Places {
    /// Where `field` stands, or what is around it if it is not there.
    pub(crate) fn of(&self, field: &str) -> Range<usize> {
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

    fn put(&mut self, field: String, place: Option<Range<usize>>) {
        self.by_field.insert(field, place.unwrap_or_default());
    }
}

/// The keys of `block`, which is called `name`. What cannot be read is added to `faults`.
pub(crate) fn read(
    name: &str,
    block: &Block,
    faults: &mut Vec<JobFileFault>,
) -> (Map<String, Value>, Places) {
    let mut reader = Reader {
        places: Places::default(),
        faults,
    };
    reader.places.put(name.to_owned(), block.ident.span());
    let map = reader.body(name, &block.body);
    (map, reader.places)
}

struct Reader<'a> {
    places: Places,
    faults: &'a mut Vec<JobFileFault>,
}

impl Reader<'_> {
    fn body(&mut self, field: &str, body: &Body) -> Map<String, Value> {
        let mut map = Map::new();
        for structure in body {
            match structure {
                Structure::Attribute(attribute) => self.attribute(field, attribute, &mut map),
                Structure::Block(block) => self.block(field, block, &mut map),
            }
        }
        map
    }

    fn attribute(&mut self, field: &str, attribute: &Attribute, map: &mut Map<String, Value>) {
        let key = attribute.key.value().to_string();
        let field = format!("{field}.{key}");
        self.places.put(field.clone(), attribute.key.span());
        match value::any(&field, &attribute.value) {
            Ok(value) => {
                self.inside(&field, &attribute.value);
                map.insert(key, value);
            }
            Err(fault) => self.faults.push(fault),
        }
    }

    /// Places of what is in an expression.
    fn inside(&mut self, field: &str, expression: &Expression) {
        match expression {
            Expression::Array(items) => {
                for (at, item) in items.iter().enumerate() {
                    let field = format!("{field}[{at}]");
                    self.places.put(field.clone(), item.span());
                    self.inside(&field, item);
                }
            }
            Expression::Object(entries) => {
                for (key, value) in entries {
                    let ObjectKey::Ident(key) = key else { continue };
                    let field = format!("{field}.{}", key.value());
                    self.places.put(field.clone(), key.span());
                    self.inside(&field, value.expr());
                }
            }
            _ => {}
        }
    }

    fn block(&mut self, field: &str, block: &Block, map: &mut Map<String, Value>) {
        let key = block.ident.value().to_string();
        let list = map
            .entry(key.clone())
            .or_insert_with(|| Value::Array(Vec::new()));
        let Value::Array(blocks) = list else {
            let message = format!("`{field}.{key}` is a value above and a block here");
            let place = block.ident.span().unwrap_or_default();
            self.faults.push(JobFileFault::at(place, message));
            return;
        };
        let mut field = format!("{field}.{key}[{}]", blocks.len());
        self.places.put(field.clone(), block.ident.span());
        let labels: Vec<&str> = block.labels.iter().map(BlockLabel::as_str).collect();
        for label in &labels {
            field = format!("{field}.{label}");
            self.places.put(field.clone(), block.ident.span());
        }
        let inner = Value::Object(self.body(&field, &block.body));
        let nested = labels.into_iter().rev().fold(inner, |inner, label| {
            Value::Object(Map::from_iter([(label.to_owned(), inner)]))
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

    fn read_text(text: &str) -> (Value, Places, Vec<JobFileFault>) {
        let body = hcl_edit::parser::parse_body(text).unwrap();
        let block = body.iter().find_map(Structure::as_block).unwrap();
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
                "mount": [{"source": "x"}, {"source": {"nested": true}}],
                "volume": [{"disk": {"a": {"size": 1}}}],
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
        assert_eq!(at("config.volume[0].disk.a.size"), (11, "size"));
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
