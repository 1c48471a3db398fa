//! Where a redirect leads.

/// The URL that `location` means to whoever asked for `from`. `None`: none that a callback goes to, since it is no
/// http or https URL or takes back the secrecy that the first one asked for.
pub(super) fn target(from: &str, location: &str) -> Option<String> {
    let (scheme, rest) = from.split_once("://")?;
    let scheme = scheme.to_ascii_lowercase();
    let end = rest.find(['/', '?', '#']).unwrap_or(rest.len());
    let (authority, path) = rest.split_at(end);
    let location = location.trim();
    // A fragment is for whoever shows a page.
    let location = location.split('#').next().unwrap_or("");
    let to = if let Some(rest) = location.strip_prefix("//") {
        format!("{scheme}://{rest}")
    } else if location.starts_with('/') {
        format!("{scheme}://{authority}{location}")
    } else if has_scheme(location) {
        location.to_owned()
    } else {
        let path = path.split(['?', '#']).next().unwrap_or("");
        let dir = path.rfind('/').map_or("/", |at| &path[..=at]);
        match location {
            "" => return None,
            query if query.starts_with('?') => format!("{scheme}://{authority}{path}{query}"),
            name => format!("{scheme}://{authority}{dir}{name}"),
        }
    };
    let (to_scheme, to_rest) = to.split_once("://")?;
    let fits = match to_scheme.to_ascii_lowercase().as_str() {
        "https" => true,
        "http" => scheme == "http",
        _ => false,
    };
    (fits && !to_rest.is_empty()).then_some(to)
}

/// Whether a name and a colon stand before everything else.
fn has_scheme(location: &str) -> bool {
    let end = location.find([':', '/', '?']);
    end.is_some_and(|end| location[end..].starts_with(':'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_redirect_leads_where_its_location_says() {
        for (from, location, to) in [
            ("http://a/x/y?z", "http://b/c", Some("http://b/c")),
            ("http://a/x/y?z", "HTTPS://b/c", Some("HTTPS://b/c")),
            ("http://a/x/y?z", "//b/c", Some("http://b/c")),
            ("https://a/x/y?z", "//b/c", Some("https://b/c")),
            ("http://u@a:8/x/y?z", "/c?d#e", Some("http://u@a:8/c?d")),
            ("http://a/x/y?z", "c", Some("http://a/x/c")),
            ("http://a", "c", Some("http://a/c")),
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
