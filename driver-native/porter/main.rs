//! Carries files into a task and out of it, with the user, namespaces, cgroup and seccomp filter of the task.
//!
//! `muster-porter in DIRECTORY` reads standard input and creates the files beneath DIRECTORY. It creates DIRECTORY
//! too. `muster-porter out FILE` writes the content of FILE to standard output, if FILE is a regular file. A failure
//! is one message on standard error and the exit code 1.
//!
//! The driver has checked the bytes that it sends. This program has no rights that the task does not have, so the
//! kernel checks them a second time. Beneath DIRECTORY the porter follows no link, and it writes nothing through an
//! existing file: it removes a file with the same name.
//!
//! An input message has a head of 24 bytes, the name, the link, and as many file bytes as the size field. The head is
//! little-endian. Its fields and their bytes: kind, 1; padding, 1; lengths of name and link with their zero bytes, 2
//! each; padding, 2; mode, 4; padding, 4; size, 8. Kinds: `d` directory, `f` file, `l` symbolic link, `h` hard link,
//! `e` the end. The message on standard error: the letter of the operation, 3 bytes of padding, the error number, 4,
//! the name.
//!
//! The program is static and has no standard library, like the reaper in `../init`, because it must run in any root.
#![no_std]
#![no_main]

use core::arch::{asm, global_asm};

global_asm!(
    ".globl _start",
    "_start:",
    "xor ebp, ebp",
    "mov rdi, rsp",
    "and rsp, -16",
    "call {main}",
    "ud2",
    main = sym main,
);

const SYS_READ: usize = 0;
const SYS_WRITE: usize = 1;
const SYS_CLOSE: usize = 3;
const SYS_FSTAT: usize = 5;
const SYS_RT_SIGPROCMASK: usize = 14;
const SYS_UMASK: usize = 95;
const SYS_EXIT_GROUP: usize = 231;
const SYS_OPENAT: usize = 257;
const SYS_MKDIRAT: usize = 258;
const SYS_UNLINKAT: usize = 263;
const SYS_LINKAT: usize = 265;
const SYS_SYMLINKAT: usize = 266;
const SYS_OPENAT2: usize = 437;

const AT_FDCWD: usize = -100_isize as usize;
const O_WRONLY: usize = 0o1;
const O_CREAT: usize = 0o100;
const O_EXCL: usize = 0o200;
const O_NOCTTY: usize = 0o400;
const O_NONBLOCK: usize = 0o4000;
const O_DIRECTORY: usize = 0o200_000;
const O_NOFOLLOW: usize = 0o400_000;
const O_CLOEXEC: usize = 0o2_000_000;
const O_PATH: usize = 0o10_000_000;
/// RESOLVE_NO_MAGICLINKS, RESOLVE_NO_SYMLINKS, RESOLVE_BENEATH of openat2(2).
const BENEATH: u64 = 0x02 | 0x04 | 0x08;
const SIG_SETMASK: usize = 2;
const SIGSET_BYTES: usize = 8;
const S_IFMT: u32 = 0o170_000;
const S_IFREG: u32 = 0o100_000;
/// The position of `st_mode` in the kernel's `struct stat`, and the length of the structure (x86_64).
const STAT_MODE: usize = 24;
const STAT_BYTES: usize = 144;

const EINTR: i64 = -4;
const EEXIST: i64 = -17;
const EINVAL: i64 = -22;
const ENODATA: i64 = -61;

/// The longest name that the kernel accepts, with its zero byte.
const NAME_BYTES_MAX: usize = 4_096;
const HEAD_BYTES: usize = 24;
const CHUNK_BYTES: usize = 64 << 10;

/// The current operation, for messages.
#[derive(Clone, Copy)]
enum Operation {
    Directory = b'd' as isize,
    File = b'f' as isize,
    Hard = b'h' as isize,
    Symbolic = b'l' as isize,
    Open = b'o' as isize,
    /// The input is invalid or ends too early: the driver has a fault or has died.
    Read = b'r' as isize,
    Send = b's' as isize,
    Write = b'w' as isize,
}

static mut CHUNK: [u8; CHUNK_BYTES] = [0; CHUNK_BYTES];
static mut NAME: [u8; NAME_BYTES_MAX] = [0; NAME_BYTES_MAX];
static mut LINK: [u8; NAME_BYTES_MAX] = [0; NAME_BYTES_MAX];

