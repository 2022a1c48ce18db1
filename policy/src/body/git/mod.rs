//! Git over smart HTTP (gitprotocol-http): which repository, fetch or push, and which refs.
//!
//! Not git requests here: large files (LFS, a JSON API of its own), `git-upload-archive` (never
//! served over HTTP), and the object files of the dumb protocol. What starts the dumb protocol,
//! `info/refs` without a service, is unclear.

mod refs;

use super::parameter::parameter;
use super::{Content, Unclear, shown};
use crate::CanonicalRequest;

pub(crate) use self::refs::updated_refs;

/// A request of git's smart HTTP protocol.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct GitRequest {
    /// The path before git's own part: decoded, without the slash in front and without one `.git`
    /// at the end. As written otherwise: whether `Acme/X` is the repository `acme/x` is known to
    /// the server alone.
    pub(crate) repo: String,
    pub(crate) operation: GitOperation,
    pub(crate) kind: GitKind,
}

/// What the client wants of the repository.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum GitOperation {
    /// Clone, fetch, `ls-remote`: `git-upload-pack`.
    Fetch,
    /// `git-receive-pack`.
    Push,
}

impl GitOperation {
    const fn service(self) -> &'static str {
        match self {
            Self::Fetch => "git-upload-pack",
            Self::Push => "git-receive-pack",
        }
    }

    const fn content_type(self) -> &'static str {
        match self {
            Self::Fetch => "application/x-git-upload-pack-request",
            Self::Push => "application/x-git-receive-pack-request",
        }
    }
}

/// The two steps of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum GitKind {
    /// `GET …/info/refs`: the server lists its refs.
    Advertise,
    /// `POST …/git-upload-pack` or `…/git-receive-pack`: the operation itself.
    Rpc,
}

