//! Commands with input and output as streams, through pipes or a terminal.
//!
//! One asynchronous task carries a session. The session ends with its command, when the task ends, or when no client
//! reads the output any more. In the last two cases the command is killed with its process group. The terminal then
//! hangs up on all other processes that use it.

use std::future::pending;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use futures::stream::StreamExt;
use muster_driver::{
    ExecInput, ExecInputStream, ExecOutput, ExecOutputStream, ExecRequest, ExitResult, TaskConfig,
    TaskError,
};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::unix::pipe::{Receiver, Sender};
use tokio::sync::{mpsc, watch};
use tokio_stream::wrappers::ReceiverStream;

use super::terminal::{self, Terminal};
use super::{launch, pipe, prepare_error};
use crate::command::Streams;
use crate::kill_on_drop::KillOnDrop;
use crate::limits;
use crate::process::Process;
use crate::task::{NativeTask, TaskProcess};

/// The terminal type when the task's environment does not set one.
const TERM: (&str, &str) = ("TERM", "xterm");

/// A running command, with the driver's ends of its streams.
#[derive(Debug)]
pub(crate) struct Session {
    process: Process,
    ends: SessionFds,
}

#[derive(Debug)]
enum SessionFds {
    Pipes {
        stdin: OwnedFd,
        stdout: OwnedFd,
        stderr: OwnedFd,
    },
    Terminal(OwnedFd),
}

/// Starts the command of a session. Blocks until the program is loaded.
pub(crate) fn open(task: &NativeTask, request: &ExecRequest) -> Result<Session, TaskError> {
    let (mut config, native) = task.definition()?;
    if request.tty {
        let (master, streams) = terminal::open_terminal(task)?;
        set_terminal(&mut config);
        let definition = (&config, &native);
        let process = launch(task, definition, &request.command, &streams, true)?;
        return Ok(Session {
            process,
            ends: SessionFds::Terminal(master),
        });
    }
    let (stdin_end, stdin) = pipe().map_err(prepare_error)?;
    let (stdout, stdout_end) = pipe().map_err(prepare_error)?;
    let (stderr, stderr_end) = pipe().map_err(prepare_error)?;
    let streams = Streams {
        stdin: stdin_end,
        stdout: stdout_end,
        stderr: stderr_end,
    };
    let process = launch(task, (&config, &native), &request.command, &streams, false)?;
    Ok(Session {
        process,
        ends: SessionFds::Pipes {
            stdin,
            stdout,
            stderr,
        },
    })
}

fn set_terminal(config: &mut TaskConfig) {
    let (name, value) = TERM;
    config
        .env
        .entry(name.to_owned())
        .or_insert_with(|| value.to_owned());
}

impl Session {
    /// Carries the session until its end. Must be called within a runtime.
    pub(crate) fn forward(
        self,
        task: Arc<NativeTask>,
        input: ExecInputStream,
    ) -> Result<ExecOutputStream, TaskError> {
        let Self { process, ends } = self;
        let command = KillOnDrop::new(process);
        let (outputs, stream) = mpsc::channel(limits::SESSION_OUTPUTS_MAX);
        let streams = SessionStreams::new(ends).map_err(prepare_error)?;
        tokio::spawn(forward_streams(task, command, streams, input, outputs));
        Ok(ReceiverStream::new(stream).boxed())
    }
}

type Outputs = mpsc::Sender<Result<ExecOutput, TaskError>>;

async fn forward_streams(
    task: Arc<NativeTask>,
    command: KillOnDrop,
    streams: SessionStreams,
    input: ExecInputStream,
    outputs: Outputs,
) {
    let ended = watch::Sender::new(false);
    let result = {
        let SessionStreams {
            mut input_sink,
            output_sources,
        } = streams;
        let writing = input_sink.write_inputs(input);
        let forwarding = async {
            futures::future::join_all(
                output_sources
                    .into_iter()
                    .map(|source| source.forward_output(&outputs, ended.subscribe())),
            )
            .await
        };
        let following = async {
            let result = follow(&command, &task.task_process).await;
            ended.send_replace(true);
            result
        };
        tokio::pin!(writing);
        let both = async { tokio::join!(following, forwarding).0 };
        tokio::select! {
            // No client reads any more. Dropping the values here kills the command and hangs up the terminal.
            () = outputs.closed() => return,
            result = both => result,
            never = async { writing.as_mut().await; pending().await } => never,
        }
    };
    let last = match result {
        Ok(result) => Ok(ExecOutput::Exited(result)),
        Err(error) => Err(prepare_error(error)),
    };
    command.reap();
    // A client that went away does not need the end.
    drop(outputs.send(last).await);
}

/// Waits for the command's end; kills the command when the task ends before it.
async fn follow(command: &KillOnDrop, task_process: &TaskProcess) -> io::Result<ExitResult> {
    tokio::select! {
        result = command.wait() => result,
        _end = task_process.wait_end() => {
            command.kill()?;
            command.wait().await
        }
    }
}

