//! Calls in, answers out.

use serde_json::{Value as Json, json};

use super::*;

fn call(name: &str, values: Json) -> Result<Json, String> {
    let values = Value::from_json(values);
    let values = values.items().expect("arguments are a list").to_vec();
    let dir = Path::new(env!("CARGO_MANIFEST_DIR"));
    let function = find(name, 0..0).unwrap();
    let answer = Args::new(function, values, dir).and_then(|args| function.call(&args));
    let answer = answer.map_err(|fault| fault.message)?;
    answer.to_json().map_err(str::to_owned)
}

#[track_caller]
fn is(name: &str, values: Json, expected: Json) {
    assert_eq!(
        call(name, values.clone()).unwrap(),
        expected,
        "{name}{values}"
    );
}

#[track_caller]
fn fails(name: &str, values: Json) {
    assert!(call(name, values.clone()).is_err(), "{name}{values}");
}

#[test]
fn formats_are_those_of_go() {
    is("format", json!(["%03d-%s", 7, "z"]), json!("007-z"));
    is(
        "format",
        json!(["%-5s|%5s|", "a", "b"]),
        json!("a    |    b|"),
    );
    is(
        "format",
        json!(["%.2f %5.1f%%", 1.005, 2]),
        json!("1.00   2.0%"),
    );
    is(
        "format",
        json!(["%x %X %o %b", 255, 255, 8, 5]),
        json!("ff FF 10 101"),
    );
    is(
        "format",
        json!(["%q %v %v", "a\"b", [1], true]),
        json!("\"a\\\"b\" [1] true"),
    );
    is("format", json!(["%[2]s %[1]s", "a", "b"]), json!("b a"));
    is(
        "format",
        json!(["%+d % d %05d", 1, 2, -3]),
        json!("+1  2 -0003"),
    );
    is("format", json!(["%e", 1234.5]), json!("1.234500e+03"));
    is(
        "formatlist",
        json!(["%s-%s", ["a", "b"], "x"]),
        json!(["a-x", "b-x"]),
    );
    for values in [
        json!(["%d", "x"]),
        json!(["%s"]),
        json!(["x", 1]),
        json!(["%"]),
        json!(["%z", 1]),
        json!(["%99999999999999999999d", 1]),
        json!(["%[0]d", 1]),
        json!(["%[9", 1]),
    ] {
        fails("format", values);
    }
}

#[test]
fn texts_are_changed_as_nomad_does() {
    is("split", json!(["-", "a-b-c"]), json!(["a", "b", "c"]));
    is("split", json!(["", "ab"]), json!(["a", "b"]));
    is("substr", json!(["hello", 1, 3]), json!("ell"));
    is("substr", json!(["hello", -3, -1]), json!("llo"));
    is("title", json!(["ab cd_ef"]), json!("Ab Cd_ef"));
    is("indent", json!([2, "a\nb"]), json!("a\n  b"));
    is(
        "regex_replace",
        json!(["a1b22", "[0-9]+", "<$0>"]),
        json!("a<1>b<22>"),
    );
    is("trim", json!(["?!a!?", "!?"]), json!("a"));
    is("join", json!([",", ["a", 1], ["b"]]), json!("a,1,b"));
    let long = "a".repeat(1 << 20);
    fails("replace", json!([long, "a", "bb"]));
    fails("join", json!([long, ["a", "b", "c"]]));
    fails("indent", json!([1_u64 << 40, "a\nb"]));
    fails("regex_replace", json!(["a", "(", "b"]));
}

#[test]
fn numbers_stay_whole_where_they_are() {
    is("max", json!([3, 9, 2]), json!(9));
    is("ceil", json!([1.2]), json!(2));
    is("pow", json!([2, 10]), json!(1024));
    is("parseint", json!(["ff", 16]), json!(255));
    is("signum", json!([-2.5]), json!(-1));
    is("tonumber", json!(["42"]), json!(42));
    fails("log", json!([0, 10]));
    fails("parseint", json!(["12", 99]));
}