/// Reads a request. The body is not looked at: see [`updated_refs`] for that of a push.
pub(crate) fn git_request(
    request: &CanonicalRequest,
    content: &Content<'_>,
) -> Result<Option<GitRequest>, Unclear> {
    let Some((path, endpoint)) = split(request.path()) else {
        return match has_lenient_reading(request) {
            true => Err(Unclear::new(
                "some servers take the path for one of git's endpoints",
            )),
            false => Ok(None),
        };
    };
    let (operation, kind) = match endpoint {
        Endpoint::InfoRefs => (advertised(request)?, GitKind::Advertise),
        Endpoint::Rpc(operation) => {
            check_rpc(request, content, operation)?;
            (operation, GitKind::Rpc)
        }
    };
    Ok(Some(GitRequest {
        repo: repository(path)?,
        operation,
        kind,
    }))
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Endpoint {
    InfoRefs,
    Rpc(GitOperation),
}

const ENDPOINTS: [(&str, Endpoint); 3] = [
    ("/info/refs", Endpoint::InfoRefs),
    ("/git-upload-pack", Endpoint::Rpc(GitOperation::Fetch)),
    ("/git-receive-pack", Endpoint::Rpc(GitOperation::Push)),
];

/// The path of the repository, and git's own part.
fn split(path: &str) -> Option<(&str, Endpoint)> {
    ENDPOINTS
        .iter()
        .find_map(|(suffix, endpoint)| Some((path.strip_suffix(suffix)?, *endpoint)))
}

/// Whether a server that folds case, merges slashes, decodes twice or drops `;parameters` would
/// find an endpoint of git where [`split`] finds none.
fn has_lenient_reading(request: &CanonicalRequest) -> bool {
    let path = request.canonical_path();
    path.readings()
        .chain([path.as_str().as_bytes()])
        .any(|reading| {
            let folded = reading.to_ascii_lowercase();
            ENDPOINTS
                .iter()
                .any(|(suffix, _)| folded.ends_with(suffix.as_bytes()))
        })
}

fn advertised(request: &CanonicalRequest) -> Result<GitOperation, Unclear> {
    if request.method() != "GET" {
        return Err(Unclear::new("refs are asked for with GET"));
    }
    match parameter(request, "service")?.as_deref() {
        Some("git-upload-pack") => Ok(GitOperation::Fetch),
        Some("git-receive-pack") => Ok(GitOperation::Push),
        Some(service) => {
            let why = format!("`{}` is no service of git over HTTP", shown(service));
            Err(Unclear::new(why))
        }
        None => Err(Unclear::new(
            "`info/refs` without a service is git's dumb protocol",
        )),
    }
}

fn check_rpc(
    request: &CanonicalRequest,
    content: &Content<'_>,
    operation: GitOperation,
) -> Result<(), Unclear> {
    if request.method() != "POST" {
        let why = format!("`{}` is called with POST", operation.service());
        return Err(Unclear::new(why));
    }
    let expected = operation.content_type();
    let exact = content
        .media_type()?
        .is_some_and(|media_type| media_type.essence() == expected && !media_type.has_parameters());
    if !exact {
        let why = format!(
            "the content type of `{}` is `{expected}`",
            operation.service()
        );
        return Err(Unclear::new(why));
    }
    Ok(())
}

/// The name of the repository at a path.
fn repository(path: &str) -> Result<String, Unclear> {
    let unclear = |why: &str| {
        Err(Unclear::new(format!(
            "the repository path `{}` {why}",
            shown(path)
        )))
    };
    let Some(name) = decode(path.strip_prefix('/').unwrap_or(path)) else {
        return unclear("has an escape that servers read in several ways");
    };
    let name = name.strip_suffix(".git").unwrap_or(&name);
    // `x.git.git`, `x.GIT` and `x/.git` could each be `x`, or not.
    let could_be_cut = name
        .get(name.len().saturating_sub(4)..)
        .is_some_and(|end| end.eq_ignore_ascii_case(".git"));
    if could_be_cut {
        return unclear("ends in several `.git`, or in one of another case");
    }
    if name.split('/').any(str::is_empty) {
        return unclear("has an empty segment");
    }
    if name.contains(';') {
        return unclear("has a `;`, at which some servers end a segment");
    }
    Ok(name.to_owned())
}

/// Decodes what escapes a canonical path still has. `None` for an escape of `/`, `%` or `;`, and
/// for what is no UTF-8.
fn decode(path: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(path.len());
    let mut rest = path.as_bytes();
    while let [first, tail @ ..] = rest {
        rest = tail;
        if *first != b'%' {
            bytes.push(*first);
            continue;
        }
        let (digits, after) = tail.split_at_checked(2)?;
        let byte = u8::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok()?;
        if matches!(byte, b'/' | b'%' | b';') {
            return None;
        }
        bytes.push(byte);
        rest = after;
    }
    String::from_utf8(bytes).ok()
}

#[cfg(test)]
mod tests {
    use super::super::fixture::{coded, content, request};
    use super::*;
    use proptest::prelude::*;

    fn get(target: &str) -> Result<Option<GitRequest>, Unclear> {
        git_request(&request("GET", target), &content("", b""))
    }

    fn post(target: &str, media_type: &str) -> Result<Option<GitRequest>, Unclear> {
        git_request(&request("POST", target), &content(media_type, b"0000"))
    }

    const FETCH: &str = "application/x-git-upload-pack-request";
    const PUSH: &str = "application/x-git-receive-pack-request";

    #[test]
    fn the_requests_of_a_real_client_are_read() {
        let expect = |operation, kind| {
            Ok(Some(GitRequest {
                repo: "acme/x".to_owned(),
                operation,
                kind,
            }))
        };
        for path in ["/acme/x", "/acme/x.git"] {
            for (operation, media_type) in
                [(GitOperation::Fetch, FETCH), (GitOperation::Push, PUSH)]
            {
                let service = operation.service();
                assert_eq!(
                    get(&format!("{path}/info/refs?service={service}")),
                    expect(operation, GitKind::Advertise)
                );
                assert_eq!(
                    post(&format!("{path}/{service}"), media_type),
                    expect(operation, GitKind::Rpc)
                );
            }
        }
    }

    #[test]
    fn a_coded_body_of_a_fetch_is_none_of_our_business() {
        let fetch = git_request(
            &request("POST", "/acme/x/git-upload-pack"),
            &coded(FETCH, "gzip", b"\x1f\x8b"),
        );
        assert_eq!(fetch.unwrap().unwrap().operation, GitOperation::Fetch);
    }

    #[test]
    fn repositories_are_named_by_their_decoded_path() {
        for (path, repo) in [
            ("/x", "x"),
            ("/a/b/c/x.git", "a/b/c/x"),
            ("/x.gitx", "x.gitx"),
            ("/x.wiki.git", "x.wiki"),
            ("/org/my%20project/_git/x", "org/my project/_git/x"),
            ("/a%40b/x", "a@b/x"),
            ("/a@b/x", "a@b/x"),
            ("/%61cme/./y/../x.git", "acme/x"),
            ("/%C3%A9/x", "é/x"),
            ("/x.git/y", "x.git/y"),
        ] {
            let read = get(&format!("{path}/info/refs?service=git-upload-pack"));
            assert_eq!(read.unwrap().unwrap().repo, repo, "{path}");
        }
    }

    #[test]
    fn repositories_that_servers_name_differently_are_unclear() {
        for path in [
            "",
            "/",
            "//x",
            "/a//x",
            "/x/",
            "/x.git/",
            "/.git",
            "/x/.git",
            "/x/.GIT",
            "/x.git.git",
            "/x.GIT",
            "/x.Git.git",
            "/a%2Fx",
            "/a%252Fx",
            "/x%25",
            "/a;v=1/x",
            "/a%3B/x",
            "/x%FF",
        ] {
            let read = get(&format!("{path}/info/refs?service=git-upload-pack"));
            assert!(read.is_err(), "{path}: {read:?}");
            assert!(
                post(&format!("{path}/git-receive-pack"), PUSH).is_err(),
                "{path}"
            );
        }
    }

    #[test]
    fn an_advertisement_names_one_service_once() {
        for query in [
            "",
            "?",
            "?service",
            "?service=",
            "?services=git-upload-pack",
            "?service=git-upload-archive",
            "?service=upload-pack",
            "?service=GIT-UPLOAD-PACK",
            "?service=git-upload-pack%20",
            "?service=git-upload-pack&service=git-receive-pack",
            "?service=git-upload-pack&service=git-upload-pack",
            "?service=git-upload-pack&Service=git-receive-pack",
            "?service=git-upload-pack;service=git-receive-pack",
            "?service[]=git-upload-pack",
        ] {
            assert!(
                get(&format!("/acme/x/info/refs{query}")).is_err(),
                "{query}"
            );
        }
        for method in ["POST", "HEAD", "get", "PUT"] {
            let asked = request(method, "/acme/x/info/refs?service=git-upload-pack");
            assert!(git_request(&asked, &content("", b"")).is_err(), "{method}");
        }
    }

    #[test]
    fn a_call_has_its_exact_method_and_type() {
        for media_type in [
            "",
            FETCH,
            "application/x-git-receive-pack-request;charset=utf-8",
            "application/x-git-receive-pack-result",
            "text/plain",
            "a, b",
        ] {
            assert!(
                post("/acme/x/git-receive-pack", media_type).is_err(),
                "{media_type}"
            );
        }
        for method in ["GET", "PUT", "post", "OPTIONS"] {
            let asked = request(method, "/acme/x/git-receive-pack");
            assert!(
                git_request(&asked, &content(PUSH, b"0000")).is_err(),
                "{method}"
            );
        }
    }

    #[test]
    fn paths_that_lenient_servers_take_for_git_are_unclear() {
        for path in [
            "/acme/x/git-receive-pack/",
            "/acme/x/Git-Receive-Pack",
            "/acme/x/git-receive-pack;v=1",
            "/acme/x%2Fgit-receive-pack",
            "/acme/x/git-receive-pack%3Bx",
            "/acme/x/git%252dreceive-pack",
            "/acme/x/info/refs/",
            "/acme/x/info//refs",
            "/acme/x/INFO/refs",
        ] {
            assert!(post(path, PUSH).is_err(), "{path}");
        }
    }

    #[test]
    fn other_requests_are_no_git() {
        for target in [
            "/",
            "/acme/x",
            "/acme/x.git/info/lfs/objects/batch",
            "/acme/x.git/HEAD",
            "/acme/x.git/objects/info/packs",
            "/acme/x/git-upload-archive",
            "/acme/x/info/refs/heads",
            "/acme/x/xgit-receive-pack",
            "/info-refs",
            "/?/info/refs",
        ] {
            assert_eq!(get(target), Ok(None), "{target}");
            assert_eq!(post(target, PUSH), Ok(None), "{target}");
        }
        let options = request("OPTIONS", "*");
        assert_eq!(git_request(&options, &content("", b"")), Ok(None));
    }

    proptest! {
        #[test]
        fn a_repository_is_a_clean_path(
            path in "/a(/(a|b[.]git|[.]git|%20|%2F|;|%C3%A9|%FF|)){0,4}([.]git)?",
            end in prop::sample::select(vec!["/info/refs?service=git-upload-pack", "/info/refs"]),
        ) {
            let target = format!("{path}{end}");
            if let Ok(Some(read)) = get(&target) {
                prop_assert!(!read.repo.split('/').any(str::is_empty));
                prop_assert!(!read.repo.to_ascii_lowercase().ends_with(".git"));
                prop_assert!(!read.repo.contains([';', '%']));
            }
        }
    }
}
