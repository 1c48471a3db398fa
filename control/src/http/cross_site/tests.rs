use axum::body::Body;

use super::*;

const LISTEN_IP: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

fn policy(allowed: &[&str]) -> SitePolicy {
    let allowed: Vec<AllowedHost> = allowed.iter().map(|host| host.parse().unwrap()).collect();
    SitePolicy::api(LISTEN_IP, None, &allowed)
}

/// Returns the decision about a `PUT` with `headers`.
fn judge(policy: &SitePolicy, headers: &[(&str, &str)]) -> Result<(), CrossSiteError> {
    let mut request = Request::builder().method("PUT").uri("/v1/jobs");
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    policy.judge(&request.body(Body::empty()).unwrap(), Some(LISTEN_IP))
}

fn passes(policy: &SitePolicy, headers: &[(&str, &str)]) -> bool {
    judge(policy, headers).is_ok()
}

#[test]
fn own_names_and_addresses_pass() {
    for host in [
        "127.0.0.1:4646",
        "127.0.0.1",
        "localhost:4646",
        "LOCALHOST.",
        "a.localhost:1",
        "[::1]:4646",
        "[::ffff:127.0.0.1]:4646",
    ] {
        assert!(passes(&policy(&[]), &[("host", host)]), "{host}");
    }
    let name = std::fs::read_to_string(HOST_NAME_FILE).unwrap();
    assert!(passes(&policy(&[]), &[("host", name.trim())]), "{name}");
}

#[test]
fn foreign_hosts_are_refused() {
    for host in [
        "evil.example",
        "evil.example:4646",
        "localhost.evil.example",
        "127.0.0.1.evil.example",
        "user@127.0.0.1",
        "192.0.2.1:4646",
        "0.0.0.0:4646",
        "224.0.0.1",
        "[2001:db8::1]",
        "2130706433",
        "127.1",
        "127.0.0.1:+80",
        "127.0.0.1:99999",
        "127.0.0.1, evil.example",
        "",
    ] {
        let refused = judge(&policy(&[]), &[("host", host)]);
        assert!(
            matches!(refused, Err(CrossSiteError::Host { .. })),
            "{host}"
        );
    }
}

#[test]
fn a_request_names_one_host() {
    let two = [("host", "localhost"), ("host", "localhost")];

    assert!(!passes(&policy(&[]), &[]));
    assert!(!passes(&policy(&[]), &two));
}

#[test]
fn a_target_with_a_foreign_host_is_refused() {
    let request = Request::builder()
        .uri("http://evil.example/v1/jobs")
        .header("host", "localhost")
        .body(Body::empty())
        .unwrap();

    assert!(policy(&[]).judge(&request, Some(LISTEN_IP)).is_err());
}

#[test]
fn a_configured_host_passes() {
    let policy = policy(&["muster.example.org", "192.0.2.1"]);

    assert!(passes(&policy, &[("host", "muster.example.org:4646")]));
    assert!(passes(&policy, &[("host", "192.0.2.1")]));
    assert!(!passes(&policy, &[("host", "a.muster.example.org")]));
}

#[test]
fn the_unspecified_address_passes_where_it_is_bound() {
    let everywhere = IpAddr::V4(Ipv4Addr::UNSPECIFIED);
    let policy = SitePolicy::api(everywhere, None, &[]);

    assert!(passes(&policy, &[("host", "0.0.0.0:4646")]));
}

#[test]
fn an_advertised_address_passes() {
    let advertised = IpAddr::V4(Ipv4Addr::new(192, 0, 2, 7));
    let policy = SitePolicy::api(LISTEN_IP, Some(advertised), &[]);

    assert!(passes(&policy, &[("host", "192.0.2.7:4646")]));
}

#[test]
fn pages_of_other_origins_are_refused() {
    let from = |origin| {
        passes(
            &policy(&[]),
            &[("host", "127.0.0.1:4646"), ("origin", origin)],
        )
    };

    assert!(from("http://127.0.0.1:4646"));
    for origin in [
        "http://127.0.0.1:8080",
        "http://localhost:4646",
        "https://example.org",
        "http://127.0.0.1:4646.evil.example",
        "file://127.0.0.1:4646",
        "null",
        "",
    ] {
        assert!(!from(origin), "{origin}");
    }
}

#[test]
fn a_configured_origin_passes_from_another_site() {
    let policy = policy(&["ui.example.org"]);
    let from = |origin| {
        let site = ("sec-fetch-site", "cross-site");
        passes(&policy, &[("host", "localhost"), ("origin", origin), site])
    };

    assert!(from("https://ui.example.org"));
    assert!(!from("https://ui.example.org:8443"));
    assert!(!from("http://localhost"), "the browser says otherwise");
}

#[test]
fn requests_of_other_sites_are_refused() {
    let from = |site| {
        passes(
            &policy(&[]),
            &[("host", "localhost"), ("sec-fetch-site", site)],
        )
    };

    assert!(from("none"));
    assert!(from("same-origin"));
    for site in ["cross-site", "same-site", "elsewhere", ""] {
        assert!(!from(site), "{site}");
    }
}

#[test]
fn types_of_forms_are_refused() {
    let send = |kind| {
        passes(
            &policy(&[]),
            &[("host", "localhost"), ("content-type", kind)],
        )
    };

    assert!(send("application/json"));
    assert!(send("Application/JSON; charset=utf-8"));
    for kind in [
        "text/plain",
        "text/plain;charset=utf-8",
        "text/plain; application/json",
        "multipart/form-data; boundary=x",
        "application/x-www-form-urlencoded",
        "text/plain, application/json",
        "",
    ] {
        assert!(!send(kind), "{kind}");
    }
}

#[test]
fn a_verified_name_needs_no_list() {
    let host = ("host", "bbs.service.internal:8889");
    let kind = ("content-type", "application/x-protobuf");

    assert!(passes(&SitePolicy::bbs(), &[host, kind]));
    assert!(!passes(
        &SitePolicy::bbs(),
        &[host, ("origin", "https://evil.example")]
    ));
    assert!(!passes(
        &SitePolicy::bbs(),
        &[host, ("content-type", "text/plain")]
    ));
}

#[test]
fn allowed_hosts_are_shown_as_given() {
    for text in [
        "a.example.org",
        "a.example.org:8443",
        "[2001:db8::1]:1",
        "192.0.2.1",
    ] {
        assert_eq!(text.parse::<AllowedHost>().unwrap().to_string(), text);
    }
    for text in ["", "https://a", "a/b", "a b", "*.a", "[::1", "a:b:c"] {
        assert!(text.parse::<AllowedHost>().is_err(), "{text}");
    }
}
