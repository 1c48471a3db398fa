use serde_json::{Value, json};

use super::Schema;
use crate::schema::Spec;

fn decode(spec: &Spec, config: &Value) -> Result<Value, Vec<String>> {
    let schema = Schema::new(spec).unwrap();
    let decoded = schema.decode("config", config);
    decoded.map_err(|faults| faults.iter().map(ToString::to_string).collect())
}

fn attr(kind: &str, value: Value) -> Result<Value, Vec<String>> {
    let spec = Spec::object([("a", Spec::optional("a", kind))]);
    decode(&spec, &json!({ "a": value })).map(|mut value| value["a"].take())
}

fn block(name: &str, required: bool) -> Spec {
    Spec::Block {
        name: name.to_owned(),
        required,
        nested: Box::new(Spec::object([("x", Spec::required("x", "number"))])),
    }
}

fn block_list(items_min: u64, items_max: u64) -> Spec {
    Spec::object([(
        "mounts",
        Spec::BlockList {
            name: "mount".to_owned(),
            items_min,
            items_max,
            nested: Box::new(Spec::object([(
                "source",
                Spec::required("source", "string"),
            )])),
        },
    )])
}

fn with_default(type_expr: &str, literal: &str) -> Spec {
    Spec::object([(
        "a",
        Spec::Default {
            primary: Box::new(Spec::optional("a", type_expr)),
            default: Box::new(Spec::Literal(literal.to_owned())),
        },
    )])
}

#[test]
fn absent_attribute_is_null() {
    let spec = Spec::object([
        ("enabled", Spec::optional("enabled", "bool")),
        ("image", Spec::required("image", "string")),
    ]);

    let decoded = decode(&spec, &json!({"image": "x"}));

    assert_eq!(decoded, Ok(json!({"enabled": null, "image": "x"})));
}

#[test]
fn every_fault_names_its_field() {
    let spec = Spec::object([
        ("image", Spec::required("image", "string")),
        ("ports", Spec::optional("ports", "list(number)")),
    ]);

    let decoded = decode(&spec, &json!({"ports": [80, "http"], "imgae": "x"}));

    assert_eq!(
        decoded,
        Err(vec![
            "`config.imgae` is unknown; known here: image, ports".to_owned(),
            "`config.image` is missing; it must be string".to_owned(),
            "`config.ports[1]` must be number, not a text".to_owned(),
        ])
    );
}

#[test]
fn plain_values_turn_into_each_other() {
    assert_eq!(attr("number", json!("5")), Ok(json!(5)));
    assert_eq!(attr("number", json!(5.0)), Ok(json!(5)));
    assert_eq!(attr("number", json!("0.5")), Ok(json!(0.5)));
    assert_eq!(attr("string", json!(5)), Ok(json!("5")));
    assert_eq!(attr("string", json!(true)), Ok(json!("true")));
    assert_eq!(attr("bool", json!("true")), Ok(json!(true)));
    assert_eq!(attr("bool", json!("0")), Ok(json!(false)));
    assert!(attr("number", json!("inf")).is_err());
    assert!(attr("bool", json!("yes")).is_err());
    assert!(attr("bool", json!(1)).is_err());
    assert!(attr("string", json!([])).is_err());
}

#[test]
fn type_expressions_nest() {
    assert_eq!(
        attr("list(map(string))", json!([{"a": 1}, {"b": "x"}])),
        Ok(json!([{"a": "1"}, {"b": "x"}]))
    );
    assert_eq!(
        attr("set(string)", json!(["b", "a", "b"])),
        Ok(json!(["a", "b"]))
    );
    assert_eq!(
        attr("tuple([string, number])", json!(["a", "1"])),
        Ok(json!(["a", 1]))
    );
    assert_eq!(
        attr(
            "object({name=string, port=number})",
            json!({"name": "a", "port": "1"})
        ),
        Ok(json!({"name": "a", "port": 1}))
    );
    assert_eq!(
        attr("any", json!({"a": [1, null]})),
        Ok(json!({"a": [1, null]}))
    );
    assert_eq!(attr("map(number)", json!([{"a": 1}])), Ok(json!({"a": 1})));
    assert_eq!(
        attr("object({name=string})", json!({"nam": "a"})),
        Err(vec![
            "`config.a.nam` is unknown; known here: name".to_owned(),
            "`config.a.name` is missing; it must be string".to_owned(),
        ])
    );
    assert_eq!(
        attr("tuple([string])", json!([])),
        Err(vec![
            "`config.a` must be tuple([string]), not a list of 0".to_owned()
        ])
    );
}

#[test]
fn wrong_type_expression_is_the_drivers_mistake() {
    for text in [
        "",
        "strin",
        "list",
        "list(string",
        "list(string, number)",
        "tuple(string)",
    ] {
        let spec = Spec::object([("a", Spec::optional("a", text))]);

        let error = Schema::new(&spec).unwrap_err();

        assert_eq!(error.place, "schema.a", "{text}");
    }
}

#[test]
fn default_stands_in_for_null() {
    assert_eq!(
        decode(&with_default("string", "\"10s\""), &json!({})),
        Ok(json!({"a": "10s"}))
    );
    assert_eq!(
        decode(&with_default("bool", "true"), &json!({"a": false})),
        Ok(json!({"a": false}))
    );
    assert_eq!(
        decode(
            &with_default("list(string)", "[\"a\", \"b\"]"),
            &json!({"a": null})
        ),
        Ok(json!({"a": ["a", "b"]}))
    );
    assert_eq!(
        decode(
            &with_default("map(number)", "{ a = -1, b = 0.5 }"),
            &Value::Null
        ),
        Ok(json!({"a": {"a": -1, "b": 0.5}}))
    );
    assert!(Schema::new(&with_default("string", "upper(\"a\")")).is_err());
}