/// # Safety
///
/// The arguments are valid for the system call `number`.
unsafe fn call(number: usize, args: [usize; 5]) -> i64 {
    let result: i64;
    // SAFETY: the caller's promise; the kernel keeps every register but these.
    unsafe {
        asm!(
            "syscall",
            inlateout("rax") number => result,
            in("rdi") args[0],
            in("rsi") args[1],
            in("rdx") args[2],
            in("r10") args[3],
            in("r8") args[4],
            lateout("rcx") _,
            lateout("r11") _,
        );
    }
    result
}

/// # Safety
///
/// `stack` is the initial stack that the kernel gives a new program: the number of arguments, their addresses, a null.
unsafe extern "C" fn main(stack: *const usize) -> ! {
    let all = u64::MAX;
    let set = [SIG_SETMASK, &raw const all as usize, 0, SIGSET_BYTES, 0];
    // Signals are meant for the task's programs. This program ends with its work, or is killed. SAFETY: the set has
    // the kernel's size.
    unsafe { call(SYS_RT_SIGPROCMASK, set) };
    // The driver sets the modes. SAFETY: no pointers.
    unsafe { call(SYS_UMASK, [0; 5]) };
    // SAFETY: the driver gives three arguments, each a text with a zero byte at its end.
    let (direction, path) = unsafe { (*stack.wrapping_add(2) as *const u8, *stack.wrapping_add(3) as *mut u8) };
    // SAFETY: a text has at least its zero byte.
    match unsafe { *direction } {
        // SAFETY: the arguments are this process's own to write to.
        b'i' => unsafe { unpack_tree(path) },
        // SAFETY: the path ends with a zero byte.
        _ => unsafe { send_file(path) },
    }
    exit(0)
}

/// Writes a file to standard output.
///
/// # Safety
///
/// `path` ends with a zero byte.
unsafe fn send_file(path: *const u8) {
    let mut stat = [0_u8; STAT_BYTES];
    let flags = O_NONBLOCK | O_NOCTTY | O_CLOEXEC;
    // SAFETY: the path ends with a zero byte.
    let file = unsafe { call(SYS_OPENAT, [AT_FDCWD, path as usize, flags, 0, 0]) };
    // SAFETY: the path ends with a zero byte.
    let file = unsafe { checked(file, Operation::Open, path) };
    // SAFETY: the buffer has the kernel's size.
    let looked = unsafe { call(SYS_FSTAT, [file, stat.as_mut_ptr() as usize, 0, 0, 0]) };
    // SAFETY: as above.
    unsafe { checked(looked, Operation::Open, path) };
    let mode = u32::from_le_bytes([
        stat[STAT_MODE],
        stat[STAT_MODE + 1],
        stat[STAT_MODE + 2],
        stat[STAT_MODE + 3],
    ]);
    if mode & S_IFMT != S_IFREG {
        // SAFETY: as above.
        unsafe { fail(Operation::Open, EINVAL, path) };
    }
    let chunk = &raw mut CHUNK as usize;
    loop {
        // SAFETY: the buffer has that many bytes, and no other code uses it.
        let read = unsafe { call(SYS_READ, [file, chunk, CHUNK_BYTES, 0, 0]) };
        if read == EINTR {
            continue;
        }
        // SAFETY: as above.
        let read = unsafe { checked(read, Operation::Send, path) };
        if read == 0 {
            return;
        }
        // SAFETY: so many bytes were read.
        unsafe { write_all(1, chunk, read, Operation::Send, path) };
    }
}

