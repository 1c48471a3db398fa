//! A client as Diego's are: `POST` of protobuf by HTTPS, with a certificate.

use std::io::Read;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;

use muster_control::server::{BbsConfig, Server, ServerConfig};
use muster_link::tls::{Authority, CERTIFICATE_LIFE, CertificateSubject};
use tempfile::TempDir;
use ureq::tls::{Certificate, ClientCert, PrivateKey, RootCerts, TlsConfig};

use super::message::Fields;
use crate::fixture::{TestServer, config, soon};

/// The type of every body.
const PROTOBUF: &str = "application/x-protobuf";

/// A server that answers Diego's clients, and one of them.
pub(super) struct Fixture {
    pub(super) test: TestServer,
    pub(super) client: Client,
    tls: TempDir,
}

pub(super) async fn fixture() -> Fixture {
    let tls = tempfile::tempdir().unwrap();
    certificates(tls.path());
    let dir = tempfile::tempdir().unwrap();
    let bbs = BbsConfig {
        addr: SocketAddr::from(([127, 0, 0, 1], 0)),
        tls_dir: tls.path().to_owned(),
    };
    let config = ServerConfig {
        bbs: Some(bbs),
        ..config(dir.path())
    };
    let server = Server::start(config).await.unwrap();
    let test = TestServer { server, dir };
    let client = client(&test, tls.path(), tls.path());
    Fixture { test, client, tls }
}

impl Fixture {
    /// One that shows nothing.
    pub(super) fn client_without_certificate(&self) -> Client {
        Client::new(&self.test, None, self.tls.path())
    }

    /// One whose certificate is somebody else's.
    pub(super) fn client_of_another_authority(&self) -> Client {
        let other = tempfile::tempdir().unwrap();
        certificates(other.path());
        client(&self.test, other.path(), self.tls.path())
    }

    /// Puts another authority and its certificates in the place of those in use.
    pub(super) fn replace_authority(&self) {
        std::fs::remove_file(self.tls.path().join("ca.pem")).unwrap();
        certificates(self.tls.path());
    }

    /// One with what is in the files.
    pub(super) fn client_of_files(&self) -> Client {
        client(&self.test, self.tls.path(), self.tls.path())
    }
}

/// An authority, a server's certificate and a client's.
fn certificates(dir: &Path) {
    let authority = Authority::generate("diego").unwrap();
    authority.save(dir).unwrap();
    let server = CertificateSubject::Server {
        name: "bbs",
        hosts: &[],
    };
    for subject in [server, CertificateSubject::Operator] {
        authority.issue(dir, subject, CERTIFICATE_LIFE).unwrap();
    }
}

fn pem(dir: &Path, name: &str) -> Vec<u8> {
    std::fs::read(dir.join(name)).unwrap()
}

/// One that shows the certificate in `shows` and trusts the authority in `trusts`.
fn client(test: &TestServer, shows: &Path, trusts: &Path) -> Client {
    let certificate = Certificate::from_pem(&pem(shows, "operator.pem")).unwrap();
    let key = PrivateKey::from_pem(&pem(shows, "operator.key")).unwrap();
    let shown = ClientCert::new_with_certs(&[certificate], key);
    Client::new(test, Some(shown), trusts)
}

/// A client of Diego's BBS.
#[derive(Clone, Debug)]
pub(super) struct Client {
    http: ureq::Agent,
    base: String,
}

impl Client {
    fn new(test: &TestServer, shown: Option<ClientCert>, trusts: &Path) -> Self {
        let authority = Certificate::from_pem(&pem(trusts, "ca.pem")).unwrap();
        let provider = rustls::crypto::ring::default_provider();
        let tls = TlsConfig::builder()
            .client_cert(shown)
            .root_certs(RootCerts::new_with_certs(&[authority]))
            .unversioned_rustls_crypto_provider(Arc::new(provider))
            .build();
        let http = ureq::Agent::config_builder()
            .http_status_as_error(false)
            .tls_config(tls)
            .build();
        let address = test.server.info().bbs_addr.unwrap();
        Self {
            http: http.into(),
            base: format!("https://{address}"),
        }
    }

    /// Posts a request and returns the answer. The HTTP status carries no information.
    pub(super) async fn post(&self, path: &str, body: Vec<u8>) -> Fields {
        self.try_post(path, body).await.unwrap()
    }

    /// The same, if the connection stands.
    pub(super) async fn try_post(&self, path: &str, body: Vec<u8>) -> Result<Fields, String> {
        let (http, url) = (self.http.clone(), format!("{}{path}", self.base));
        let asked = tokio::task::spawn_blocking(move || {
            let request = http.post(&url).content_type(PROTOBUF);
            let mut response = request.send(&body).map_err(|error| error.to_string())?;
            assert_eq!(response.status(), 200, "{url}");
            assert_eq!(response.headers()["content-type"], PROTOBUF);
            let bytes = response.body_mut().read_to_vec();
            bytes.map_err(|error| error.to_string())
        });
        let bytes = soon("an answer", asked).await.unwrap()?;
        Ok(Fields::read(&bytes))
    }

    /// The status that a request without a body is answered with.
    pub(super) async fn status(&self, method: &str, path: &str) -> u16 {
        let (http, url) = (self.http.clone(), format!("{}{path}", self.base));
        let post = method == "POST";
        let asked = tokio::task::spawn_blocking(move || {
            let answered = if post {
                http.post(&url).send_empty()
            } else {
                http.get(&url).call()
            };
            answered.unwrap().status().as_u16()
        });
        soon("an answer", asked).await.unwrap()
    }

    /// The status that a message with such a header is answered with.
    pub(super) async fn status_with(&self, path: &str, name: &'static str, value: &str) -> u16 {
        let (http, url) = (self.http.clone(), format!("{}{path}", self.base));
        let value = value.to_owned();
        let asked = tokio::task::spawn_blocking(move || {
            let answer = http.post(&url).header(name, value).send_empty().unwrap();
            assert_eq!(answer.headers()["x-content-type-options"], "nosniff");
            answer.status().as_u16()
        });
        soon("an answer", asked).await.unwrap()
    }

    /// The body of an answer that goes on. Blocks.
    pub(super) fn open(&self, path: &str) -> impl Read + Send + use<> {
        let url = format!("{}{path}", self.base);
        let response = self.http.post(&url).send_empty().unwrap();
        assert_eq!(response.status(), 200);
        response.into_body().into_reader()
    }
}
