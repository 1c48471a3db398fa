//! `muster alloc exec`: a command in a task, over a WebSocket.
//!
//! Four activities run concurrently: one thread reads standard input, one thread writes output, and frames go in both
//! directions. No activity waits for another without a bound. A pipe without a reader blocks the command, but not the
//! keep-alive frames.

mod escape;
mod terminal;

use std::io::{self, IsTerminal as _, Read as _, Write as _};
use std::pin::pin;
use std::time::Duration;

use futures::stream::{SplitSink, SplitStream};
use futures::{SinkExt as _, StreamExt as _};
use muster_wire::api::exec::{ExitResult, Input, Output, StreamPiece};
use tokio::net::TcpStream;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc;
use tokio_tungstenite::tungstenite::Error as SocketError;
use tokio_tungstenite::tungstenite::protocol::{CloseFrame, Message};
use tokio_tungstenite::{WebSocketStream, client_async};

use super::ExecArgs;
use crate::client::{Client, error_from_status, escape};
use crate::exit::{CliError, CliResult, Exit};
use crate::names;
use escape::{EscapeFilter, FilteredInput};
use terminal::RawMode;

/// Bytes of input in one frame.
const INPUT_BYTES: usize = 16 << 10;
/// Frames that wait in either direction.
const FRAMES_MAX: usize = 4;
/// Our exit code for an exit code that is not a byte.
const OTHER_CODE: u8 = u8::MAX;
/// Interval of keep-alive frames. The server disconnects a client that is silent for a minute.
const KEEP_ALIVE: Duration = Duration::from_secs(10);
/// The longest time for a server to open a session. The server calls the node, which calls the driver.
const OPEN_TIMEOUT: Duration = Duration::from_secs(30);

type Socket = WebSocketStream<TcpStream>;

/// Runs the command.
///
/// # Errors
///
/// [`CliError`]: no such allocation or task, or the session broke off.
pub(super) fn run(client: &Client, args: &ExecArgs) -> CliResult {
    let found = names::alloc(client, &args.alloc, names::Access::Change)?;
    let task = match &args.task {
        Some(task) => task.clone(),
        None => super::only_task(client, &found)?,
    };
    let is_terminal = io::stdin().is_terminal() && io::stdout().is_terminal();
    let tty = args.tty.unwrap_or(is_terminal && args.stdin);
    let escaping = EscapeFilter::new(escape_character(args, tty)?);
    let command = serde_json::to_string(&args.command)
        .map_err(|error| CliError::new(Exit::Usage, format!("the command: {error}")))?;
    let path = format!(
        "/v1/client/allocation/{}/exec?task={}&tty={tty}&command={}",
        found.id,
        escape(&task),
        escape(&command)
    );
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    let session = Session {
        path: &path,
        takes_input: args.stdin,
        raw: tty && is_terminal,
        escaping,
    };
    let ended = runtime.block_on(session.run(client.address()));
    // The thread that reads standard input may wait for a key.
    runtime.shutdown_background();
    ended
}

fn escape_character(args: &ExecArgs, tty: bool) -> Result<Option<u8>, CliError> {
    match args.escape.as_bytes() {
        _ if !tty => Ok(None),
        b"none" => Ok(None),
        [character] if character.is_ascii_graphic() => Ok(Some(*character)),
        _ => {
            let reason = format!("--escape {:?} is not one character of ASCII", args.escape);
            Err(CliError::new(Exit::Usage, reason).help("`none` leaves it out"))
        }
    }
}

/// The session to hold.
struct Session<'a> {
    path: &'a str,
    takes_input: bool,
    /// The user's terminal is the command's.
    raw: bool,
    escaping: EscapeFilter,
}

/// The end of a session on this side, by typed input or by a signal.
struct SessionClosed;

