//! Tests of formatted sizes and of the parts of URLs.

use super::*;

#[test]
fn sizes_read_as_diego_prints_them() {
    let table = [
        (0, "0B"),
        (1_023, "1023B"),
        (1_024, "1K"),
        (1_536, "1.5K"),
        (12_897_485, "12.3M"),
        (1 << 30, "1G"),
    ];
    for (bytes, text) in table {
        assert_eq!(format_size(bytes), text);
    }
}

#[test]
fn file_name_is_last_url_segment() {
    let name = |url: &str| file_name_of_url(url).map(|name| name.to_string());
    assert_eq!(name("http://h/a/b.txt?x=/y#z"), Some("b.txt".to_owned()));
    assert_eq!(name("file:///a/b%20c"), Some("b c".to_owned()));
    for url in [
        "http://h",
        "http://h/",
        "http://h/a/",
        "http://h/..",
        "http://h/a%2fb",
        "http://h/%00",
    ] {
        assert_eq!(name(url), None, "{url}");
    }
}

#[test]
fn invalid_percent_escapes_are_kept_literally() {
    assert_eq!(percent_decode("a%2Fb%zz%4"), b"a/b%zz%4");
    assert_eq!(percent_decode("%c3%a4"), "ä".as_bytes());
}
