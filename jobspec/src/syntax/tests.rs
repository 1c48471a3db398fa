//! Texts in, trees or errors out.

use super::*;

fn error(text: &str) -> String {
    let error = parse_body(text).expect_err("is wrong");
    let (line, column) = crate::fault::position(text, error.span.start);
    format!("{line}:{column}: {}", error.message)
}

#[test]
fn errors_have_places_and_reasons() {
    for (text, expected) in [
        ("a = [1\nb = 2\n", "2:1: expected `,` or `]`, found `b`"),
        ("a = \n", "1:5: expected a value, found the end of the line"),
        ("a {", "1:3: the block has no end: expected `}`"),
        (
            "a = \"x\n",
            "1:5: the text has no end in its line: expected `\"` (write \\n for a new line, or a heredoc)",
        ),
        (
            "a = <<E\nx\n",
            "1:5: the heredoc has no end: expected a whole line with `E` alone",
        ),
        (
            "a = \"${x\"\n",
            "1:9: expected `}` (write `$${` or `%%{` for text of another language)",
        ),
        ("a = \"%{ if x }\"\n", "1:6: `if` has no `endif`"),
        (
            "a = \"\\q\"\n",
            "1:6: unknown escape `\\q`: use \\n, \\r, \\t, \\\", \\\\, \\uNNNN or \\UNNNNNNNN",
        ),
        ("a = 1\na = 2\n", "2:1: a second attribute `a`"),
        (
            "job \"${x}\" {}\n",
            "1:6: a label is a text without `${…}`: it cannot be computed (write `$${` for the sign)",
        ),
        (
            "a = 1 b = 2\n",
            "1:7: expected the end of the line, found `b`",
        ),
        (
            "a { b = 1, c = 2 }\n",
            "1:10: expected `}`: a block in one line holds one attribute; write others on lines of their own, found `,`",
        ),
        ("a = b.1.2\n", "1:7: `.1.2` is ambiguous: write [1][2]"),
        ("a = ~\n", "1:5: expected a value, found `~`"),
        ("a = \u{1}\n", "1:5: unexpected character '\\u{1}'"),
    ] {
        assert_eq!(error(text), expected, "{text}");
    }
}

#[test]
fn byte_order_mark_is_skipped() {
    assert_eq!(parse_body("\u{feff}a = 1\n").unwrap().items.len(), 1);
}

#[test]
fn nesting_is_bounded() {
    for (open, close) in [
        ("[", "]"),
        ("(", ")"),
        ("{ a = ", "}"),
        ("-", ""),
        ("\"${", "}\""),
    ] {
        let text = format!("a = {}1{}\n", open.repeat(10_000), close.repeat(10_000));

        assert!(error(&text).contains("nested deeper"), "{open}");
    }
}

#[test]
fn blocks_keep_labels_and_order() {
    let body = parse_body("a \"x\" y {\n  b = 1\n}\nc { d = 2 }\n\"e f\" = 3\n").unwrap();

    let block = body.blocks().next().unwrap();
    let labels: Vec<&str> = block.labels.iter().map(Ident::as_str).collect();
    assert_eq!(labels, ["x", "y"]);
    assert_eq!(body.blocks().count(), 2);
    assert_eq!(body.attributes().next().unwrap().key.as_str(), "e f");
}
