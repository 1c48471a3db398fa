//! The smallest program that reports its start time. Its first instructions read the clock. Then it writes the time
//! and exits with 0.
//!
//! It has no C library, so that only the start is measured. A dynamic loader would take longer than the whole start.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

/// The machine code. It is for x86-64 only, like the native driver.
const CODE: &[u8] = &[
    0x48, 0x83, 0xec, 0x10, // sub rsp, 16
    0xb8, 228, 0, 0, 0, // mov eax, 228 (clock_gettime)
    0xbf, 1, 0, 0, 0, // mov edi, 1 (CLOCK_MONOTONIC)
    0x48, 0x89, 0xe6, // mov rsi, rsp
    0x0f, 0x05, // syscall
    0xb8, 1, 0, 0, 0, // mov eax, 1 (write)
    0xbf, 1, 0, 0, 0, // mov edi, 1 (standard output)
    0x48, 0x89, 0xe6, // mov rsi, rsp
    0xba, 16, 0, 0, 0, // mov edx, 16
    0x0f, 0x05, // syscall
    0xb8, 60, 0, 0, 0, // mov eax, 60 (exit)
    0x31, 0xff, // xor edi, edi
    0x0f, 0x05, // syscall
];

/// EM_X86_64.
const MACHINE: u16 = 62;

/// The address at which the program is mapped.
const BASE: u64 = 0x40_0000;
const HEADER_BYTES: u16 = 64;
const PROGRAM_HEADER_BYTES: u16 = 56;

/// The program's file name.
pub(super) const NAME: &str = "now";

/// The number of bytes that the program writes: seconds and nanoseconds of CLOCK_MONOTONIC.
pub(super) const WORDS_BYTES: usize = 16;

/// Writes the program into `dir`.
pub(super) fn write(dir: &Path) -> anyhow::Result<PathBuf> {
    let path = dir.join(NAME);
    fs::write(&path, elf())?;
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755))?;
    Ok(path)
}

/// Builds an ELF file with one header and one segment (ELF-64, System V ABI, chapters 4 and 5).
fn elf() -> Vec<u8> {
    let code_at = u64::from(HEADER_BYTES + PROGRAM_HEADER_BYTES);
    let bytes = code_at + CODE.len() as u64;
    let mut elf = Vec::new();
    elf.extend([0x7f, b'E', b'L', b'F', 2, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
    elf.extend(2_u16.to_le_bytes()); // executable
    elf.extend(MACHINE.to_le_bytes());
    elf.extend(1_u32.to_le_bytes());
    elf.extend((BASE + code_at).to_le_bytes()); // entry
    elf.extend(u64::from(HEADER_BYTES).to_le_bytes()); // program headers
    elf.extend(0_u64.to_le_bytes()); // no sections
    elf.extend(0_u32.to_le_bytes());
    for half in [HEADER_BYTES, PROGRAM_HEADER_BYTES, 1, 0, 0, 0] {
        elf.extend(half.to_le_bytes());
    }
    elf.extend(1_u32.to_le_bytes()); // loaded
    elf.extend(5_u32.to_le_bytes()); // readable, executable
    for word in [0, BASE, BASE, bytes, bytes, 0x1000] {
        elf.extend(word.to_le_bytes());
    }
    elf.extend(CODE);
    elf
}

#[cfg(test)]
mod tests {
    use super::super::clock;
    use super::*;

    #[test]
    fn program_prints_start_time_and_succeeds() {
        let dir = tempfile::tempdir().unwrap();
        let before = clock::now();

        let output = std::process::Command::new(write(dir.path()).unwrap())
            .output()
            .unwrap();

        let ran = clock::read(&output.stdout).unwrap();
        assert!(output.status.success(), "{output:?}");
        assert!((before..clock::now()).contains(&ran), "{ran:?}");
    }
}
