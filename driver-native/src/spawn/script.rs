//! The calls of a process before its program, in their order, with everything they point to.
//!
//! The parent writes a script, the child of [`super::spawn`] walks it. A script owns what its calls point to, so that
//! it is valid as long as it lives. A call may keep its result, a descriptor, in a slot, and later calls take it from
//! there.

use std::any::Any;
use std::borrow::Cow;
use std::ffi::{CStr, CString, c_int, c_long};
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

/// Results that a script can keep at once.
pub(super) const SLOTS: usize = 8;
/// No slot.
const NO_SLOT: u8 = u8::MAX;

/// The child's step when it failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SpawnStep {
    JoinCgroup,
    Namespaces,
    Mounts,
    Network,
    Session,
    Streams,
    Limits,
    UserNamespace,
    Capabilities,
    Groups,
    Group,
    User,
    WorkDir,
    CloseFiles,
    NoNewPrivs,
    Scope,
    Seccomp,
    Exec,
}

/// Errors of a call that do not end the script.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum IgnoreErrno {
    Nothing,
    /// The object of the call is missing.
    Absence,
    /// The kernel does not know what it asks for.
    Ignorance,
    Anything,
}

/// One system call.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Call {
    pub(super) number: c_long,
    args: [u64; 6],
    /// For each argument, the slot that it is taken from.
    slots: [u8; 6],
    /// The slot that keeps the result.
    kept_in: u8,
    tolerated: IgnoreErrno,
    /// The only result that is right, if there is one.
    expected: Option<c_long>,
}

impl Call {
    /// The arguments, with those that are in slots. Runs in the child: it must not panic.
    pub(super) fn args(&self, slots: &[u64; SLOTS]) -> [u64; 6] {
        let mut args = self.args;
        for (arg, from) in args.iter_mut().zip(self.slots) {
            if let Some(value) = slots.get(usize::from(from)) {
                *arg = *value;
            }
        }
        args
    }

    /// Runs in the child: it must not panic.
    pub(super) fn keep(&self, result: c_long, slots: &mut [u64; SLOTS]) {
        if let Some(slot) = slots.get_mut(usize::from(self.kept_in)) {
            *slot = result.cast_unsigned();
        }
    }

    /// Whether a call that succeeded did what it was made for. Runs in the child: it must not panic.
    pub(super) fn is_expected(&self, result: c_long) -> bool {
        self.expected.is_none_or(|expected| expected == result)
    }

    /// Runs in the child: it must not panic.
    pub(super) fn tolerates(&self, errno: c_int) -> bool {
        match self.tolerated {
            IgnoreErrno::Nothing => false,
            IgnoreErrno::Absence => errno == libc::ENOENT || errno == libc::ENOTDIR,
            IgnoreErrno::Ignorance => errno == libc::EINVAL,
            IgnoreErrno::Anything => true,
        }
    }
}

/// An argument of a call.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Arg {
    Number(u64),
    /// A descriptor of the parent.
    File(c_int),
    /// A descriptor that an earlier call kept.
    Slot(u8),
}

impl From<u64> for Arg {
    fn from(number: u64) -> Self {
        Self::Number(number)
    }
}

impl From<u32> for Arg {
    fn from(number: u32) -> Self {
        Self::Number(number.into())
    }
}

impl From<c_int> for Arg {
    /// Sign-extended, as the kernel takes `AT_FDCWD`.
    fn from(number: c_int) -> Self {
        Self::Number(i64::from(number).cast_unsigned())
    }
}

impl From<BorrowedFd<'_>> for Arg {
    fn from(file: BorrowedFd<'_>) -> Self {
        Self::File(file.as_raw_fd())
    }
}

/// The calls, and what they point to.
///
/// Code that adds a call must uphold three rules. An address in it comes from [`Self::text`] or [`Self::bytes`] and is
/// as long as the kernel takes it for. The call writes to no memory of the parent. It changes nothing but the process
/// that makes it.
#[derive(Debug, Default)]
pub(crate) struct Script {
    calls: Vec<Call>,
    steps: Vec<(SpawnStep, Cow<'static, str>)>,
    texts: Vec<CString>,
    bytes: Vec<Box<[u8]>>,
    files: Vec<OwnedFd>,
    kept: Vec<Arc<dyn Any + Send + Sync>>,
    /// So many of the first calls are made with the parent's table of files.
    shared_calls: usize,
    /// The highest descriptor of the parent that a call names.
    file_max: c_int,
}

impl Script {
    /// Adds a call. `about` completes "failed to".
    pub(crate) fn call<const N: usize>(
        &mut self,
        step: SpawnStep,
        about: impl Into<Cow<'static, str>>,
        number: c_long,
        args: [Arg; N],
    ) -> &mut Self {
        const { assert!(N <= 6) };
        let mut call = Call {
            number,
            args: [0; 6],
            slots: [NO_SLOT; 6],
            kept_in: NO_SLOT,
            tolerated: IgnoreErrno::Nothing,
            expected: None,
        };
        for (place, arg) in args.into_iter().enumerate() {
            match arg {
                Arg::Number(value) => call.args[place] = value,
                Arg::File(number) => {
                    call.args[place] = i64::from(number).cast_unsigned();
                    self.file_max = self.file_max.max(number);
                }
                Arg::Slot(slot) => call.slots[place] = slot,
            }
        }
        self.calls.push(call);
        self.steps.push((step, about.into()));
        self
    }