/// Creates the entries from standard input beneath a directory.
///
/// # Safety
///
/// `path` ends with a zero byte and can be written to.
unsafe fn unpack_tree(path: *mut u8) {
    // SAFETY: the caller's promise.
    let root = unsafe { make_root(path) };
    let (name, link) = (&raw mut NAME as *mut u8, &raw mut LINK as *mut u8);
    loop {
        let mut head = [0_u8; HEAD_BYTES];
        // SAFETY: the buffer has that many bytes.
        unsafe { read_all(head.as_mut_ptr(), HEAD_BYTES) };
        let name_bytes = usize::from(u16::from_le_bytes([head[2], head[3]]));
        let link_bytes = usize::from(u16::from_le_bytes([head[4], head[5]]));
        let mode = u32::from_le_bytes([head[8], head[9], head[10], head[11]]) as usize;
        let size = u64::from_le_bytes([
            head[16], head[17], head[18], head[19], head[20], head[21], head[22], head[23],
        ]);
        if head[0] == b'e' {
            return;
        }
        // SAFETY: both buffers have room for NAME_BYTES_MAX, which was checked, and no other code uses them.
        unsafe {
            read_name(name, name_bytes);
            read_name(link, link_bytes);
        }
        // SAFETY: both end with a zero byte now, and `root` is an open directory.
        unsafe {
            match head[0] {
                b'd' => make_dir(root, name, mode),
                b'f' => make_file(root, name, mode, size),
                b'l' => make_symbolic(root, name, link),
                b'h' => make_hard(root, name, link),
                _ => fail(Operation::Read, EINVAL, name),
            }
        }
    }
}

/// Opens the directory to write beneath, and creates it with all its parents. The task names this directory, in its
/// own view and with its own rights, so links in the path are followed.
///
/// # Safety
///
/// `path` ends with a zero byte and can be written to.
unsafe fn make_root(path: *mut u8) -> usize {
    let mut at = path;
    loop {
        // SAFETY: `at` does not go beyond the zero byte.
        let byte = unsafe { *at };
        if (byte == b'/' && at != path) || byte == 0 {
            // SAFETY: the byte is the path's own, and is put back.
            unsafe { *at = 0 };
            // SAFETY: the path ends with a zero byte. An existing directory is fine. A failure shows when the
            // directory is opened later.
            unsafe { call(SYS_MKDIRAT, [AT_FDCWD, path as usize, 0o755, 0, 0]) };
            // SAFETY: as above.
            unsafe { *at = byte };
        }
        if byte == 0 {
            break;
        }
        at = at.wrapping_add(1);
    }
    let flags = O_PATH | O_DIRECTORY | O_CLOEXEC;
    // SAFETY: the path ends with a zero byte.
    let root = unsafe { call(SYS_OPENAT, [AT_FDCWD, path as usize, flags, 0, 0]) };
    // SAFETY: as above.
    unsafe { checked(root, Operation::Open, path) }
}

/// # Safety
///
/// `name` ends with a zero byte and `root` is an open directory.
unsafe fn make_dir(root: usize, name: *mut u8, mode: usize) {
    // SAFETY: the caller's promise.
    let (dir, last) = unsafe { walk(root, name, Operation::Directory) };
    // SAFETY: as above.
    let made = unsafe { call(SYS_MKDIRAT, [dir, last as usize, mode, 0, 0]) };
    let result = if made == EEXIST {
        // An existing entry must be a directory, and not a link to one. SAFETY: as above.
        let there = unsafe { open_beneath(dir, last, O_PATH | O_DIRECTORY, 0) };
        close(there);
        there
    } else {
        made
    };
    // SAFETY: as above.
    unsafe { checked(result, Operation::Directory, name) };
    leave(dir, root);
}

/// # Safety
///
/// `name` ends with a zero byte and `root` is an open directory.
unsafe fn make_file(root: usize, name: *mut u8, mode: usize, size: u64) {
    // SAFETY: the caller's promise.
    let (dir, last) = unsafe { walk(root, name, Operation::File) };
    let flags = O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_NOCTTY;
    // SAFETY: as above.
    let mut file = unsafe { open_beneath(dir, last, flags, mode) };
    if file == EEXIST {
        // SAFETY: as above.
        unsafe { call(SYS_UNLINKAT, [dir, last as usize, 0, 0, 0]) };
        // SAFETY: as above.
        file = unsafe { open_beneath(dir, last, flags, mode) };
    }
    // SAFETY: as above.
    let opened = unsafe { checked(file, Operation::File, name) };
    let chunk = &raw mut CHUNK as *mut u8;
    let mut left = size;
    while left > 0 {
        let some = if left > CHUNK_BYTES as u64 { CHUNK_BYTES } else { left as usize };
        // SAFETY: the buffer has room for CHUNK_BYTES, and no other code uses it.
        unsafe { read_all(chunk, some) };
        // SAFETY: so many bytes were read.
        unsafe { write_all(opened, chunk as usize, some, Operation::Write, name) };
        left -= some as u64;
    }
    close(file);
    leave(dir, root);
}

