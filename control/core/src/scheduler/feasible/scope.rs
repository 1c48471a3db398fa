//! The scope of a job: its pool and its datacenters. Nodes outside the scope do not even count as refused.

use muster_domain::job::ALL_NODE_POOL;

/// Returns whether a job with the pool `wanted` may use a node of `pool`.
pub(super) fn in_pool(wanted: &str, pool: &str) -> bool {
    wanted == ALL_NODE_POOL || wanted == pool
}

/// Returns whether one of `patterns` matches `datacenter`.
pub(super) fn in_datacenters(patterns: &[String], datacenter: &str) -> bool {
    patterns
        .iter()
        .any(|pattern| matches(pattern.as_bytes(), datacenter.as_bytes()))
}

/// Returns whether `text` matches `pattern`, where `*` stands for any run of characters.
fn matches(pattern: &[u8], text: &[u8]) -> bool {
    let (mut at, mut read) = (0, 0);
    let mut star: Option<(usize, usize)> = None;
    while read < text.len() {
        match pattern.get(at) {
            Some(b'*') => {
                star = Some((at, read));
                at += 1;
            }
            Some(letter) if *letter == text[read] => {
                at += 1;
                read += 1;
            }
            Some(_) | None => match star {
                // The last star takes one character more.
                Some((star_at, star_read)) => {
                    star = Some((star_at, star_read + 1));
                    at = star_at + 1;
                    read = star_read + 1;
                }
                None => return false,
            },
        }
    }
    pattern[at..].iter().all(|letter| *letter == b'*')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_star_matches_any_run() {
        for (pattern, text) in [
            ("*", ""),
            ("*", "dc1"),
            ("dc*", "dc"),
            ("*-eu-*", "a-eu-eu-b"),
            ("a*b*c", "a-b-b-c"),
        ] {
            assert!(
                matches(pattern.as_bytes(), text.as_bytes()),
                "{pattern} {text}"
            );
        }
        for (pattern, text) in [
            ("dc1", "dc10"),
            ("", "x"),
            ("dc*x", "dc1"),
            ("a*b", "a"),
            ("dc?", "dc1"),
        ] {
            assert!(
                !matches(pattern.as_bytes(), text.as_bytes()),
                "{pattern} {text}"
            );
        }
    }
}
