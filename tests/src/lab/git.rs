//! A real git repository behind git's own smart-HTTP backend, so that clients clone and push as
//! they do from a forge. Served under `/git/demo.git`.

use std::io;
use std::path::Path;
use std::process::Stdio;

use anyhow::{Context as _, Result, ensure};
use bytes::Bytes;
use http::{HeaderName, HeaderValue, Request, Response, StatusCode, header};
use http_body_util::BodyExt as _;
use hyper::body::Incoming;
use tempfile::TempDir;
use tokio::io::AsyncWriteExt as _;
use tokio::process::Command;
use tokio::sync::OnceCell;

use super::body::{LabBody, full};
use super::journal::Entry;
use super::wire::find;

/// The one file of the repository's one commit.
pub const README: &str = "This file came through the gateway.\n";

/// Created on the first request, since most tests never ask for it.
#[derive(Debug, Default)]
pub(super) struct GitRepository {
    root: OnceCell<TempDir>,
}

impl GitRepository {
    pub(super) async fn serve(
        &self,
        request: Request<Incoming>,
        entry: &Entry,
    ) -> io::Result<Response<LabBody>> {
        let root = self
            .root
            .get_or_try_init(create)
            .await
            .map_err(io::Error::other)?;
        let (head, body) = request.into_parts();
        let body = body.collect().await.map_err(io::Error::other)?.to_bytes();
        entry.update(|received| {
            received.body_length = body.len() as u64;
            received.complete = true;
        });
        backend(root.path(), &head, body)
            .await
            .map_err(io::Error::other)
    }
}

/// Runs git's CGI program on one request (RFC 3875).
async fn backend(
    root: &Path,
    head: &http::request::Parts,
    body: Bytes,
) -> Result<Response<LabBody>> {
    let header = |name: HeaderName| {
        head.headers
            .get(name)
            .and_then(|value| value.to_str().ok())
            .unwrap_or_default()
    };
    let mut cgi = Command::new("git")
        .arg("http-backend")
        .env("GIT_PROJECT_ROOT", root)
        .env("GIT_HTTP_EXPORT_ALL", "1")
        .env("PATH_INFO", head.uri.path().trim_start_matches("/git"))
        .env("QUERY_STRING", head.uri.query().unwrap_or_default())
        .env("REQUEST_METHOD", head.method.as_str())
        .env("CONTENT_TYPE", header(header::CONTENT_TYPE))
        .env("CONTENT_LENGTH", body.len().to_string())
        .env("HTTP_CONTENT_ENCODING", header(header::CONTENT_ENCODING))
        .env(
            "GIT_PROTOCOL",
            header(HeaderName::from_static("git-protocol")),
        )
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .context("cannot run `git http-backend`")?;
    let mut stdin = cgi.stdin.take().context("no stdin")?;
    let feed = tokio::spawn(async move { stdin.write_all(&body).await });
    let output = cgi.wait_with_output().await?;
    // The backend may answer before it read everything; only its answer counts.
    let _ = feed.await;
    answer(&output.stdout)
}

fn answer(output: &[u8]) -> Result<Response<LabBody>> {
    let end = find(output, b"\r\n\r\n").context("git http-backend gave no header")?;
    let mut response = Response::new(full(output[end + 4..].to_vec()));
    for line in String::from_utf8_lossy(&output[..end]).lines() {
        let (name, value) = line.split_once(':').context("odd CGI header")?;
        if name.eq_ignore_ascii_case("status") {
            let code = value.split_whitespace().next().unwrap_or_default();
            *response.status_mut() = StatusCode::from_bytes(code.as_bytes())?;
        } else {
            let value = HeaderValue::from_str(value.trim())?;
            response
                .headers_mut()
                .append(HeaderName::from_bytes(name.as_bytes())?, value);
        }
    }
    Ok(response)
}

async fn create() -> Result<TempDir> {
    let root = tempfile::tempdir()?;
    let bare = root.path().join("demo.git");
    git(
        root.path(),
        &[
            "init",
            "--quiet",
            "--bare",
            "--initial-branch=main",
            "demo.git",
        ],
    )
    .await?;
    git(&bare, &["config", "http.receivepack", "true"]).await?;
    let work = root.path().join("work");
    git(root.path(), &["clone", "--quiet", "demo.git", "work"]).await?;
    tokio::fs::write(work.join("README"), README).await?;
    git(&work, &["add", "README"]).await?;
    git(&work, &["commit", "--quiet", "--message", "one file"]).await?;
    git(&work, &["push", "--quiet", "origin", "HEAD:main"]).await?;
    Ok(root)
}

async fn git(folder: &Path, arguments: &[&str]) -> Result<()> {
    let output = Command::new("git")
        .args([
            "-c",
            "user.name=lab",
            "-c",
            "user.email=lab@a.test",
            "-c",
            "commit.gpgsign=false",
        ])
        .args(arguments)
        .current_dir(folder)
        .env("GIT_CONFIG_GLOBAL", "/dev/null")
        .env("GIT_CONFIG_NOSYSTEM", "1")
        .output()
        .await?;
    let problem = String::from_utf8_lossy(&output.stderr);
    ensure!(
        output.status.success(),
        "git {}: {problem}",
        arguments.join(" ")
    );
    Ok(())
}
