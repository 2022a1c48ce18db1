//! How people name an image: `debian:bookworm`, `debian:bookworm+nodejs,npm`, or a path.
//!
//! Names end up on command lines of other programs, so that only the characters of Debian's own
//! policy are let in.

use std::collections::BTreeSet;
use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

use crate::error::RuntimeError;

/// What an agent expects of a machine; packages of the default image.
pub const DEFAULT_PACKAGES: [&str; 7] = [
    "bash",
    "ca-certificates",
    "coreutils",
    "curl",
    "git",
    "procps",
    "python3",
];

/// What an image is made from.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ImageSource {
    /// A minimal Debian of one suite with these packages and what they depend on.
    DebianPackages {
        /// Release name, such as `bookworm`.
        suite: String,
        /// Packages beside the essential ones.
        packages: BTreeSet<String>,
    },
    /// The content of a directory.
    Directory(PathBuf),
    /// An EROFS, SquashFS or ext4 file, used where it is.
    File(PathBuf),
}

impl ImageSource {
    /// `suite` with the default packages and `extra` ones.
    ///
    /// # Errors
    /// [`RuntimeError::Image`] for a name that Debian doesn't allow.
    pub fn debian<'a>(
        suite: &str,
        extra: impl IntoIterator<Item = &'a str>,
    ) -> Result<Self, RuntimeError> {
        let packages = DEFAULT_PACKAGES
            .into_iter()
            .chain(extra)
            .map(checked_package);
        Ok(Self::DebianPackages {
            suite: checked_suite(suite)?,
            packages: packages.collect::<Result<_, _>>()?,
        })
    }
}

impl Default for ImageSource {
    fn default() -> Self {
        Self::DebianPackages {
            suite: "bookworm".to_owned(),
            packages: DEFAULT_PACKAGES.map(str::to_owned).into(),
        }
    }
}

impl FromStr for ImageSource {
    type Err = RuntimeError;

    /// `debian:SUITE`, `debian:SUITE+PACKAGE,…` (added to the default ones),
    /// `debian:SUITE=PACKAGE,…` (instead of them), or the path of a directory or a file.
    fn from_str(text: &str) -> Result<Self, RuntimeError> {
        if let Some(rest) = text.strip_prefix("debian:") {
            if let Some((suite, packages)) = rest.split_once('=') {
                return Ok(Self::DebianPackages {
                    suite: checked_suite(suite)?,
                    packages: packages
                        .split(',')
                        .map(checked_package)
                        .collect::<Result<_, _>>()?,
                });
            }
            return match rest.split_once('+') {
                Some((suite, extra)) => Self::debian(suite, extra.split(',')),
                None => Self::debian(rest, []),
            };
        }
        if !text.contains('/') {
            return Err(RuntimeError::image(
                format!("`{text}` names no image"),
                "use `debian:bookworm`, `debian:bookworm+nodejs,npm`, or a path with a `/` in it",
            ));
        }
        let path = std::fs::canonicalize(text).map_err(|error| {
            RuntimeError::image(
                format!("`{text}` can't be opened: {error}"),
                "check the path",
            )
        })?;
        Ok(if path.is_dir() {
            Self::Directory(path)
        } else {
            Self::File(path)
        })
    }
}

impl fmt::Display for ImageSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::DebianPackages { suite, packages } => {
                let is_default = |name: &str| DEFAULT_PACKAGES.contains(&name);
                let join = |names: Vec<&str>| names.join(",");
                if !DEFAULT_PACKAGES.iter().all(|name| packages.contains(*name)) {
                    let all = join(packages.iter().map(String::as_str).collect());
                    return write!(f, "debian:{suite}={all}");
                }
                let extra: Vec<&str> = packages
                    .iter()
                    .map(String::as_str)
                    .filter(|name| !is_default(name))
                    .collect();
                match extra.is_empty() {
                    true => write!(f, "debian:{suite}"),
                    false => write!(f, "debian:{suite}+{}", join(extra)),
                }
            }
            Self::Directory(path) | Self::File(path) => path.display().fmt(f),
        }
    }
}

fn checked_suite(name: &str) -> Result<String, RuntimeError> {
    let letters = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    if name.starts_with(|first: char| first.is_ascii_lowercase()) && name.bytes().all(letters) {
        return Ok(name.to_owned());
    }
    Err(RuntimeError::image(
        format!("`{name}` is no Debian release"),
        "use a release name, such as `bookworm`",
    ))
}

/// Debian Policy, section 5.6.1: lower-case letters, digits, `+`, `-` and `.`; at least two
/// characters, the first a letter or a digit.
fn checked_package(name: &str) -> Result<String, RuntimeError> {
    let first = |byte: &u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    let all = |byte: u8| first(&byte) || matches!(byte, b'+' | b'-' | b'.');
    if name.len() >= 2 && name.as_bytes().first().is_some_and(first) && name.bytes().all(all) {
        return Ok(name.to_owned());
    }
    Err(RuntimeError::image(
        format!("`{name}` is no name of a Debian package"),
        "separate package names by commas, as in `debian:bookworm+nodejs,npm`",
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_come_back_as_they_were_written() {
        for name in [
            "debian:bookworm",
            "debian:trixie+g++,npm",
            "debian:sid=bash,zsh",
        ] {
            assert_eq!(name.parse::<ImageSource>().unwrap().to_string(), name);
        }
        assert_eq!(
            "debian:bookworm".parse::<ImageSource>().unwrap(),
            ImageSource::default()
        );
    }

    #[test]
    fn order_and_repetition_make_no_new_image() {
        let one: ImageSource = "debian:bookworm+npm,jq,curl".parse().unwrap();
        let other: ImageSource = "debian:bookworm+jq,npm,npm".parse().unwrap();
        assert_eq!(one, other);
    }

    #[test]
    fn a_name_can_not_become_an_option_or_a_script() {
        for name in [
            "debian:",
            "debian:-x",
            "debian:bookworm+--purge",
            "debian:bookworm+a b",
            "debian:bookworm+$(id)",
            "debian:bookworm+",
            "debian:../x",
            "ubuntu",
            "",
        ] {
            assert!(name.parse::<ImageSource>().is_err(), "{name}");
        }
    }

    #[test]
    fn a_path_is_a_directory_or_a_file() {
        assert_eq!(
            "/usr".parse::<ImageSource>().unwrap(),
            ImageSource::Directory("/usr".into())
        );
        let error = "/no/such".parse::<ImageSource>().unwrap_err();
        assert!(
            error
                .to_string()
                .starts_with("image: `/no/such` can't be opened"),
            "{error}"
        );
    }
}