#[test]
fn lists_and_objects_are_taken_apart() {
    is("element", json!([["a", "b", "c"], 4]), json!("b"));
    is("element", json!([["a", "b", "c"], -1]), json!("c"));
    is("flatten", json!([[["a"], [["b"]]]]), json!(["a", "b"]));
    is(
        "merge",
        json!([{"a": 1}, null, {"b": 2}]),
        json!({"a": 1, "b": 2}),
    );
    is("lookup", json!([{"a": 1}, "b", 5]), json!(5));
    is("range", json!([3]), json!([0, 1, 2]));
    is("range", json!([5, 1, -2]), json!([5, 3]));
    is("chunklist", json!([[1, 2, 3], 2]), json!([[1, 2], [3]]));
    is(
        "setproduct",
        json!([["a", "b"], [1]]),
        json!([["a", 1], ["b", 1]]),
    );
    is("setunion", json!([["b", "a"], ["a"]]), json!(["a", "b"]));
    is("setintersection", json!([["b", "a"], ["a"]]), json!(["a"]));
    is("slice", json!([["a", "b", "c"], 1, 2]), json!(["b"]));
    is("zipmap", json!([["a"], [1]]), json!({"a": 1}));
    fails("element", json!([[], 0]));
    fails("range", json!([1e9]));
    fails("range", json!([0, 1, 0]));
    fails("slice", json!([["a"], 2, 1]));
    fails("zipmap", json!([["a"], []]));
}

#[test]
fn encodings_are_those_of_go() {
    is(
        "jsonencode",
        json!([{"k": [1, "<&>"], "z": null}]),
        json!("{\"k\":[1,\"\\u003c\\u0026\\u003e\"],\"z\":null}"),
    );
    is("jsondecode", json!(["{\"a\": 2.0}"]), json!({"a": 2}));
    is("base64decode", json!(["aGVsbG8="]), json!("hello"));
    is("urlencode", json!(["a b/ü"]), json!("a+b%2F%C3%BC"));
    fails("jsondecode", json!(["{"]));
    fails("base64decode", json!(["/w=="]));
}

#[test]
fn addresses_and_times_are_computed() {
    is("cidrhost", json!(["10.1.0.0/16", 5]), json!("10.1.0.5"));
    is(
        "cidrhost",
        json!(["10.1.0.0/16", -1]),
        json!("10.1.255.255"),
    );
    is("cidrhost", json!(["fd00::/64", 1]), json!("fd00::1"));
    is(
        "cidrnetmask",
        json!(["172.16.0.0/12"]),
        json!("255.240.0.0"),
    );
    is(
        "cidrsubnet",
        json!(["172.16.0.0/12", 4, 2]),
        json!("172.18.0.0/16"),
    );
    is(
        "timeadd",
        json!(["2021-01-01T00:00:00Z", "-1h"]),
        json!("2020-12-31T23:00:00Z"),
    );
    is(
        "formatdate",
        json!([
            "EEE, DD MMM YYYY hh:mm:ss 'o''clock' ZZZ",
            "2021-06-01T07:08:09Z"
        ]),
        json!("Tue, 01 Jun 2021 07:08:09 o'clock UTC"),
    );
    fails("cidrhost", json!(["10.1.0.0/30", 4]));
    fails("cidrhost", json!(["10.1.0.0/99", 4]));
    fails("cidrsubnet", json!(["10.0.0.0/8", 99, 0]));
    fails("formatdate", json!(["'x", "2021-06-01T07:08:09Z"]));
    fails("timeadd", json!(["yesterday", "1h"]));
}

#[test]
fn files_are_read_beside_the_job_file() {
    let manifest = call("file", json!(["Cargo.toml"])).unwrap();
    assert!(manifest.as_str().unwrap().contains("muster-jobspec"));

    is("basename", json!(["a/b.txt"]), json!("b.txt"));
    is("dirname", json!(["a/b.txt"]), json!("a"));
    is("fileexists", json!(["nothing here"]), json!(false));
    fails("file", json!(["nothing here"]));
    fails("file", json!(["/dev/zero"]));
}

#[test]
fn every_function_has_one_name() {
    let mut names: Vec<&str> = all().map(|function| function.name).collect();
    names.extend(SPECIAL);
    names.extend(ABSENT.map(|(name, _)| name));
    let count = names.len();
    names.sort_unstable();
    names.dedup();

    assert_eq!(names.len(), count);
}