/// The driver's ends of a session's streams, registered with the runtime.
#[derive(Debug)]
struct SessionStreams {
    input_sink: InputSink,
    output_sources: Vec<OutputSource>,
}

impl SessionStreams {
    fn new(ends: SessionFds) -> io::Result<Self> {
        Ok(match ends {
            SessionFds::Pipes {
                stdin,
                stdout,
                stderr,
            } => Self {
                input_sink: InputSink::Pipe(Some(Sender::from_owned_fd(stdin)?)),
                output_sources: vec![
                    OutputSource::Stdout(Receiver::from_owned_fd(stdout)?),
                    OutputSource::Stderr(Receiver::from_owned_fd(stderr)?),
                ],
            },
            SessionFds::Terminal(master) => {
                let master = Arc::new(Terminal::new(master)?);
                Self {
                    input_sink: InputSink::Terminal {
                        master: Arc::clone(&master),
                        in_line: false,
                    },
                    output_sources: vec![OutputSource::Terminal(master)],
                }
            }
        })
    }
}

/// The destination of a session's input.
#[derive(Debug)]
enum InputSink {
    /// The pipe; `None` after the end of the input.
    Pipe(Option<Sender>),
    Terminal {
        master: Arc<Terminal>,
        /// The last written byte did not end a line.
        in_line: bool,
    },
}

impl InputSink {
    /// Writes input until it ends. Input that the command no longer reads is discarded, so that the client is not
    /// blocked.
    async fn write_inputs(&mut self, mut input: ExecInputStream) {
        while let Some(input) = input.next().await {
            if let Err(error) = self.write_input(input).await {
                tracing::debug!(%error, "the command of a session takes no input");
                if let Self::Pipe(pipe) = self {
                    *pipe = None;
                }
            }
        }
    }

    async fn write_input(&mut self, input: ExecInput) -> io::Result<()> {
        match (self, input) {
            (Self::Pipe(Some(pipe)), ExecInput::Stdin(bytes)) => pipe.write_all(&bytes).await,
            (Self::Pipe(pipe), ExecInput::StdinClosed) => {
                *pipe = None;
                Ok(())
            }
            // Only a terminal has a size, and a closed input accepts nothing.
            (Self::Pipe(_), ExecInput::Resize(_)) | (Self::Pipe(None), ExecInput::Stdin(_)) => {
                Ok(())
            }
            (Self::Terminal { master, in_line }, ExecInput::Stdin(bytes)) => {
                if let Some(last) = bytes.last() {
                    *in_line = !matches!(last, b'\n' | b'\r');
                }
                master.write_all(&bytes).await
            }
            (Self::Terminal { master, in_line }, ExecInput::StdinClosed) => {
                master.end_input(*in_line).await
            }
            (Self::Terminal { master, .. }, ExecInput::Resize(size)) => master.resize(size),
        }
    }
}

/// The source of a session's output.
#[derive(Debug)]
enum OutputSource {
    Stdout(Receiver),
    Stderr(Receiver),
    Terminal(Arc<Terminal>),
}

impl OutputSource {
    async fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Stdout(pipe) | Self::Stderr(pipe) => pipe.read(buffer).await,
            Self::Terminal(master) => master.read(buffer).await,
        }
    }

    /// Forwards output until none can come any more. After the command's `end`, a process that it left running may
    /// hold the stream open. Then only the output that is already in the stream is forwarded.
    async fn forward_output(mut self, outputs: &Outputs, mut end: watch::Receiver<bool>) {
        let mut buffer = vec![0; limits::EXEC_READ_BYTES];
        let mut tail = limits::EXEC_TAIL_BYTES_MAX;
        while tail > 0 {
            let read = tokio::select! {
                biased;
                read = self.read(&mut buffer) => read,
                () = wait_drain_deadline(&mut end) => return,
            };
            let bytes = match read {
                Ok(0) | Err(_) => return,
                Ok(read) => buffer.get(..read).unwrap_or_default().to_vec(),
            };
            if *end.borrow() {
                tail = tail.saturating_sub(bytes.len());
            }
            let output = match self {
                Self::Stdout(_) | Self::Terminal(_) => ExecOutput::Stdout(bytes),
                Self::Stderr(_) => ExecOutput::Stderr(bytes),
            };
            if outputs.send(Ok(output)).await.is_err() {
                return;
            }
        }
    }
}

/// Returns some time after the end of the command.
async fn wait_drain_deadline(end: &mut watch::Receiver<bool>) {
    // The sender exists as long as the session.
    drop(end.wait_for(|ended| *ended).await);
    tokio::time::sleep(limits::EXEC_DRAIN_DEADLINE).await;
}