/// # Safety
///
/// `name` and `link` end with zero bytes and `root` is an open directory.
unsafe fn make_symbolic(root: usize, name: *mut u8, link: *mut u8) {
    // SAFETY: the caller's promise.
    let (dir, last) = unsafe { walk(root, name, Operation::Symbolic) };
    let args = [link as usize, dir, last as usize, 0, 0];
    // SAFETY: as above.
    let mut made = unsafe { call(SYS_SYMLINKAT, args) };
    if made == EEXIST {
        // SAFETY: as above.
        unsafe { call(SYS_UNLINKAT, [dir, last as usize, 0, 0, 0]) };
        // SAFETY: as above.
        made = unsafe { call(SYS_SYMLINKAT, args) };
    }
    // SAFETY: as above.
    unsafe { checked(made, Operation::Symbolic, name) };
    leave(dir, root);
}

/// # Safety
///
/// `name` and `link` end with zero bytes and `root` is an open directory.
unsafe fn make_hard(root: usize, name: *mut u8, link: *mut u8) {
    // SAFETY: the caller's promise.
    let (from, from_last) = unsafe { walk(root, link, Operation::Hard) };
    // SAFETY: as above.
    let (dir, last) = unsafe { walk(root, name, Operation::Hard) };
    // Without AT_SYMLINK_FOLLOW, a link is linked and not its target.
    let args = [from, from_last as usize, dir, last as usize, 0];
    // SAFETY: as above.
    let mut made = unsafe { call(SYS_LINKAT, args) };
    if made == EEXIST {
        // SAFETY: as above.
        unsafe { call(SYS_UNLINKAT, [dir, last as usize, 0, 0, 0]) };
        // SAFETY: as above.
        made = unsafe { call(SYS_LINKAT, args) };
    }
    // SAFETY: as above.
    unsafe { checked(made, Operation::Hard, name) };
    leave(from, root);
    leave(dir, root);
}

/// Returns the directory that contains `name`, created with all its parents, and the last part of `name`. No link is
/// followed.
///
/// # Safety
///
/// `name` ends with a zero byte and `root` is an open directory.
unsafe fn walk(root: usize, name: *mut u8, act: Operation) -> (usize, *mut u8) {
    let (mut dir, mut part, mut at) = (root, name, name);
    loop {
        // SAFETY: `at` does not go beyond the zero byte.
        let byte = unsafe { *at };
        if byte == 0 {
            return (dir, part);
        }
        if byte == b'/' {
            // SAFETY: the byte is the name's own, and is put back.
            unsafe { *at = 0 };
            // SAFETY: the part ends with a zero byte.
            unsafe { call(SYS_MKDIRAT, [dir, part as usize, 0o755, 0, 0]) };
            // SAFETY: as above.
            let next = unsafe { open_beneath(dir, part, O_PATH | O_DIRECTORY, 0) };
            // SAFETY: as above.
            unsafe { *at = b'/' };
            // SAFETY: the name ends with a zero byte.
            let next = unsafe { checked(next, act, name) };
            leave(dir, root);
            dir = next;
            part = at.wrapping_add(1);
        }
        at = at.wrapping_add(1);
    }
}

/// Opens `name` in `dir`. No link is followed, neither in the path nor at its end.
///
/// # Safety
///
/// `name` ends with a zero byte.
unsafe fn open_beneath(dir: usize, name: *const u8, flags: usize, mode: usize) -> i64 {
    // `struct open_how`: flags, mode, resolve.
    let how = [(flags | O_CLOEXEC) as u64, mode as u64, BENEATH];
    let args = [dir, name as usize, &raw const how as usize, size_of_val(&how), 0];
    // SAFETY: the caller's promise, and `how` has its size.
    unsafe { call(SYS_OPENAT2, args) }
}

/// Reads a name that ends with a zero byte. Zero bytes mean an empty name.
///
/// # Safety
///
/// `to` has room for [`NAME_BYTES_MAX`].
unsafe fn read_name(to: *mut u8, bytes: usize) {
    // SAFETY: there is room for one.
    unsafe { *to = 0 };
    if bytes == 0 {
        return;
    }
    if bytes > NAME_BYTES_MAX {
        // SAFETY: the empty name ends with its zero byte.
        unsafe { fail(Operation::Read, EINVAL, to) };
    }
    // SAFETY: there is room, see above.
    unsafe { read_all(to, bytes) };
    // SAFETY: as above. Nothing is read beyond this byte, regardless of the input.
    unsafe { *to.wrapping_add(bytes - 1) = 0 };
}