impl Session<'_> {
    async fn run(self, server: &str) -> CliResult {
        let opening = connect(server, self.path);
        let socket = match tokio::time::timeout(OPEN_TIMEOUT, opening).await {
            Ok(socket) => socket?,
            Err(_) => {
                let reason = format!("{server} opened no session within {OPEN_TIMEOUT:?}");
                return Err(CliError::new(Exit::TimedOut, reason));
            }
        };
        let raw = if self.raw {
            Some(RawMode::enter()?)
        } else {
            None
        };
        let (to_server, from_server) = socket.split();
        let (printed, printer) = print();
        let typed = type_in(self.takes_input);
        let outcome = {
            let mut sending = pin!(send_all(to_server, typed, self.escaping, self.raw));
            let mut receiving = pin!(receive_all(from_server, printed));
            tokio::select! {
                ended = receiving.as_mut() => ended,
                hung_up = sending.as_mut() => match hung_up {
                    Some(SessionClosed) => Ok(Exit::Interrupted),
                    // The receiving direction reports the reason.
                    None => receiving.await,
                },
            }
        };
        // All received output is written before the terminal is restored.
        let written = tokio::task::spawn_blocking(move || printer.join()).await;
        drop(raw);
        match (outcome, written) {
            (Ok(exit), Ok(Ok(Ok(())))) => Ok(exit),
            (Ok(_), Ok(Ok(Err(error)))) if error.kind() != io::ErrorKind::BrokenPipe => {
                Err(error.into())
            }
            (outcome, _) => outcome,
        }
    }
}

/// Opens the websocket.
async fn connect(server: &str, path: &str) -> Result<Socket, CliError> {
    let Some(host) = server.strip_prefix("http://") else {
        let reason = format!("sessions are not possible with {server}");
        return Err(CliError::new(Exit::Usage, reason).help("name a server as http://HOST:PORT"));
    };
    let host = host.split('/').next().unwrap_or(host);
    let address = if host.rsplit(']').next().unwrap_or(host).contains(':') {
        host.to_owned()
    } else {
        format!("{host}:80")
    };
    let unreachable = |error: &dyn std::fmt::Display| {
        CliError::new(Exit::Unreachable, format!("no server at {server}: {error}"))
    };
    let stream = TcpStream::connect(address)
        .await
        .map_err(|error| unreachable(&error))?;
    stream.set_nodelay(true)?;
    match client_async(format!("ws://{host}{path}"), stream).await {
        Ok((socket, _response)) => Ok(socket),
        Err(SocketError::Http(response)) => {
            let status = response.status().as_u16();
            let body = response.body().as_deref().unwrap_or_default();
            let route = path.split('?').next().unwrap_or(path);
            Err(error_from_status(
                route,
                status,
                String::from_utf8_lossy(body).trim(),
            ))
        }
        Err(error) => Err(unreachable(&error)),
    }
}

/// Starts a thread that reads standard input; an empty piece marks its end.
fn type_in(takes_input: bool) -> mpsc::Receiver<Vec<u8>> {
    let (typed, pieces) = mpsc::channel(FRAMES_MAX);
    std::thread::spawn(move || {
        let mut buffer = vec![0; INPUT_BYTES];
        loop {
            let read = if takes_input {
                io::stdin().read(&mut buffer)
            } else {
                Ok(0)
            };
            let piece = match read {
                Ok(read) => buffer.get(..read).unwrap_or_default().to_vec(),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(_) => Vec::new(),
            };
            let last = piece.is_empty();
            if typed.blocking_send(piece).is_err() || last {
                return;
            }
        }
    });
    pieces
}

/// A command's bytes on one of its outputs.
enum CommandOutput {
    Stdout(Vec<u8>),
    Stderr(Vec<u8>),
}

type Printer = std::thread::JoinHandle<io::Result<()>>;

/// A thread that writes output.
fn print() -> (mpsc::Sender<CommandOutput>, Printer) {
    let (printed, mut pieces) = mpsc::channel(FRAMES_MAX);
    let printer = std::thread::spawn(move || {
        while let Some(piece) = pieces.blocking_recv() {
            match piece {
                CommandOutput::Stdout(bytes) => {
                    let mut out = io::stdout().lock();
                    out.write_all(&bytes)?;
                    out.flush()?;
                }
                CommandOutput::Stderr(bytes) => io::stderr().lock().write_all(&bytes)?,
            }
        }
        Ok(())
    });
    (printed, printer)
}

