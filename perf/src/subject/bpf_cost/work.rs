//! The workload of the task: two threads of a process that exchange bytes.

use std::ffi::OsString;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream, UdpSocket};
use std::time::Instant;

use anyhow::{Context as _, anyhow, bail};
use nix::sched::{CpuSet, sched_getaffinity, sched_setaffinity};
use nix::unistd::Pid;

/// The argument that makes a child the worker: see [`child`].
pub(crate) const CHILD: &str = "bpf-work";

/// Bytes of one write to a stream.
const WRITE_BYTES: usize = 64 << 10;

/// The transport of the bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Transport {
    /// One byte to and fro through pipes, which takes two context switches.
    Pipe,
    /// One datagram to and fro. Each of the two packets is sent and received.
    Udp,
    /// One byte to and fro on a connection, which takes two segments.
    Tcp,
    /// A mebibyte one way on a connection.
    Stream,
    /// A mebibyte to another process, which listens on this port.
    Send(u16),
}

/// A number of transfers over one transport.
#[derive(Clone, Copy, Debug)]
pub(super) struct Workload {
    pub(super) kind: Transport,
    pub(super) times: u64,
}

impl Workload {
    /// Returns the workload as the arguments of a command.
    pub(super) fn words(self) -> [OsString; 2] {
        let kind = match self.kind {
            Transport::Pipe => "pipe".to_owned(),
            Transport::Udp => "udp".to_owned(),
            Transport::Tcp => "tcp".to_owned(),
            Transport::Stream => "stream".to_owned(),
            Transport::Send(port) => port.to_string(),
        };
        [kind.into(), self.times.to_string().into()]
    }

    fn read(words: &[OsString]) -> anyhow::Result<Self> {
        let [kind, times] = words else {
            bail!("a kind of work and a number are wanted");
        };
        let kind = match kind.to_str() {
            Some("pipe") => Transport::Pipe,
            Some("udp") => Transport::Udp,
            Some("tcp") => Transport::Tcp,
            Some("stream") => Transport::Stream,
            Some(port) => Transport::Send(port.parse().context("a kind of work, or a port")?),
            None => bail!("a kind of work is a word"),
        };
        let times = times.to_str().context("a number")?.parse()?;
        Ok(Self { kind, times })
    }
}

/// Does the work that `words` describe, and prints its duration in nanoseconds.
pub(crate) fn child(words: &[OsString]) -> anyhow::Result<()> {
    let work = Workload::read(words)?;
    if matches!(work.kind, Transport::Pipe | Transport::Udp | Transport::Tcp) {
        pin_to_one_cpu()?;
    }
    let times = work.times;
    let nanos = match work.kind {
        Transport::Pipe => {
            let (near_in, far_out) = std::io::pipe()?;
            let (far_in, near_out) = std::io::pipe()?;
            exchange(times, (near_in, near_out), (far_in, far_out))?
        }
        Transport::Udp => {
            let near = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0))?;
            let far = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0))?;
            near.connect(far.local_addr()?)?;
            far.connect(near.local_addr()?)?;
            let (near, far) = (Datagrams(&near), Datagrams(&far));
            exchange(times, (near, near), (far, far))?
        }
        Transport::Tcp => {
            let (near, far) = connection()?;
            exchange(times, (&near, &near), (&far, &far))?
        }
        Transport::Stream => {
            let (near, far) = connection()?;
            stream(times, near, far)?
        }
        Transport::Send(port) => {
            let start = Instant::now();
            send(times, &TcpStream::connect((Ipv4Addr::LOCALHOST, port))?)?;
            start.elapsed().as_nanos()
        }
    };
    println!("{nanos}");
    Ok(())
}

/// Restricts this process to one processor, so that its threads alternate there. On two processors, each thread would
/// mostly wait for the other one's processor to leave its idle state.
fn pin_to_one_cpu() -> anyhow::Result<()> {
    let this = Pid::from_raw(0);
    let allowed = sched_getaffinity(this)?;
    let mut cpus = 0..CpuSet::count();
    let first = cpus.find(|cpu| allowed.is_set(*cpu) == Ok(true));
    let mut only = CpuSet::new();
    only.set(first.context("a processor")?)?;
    Ok(sched_setaffinity(this, &only)?)
}

fn connection() -> anyhow::Result<(TcpStream, TcpStream)> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    let near = TcpStream::connect(listener.local_addr()?)?;
    let (far, _) = listener.accept()?;
    near.set_nodelay(true)?;
    far.set_nodelay(true)?;
    Ok((near, far))
}

/// A UDP socket that is read and written like a stream.
#[derive(Clone, Copy)]
struct Datagrams<'a>(&'a UdpSocket);

impl Read for Datagrams<'_> {
    fn read(&mut self, buf: &mut [u8]) -> std::io::Result<usize> {
        self.0.recv(buf)
    }
}

impl Write for Datagrams<'_> {
    fn write(&mut self, buf: &[u8]) -> std::io::Result<usize> {
        self.0.send(buf)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// Returns the nanoseconds in which `times` bytes go to the other thread and back.
fn exchange<R: Read + Send, W: Write + Send>(
    times: u64,
    near: (impl Read, impl Write),
    far: (R, W),
) -> anyhow::Result<u128> {
    std::thread::scope(|scope| {
        let echo = scope.spawn(move || -> std::io::Result<()> {
            let (mut from, mut to) = far;
            let mut byte = [0];
            for _ in 0..times {
                from.read_exact(&mut byte)?;
                to.write_all(&byte)?;
            }
            Ok(())
        });
        let (mut from, mut to) = near;
        let mut byte = [7];
        let start = Instant::now();
        for _ in 0..times {
            to.write_all(&byte)?;
            from.read_exact(&mut byte)?;
        }
        let took = start.elapsed().as_nanos();
        echo.join().map_err(|_panic| anyhow!("the echo failed"))??;
        Ok(took)
    })
}

fn send(mebibytes: u64, mut to: &TcpStream) -> std::io::Result<()> {
    let bytes = vec![0; WRITE_BYTES];
    for _ in 0..mebibytes.saturating_mul((1 << 20) / WRITE_BYTES as u64) {
        to.write_all(&bytes)?;
    }
    Ok(())
}

/// Returns the nanoseconds of `mebibytes` in one direction.
fn stream(mebibytes: u64, near: TcpStream, mut far: TcpStream) -> anyhow::Result<u128> {
    let start = Instant::now();
    std::thread::scope(|scope| -> anyhow::Result<()> {
        // The connection ends with the sending thread, and then the reader ends too.
        let sender = scope.spawn(move || send(mebibytes, &near));
        let mut bytes = vec![0; WRITE_BYTES];
        while far.read(&mut bytes)? > 0 {}
        sender
            .join()
            .map_err(|_panic| anyhow!("the sender failed"))??;
        Ok(())
    })?;
    Ok(start.elapsed().as_nanos())
}
