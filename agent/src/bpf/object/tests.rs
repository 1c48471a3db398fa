//! Tests of finding the object: the order of places, and refused files.

use std::os::unix::fs::PermissionsExt as _;

use super::*;

/// An ELF header for the machine BPF without further content.
fn object(last: u8) -> Vec<u8> {
    let mut bytes = ELF_MAGIC.to_vec();
    bytes.resize(18, 0);
    bytes.extend(EM_BPF);
    bytes.push(last);
    bytes
}

fn write(path: &Path, bytes: &[u8]) {
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, bytes).unwrap();
    fs::set_permissions(path, fs::Permissions::from_mode(0o644)).unwrap();
}

fn trusted() -> [u32; 1] {
    [geteuid().as_raw()]
}

/// A cargo target directory with the object in its place, and a test program in it.
fn target_dir(dir: &Path) -> (PathBuf, PathBuf) {
    let target = dir.join("target");
    let built = target.join(TARGET_SUBDIR).join(OBJECT_FILE);
    write(&built, &object(1));
    write(&target.join("CACHEDIR.TAG"), b"");
    (target.join("debug/deps/it-0123"), built)
}

fn find_at(program: &Path) -> Result<Object, FindObjectError> {
    find_for(None, &[], Ok(program.to_owned()), &trusted())
}

fn read_at(path: &Path) -> Result<Option<Object>, FindObjectError> {
    read(path, &trusted())
}

#[test]
fn program_in_target_dir_finds_built_object() {
    let dir = tempfile::tempdir().unwrap();
    let (program, built) = target_dir(dir.path());

    let found = find_at(&program).unwrap();

    assert_eq!(found.source(), &ObjectSource::File(built));
    assert_eq!(found.bytes(), object(1));
    assert_eq!(found.hash(), hash([object(1).as_slice()]));
}

#[test]
fn nearer_places_come_first() {
    let dir = tempfile::tempdir().unwrap();
    let (program, built) = target_dir(dir.path());
    let beside = program.with_file_name(OBJECT_FILE);
    write(&beside, &object(2));

    let found = find_at(&program).unwrap();
    assert_eq!(found.source(), &ObjectSource::File(beside));

    let embedded = b"embedded";
    let found = find_for(None, embedded, Ok(program.clone()), &trusted()).unwrap();
    assert_eq!(found.source(), &ObjectSource::Embedded);
    assert_eq!(found.bytes(), embedded);

    let found = find_for(Some(built.clone()), embedded, Ok(program), &trusted()).unwrap();
    assert_eq!(found.source(), &ObjectSource::File(built));
}

#[test]
fn searched_places_are_named() {
    let dir = tempfile::tempdir().unwrap();
    let (program, built) = target_dir(dir.path());
    fs::remove_file(&built).unwrap();

    let error = find_at(&program).unwrap_err();

    let text = error.to_string();
    for path in [program.with_file_name(OBJECT_FILE), built] {
        assert!(text.contains(path.to_str().unwrap()), "{text}");
    }
    assert!(error.fix().contains("cargo xtask build-ebpf"));
}

#[test]
fn directory_without_mark_is_no_target_dir() {
    let dir = tempfile::tempdir().unwrap();
    let (program, _) = target_dir(dir.path());
    fs::remove_file(dir.path().join("target/CACHEDIR.TAG")).unwrap();

    assert!(matches!(
        find_at(&program),
        Err(FindObjectError::NotFound { .. })
    ));
}

#[test]
fn named_file_must_exist() {
    let dir = tempfile::tempdir().unwrap();
    let (program, _) = target_dir(dir.path());
    let absent = dir.path().join("absent.o");

    let error = find_for(Some(absent.clone()), &[], Ok(program), &trusted()).unwrap_err();

    assert!(error.to_string().contains(absent.to_str().unwrap()));
}

#[test]
fn file_others_may_write_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join(OBJECT_FILE);
    write(&path, &object(1));

    for mode in [0o664, 0o646] {
        fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
        let error = read_at(&path).unwrap_err();
        assert!(
            matches!(error, FindObjectError::Untrusted { .. }),
            "{error}"
        );
        assert!(error.fix().contains("chmod go-w"), "{}", error.fix());
    }
}

#[test]
fn file_of_another_user_is_refused() {
    let path = Path::new(OBJECT_FILE);

    assert!(check_trust(path, 0, 0o100_644, &[0]).is_ok());
    let error = check_trust(path, 1_000, 0o100_644, &[0]).unwrap_err();

    let text = error.to_string();
    assert!(
        text.contains("user 1000") && text.contains("0644"),
        "{text}"
    );
}

#[test]
fn other_files_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join(OBJECT_FILE);
    let mut host = object(1);
    host[18] = 62;

    for bytes in [b"".as_slice(), b"text", b"\x7fELF", &host] {
        write(&path, bytes);
        let error = read_at(&path).unwrap_err();
        assert!(matches!(error, FindObjectError::NotBpf { .. }), "{error}");
    }

    fs::remove_file(&path).unwrap();
    nix::unistd::mkfifo(&path, nix::sys::stat::Mode::S_IRWXU).unwrap();
    let error = read_at(&path).unwrap_err();
    assert!(matches!(error, FindObjectError::NotFile { .. }), "{error}");
}

#[test]
fn object_of_any_size_is_bounded() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join(OBJECT_FILE);
    write(&path, &object(1));
    let file = File::options().write(true).open(&path).unwrap();

    file.set_len(OBJECT_BYTES_MAX).unwrap();
    assert!(read_at(&path).is_ok());
    file.set_len(OBJECT_BYTES_MAX + 1).unwrap();
    let error = read_at(&path).unwrap_err();

    assert!(matches!(error, FindObjectError::TooLarge { .. }), "{error}");
}

#[test]
fn bytes_are_aligned() {
    for len in 1..64_u8 {
        let bytes: Vec<u8> = (0..len).collect();

        let object = Object::new(aligned(&bytes), ObjectSource::Embedded);

        assert_eq!(object.bytes(), bytes);
        assert_eq!(object.bytes().as_ptr().addr() % OBJECT_ALIGNMENT, 0);
    }
}

/// The published test vector of FNV-1a for `foobar`.
#[test]
fn hash_is_fnv_1a() {
    assert_eq!(hash([b"foo".as_slice(), b"bar"]), 0x8594_4171_f739_67e8);
}
