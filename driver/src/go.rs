//! Programs in Go for tests: a driver and a host with a foreign implementation of the plugin protocol.
//!
//! The sources of the programs are in `driver/tests/go`. They are built from Debian's packages of the plugin library.
//! Another compiler generates their messages from our own `.proto` files. These programs cannot detect a wrong field
//! number; the tests of the conversions do that. Nothing is downloaded.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;

use thiserror::Error;

/// The directory of Debian's packages for the sources of Go libraries.
const GO_SOURCES: &str = "/usr/share/gocode";
/// The required files, each with the package that contains it.
const NEEDED: [(&str, &str); 6] = [
    ("/usr/bin/go", "golang-go"),
    ("/usr/bin/protoc", "protobuf-compiler"),
    (
        "/usr/include/google/protobuf/duration.proto",
        "libprotobuf-dev",
    ),
    (
        "/usr/share/gocode/src/github.com/hashicorp/go-plugin",
        "golang-github-hashicorp-go-plugin-dev",
    ),
    (
        "/usr/share/gocode/src/google.golang.org/grpc",
        "golang-google-grpc-dev",
    ),
    (
        "/usr/share/gocode/src/github.com/golang/protobuf/protoc-gen-go/grpc",
        "golang-github-golang-protobuf-1-3-dev",
    ),
];
/// The files of `driver/proto` that the programs use, as one Go package.
const PROTOS: [&str; 4] = [
    "hclspec.proto",
    "structs.proto",
    "base.proto",
    "driver.proto",
];
/// The options of the generator for these files.
const PROTO_OPTIONS: &str = "plugins=grpc,import_path=pb,\
Mgoogle/protobuf/duration.proto=github.com/golang/protobuf/ptypes/duration,\
Mgoogle/protobuf/timestamp.proto=github.com/golang/protobuf/ptypes/timestamp";

/// The reason why a program was not built.
#[derive(Debug, Error)]
pub enum BuildGoError {
    /// The machine lacks a file that the build needs.
    #[error("{path} is missing: install {package}, or run `cargo xtask setup`")]
    Missing {
        /// The path of the missing file.
        path: &'static str,
        package: &'static str,
    },
    #[error("build a Go program: {what}")]
    Tool {
        /// The output of the tool.
        what: String,
    },
    /// A file cannot be written.
    #[error("build a Go program")]
    Io(#[from] io::Error),
}

/// Returns the path of the program whose sources are in `driver/tests/go/<name>`; builds it if needed.
///
/// # Errors
///
/// [`BuildGoError::Missing`] on a machine without the packages; the test is then skipped. Every other error is a
/// failure.
pub fn program(name: &str) -> Result<PathBuf, BuildGoError> {
    for (path, package) in NEEDED {
        if !Path::new(path).exists() {
            return Err(BuildGoError::Missing { path, package });
        }
    }
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let out = root.join("../target/go");
    fs::create_dir_all(&out)?;
    let out = out.canonicalize()?;
    // Test programs of several crates run this at the same time. The lock is released when the file is closed.
    let lock = File::create(out.join("lock"))?;
    lock.lock()?;
    let sources = out.join("path/src/muster.test");
    let generated = sources.join("pb");
    fs::create_dir_all(&generated)?;
    for part in ["driver", "host", "msgpack"] {
        link(&root.join("tests/go").join(part), &sources.join(part))?;
    }
    let generator = out.join("protoc-gen-go");
    go(&out, &generator, "github.com/golang/protobuf/protoc-gen-go")?;
    run(Command::new("/usr/bin/protoc")
        .arg(format!("--plugin=protoc-gen-go={}", generator.display()))
        .arg("-I")
        .arg(root.join("proto"))
        .args(["-I", "/usr/include"])
        .arg(format!("--go_out={PROTO_OPTIONS}:{}", generated.display()))
        .args(PROTOS))?;
    let built = out.join(format!("{name}.built"));
    go(&out, &built, &format!("muster.test/{name}"))?;
    // A running program cannot be written to, but it can be replaced.
    let program = out.join(name);
    if fs::read(&built)? != fs::read(&program).unwrap_or_default() {
        let beside = out.join(format!("{name}.new"));
        fs::copy(&built, &beside)?;
        fs::rename(beside, &program)?;
    }
    Ok(program)
}

/// Makes the link `at` to `to`. A link with another target is replaced. A copied `target` directory has links into its
/// original repository, whose sources differ or are gone.
fn link(to: &Path, at: &Path) -> io::Result<()> {
    match fs::read_link(at) {
        Ok(there) if there == to => return Ok(()),
        Ok(_) => fs::remove_file(at)?,
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) if error.kind() == io::ErrorKind::InvalidInput => {
            let what = format!("{} is not a link: remove it, it is made anew", at.display());
            return Err(io::Error::new(error.kind(), what));
        }
        Err(error) => return Err(error),
    }
    std::os::unix::fs::symlink(to, at)
}

fn go(out: &Path, program: &Path, package: &str) -> Result<(), BuildGoError> {
    run(Command::new("/usr/bin/go")
        .arg("build")
        .arg("-o")
        .arg(program)
        .arg(package)
        .current_dir(out)
        .env(
            "GOPATH",
            format!("{}:{GO_SOURCES}", out.join("path").display()),
        )
        .env("GOCACHE", out.join("cache"))
        .env("GO111MODULE", "off")
        .env("GOFLAGS", "")
        .env("CGO_ENABLED", "0"))
}

fn run(command: &mut Command) -> Result<(), BuildGoError> {
    let output = command.output()?;
    if output.status.success() {
        return Ok(());
    }
    Err(BuildGoError::Tool {
        what: format!(
            "{command:?} ended with {}: {}",
            output.status,
            String::from_utf8_lossy(&output.stderr)
        ),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_link_that_leads_elsewhere_is_made_anew() {
        let dir = tempfile::tempdir().unwrap();
        let at = dir.path().join("link");
        let [before, here] = ["before", "here"].map(|name| dir.path().join(name));

        for to in [&before, &here, &here] {
            link(to, &at).unwrap();

            assert_eq!(&fs::read_link(&at).unwrap(), to);
        }
    }

    #[test]
    fn existing_directory_is_not_replaced_by_link() {
        let dir = tempfile::tempdir().unwrap();
        let at = dir.path().join("link");
        fs::create_dir(&at).unwrap();

        let error = link(dir.path(), &at).unwrap_err();

        assert!(error.to_string().contains("is not a link"), "{error}");
        assert!(at.is_dir());
    }
}