#[test]
fn block_accepts_object_or_single_element_list() {
    let spec = Spec::object([("b", block("b", false))]);

    assert_eq!(
        decode(&spec, &json!({"b": {"x": 1}})),
        Ok(json!({"b": {"x": 1}}))
    );
    assert_eq!(
        decode(&spec, &json!({"b": [{"x": 1}]})),
        Ok(json!({"b": {"x": 1}}))
    );
    assert_eq!(decode(&spec, &json!({})), Ok(json!({"b": null})));
    assert_eq!(
        decode(&spec, &json!({"b": [{"x": 1}, {"x": 2}]})),
        Err(vec![
            "`config.b` only one such block is allowed, there are 2".to_owned()
        ])
    );
    assert_eq!(
        decode(&spec, &json!({"b": {"y": 1}})),
        Err(vec![
            "`config.b.y` is unknown; known here: x".to_owned(),
            "`config.b.x` is missing; it must be number".to_owned(),
        ])
    );
    assert_eq!(
        decode(&spec, &json!({"b": 5})),
        Err(vec![
            "`config.b` must be a block, not the number 5".to_owned()
        ])
    );
    assert_eq!(
        decode(&Spec::object([("b", block("b", true))]), &json!({})),
        Err(vec!["`config.b` the block is missing".to_owned()])
    );
}

#[test]
fn blocks_make_a_list_within_bounds() {
    let config = json!({"mount": [{"source": "a"}, {"source": "b"}]});

    assert_eq!(
        decode(&block_list(0, 0), &config),
        Ok(json!({"mounts": [{"source": "a"}, {"source": "b"}]}))
    );
    assert_eq!(
        decode(&block_list(0, 0), &json!({})),
        Ok(json!({"mounts": []}))
    );
    assert_eq!(
        decode(&block_list(3, 0), &config),
        Err(vec![
            "`config.mount` at least 3 such blocks are needed, there are 2".to_owned()
        ])
    );
    assert_eq!(
        decode(&block_list(0, 1), &config),
        Err(vec![
            "`config.mount` at most 1 such blocks are allowed, there are 2".to_owned()
        ])
    );
    assert_eq!(
        decode(
            &block_list(0, 0),
            &json!({"mount": [{"source": "a"}, {"source": []}]})
        ),
        Err(vec![
            "`config.mount[1].source` must be string, not a list of 0".to_owned()
        ])
    );
}

#[test]
fn set_of_blocks_holds_each_once() {
    let spec = Spec::object([(
        "b",
        Spec::BlockSet {
            name: "b".to_owned(),
            items_min: 0,
            items_max: 0,
            nested: Box::new(Spec::object([("x", Spec::optional("x", "number"))])),
        },
    )]);

    let decoded = decode(&spec, &json!({"b": [{"x": 1}, {"x": "1"}, {"x": 2}]}));

    assert_eq!(decoded, Ok(json!({"b": [{"x": 1}, {"x": 2}]})));
}

#[test]
fn labels_are_keys_of_a_map() {
    let spec = Spec::object([(
        "volumes",
        Spec::BlockMap {
            name: "volume".to_owned(),
            labels: vec!["kind".to_owned(), "name".to_owned()],
            nested: Box::new(Spec::object([("size", Spec::optional("size", "number"))])),
        },
    )]);
    let config = json!({"volume": [
        {"disk": {"a": {"size": 1}}},
        {"disk": [{"b": [{"size": 2}]}]},
    ]});

    assert_eq!(
        decode(&spec, &config),
        Ok(json!({"volumes": {"disk": {"a": {"size": 1}, "b": {"size": 2}}}}))
    );
    assert_eq!(
        decode(&spec, &json!({"volume": {"disk": {"a": [{}, {}]}}})),
        Err(vec![
            "`config.volume.disk.a[1]` there is another block with the same labels".to_owned()
        ])
    );
}

#[test]
fn attributes_of_a_block_make_a_map() {
    let spec = Spec::object([(
        "labels",
        Spec::BlockAttrs {
            name: "labels".to_owned(),
            type_expr: "string".to_owned(),
            required: false,
        },
    )]);

    assert_eq!(
        decode(&spec, &json!({"labels": [{"a": 1, "b": "x"}]})),
        Ok(json!({"labels": {"a": "1", "b": "x"}}))
    );
    assert_eq!(decode(&spec, &json!({})), Ok(json!({"labels": null})));
}

#[test]
fn array_and_literal_need_nothing_of_the_block() {
    let spec = Spec::Array(vec![
        Spec::optional("a", "string"),
        Spec::Literal("42".to_owned()),
    ]);

    assert_eq!(decode(&spec, &json!({"a": "x"})), Ok(json!(["x", 42])));
}

#[test]
fn deep_schema_is_refused() {
    let mut spec = Spec::optional("a", "string");
    for _level in 0..100 {
        spec = Spec::Block {
            name: "b".to_owned(),
            required: false,
            nested: Box::new(spec),
        };
    }

    assert!(Schema::new(&spec).is_err());
}
