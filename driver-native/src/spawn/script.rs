//! The calls that a process makes before its program, in order, with all data that they point to.
//!
//! The parent writes a script, and the child of [`super::spawn`] makes its calls. A script owns the data that its
//! calls point to, so the calls are valid while the script exists. A call may keep its result, a descriptor, in a
//! slot, and later calls use it from there.

use std::any::Any;
use std::borrow::Cow;
use std::ffi::{CStr, CString, c_int, c_long};
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

/// The number of results that a script can keep at once.
pub(super) const SLOTS: usize = 8;
/// The value for "no slot".
const NO_SLOT: u8 = u8::MAX;

/// The step at which the child failed.
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
    NotFound,
    /// The kernel does not support the request.
    Unsupported,
    Anything,
}

/// One system call.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Call {
    pub(super) number: c_long,
    args: [u64; 6],
    /// The slot of each argument that is taken from one.
    slots: [u8; 6],
    /// The slot that keeps the result.
    result_slot: u8,
    ignored_errno: IgnoreErrno,
    /// The only valid result, if there is one.
    expected: Option<c_long>,
}

impl Call {
    /// Returns the arguments, with the values of slots filled in. Runs in the child: it must not panic.
    pub(super) fn args(&self, slots: &[u64; SLOTS]) -> [u64; 6] {
        let mut args = self.args;
        for (arg, from) in args.iter_mut().zip(self.slots) {
            if let Some(value) = slots.get(usize::from(from)) {
                *arg = *value;
            }
        }
        args
    }

    /// Stores the result in its slot. Runs in the child: it must not panic.
    pub(super) fn store_result(&self, result: c_long, slots: &mut [u64; SLOTS]) {
        if let Some(slot) = slots.get_mut(usize::from(self.result_slot)) {
            *slot = result.cast_unsigned();
        }
    }

    /// Returns whether a successful call had the expected result. Runs in the child: it must not panic.
    pub(super) fn is_expected(&self, result: c_long) -> bool {
        self.expected.is_none_or(|expected| expected == result)
    }

    /// Returns whether the script continues after this error. Runs in the child: it must not panic.
    pub(super) fn ignores_errno(&self, errno: c_int) -> bool {
        match self.ignored_errno {
            IgnoreErrno::Nothing => false,
            IgnoreErrno::NotFound => errno == libc::ENOENT || errno == libc::ENOTDIR,
            IgnoreErrno::Unsupported => errno == libc::EINVAL,
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
    /// Sign-extends the number, as the kernel expects for `AT_FDCWD`.
    fn from(number: c_int) -> Self {
        Self::Number(i64::from(number).cast_unsigned())
    }
}

impl From<BorrowedFd<'_>> for Arg {
    fn from(file: BorrowedFd<'_>) -> Self {
        Self::File(file.as_raw_fd())
    }
}

/// The calls, and the data that they point to.
///
/// Code that adds a call must uphold three rules. An address in the call comes from [`Self::text`] or [`Self::bytes`],
/// and its data is as long as the kernel expects. The call writes to no memory of the parent. It changes only the
/// process that makes it.
#[derive(Debug, Default)]
pub(crate) struct Script {
    calls: Vec<Call>,
    steps: Vec<(SpawnStep, Cow<'static, str>)>,
    texts: Vec<CString>,
    bytes: Vec<Box<[u8]>>,
    files: Vec<OwnedFd>,
    kept: Vec<Arc<dyn Any + Send + Sync>>,
    /// The number of calls at the beginning that use the parent's file table.
    shared_calls: usize,
    /// The highest descriptor of the parent that a call uses.
    file_max: c_int,
}

impl Script {
    /// Adds a call. `operation` completes the phrase "failed to".
    pub(crate) fn call<const N: usize>(
        &mut self,
        step: SpawnStep,
        operation: impl Into<Cow<'static, str>>,
        number: c_long,
        args: [Arg; N],
    ) -> &mut Self {
        const { assert!(N <= 6) };
        let mut call = Call {
            number,
            args: [0; 6],
            slots: [NO_SLOT; 6],
            result_slot: NO_SLOT,
            ignored_errno: IgnoreErrno::Nothing,
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
        self.steps.push((step, operation.into()));
        self
    }

    /// Keeps the result of the newest call in `slot`.
    pub(crate) fn store_result_in(&mut self, slot: u8) -> &mut Self {
        assert!(usize::from(slot) < SLOTS);
        if let Some(call) = self.calls.last_mut() {
            call.result_slot = slot;
        }
        self
    }

    /// Marks that the newest call opens a file in the parent's file table. The file then belongs to the parent, see
    /// [`super::SpawnedProcess::parent_file`]. The calls before it also use that table, and open nothing.
    pub(crate) fn open_in_parent(&mut self) -> &mut Self {
        self.shared_calls = self.calls.len();
        self
    }

    /// Moves the newest call before all others.
    pub(crate) fn move_last_call_first(&mut self) {
        self.calls.rotate_right(1);
        self.steps.rotate_right(1);
        if self.shared_calls > 0 {
            self.shared_calls += 1;
        }
    }

    /// Sets the errors of the newest call that do not end the script.
    pub(crate) fn ignore_errno(&mut self, ignored_errno: IgnoreErrno) -> &mut Self {
        if let Some(call) = self.calls.last_mut() {
            call.ignored_errno = ignored_errno;
        }
        self
    }

    /// Sets the expected result of the newest call. Any other result ends the script with `EPERM`.
    pub(crate) fn expect_result(&mut self, result: u32) -> &mut Self {
        if let Some(call) = self.calls.last_mut() {
            call.expected = Some(result.into());
        }
        self
    }

    /// Returns the address of a text that lives as long as the script.
    pub(crate) fn text(&mut self, text: &CStr) -> Arg {
        // The text itself does not move when the list grows.
        let text = text.to_owned();
        let address = text.as_ptr().expose_provenance() as u64;
        self.texts.push(text);
        Arg::Number(address)
    }

    /// Returns the address of bytes that live as long as the script.
    pub(crate) fn bytes(&mut self, bytes: impl Into<Box<[u8]>>) -> Arg {
        let bytes = bytes.into();
        let address = bytes.as_ptr().expose_provenance() as u64;
        self.bytes.push(bytes);
        Arg::Number(address)
    }

    /// Returns a descriptor that stays open as long as the script lives.
    pub(crate) fn file(&mut self, file: OwnedFd) -> Arg {
        let arg = Arg::File(file.as_raw_fd());
        self.files.push(file);
        arg
    }

    /// Keeps a value that a call needs as long as the script lives.
    pub(crate) fn keep_alive(&mut self, kept: Arc<dyn Any + Send + Sync>) {
        self.kept.push(kept);
    }

    pub(super) fn calls(&self) -> &[Call] {
        &self.calls
    }

    /// Returns the number of calls at the beginning that use the parent's file table.
    pub(super) fn shared_calls(&self) -> usize {
        self.shared_calls
    }

    /// Returns the highest descriptor of the parent that a call uses.
    pub(super) fn file_max(&self) -> c_int {
        self.file_max
    }

    /// Describes the call at `at`. An index past the last call means the program.
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
            .store_result_in(2);
        script.call(SpawnStep::Network, "use", 2, [5_u32.into(), Arg::Slot(2)]);
        let mut slots = [0; SLOTS];

        script.calls()[0].store_result(42, &mut slots);

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
