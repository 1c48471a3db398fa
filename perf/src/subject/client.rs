//! A minimal HTTP client: requests with a body over one keep-alive connection. It uses little CPU time compared with
//! the server that it loads.

use std::net::SocketAddr;

use anyhow::{Context as _, ensure};
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::TcpStream;

/// A keep-alive connection to the server.
pub(super) struct Client {
    stream: BufReader<TcpStream>,
    line: String,
    body: Vec<u8>,
}

impl Client {
    pub(super) async fn connect(addr: SocketAddr) -> anyhow::Result<Self> {
        let stream = TcpStream::connect(addr).await?;
        stream.set_nodelay(true)?;
        Ok(Self {
            stream: BufReader::new(stream),
            line: String::new(),
            body: Vec::new(),
        })
    }

    /// Sends `body` with PUT and waits for the answer, whose status must be 200.
    pub(super) async fn put(&mut self, path: &str, body: &str) -> anyhow::Result<()> {
        self.send_request(format!(
            "PUT {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}",
            body.len()
        ))
        .await
    }

    /// Sends a DELETE request and waits for the answer, whose status must be 200.
    pub(super) async fn delete(&mut self, path: &str) -> anyhow::Result<()> {
        self.send_request(format!("DELETE {path} HTTP/1.1\r\nHost: localhost\r\n\r\n"))
            .await
    }

    /// Returns the body of the answer, whose status must be 200.
    pub(super) async fn get(&mut self, path: &str) -> anyhow::Result<String> {
        self.send_request(format!("GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n"))
            .await?;
        Ok(String::from_utf8(self.body.clone())?)
    }

    async fn send_request(&mut self, request: String) -> anyhow::Result<()> {
        self.stream.get_mut().write_all(request.as_bytes()).await?;
        self.read_line().await?;
        let ok = self.line.split(' ').nth(1) == Some("200");
        let status = self.line.trim_end().to_owned();
        let mut length = None;
        while self.read_line().await? {
            if let Some((name, value)) = self.line.split_once(':')
                && name.eq_ignore_ascii_case("content-length")
            {
                length = Some(value.trim().parse()?);
            }
        }
        let length: usize = length.context("the answer does not say its length")?;
        self.body.resize(length, 0);
        self.stream.read_exact(&mut self.body).await?;
        let answer = String::from_utf8_lossy(&self.body);
        ensure!(ok, "{status}: {answer}");
        Ok(())
    }

    /// Reads a line of the header. Returns false after the last line.
    async fn read_line(&mut self) -> anyhow::Result<bool> {
        self.line.clear();
        let read = self.stream.read_line(&mut self.line).await?;
        ensure!(read > 0, "the server has closed the connection");
        Ok(!self.line.trim_end().is_empty())
    }
}

/// Returns a job in Nomad's JSON, as a user writes it.
pub(super) fn job(id: &str, count: u32, cpu_mhz: u32, memory_mb: u32) -> String {
    format!(
        r#"{{"Job":{{"ID":"{id}","Name":"{id}","Type":"batch","Datacenters":["dc1"],
"Constraints":[{{"LTarget":"${{attr.cpu.arch}}","Operand":"=","RTarget":"amd64"}}],
"TaskGroups":[{{"Name":"main","Count":{count},"EphemeralDisk":{{"SizeMB":10}},
"Tasks":[{{"Name":"main","Driver":"mock","Config":{{"run_for":"1h"}},
"LogConfig":{{"MaxFiles":1,"MaxFileSizeMB":5}},
"Resources":{{"CPU":{cpu_mhz},"MemoryMB":{memory_mb}}}}}]}}]}}}}"#
    )
}
