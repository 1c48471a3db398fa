//! The host: one request a connection, a line of JSON each way.

use std::collections::HashMap;
use std::error::Error;
use std::fs::File;
use std::io::{BufRead as _, BufReader, Write as _};
use std::os::unix::net::{UnixListener, UnixStream};
use std::os::unix::process::ExitStatusExt as _;
use std::path::Path;
use std::process::{Command, ExitStatus, Stdio};
use std::sync::{Arc, Condvar, Mutex, PoisonError};

use serde_json::{Value, json};

/// A process of a task.
#[derive(Debug)]
struct Task {
    pid: u32,
    ended: Mutex<Option<ExitStatus>>,
    change: Condvar,
}

#[derive(Debug)]
struct Host {
    tasks: Mutex<HashMap<u64, Arc<Task>>>,
    journal: Mutex<File>,
}

/// Serves requests until the process is killed.
pub(crate) fn serve(socket: &Path) -> Result<(), Box<dyn Error>> {
    let journal = File::create(socket.with_extension("journal"))?;
    let host = Arc::new(Host {
        tasks: Mutex::default(),
        journal: Mutex::new(journal),
    });
    let listener = UnixListener::bind(socket)?;
    for connection in listener.incoming() {
        let (host, connection) = (Arc::clone(&host), connection?);
        std::thread::spawn(move || {
            // A killed driver does not read its response, and a driver with a malformed request gets none.
            drop(host.answer(&connection));
        });
    }
    Ok(())
}

impl Host {
    fn answer(&self, connection: &UnixStream) -> Result<(), Box<dyn Error>> {
        let mut line = String::new();
        BufReader::new(connection).read_line(&mut line)?;
        let request: Value = serde_json::from_str(&line)?;
        let answer = self.carry_out(&request)?;
        let mut connection = connection;
        writeln!(connection, "{answer}")?;
        Ok(())
    }

    fn carry_out(&self, request: &Value) -> Result<Value, Box<dyn Error>> {
        let text = |name: &str| request[name].as_str().unwrap_or_default();
        if let Some(what) = request["note"].as_str() {
            self.write_journal(what)?;
            return Ok(json!({}));
        }
        if text("call") == "start" {
            return self.start(text("command"));
        }
        let number = request["number"].as_u64().unwrap_or_default();
        let tasks = self.tasks.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(task) = tasks.get(&number).map(Arc::clone) else {
            return Ok(json!({"running": false}));
        };
        drop(tasks);
        match text("call") {
            "wait" => Ok(task.wait()),
            "signal" => {
                let signal = text("signal");
                self.write_journal(&format!("signal {number} {signal}"))?;
                Command::new("kill")
                    .args(["-s", signal, &task.pid.to_string()])
                    .status()?;
                Ok(json!({}))
            }
            _ => {
                let ended = task.ended.lock().unwrap_or_else(PoisonError::into_inner);
                Ok(json!({"running": ended.is_none()}))
            }
        }
    }

    fn start(&self, command: &str) -> Result<Value, Box<dyn Error>> {
        let mut child = Command::new("/bin/sh")
            .args(["-c", command])
            .stdin(Stdio::null())
            .spawn()?;
        let pid = child.id();
        let task = Arc::new(Task {
            pid,
            ended: Mutex::new(None),
            change: Condvar::new(),
        });
        let mut tasks = self.tasks.lock().unwrap_or_else(PoisonError::into_inner);
        let number = tasks.len() as u64 + 1;
        tasks.insert(number, Arc::clone(&task));
        drop(tasks);
        self.write_journal(&format!("start {number} pid {pid}"))?;
        std::thread::spawn(move || {
            let ended = child.wait();
            *task.ended.lock().unwrap_or_else(PoisonError::into_inner) = ended.ok();
            task.change.notify_all();
        });
        Ok(json!({"number": number}))
    }

    /// Writes a line to the journal.
    fn write_journal(&self, what: &str) -> Result<(), Box<dyn Error>> {
        let mut journal = self.journal.lock().unwrap_or_else(PoisonError::into_inner);
        journal.write_all(format!("{what}\n").as_bytes())?;
        Ok(())
    }
}

impl Task {
    /// Waits for the end of the process and returns its exit.
    fn wait(&self) -> Value {
        let ended = self.ended.lock().unwrap_or_else(PoisonError::into_inner);
        let ended = self.change.wait_while(ended, |ended| ended.is_none());
        let ended = ended.unwrap_or_else(PoisonError::into_inner);
        json!({
            "code": ended.and_then(|it| it.code()).unwrap_or_default(),
            "signal": ended.and_then(|it| it.signal()).unwrap_or_default(),
        })
    }
}
