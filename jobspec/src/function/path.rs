//! Files and their names. Paths that are not absolute begin where the job file is.

use std::io::Read as _;
use std::path::Path;

use muster_wire::limits::JOB_FILE_BYTES_MAX;

use super::{Args, Function, Outcome, argument, function, said};

pub(super) const FUNCTIONS: &[Function] = &[
    function("abspath", 1, 1, abspath),
    function("basename", 1, 1, |args| {
        let path = args.text(0)?;
        let name = Path::new(&path).file_name().unwrap_or_default();
        said(name.to_string_lossy())
    }),
    function("dirname", 1, 1, |args| {
        let path = args.text(0)?;
        let parent = Path::new(&path).parent().unwrap_or(Path::new("/"));
        let parent = if parent.as_os_str().is_empty() {
            Path::new(".")
        } else {
            parent
        };
        said(parent.to_string_lossy())
    }),
    function("file", 1, 1, file),
    function("fileexists", 1, 1, |args| {
        Ok(args.dir.join(args.text(0)?).is_file().into())
    }),
    function("pathexpand", 1, 1, pathexpand),
];

fn abspath(args: &Args<'_>) -> Outcome {
    let path = args.dir.join(args.text(0)?);
    let absolute = std::path::absolute(&path)
        .map_err(|error| argument(0, format!("{}: {error}", path.display())))?;
    said(absolute.to_string_lossy())
}

fn file(args: &Args<'_>) -> Outcome {
    let path = args.dir.join(args.text(0)?);
    let failed = |reason: String| argument(0, format!("{}: {reason}", path.display()));
    let file = std::fs::File::open(&path).map_err(|error| failed(error.to_string()))?;
    let mut bytes = Vec::new();
    file.take(JOB_FILE_BYTES_MAX as u64 + 1)
        .read_to_end(&mut bytes)
        .map_err(|error| failed(error.to_string()))?;
    if bytes.len() > JOB_FILE_BYTES_MAX {
        return Err(failed(format!(
            "has more than {JOB_FILE_BYTES_MAX} bytes: a job file may not hold so much"
        )));
    }
    match String::from_utf8(bytes) {
        Ok(text) => said(text),
        Err(_) => Err(failed("is not UTF-8 text".to_owned())),
    }
}

fn pathexpand(args: &Args<'_>) -> Outcome {
    let path = args.text(0)?;
    match (path.strip_prefix('~'), std::env::home_dir()) {
        (Some(rest), Some(home)) if rest.is_empty() || rest.starts_with('/') => {
            said(format!("{}{rest}", home.display()))
        }
        (_, _) => said(path),
    }
}
