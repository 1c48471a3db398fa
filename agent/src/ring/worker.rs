//! The thread: takes commands, keeps the table of streams, runs a local task for each.

use std::collections::{BTreeMap, HashSet};
use std::io;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::mpsc::SyncSender;
use std::time::Duration;

use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::{JoinHandle, LocalSet};
use tokio::time::{Instant, MissedTickBehavior};

use crate::logs::{LogDir, RotatingFile};
use crate::ring::limits::{REST_MAX, REST_SWEEP, RING_ENTRIES, STREAMS_MAX};
use crate::ring::readiness::Readiness;
use crate::ring::stream::{Stream, StreamProgress, StreamRequest, StreamRules};
use crate::ring::{
    AttachError, DetachReport, Engine, EngineChoice, OnFull, RingConfig, StreamId, StreamSpec,
    StreamStats, Transfer,
};

/// A request to the loop. An answer without a receiver is dropped.
#[derive(Debug)]
pub(crate) enum Command {
    Attach {
        spec: Box<StreamSpec>,
        answer: oneshot::Sender<Result<StreamId, AttachError>>,
    },
    Detach {
        stream_id: StreamId,
        within: Duration,
        answer: oneshot::Sender<Option<DetachReport>>,
    },
    Stats {
        stream_id: StreamId,
        answer: oneshot::Sender<Option<StreamStats>>,
    },
    #[cfg(test)]
    Sweep { answer: oneshot::Sender<()> },
}

/// The one message of [`run`] at its start: the engine, or why there is none.
pub(crate) type StartResult = Result<Engine, Option<io::Error>>;

/// Runs the thread until it ends.
pub(crate) fn run(
    config: RingConfig,
    inbox: mpsc::Receiver<Command>,
    started: &SyncSender<StartResult>,
) {
    let ring = match config.engine {
        EngineChoice::Epoll => Err("asked for".to_owned()),
        EngineChoice::Auto => {
            tokio_uring::Runtime::new(tokio_uring::builder().entries(RING_ENTRIES))
                .map_err(|error| format!("io_uring: {error}"))
        }
    };
    match ring {
        Ok(runtime) => {
            let worker = Worker::new(Engine::IoUring, config.transfer);
            send_start_result(started, Ok(Engine::IoUring));
            runtime.block_on(worker.serve(inbox));
        }
        Err(reason) => {
            let engine = Engine::Epoll { reason };
            match tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()
            {
                Ok(runtime) => {
                    send_start_result(started, Ok(engine.clone()));
                    let worker = Worker::new(engine, config.transfer);
                    LocalSet::new().block_on(&runtime, worker.serve(inbox));
                }
                Err(error) => send_start_result(started, Err(Some(error))),
            }
        }
    }
}

fn send_start_result(started: &SyncSender<StartResult>, what: StartResult) {
    if started.send(what).is_err() {
        tracing::debug!("the starter of the log thread has gone");
    }
}

/// A stream's directory and name.
type StreamKey = (PathBuf, String);

struct AttachedStream {
    key: StreamKey,
    requests: watch::Sender<StreamRequest>,
    progress: Rc<StreamProgress>,
    task: JoinHandle<DetachReport>,
}

struct Worker {
    engine: Engine,
    transfer: Transfer,
    epoch: Instant,
    streams: BTreeMap<StreamId, AttachedStream>,
    /// The keys of `streams`, because a look through thousands of streams for each attach would be slow.
    keys: HashSet<StreamKey>,
    next_id: u64,
    /// Streams that were requested to finish, and whose callers wait for them.
    finishing: Vec<(StreamKey, JoinHandle<()>)>,
}

impl Worker {
    fn new(engine: Engine, transfer: Transfer) -> Self {
        // The clock is read where the runtime is known, so that a paused clock would hold here too.
        let epoch = Instant::now();
        let (streams, finishing) = (BTreeMap::new(), Vec::new());
        Self {
            engine,
            transfer,
            epoch,
            streams,
            keys: HashSet::new(),
            next_id: 0,
            finishing,
        }
    }

