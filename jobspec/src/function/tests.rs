//! Calls in, answers out.

use std::path::Path;

use serde_json::{Value as Json, json};

use super::*;
use crate::value::Value;

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

#[test]
fn answers_are_those_of_nomad() {
    is("index", json!([["a", "b"], 1]), json!("b"));
    is("reverse", json!(["abc"]), json!("cba"));
    is("strlen", json!(["e\u{301}"]), json!(1));
    is("strrev", json!(["a👩‍👩‍👧b"]), json!("b👩‍👩‍👧a"));
    is("dirname", json!(["/a/b/"]), json!("/a/b"));
    is("dirname", json!([""]), json!("."));
    is("abspath", json!(["/a/../b/./c"]), json!("/b/c"));
    is("setunion", json!([[2], [10], [1]]), json!([1, 2, 10]));
    is("distinct", json!([[1, 1.0, "1"]]), json!(["1"]));
    is("upper", json!(["straße"]), json!("STRAßE"));
    is("format", json!(["%g", 1e21]), json!("1e+21"));
    is("jsonencode", json!([1e-7]), json!("0.0000001"));
    is(
        "cidrnetmask",
        json!(["fd00::/48"]),
        json!("ffff:ffff:ffff::"),
    );
    is(
        "formatdate",
        json!(["DD MMM YYYY hh:mm ZZZZZ", "2020-01-02T05:04:05+02:00"]),
        json!("02 Jan 2020 05:04 +02:00"),
    );
    is(
        "timeadd",
        json!(["2020-01-02T03:04:05+05:00", "1h"]),
        json!("2020-01-02T04:04:05+05:00"),
    );
}

#[test]
fn documents_are_read_and_written() {
    is(
        "yamldecode",
        json!(["a: 1\nb: [x, yes, ~]\nc: &d {e: 1.5}\nf: *d"]),
        json!({"a": 1, "b": ["x", true, null], "c": {"e": 1.5}, "f": {"e": 1.5}}),
    );
    is(
        "yamlencode",
        json!([{"a": 1, "b": ["x"]}]),
        json!("\"a\": 1\n\"b\":\n- \"x\"\n"),
    );
    is("csvdecode", json!(["a\n1\n"]), json!([{"a": "1"}]));
    fails("yamldecode", json!(["a: [1"]));
    fails("yamldecode", json!(["# nothing"]));
    let times =
        "[2020-1-2, 2020-01-02t3:04:05.5-01:30, 2020-01-02 03:04:05, 2020-13-01, '2020-01-02']";
    is(
        "yamldecode",
        json!([times]),
        json!([
            "2020-01-02T00:00:00Z",
            "2020-01-02T03:04:05-01:30",
            "2020-01-02T03:04:05Z",
            "2020-13-01",
            "2020-01-02"
        ]),
    );
    fails("yamldecode", json!(["a: 1\n---\nb: 2"]));
    fails("csvdecode", json!(["a,b\n1\n"]));
}

#[test]
fn aliases_do_not_grow_without_end() {
    let mut text = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n".to_owned();
    for at in 1..12 {
        let before = vec![format!("*a{}", at - 1); 10].join(", ");
        text = format!("{text}a{at}: &a{at} [{before}]\n");
    }

    let fault = call("yamldecode", json!([text])).expect_err("is too much");

    assert!(fault.contains("more than 100000 values"), "{fault}");
}

#[test]
fn hashes_and_ids_are_standard() {
    is(
        "md5",
        json!(["x"]),
        json!("9dd4e461268c8034f5c8564e155c67a6"),
    );
    is(
        "sha1",
        json!(["x"]),
        json!("11f6ad8ec52a2984abaafd7c3b516503785c2072"),
    );
    is(
        "uuidv5",
        json!(["dns", "example.com"]),
        json!("cfbff0d1-9375-5685-968c-48ce8b15ae17"),
    );
    let id = call("uuidv4", json!([])).unwrap();
    assert_eq!(id.as_str().unwrap().len(), 36);
    let hash = call("bcrypt", json!(["x", 4])).unwrap();
    assert!(bcrypt::verify("x", hash.as_str().unwrap()).unwrap());
    assert!(hash.as_str().unwrap().starts_with("$2a$04$"));
    fails("bcrypt", json!(["x", 31]));
}

#[test]
fn subnets_follow_each_other() {
    is(
        "cidrsubnets",
        json!(["10.1.0.0/16", 4, 4, 8, 4]),
        json!([
            "10.1.0.0/20",
            "10.1.16.0/20",
            "10.1.32.0/24",
            "10.1.48.0/20"
        ]),
    );
    fails("cidrsubnets", json!(["10.0.0.0/30", 1, 1, 1]));
}

#[test]
fn files_are_found_by_pattern() {
    let dir = tempfile::tempdir().unwrap();
    for name in ["a.hcl", "b.txt", "sub/c.hcl", "sub/deep/d.hcl"] {
        let path = dir.path().join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, "x").unwrap();
    }
    let root = dir.path().to_str().unwrap();

    is("fileset", json!([root, "*.hcl"]), json!(["a.hcl"]));
    is(
        "fileset",
        json!([root, "**/*.hcl"]),
        json!(["a.hcl", "sub/c.hcl", "sub/deep/d.hcl"]),
    );
    is("fileset", json!([root, "[b-z].{txt,md}"]), json!(["b.txt"]));
    is(
        "filebase64",
        json!([format!("{root}/a.hcl")]),
        json!("eA=="),
    );
    fails("fileexists", json!([root]));
}

/// A key created for this test, too small for any other use.
const RSA_KEY: &str = "-----BEGIN RSA PRIVATE KEY-----\n\
MIIBOgIBAAJBALW9HI7CB5nxWCwNawgVK12OVU1yMig6ZuEtiY3X1qYLzMjCel9V\n\
mm8+9JBqq6rAc0AWp+6iDN862ZrWqGYyzh0CAwEAAQJATtl31HBWf/H4QVSpBV65\n\
6+NfGzTakh2UmUn6jjIBDRUCRDK1i7z7ApIIxt/pMLCocvDU4Ig2mNJTUHln399w\n\
eQIhAN8XK/spEsbanRic6mNGYRaJZb7Fhyq+1rX5JX2H4A3HAiEA0IxSy1ueubom\n\
DTWGcMHrELF+XixauX6KGIzjUA8AVPsCIFEGvn+jhGFbJ3G4FF1oQ30G/EBUx+ob\n\
lCpVymsUfakjAiByYqT+2U/j+s/oKtWEfzhZPaFcMePJHjjMYmpDfRbnhQIhAIe/\n\
jVJ4/nW6KYiS+wOI/S9nJbH4cGbPH45kG6PgWkYw\n\
-----END RSA PRIVATE KEY-----\n\n";

#[test]
fn texts_are_decrypted_by_their_key() {
    let cipher =
        "pRzEzJnywsEQz1VReGnCvdYhOL6rpsaXAAzbeKm+pL+uyArO/Jrkz/kWnebW9ikGzd/+Xf0JpPva0pd79e36Bg==";

    is("rsadecrypt", json!([cipher, RSA_KEY]), json!("secret"));
    fails("rsadecrypt", json!(["AAAA", RSA_KEY]));
    fails("rsadecrypt", json!([cipher, "x"]));
    fails("rsadecrypt", json!([cipher, &RSA_KEY[..100]]));
}
