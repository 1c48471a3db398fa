//! Expressions in, values or faults out.

use expect_test::{Expect, expect};
use serde_json::{Value as Json, json};

use super::*;
use crate::syntax;

fn scope() -> Scope {
    let variables = json!({
        "name": "web",
        "count": 3,
        "zones": ["a", "b", "c"],
        "ports": {"http": 80, "admin": 90},
        "hosts": [{"ip": "1"}, {"ip": "2"}],
    });
    let variables = Value::from_json(variables);
    let variables = variables.entries().cloned().unwrap_or_default();
    Scope::of_file(variables, BTreeMap::new())
}

fn eval(text: &str) -> Outcome {
    // The text becomes an attribute, so that heredocs are allowed.
    let body = syntax::parse_body(&format!("x = {text}\n")).unwrap();
    let expression = &body.attributes().next().unwrap().value;
    Evaluator::new("").eval(expression, &scope())
}

#[track_caller]
fn is(text: &str, expected: Json) {
    assert_eq!(eval(text).unwrap().to_json(), Ok(expected), "{text}");
}

#[track_caller]
fn fails(text: &str, expected: Expect) {
    let fault = eval(text).expect_err("has no value");
    let place = &format!("x = {text}\n")[fault.span.clone()].to_owned();
    let help = fault.help.unwrap_or_default();
    expected.assert_eq(&format!("{place}: {} ({help})", fault.message));
}

#[test]
fn operators_follow_their_order() {
    is("1 + 2 * 3", json!(7));
    is("(1 + 2) * 3 % 4", json!(1));
    is("7 / 2", json!(3.5));
    is("6 / 2", json!(3));
    is("\"5\" + 1", json!(6));
    is("-var.count", json!(-3));
    is("2.0 == 2", json!(true));
    is("1 < 2 && !(2 >= 3) || false", json!(true));
    is("var.count > 2 ? \"many\" : \"few\"", json!("many"));
}

#[test]
fn paths_lead_into_values() {
    is("var.zones[1]", json!("b"));
    is("var.zones.2", json!("c"));
    is("var.ports.http", json!(80));
    is("var.ports[\"admin\"]", json!(90));
    is("var.hosts[*].ip", json!(["1", "2"]));
    is("var.hosts.*.ip", json!(["1", "2"]));
    is("(var.hosts[*].ip)[0]", json!("1"));
    is("merge({ a = 1 }, var.ports).a", json!(1));
}

#[test]
fn for_expressions_make_lists_and_objects() {
    is(
        "[for i, zone in var.zones : \"${i}${zone}\" if zone != \"b\"]",
        json!(["0a", "2c"]),
    );
    is(
        "{ for name, port in var.ports : upper(name) => port + 1 }",
        json!({"ADMIN": 91, "HTTP": 81}),
    );
    is(
        "{ for zone in var.zones : zone == \"a\" ? \"x\" : \"y\" => zone... }",
        json!({"x": ["a"], "y": ["b", "c"]}),
    );
}

#[test]
fn templates_are_texts_with_values_in_them() {
    is("\"${var.name}-${var.count}\"", json!("web-3"));
    is("\"${var.zones}\"", json!(["a", "b", "c"]));
    is("\"$${var.name} %%{if}\"", json!("${var.name} %{if}"));
    is(
        "\"%{ if var.count > 1 }many%{ else }one%{ endif }\"",
        json!("many"),
    );
    is(
        "\"%{ for zone in var.zones }[${zone}]%{ endfor }\"",
        json!("[a][b][c]"),
    );
    is("\"a  ${~ var.name ~}  b\"", json!("awebb"));
}

#[test]
fn heredocs_keep_their_lines() {
    is("<<EOT\n  a ${1 + 1}\nEOT", json!("  a 2\n"));
    is("<<-EOT\n    a\n      b\n    EOT", json!("a\n  b\n"));
    is(
        "<<EOT\n%{ for zone in var.zones ~}\nzone ${zone}\n%{ endfor ~}\nend\nEOT",
        json!("zone a\nzone b\nzone c\nend\n"),
    );
}

#[test]
fn references_of_the_agent_stay_text() {
    is("\"${NOMAD_PORT_http}\"", json!("${NOMAD_PORT_http}"));
    is("\"a ${attr.cpu.arch} b\"", json!("a ${attr.cpu.arch} b"));
    is("\"${env[\"HOME\"]}\"", json!("${env[\"HOME\"]}"));
    is("\"${ meta.x }\"", json!("${meta.x}"));
    is("attr.kernel.name", json!("${attr.kernel.name}"));
    is("\"i=$i; echo ${HOME}\"", json!("i=$i; echo ${HOME}"));
    is(
        "upper(\"${var.name} ${node.class}\")",
        json!("WEB ${NODE.CLASS}"),
    );
}

#[test]
fn fallible_expressions_have_alternatives() {
    is("try(var.none, var.name)", json!("web"));
    is("can(var.none)", json!(false));
    is("can(var.name)", json!(true));
    is("convert([\"1\"], list(number))", json!([1]));
    is("max([1, 5, 2]...)", json!(5));
}

#[test]
fn faults_have_places_and_reasons() {
    fails(
        "1 + var.coutn",
        expect!["coutn: unknown variable `coutn` (did you mean `count`?)"],
    );
    fails(
        "\"a ${vars.name}\"",
        expect!["vars.name: unknown name `vars` (did you mean `var`?)"],
    );
    fails(
        "name",
        expect![
            "name: unknown name `name` (a text needs quotes; variables are var.name, locals local.name, and what the agent fills in starts with NOMAD_, attr, device, env, meta or node)"
        ],
    );
    fails(
        "0 / 0",
        expect!["0 / 0: the result is undefined or out of range ()"],
    );
    fails(
        "var.zones + 1",
        expect!["var.zones: this operator takes numbers; this is a list ()"],
    );
    fails(
        "\"x ${var.zones}\"",
        expect![[
            r#"var.zones: only a text, a number or a boolean can stand in a text; this is a list (join(", ", list) or jsonencode(value) makes a text of it)"#
        ]],
    );
    fails(
        "var.zones[3]",
        expect!["3: the list has 3 elements, counted from 0 ()"],
    );
    fails(
        "uper(\"x\")",
        expect!["uper: unknown function `uper` (did you mean `upper`?)"],
    );
    fails(
        "timestamp()",
        expect!["timestamp: unknown function `timestamp` (give the time as a variable)"],
    );
    fails(
        "join(\",\", 5)",
        expect!["5: `join`: argument 2 must be of type list(string), not a number ()"],
    );
    fails(
        "lower()",
        expect!["lower: `lower`: takes 1 argument, not 0 ()"],
    );
    fails(
        "{ for zone in var.zones : \"x\" => zone }",
        expect![[
            r#""x": two elements have the key `x` (write `...` after the value to collect them in lists)"#
        ]],
    );
}

#[test]
fn unbounded_values_are_stopped() {
    let each = "for a in range(1000) : ";
    let nested = format!("[{each}[{each}[{each}a]]]");

    let fault = eval(&nested).expect_err("is too much");

    assert!(fault.message.contains("64 MiB"), "{fault:?}");
}

#[test]
fn parser_depth_limit_does_not_overflow_stack() {
    let text = format!("{}1{}", "[".repeat(60), "]".repeat(60));
    assert!(eval(&text).is_ok());

    let sum = vec!["1"; 120].join(" + ");
    is(&sum, json!(120));
    let call = format!("{}1{}", "abs(".repeat(60), ")".repeat(60));
    is(&call, json!(1));
}