/// # Safety
///
/// `to` has room for `bytes`.
unsafe fn read_all(to: *mut u8, bytes: usize) {
    let mut done = 0;
    while done < bytes {
        let args = [0, to as usize + done, bytes - done, 0, 0];
        // SAFETY: there is room for the remaining bytes.
        let read = unsafe { call(SYS_READ, args) };
        if read == EINTR {
            continue;
        }
        let nothing = c"".as_ptr().cast();
        // SAFETY: the text ends with a zero byte.
        let read = unsafe { checked(read, Operation::Read, nothing) };
        if read == 0 {
            // SAFETY: as above.
            unsafe { fail(Operation::Read, ENODATA, nothing) };
        }
        done += read;
    }
}

/// # Safety
///
/// `bytes` can be read at the address `from`, and `name` ends with a zero byte.
unsafe fn write_all(file: usize, from: usize, bytes: usize, act: Operation, name: *const u8) {
    let mut done = 0;
    while done < bytes {
        // SAFETY: the remaining bytes can be read.
        let written = unsafe { call(SYS_WRITE, [file, from + done, bytes - done, 0, 0]) };
        if written == EINTR {
            continue;
        }
        // SAFETY: the caller's promise.
        done += unsafe { checked(written, act, name) };
    }
}

/// Closes a directory that [`walk`] opened.
fn leave(dir: usize, root: usize) {
    if dir != root {
        close(dir as i64);
    }
}

fn close(file: i64) {
    if file >= 0 {
        // SAFETY: no pointers.
        unsafe { call(SYS_CLOSE, [file as usize, 0, 0, 0, 0]) };
    }
}

/// Returns the result of a successful call. A failed call ends the program.
///
/// # Safety
///
/// `name` ends with a zero byte.
unsafe fn checked(result: i64, act: Operation, name: *const u8) -> usize {
    if result < 0 {
        // SAFETY: the caller's promise.
        unsafe { fail(act, result, name) };
    }
    result as usize
}

/// Reports the failed operation and ends the program.
///
/// # Safety
///
/// `name` ends with a zero byte.
unsafe fn fail(act: Operation, error: i64, name: *const u8) -> ! {
    let number = (-error) as i32;
    let [a, b, c, d] = number.to_le_bytes();
    let head = [act as u8, 0, 0, 0, a, b, c, d];
    let mut bytes = 0;
    // Volatile, or the compiler makes a call to strlen of it. SAFETY: the loop ends at the zero byte.
    while unsafe { name.wrapping_add(bytes).read_volatile() } != 0 {
        bytes += 1;
    }
    // SAFETY: the head has eight bytes, the name as many as were counted.
    unsafe {
        call(SYS_WRITE, [2, head.as_ptr() as usize, head.len(), 0, 0]);
        call(SYS_WRITE, [2, name as usize, bytes, 0, 0]);
    }
    exit(1)
}

fn exit(code: usize) -> ! {
    loop {
        // SAFETY: no pointers.
        unsafe { call(SYS_EXIT_GROUP, [code, 0, 0, 0, 0]) };
    }
}

/// The compiler may call this function for any array; this program links no library that contains it.
///
/// # Safety
///
/// `bytes` can be written at `to`.
#[unsafe(no_mangle)]
unsafe extern "C" fn memset(to: *mut u8, value: i32, bytes: usize) -> *mut u8 {
    // SAFETY: the caller's promise.
    unsafe {
        asm!("rep stosb", inout("rcx") bytes => _, inout("rdi") to => _, in("al") value as u8, options(nostack));
    }
    to
}

/// As [`memset`].
///
/// # Safety
///
/// `bytes` can be read at `from` and written at `to`, and the two do not overlap.
#[unsafe(no_mangle)]
unsafe extern "C" fn memcpy(to: *mut u8, from: *const u8, bytes: usize) -> *mut u8 {
    // SAFETY: the caller's promise.
    unsafe {
        asm!("rep movsb", inout("rcx") bytes => _, inout("rdi") to => _, inout("rsi") from => _, options(nostack));
    }
    to
}

#[panic_handler]
fn panic(_info: &core::panic::PanicInfo<'_>) -> ! {
    exit(1)
}
