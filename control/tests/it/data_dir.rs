//! The processes that may start on a data directory, and the text of a refusal.

use std::fs;

use muster_control::server::{Server, StartServerError};

use crate::fixture::{config, server};

fn text(error: &StartServerError) -> String {
    error.to_string()
}

#[tokio::test]
async fn second_server_on_a_data_directory_is_refused() {
    let first = server().await;

    let error = Server::start(config(first.dir.path())).await.unwrap_err();

    assert!(matches!(error, StartServerError::DataDir(_)), "{error:?}");
    assert!(
        text(&error).contains(&format!("(process {})", std::process::id())),
        "{error}"
    );
    first.shutdown().await;
}

#[tokio::test]
async fn data_of_a_newer_version_is_refused() {
    let dir = server().await.shutdown().await;
    fs::write(dir.path().join("version"), "99\n").unwrap();

    let error = Server::start(config(dir.path())).await.unwrap_err();

    assert!(text(&error).contains("format 99"), "{error}");
    assert!(text(&error).contains("newer version"), "{error}");
}

#[tokio::test]
async fn a_taken_http_port_is_named() {
    let first = server().await;
    let dir = tempfile::tempdir().unwrap();
    let mut config = config(dir.path());
    config.http_addr = first.server.info().http_addr;

    let error = Server::start(config.clone()).await.unwrap_err();

    assert!(
        matches!(error, StartServerError::BindHttp { .. }),
        "{error:?}"
    );
    assert!(
        text(&error).contains(&config.http_addr.to_string()),
        "{error}"
    );
    assert!(text(&error).contains("--http"), "{error}");
    first.shutdown().await;
}

#[tokio::test]
async fn a_taken_quic_port_is_named() {
    let first = server().await;
    let dir = tempfile::tempdir().unwrap();
    let mut config = config(dir.path());
    config.quic_addr = first.server.info().quic_addr;

    let error = Server::start(config.clone()).await.unwrap_err();

    assert!(matches!(error, StartServerError::BindQuic(_)), "{error:?}");
    assert!(
        text(&error).contains(&config.quic_addr.to_string()),
        "{error}"
    );
    first.shutdown().await;
}

#[tokio::test]
async fn another_clusters_directory_is_refused() {
    let dir = server().await.shutdown().await;
    let mut config = config(dir.path());
    "other".clone_into(&mut config.cluster);

    let error = Server::start(config).await.unwrap_err();

    assert!(
        matches!(error, StartServerError::Cluster { .. }),
        "{error:?}"
    );
}

#[tokio::test]
async fn tools_find_the_addresses_of_a_running_server() {
    let server = server().await;
    let path = server.dir.path().join("server.json");

    let addresses: serde_json::Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();

    assert_eq!(
        addresses["http"],
        server.server.info().http_addr.to_string()
    );
    assert_eq!(
        addresses["quic"],
        server.server.info().quic_addr.to_string()
    );
    server.shutdown().await;
    assert!(!path.exists());
}