/// Sends typed input, the terminal's size and keep-alive frames; `None` if the server accepts no more.
async fn send_all(
    mut server: SplitSink<Socket, Message>,
    mut typed: mpsc::Receiver<Vec<u8>>,
    mut escaping: EscapeFilter,
    raw: bool,
) -> Option<SessionClosed> {
    let mut resized = signal(SignalKind::window_change()).ok()?;
    let mut terminated = signal(SignalKind::terminate()).ok()?;
    let mut hung_up = signal(SignalKind::hangup()).ok()?;
    let mut interrupted = signal(SignalKind::interrupt()).ok()?;
    let mut alive = tokio::time::interval(KEEP_ALIVE);
    let size = || Input {
        tty_size: terminal::size().filter(|_| raw),
        ..Input::default()
    };
    server.send(text(&size())).await.ok()?;
    loop {
        let frame = tokio::select! {
            Some(piece) = typed.recv() => {
                let close = piece.is_empty();
                let FilteredInput { bytes: data, hangs_up } = escaping.filter_input(piece);
                if hangs_up {
                    return Some(SessionClosed);
                }
                Input { stdin: Some(StreamPiece { data, close }), ..Input::default() }
            }
            Some(()) = resized.recv() => size(),
            _tick = alive.tick() => Input::default(),
            Some(()) = terminated.recv() => return Some(SessionClosed),
            Some(()) = hung_up.recv() => return Some(SessionClosed),
            Some(()) = interrupted.recv() => return Some(SessionClosed),
        };
        server.send(text(&frame)).await.ok()?;
    }
}

fn text(input: &Input) -> Message {
    // The serialization of maps with fixed keys to texts and numbers cannot fail.
    Message::text(serde_json::to_string(input).unwrap_or_default())
}

/// Receives frames and passes output on until the command has ended.
async fn receive_all(
    mut server: SplitStream<Socket>,
    printed: mpsc::Sender<CommandOutput>,
) -> CliResult {
    let mut reason = None;
    while let Some(Ok(message)) = server.next().await {
        let text = match message {
            Message::Text(text) => text,
            Message::Close(frame) => {
                reason = frame.as_ref().map(close_reason);
                break;
            }
            _ => continue,
        };
        let frame: Output = serde_json::from_str(&text).map_err(|error| {
            let reason = format!("the server sent a frame that is not understood: {error}");
            CliError::new(Exit::Failed, reason)
        })?;
        if frame.exited {
            return Ok(exit(frame.result.unwrap_or_default()));
        }
        let out = frame.stdout.map(|piece| CommandOutput::Stdout(piece.data));
        let err = frame.stderr.map(|piece| CommandOutput::Stderr(piece.data));
        for piece in out.into_iter().chain(err) {
            if printed.send(piece).await.is_err() {
                // The reader of the output has closed it, as with any command in a pipe.
                return Ok(Exit::Failed);
            }
        }
    }
    let reason = reason.unwrap_or_else(|| "the connection to the server is lost".to_owned());
    Err(
        CliError::new(Exit::Failed, format!("the session broke off: {reason}"))
            .help("the command in the task is ended"),
    )
}

fn close_reason(frame: &CloseFrame) -> String {
    let reason = frame.reason.trim();
    if reason.is_empty() {
        format!("the server closed it ({})", frame.code)
    } else {
        reason.to_owned()
    }
}

fn exit(result: ExitResult) -> Exit {
    if let Some(note) = result.note {
        crate::output::eprint(&format!("muster: {note}"));
    }
    // Exit codes are one byte on Linux. Another driver may report larger codes.
    Exit::Command(u8::try_from(result.exit_code).unwrap_or(OTHER_CODE))
}
