//! The target of a redirect.

use url::Url;

/// Resolves `location` in an answer from `from`. Returns `None` for a URL that callbacks must not use: it is
/// neither http nor https, or drops the encryption of `from`.
pub(super) fn target(from: &str, location: &str) -> Option<String> {
    // A fragment only has a meaning for programs that display the page.
    let location = location.trim().split('#').next().unwrap_or("");
    if location.is_empty() {
        return None;
    }
    let from = Url::parse(from).ok()?;
    let to = from.join(location).ok()?;
    let fits = match to.scheme() {
        "https" => true,
        "http" => from.scheme() == "http",
        _ => false,
    };
    (fits && to.has_host()).then(|| to.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn redirect_target_follows_its_location() {
        for (from, location, to) in [
            ("http://a/x/y?z", "http://b/c", Some("http://b/c")),
            ("http://a/x/y?z", "HTTPS://b/c", Some("https://b/c")),
            ("http://a/x/y?z", "//b/c", Some("http://b/c")),
            ("https://a/x/y?z", "//b/c", Some("https://b/c")),
            ("http://u@a:8/x/y?z", "/c?d#e", Some("http://u@a:8/c?d")),
            ("http://a/x/y?z", "c", Some("http://a/x/c")),
            ("http://a", "c", Some("http://a/c")),
            ("http://a/x/y", "../c", Some("http://a/c")),
            ("http://a/x/y?z", "?q", Some("http://a/x/y?q")),
            ("http://a/x", "c?u=http://b", Some("http://a/c?u=http://b")),
            ("https://a/x", "http://a/x", None),
            ("http://a/x", "ftp://a/x", None),
            ("http://a/x", "file:///etc/passwd", None),
            ("http://a/x", "javascript:x", None),
            ("http://a/x", "", None),
            ("http://a/x", "#e", None),
            ("http://a/x", "http://", None),
        ] {
            assert_eq!(target(from, location).as_deref(), to, "{from} {location}");
        }
    }
}