    /// Executes commands until all senders are dropped, then stops each stream at once.
    async fn serve(mut self, mut inbox: mpsc::Receiver<Command>) {
        let mut sweep = tokio::time::interval_at(Instant::now() + REST_SWEEP, REST_SWEEP);
        sweep.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                command = inbox.recv() => match command {
                    Some(command) => self.handle_command(command),
                    None => break,
                },
                _tick = sweep.tick(), if !self.streams.is_empty() => self.sweep(),
            }
        }
        for stream in self.streams.values() {
            stream.requests.send_replace(StreamRequest::Halt);
        }
        for stream in std::mem::take(&mut self.streams).into_values() {
            join(stream.task).await;
        }
        for (_, finishing) in self.finishing {
            // Aborting drops the sender of requests, which ends the stream at once.
            finishing.abort();
        }
    }

    fn handle_command(&mut self, command: Command) {
        let is_delivered = match command {
            Command::Attach { spec, answer } => answer.send(self.attach(*spec)).is_ok(),
            Command::Stats { stream_id, answer } => {
                let stream = self.streams.get(&stream_id);
                answer
                    .send(stream.map(|stream| stream.progress.stats.borrow().clone()))
                    .is_ok()
            }
            Command::Detach {
                stream_id,
                within,
                answer,
            } => {
                self.detach(stream_id, within, answer);
                true
            }
            #[cfg(test)]
            Command::Sweep { answer } => {
                self.sweep();
                answer.send(()).is_ok()
            }
        };
        if !is_delivered {
            tracing::debug!("the receiver of the log loop's answer has gone");
        }
    }

    /// Wakes streams that have been silent, to close their files.
    fn sweep(&self) {
        let silent = self
            .streams
            .values()
            .filter(|stream| stream.progress.should_close_files());
        for stream in silent.take(REST_MAX) {
            stream.requests.send_replace(StreamRequest::Run);
        }
    }

    fn attach(&mut self, spec: StreamSpec) -> Result<StreamId, AttachError> {
        let StreamSpec {
            fifo,
            dir,
            name,
            limits,
            on_full,
            rate,
            begins,
        } = spec;
        let key = (dir, name);
        if self.streams.len() >= STREAMS_MAX {
            return Err(AttachError::Full { max: STREAMS_MAX });
        }
        self.finishing
            .retain(|(_, finishing)| !finishing.is_finished());
        let finishing = self.finishing.iter().any(|(taken, _)| *taken == key);
        if finishing || self.keys.contains(&key) {
            return Err(AttachError::Twice {
                dir: key.0,
                name: key.1,
            });
        }
        // The directory is checked first: without it, no stream begins.
        let dir = LogDir::open(&key.0)?;
        let mut file = if begins {
            RotatingFile::new(key.0.clone(), &key.1, limits)?
        } else {
            RotatingFile::open(dir, &key.1, limits)?
        };
        if on_full == OnFull::Drop {
            // Space is reserved now, because a full disk would later leave none for the records of gaps.
            file.reserve_gaps()?;
            file.rest();
        }
        let capacity = fifo.capacity();
        let fifo = self
            .readiness(fifo.into_fd())
            .map_err(|source| AttachError::Wait {
                name: key.1.clone(),
                source,
            })?;
        let rules = StreamRules {
            on_full,
            rate,
            transfer: self.transfer,
        };
        let stream = Box::new(Stream::new(fifo, file, rules, capacity, self.epoch));
        let (requests, inbox) = watch::channel(StreamRequest::Run);
        let progress = stream.progress();
        let task = tokio::task::spawn_local(stream.run(inbox));
        let stream_id = StreamId(self.next_id);
        self.next_id += 1;
        self.keys.insert(key.clone());
        self.streams.insert(
            stream_id,
            AttachedStream {
                key,
                requests,
                progress,
                task,
            },
        );
        Ok(stream_id)
    }

    fn readiness(&self, fd: OwnedFd) -> io::Result<Readiness> {
        match self.engine {
            Engine::IoUring => Ok(Readiness::io_uring(fd)),
            Engine::Epoll { .. } => Readiness::epoll(fd),
        }
    }

    fn detach(
        &mut self,
        stream_id: StreamId,
        within: Duration,
        answer: oneshot::Sender<Option<DetachReport>>,
    ) {
        let Some(stream) = self.streams.remove(&stream_id) else {
            if answer.send(None).is_err() {
                tracing::debug!("the receiver of the log loop's answer has gone");
            }
            return;
        };
        self.keys.remove(&stream.key);
        stream
            .requests
            .send_replace(StreamRequest::Finish(Instant::now() + within));
        let key = stream.key.clone();
        let finishing = tokio::task::spawn_local(async move {
            // The sender lives as long as its stream.
            let AttachedStream { task, requests, .. } = stream;
            if answer.send(join(task).await).is_err() {
                tracing::debug!("the receiver of a detached log has gone");
            }
            drop(requests);
        });
        self.finishing.push((key, finishing));
    }
}

async fn join(task: JoinHandle<DetachReport>) -> Option<DetachReport> {
    task.await
        .inspect_err(|error| tracing::error!(%error, "a log stream panicked"))
        .ok()
}