    /// The result of the newest call goes to `slot`.
    pub(crate) fn kept_in(&mut self, slot: u8) -> &mut Self {
        assert!(usize::from(slot) < SLOTS);
        if let Some(call) = self.calls.last_mut() {
            call.kept_in = slot;
        }
        self
    }

    /// The newest call opens a file in the parent's table of files, where it stays: it is the parent's, see
    /// [`super::SpawnedProcess::left`]. The calls before it are made with that table, too, and open nothing.
    pub(crate) fn left_to_parent(&mut self) -> &mut Self {
        self.shared_calls = self.calls.len();
        self
    }

    /// The newest call is made before all others.
    pub(crate) fn last_to_front(&mut self) {
        self.calls.rotate_right(1);
        self.steps.rotate_right(1);
        if self.shared_calls > 0 {
            self.shared_calls += 1;
        }
    }

    /// Such errors of the newest call are none.
    pub(crate) fn tolerating(&mut self, tolerated: IgnoreErrno) -> &mut Self {
        if let Some(call) = self.calls.last_mut() {
            call.tolerated = tolerated;
        }
        self
    }

    /// Any other result of the newest call than this one ends the script with `EPERM`.
    pub(crate) fn expecting(&mut self, result: u32) -> &mut Self {
        if let Some(call) = self.calls.last_mut() {
            call.expected = Some(result.into());
        }
        self
    }

    /// The address of a text that lives as long as the script.
    pub(crate) fn text(&mut self, text: &CStr) -> Arg {
        // The text itself does not move when the list grows.
        let text = text.to_owned();
        let address = text.as_ptr().expose_provenance() as u64;
        self.texts.push(text);
        Arg::Number(address)
    }

    /// The address of bytes that live as long as the script.
    pub(crate) fn bytes(&mut self, bytes: impl Into<Box<[u8]>>) -> Arg {
        let bytes = bytes.into();
        let address = bytes.as_ptr().expose_provenance() as u64;
        self.bytes.push(bytes);
        Arg::Number(address)
    }

    /// A descriptor that stays open as long as the script lives.
    pub(crate) fn file(&mut self, file: OwnedFd) -> Arg {
        let arg = Arg::File(file.as_raw_fd());
        self.files.push(file);
        arg
    }

    /// Holds what a call needs, as long as the script lives.
    pub(crate) fn keep_alive(&mut self, kept: Arc<dyn Any + Send + Sync>) {
        self.kept.push(kept);
    }

    pub(super) fn calls(&self) -> &[Call] {
        &self.calls
    }

    /// So many of the first calls are made with the parent's table of files.
    pub(super) fn shared_calls(&self) -> usize {
        self.shared_calls
    }

    /// The highest descriptor of the parent that a call names.
    pub(super) fn file_max(&self) -> c_int {
        self.file_max
    }

    /// Describes the call at `at`; past the last it is the program.
    pub(super) fn describe(&self, at: usize) -> (SpawnStep, Cow<'static, str>) {
        self.steps
            .get(at)
            .cloned()
            .unwrap_or((SpawnStep::Exec, Cow::Borrowed("load the program")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slot_takes_the_place_of_its_argument() {
        let mut script = Script::default();
        script
            .call(SpawnStep::Network, "make", 1, [7_u32.into()])
            .kept_in(2);
        script.call(SpawnStep::Network, "use", 2, [5_u32.into(), Arg::Slot(2)]);
        let mut slots = [0; SLOTS];

        script.calls()[0].keep(42, &mut slots);

        assert_eq!(script.calls()[1].args(&slots), [5, 42, 0, 0, 0, 0]);
        assert_eq!(script.describe(2).0, SpawnStep::Exec);
    }

    #[test]
    fn highest_file_is_known_and_numbers_are_none() {
        let mut script = Script::default();
        let file = std::fs::File::open("/dev/null").unwrap();
        let number = file.as_raw_fd();

        script.call(SpawnStep::Streams, "use", 1, [i32::MAX.into()]);
        let held = script.file(file.into());
        script.call(SpawnStep::Streams, "use", 2, [held, 0.into()]);

        assert_eq!(script.file_max(), number);
    }

    #[test]
    fn minus_one_is_sign_extended() {
        assert!(matches!(Arg::from(-100), Arg::Number(n) if n == u64::MAX - 99));
    }
}
