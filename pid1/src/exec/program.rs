//! Finding the program of a command, with the shell's distinction of 126 and 127.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use outgate_pid1::api::{ApiError, ErrorCode};

/// What `PATH` is when nobody says.
pub(super) const DEFAULT_PATH: &str =
    "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// Looks `name` up: a path as it is, relative to `cwd`; a bare name along `path`.
pub(super) fn find(name: &str, path: &str, cwd: &Path) -> Result<PathBuf, ApiError> {
    let mut candidates: Vec<PathBuf> = if name.contains('/') {
        vec![cwd.join(name)]
    } else {
        path.split(':')
            .map(|dir| cwd.join(dir).join(name))
            .collect()
    };
    candidates.retain(|candidate| !name.is_empty() && candidate.exists());
    if candidates.is_empty() {
        return Err(ApiError::new(
            ErrorCode::ExecNotFound,
            format!("`{}` was not found", name.escape_debug()),
            "check the name and PATH, or choose an image that has it",
        ));
    }
    candidates
        .into_iter()
        .find(|candidate| is_executable(candidate))
        .ok_or_else(|| {
            ApiError::new(
                ErrorCode::ExecNotExecutable,
                format!("`{}` can't be executed", name.escape_debug()),
                "set its executable bits, or run it with its interpreter",
            )
        })
}

fn is_executable(path: &Path) -> bool {
    path.metadata()
        .is_ok_and(|found| found.is_file() && found.permissions().mode() & 0o111 != 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn b214_missing_and_not_executable_are_told_apart() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("script");
        std::fs::write(&file, "#!/bin/sh\n").unwrap();
        let dirs = format!("/nonexistent:{}", folder.path().display());
        let code = |name: &str| find(name, &dirs, Path::new("/")).map_err(|error| error.code);
        assert_eq!(code("script"), Err(ErrorCode::ExecNotExecutable));
        assert_eq!(code("absent"), Err(ErrorCode::ExecNotFound));
        assert_eq!(code(""), Err(ErrorCode::ExecNotFound));
        std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o755)).unwrap();
        assert_eq!(code("script"), Ok(file.clone()));
        assert_eq!(
            find("./script", "", folder.path()).unwrap(),
            folder.path().join("./script")
        );
    }
}
