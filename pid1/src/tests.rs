//! The control API as its host sees it, over a pair of sockets, with this machine as the guest.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Arc, LazyLock};

use bytes::{Bytes, BytesMut};
use http_body_util::{BodyExt, Full};
use hyper::client::conn::http2::{SendRequest, handshake};
use hyper::{Method, Request, StatusCode};
use hyper_util::rt::{TokioExecutor, TokioIo};
use outgate_pid1::api::frame::Frame;
use outgate_pid1::api::{
    self, ApiError, ConfigureReply, ConfigureRequest, ErrorCode, ExecList, ExecRequest,
    ExecStarted, Exit, Pty, SignalRequest, SignalScope, StdinAccepted,
};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::exec::Execs;
use crate::reaper::Reaper;
use crate::server::{self, Control};

/// A guest that is this process, and a host that talks to it.
#[derive(Clone)]
struct Host(SendRequest<Full<Bytes>>);

impl Host {
    async fn new() -> Self {
        // One for all tests: a process has one set of children.
        static REAPER: LazyLock<Arc<Reaper>> = LazyLock::new(Arc::default);
        let reaper = Arc::clone(&REAPER);
        let execs = Execs::new(PathBuf::from("/"), Arc::clone(&reaper));
        let nothing = |_: &std::path::Path, _: &ConfigureRequest| {
            Ok(ConfigureReply {
                steps: vec!["nothing".to_owned()],
                left_out: Vec::new(),
            })
        };
        let control = Arc::new(Control::new(PathBuf::from("/"), execs, nothing));
        let (ours, theirs) = tokio::net::UnixStream::pair().unwrap();
        tokio::spawn(async move { reaper.run().await.unwrap() });
        tokio::spawn(async move { server::serve(control, theirs).await });
        let (sender, connection) = handshake(TokioExecutor::new(), TokioIo::new(ours))
            .await
            .unwrap();
        tokio::spawn(connection);
        Self(sender)
    }

    async fn configured() -> Self {
        let host = Self::new().await;
        let request = ConfigureRequest {
            hostname: "box".to_owned(),
            wall_clock_ns: 0,
            entropy: String::new(),
            network: None,
            ca_pem: None,
            env: BTreeMap::from([("FROM_HOST".to_owned(), "yes".to_owned())]),
        };
        host.post::<ConfigureReply>(api::CONFIGURE, &request)
            .await
            .unwrap();
        host
    }

    async fn send(&self, method: Method, path: &str, body: Vec<u8>) -> (StatusCode, Bytes) {
        let uri = format!("http://guest{path}");
        let request = Request::builder()
            .method(method)
            .uri(uri)
            .body(Full::from(body))
            .unwrap();
        let response = self.0.clone().send_request(request).await.unwrap();
        let status = response.status();
        (
            status,
            response.into_body().collect().await.unwrap().to_bytes(),
        )
    }

    async fn post<T: DeserializeOwned>(
        &self,
        path: &str,
        body: &impl Serialize,
    ) -> Result<T, ApiError> {
        let (status, reply) = self
            .send(Method::POST, path, serde_json::to_vec(body).unwrap())
            .await;
        if status.is_success() {
            return Ok(serde_json::from_slice(&reply).unwrap());
        }
        Err(serde_json::from_slice(&reply).unwrap())
    }

    async fn start(&self, request: &ExecRequest) -> Result<(), ApiError> {
        let started = self.post::<ExecStarted>(api::EXEC, request).await?;
        assert_eq!(started.exec_id, request.exec_id);
        Ok(())
    }

    async fn output(&self, id: &str) -> Output {
        self.output_from(id, 0).await
    }

    async fn output_from(&self, id: &str, stdout: u64) -> Output {
        let path = format!("{}?stdout={stdout}&stderr=0", api::exec_stream(id));
        let (status, wire) = self.send(Method::GET, &path, Vec::new()).await;
        assert_eq!(status, StatusCode::OK);
        let mut wire = BytesMut::from(wire);
        let mut output = Output::default();
        while let Some(frame) = Frame::decode(&mut wire).unwrap() {
            match frame {
                Frame::Stdout(bytes) => output.stdout.extend_from_slice(&bytes),
                Frame::Stderr(bytes) => output.stderr.extend_from_slice(&bytes),
                Frame::Exit(exit) => output.exit = Some(exit),
                Frame::Gap(gap) => output.gaps.push((gap.from, gap.to)),
                Frame::Keepalive => {}
            }
        }
        output
    }

    async fn run(&self, request: ExecRequest) -> Output {
        self.start(&request).await.unwrap();
        self.output(&request.exec_id).await
    }

    async fn stdin(&self, id: &str, query: &str, bytes: &[u8]) -> Result<StdinAccepted, ApiError> {
        let path = format!("{}?{query}", api::exec_stdin(id));
        let (status, reply) = self.send(Method::POST, &path, bytes.to_vec()).await;
        if status.is_success() {
            return Ok(serde_json::from_slice(&reply).unwrap());
        }
        Err(serde_json::from_slice(&reply).unwrap())
    }
}

#[derive(Debug, Default)]
struct Output {
    stdout: Vec<u8>,
    stderr: Vec<u8>,
    gaps: Vec<(u64, u64)>,
    exit: Option<Exit>,
}

fn sh(id: &str, script: &str) -> ExecRequest {
    ExecRequest {
        exec_id: id.to_owned(),
        argv: ["/bin/sh", "-c", script].map(str::to_owned).to_vec(),
        cwd: Some("/".to_owned()),
        ..ExecRequest::default()
    }
}

#[tokio::test]
async fn nothing_runs_before_the_guest_is_configured() {
    let host = Host::new().await;
    let error = host.start(&sh("early", "true")).await.unwrap_err();
    assert_eq!(error.code, ErrorCode::NotConfigured);
}

#[tokio::test]
async fn streams_are_apart_and_the_code_is_the_commands_own() {
    let host = Host::configured().await;
    let output = host.run(sh("a", "echo out; echo err >&2; exit 7")).await;
    assert_eq!(output.stdout, b"out\n");
    assert_eq!(output.stderr, b"err\n");
    assert_eq!(output.exit, Some(Exit::Code { code: 7 }));
}

#[tokio::test]
async fn environment_and_folder_reach_the_command() {
    let host = Host::configured().await;
    let mut request = sh("env", "echo $FROM_HOST $OWN; pwd");
    request.env.insert("OWN".to_owned(), "mine".to_owned());
    request.cwd = Some("/usr".to_owned());
    assert_eq!(host.run(request).await.stdout, b"yes mine\n/usr\n");
}

#[tokio::test]
async fn b209_no_input_is_the_end_of_input_and_signals_are_signals() {
    let host = Host::configured().await;
    let cat = ExecRequest {
        exec_id: "cat".to_owned(),
        argv: vec!["cat".to_owned()],
        cwd: Some("/".to_owned()),
        ..ExecRequest::default()
    };
    assert_eq!(host.run(cat).await.exit, Some(Exit::Code { code: 0 }));
    let killed = host.run(sh("killed", "kill -TERM $$")).await;
    assert_eq!(killed.exit, Some(Exit::Signal { signal: 15 }));
}

#[tokio::test]
async fn b210_a_background_child_does_not_hold_the_call() {
    let host = Host::configured().await;
    let output = host.run(sh("bg", "sleep 300 & echo ok")).await;
    assert_eq!(output.stdout, b"ok\n");
    assert_eq!(output.exit, Some(Exit::Code { code: 0 }));
}

#[tokio::test]
async fn b210_nor_does_one_that_never_stops_talking() {
    let host = Host::configured().await;
    for (id, noise) in [
        ("chatty", "while :; do echo x; sleep 0.01; done"),
        ("flood", "exec yes"),
    ] {
        let output = host.run(sh(id, &format!("({noise}) & echo $! >&2"))).await;
        assert_eq!(output.exit, Some(Exit::Code { code: 0 }), "{id}");
        let pid: i32 = String::from_utf8(output.stderr)
            .unwrap()
            .trim()
            .parse()
            .unwrap();
        let background = nix::unistd::Pid::from_raw(pid);
        nix::sys::signal::kill(background, nix::sys::signal::Signal::SIGKILL).unwrap();
    }
}

#[tokio::test]
async fn what_no_program_could_read_back_is_refused() {
    let host = Host::configured().await;
    for (name, value) in [("", "x"), ("A=B", "x"), ("A\0", "x"), ("A", "\0")] {
        let mut request = sh("odd", "true");
        request.env.insert(name.to_owned(), value.to_owned());
        let error = host.start(&request).await.unwrap_err();
        assert_eq!(error.code, ErrorCode::BadRequest, "{name:?}={value:?}");
    }
    let error = host.start(&sh("odd", "a\0b")).await.unwrap_err();
    assert_eq!(error.code, ErrorCode::BadRequest);
    let error = host
        .start(&sh("odd", &"x".repeat(1_000_000)))
        .await
        .unwrap_err();
    assert_eq!(error.code, ErrorCode::BadRequest);
    let mut relative = sh("odd", "true");
    relative.cwd = Some("usr".to_owned());
    assert_eq!(
        host.start(&relative).await.unwrap_err().code,
        ErrorCode::ExecCwd
    );
}

#[tokio::test]
async fn commands_are_listed_with_their_ends() {
    let host = Host::configured().await;
    host.run(sh("z-first", "exit 3")).await;
    host.start(&sh("a-second", "exec sleep 300")).await.unwrap();
    let (_, list) = host.send(Method::GET, api::EXEC, Vec::new()).await;
    let list: ExecList = serde_json::from_slice(&list).unwrap();
    let ends: Vec<_> = list
        .execs
        .iter()
        .map(|exec| (exec.exec_id.as_str(), exec.exit.clone()))
        .collect();
    assert_eq!(
        ends,
        [
            ("z-first", Some(Exit::Code { code: 3 })),
            ("a-second", None)
        ]
    );
    let kill = SignalRequest {
        signal: 9,
        scope: SignalScope::Tree,
    };
    host.post::<serde_json::Value>(&api::exec_signal("a-second"), &kill)
        .await
        .unwrap();
    let (_, exit) = host
        .send(Method::GET, &api::exec_wait("a-second"), Vec::new())
        .await;
    let exit: Exit = serde_json::from_slice(&exit).unwrap();
    assert_eq!(exit, Exit::Signal { signal: 9 });
}

#[tokio::test]
async fn input_that_nobody_reads_holds_up_nothing_else() {
    let host = Host::configured().await;
    let mut stuck = Vec::new();
    for number in 0..12 {
        let mut request = sh(&format!("deaf-{number}"), "exec sleep 300");
        request.stdin = true;
        host.start(&request).await.unwrap();
        let host = host.clone();
        stuck.push(tokio::spawn(async move {
            host.stdin(&request.exec_id, "offset=0", &vec![0; 1_000_000])
                .await
        }));
    }
    let output = host.run(sh("other", "echo still here")).await;
    assert_eq!(output.stdout, b"still here\n");
    for (number, stuck) in stuck.into_iter().enumerate() {
        let kill = SignalRequest {
            signal: 9,
            scope: SignalScope::Tree,
        };
        let path = api::exec_signal(&format!("deaf-{number}"));
        host.post::<serde_json::Value>(&path, &kill).await.unwrap();
        assert_eq!(stuck.await.unwrap().unwrap_err().code, ErrorCode::Conflict);
    }
}

#[tokio::test]
async fn b213_much_output_arrives_whole_with_its_error_line_and_code() {
    let host = Host::configured().await;
    let script = "head -c 30000000 /dev/zero | tr '\\0' x; echo late >&2; exit 3";
    let output = host.run(sh("much", script)).await;
    let tail = host.output_from("much", 29_999_000).await;
    assert_eq!(output.stderr, b"late\n");
    assert_eq!(output.exit, Some(Exit::Code { code: 3 }));
    // What came before the reader was there may be gone, and is told when it is.
    let gone: u64 = output.gaps.iter().map(|(from, to)| to - from).sum();
    assert_eq!(output.stdout.len() as u64 + gone, 30_000_000);
    assert!(output.stdout.iter().all(|&byte| byte == b'x'));
    assert_eq!(tail.stdout.len(), 1000);
}

#[tokio::test]
async fn b213_a_timeout_keeps_the_output_and_ends_the_tree() {
    let host = Host::configured().await;
    let mut request = sh("slow", "echo partial; sleep 300; echo never");
    request.timeout_ms = Some(300);
    let output = host.run(request).await;
    assert_eq!(output.stdout, b"partial\n");
    assert_eq!(output.exit, Some(Exit::Timeout));
}

#[tokio::test]
async fn b214_what_cannot_start_says_why() {
    let host = Host::configured().await;
    let code = |request: ExecRequest| {
        let host = host.clone();
        async move { host.start(&request).await.unwrap_err().code }
    };
    let program = |name: &str| ExecRequest {
        exec_id: "p".to_owned(),
        argv: vec![name.to_owned()],
        cwd: Some("/".to_owned()),
        ..ExecRequest::default()
    };
    assert_eq!(
        code(program("no-such-program")).await,
        ErrorCode::ExecNotFound
    );
    assert_eq!(
        code(program("/etc/passwd")).await,
        ErrorCode::ExecNotExecutable
    );
    let mut nowhere = sh("p", "true");
    nowhere.cwd = Some("/no/such/folder".to_owned());
    assert_eq!(code(nowhere).await, ErrorCode::ExecCwd);
    let mut nobody = sh("p", "true");
    nobody.user = Some("no-such-user".to_owned());
    assert_eq!(code(nobody).await, ErrorCode::ExecUser);
    for id in ["", "../x", ".hidden", "a b"] {
        assert_eq!(code(sh(id, "true")).await, ErrorCode::BadRequest, "{id}");
    }
}

#[tokio::test]
async fn an_id_is_one_command() {
    let host = Host::configured().await;
    let file = tempfile::NamedTempFile::new().unwrap();
    let request = sh("once", &format!("echo run >> {}", file.path().display()));
    host.run(request.clone()).await;
    host.start(&request).await.unwrap();
    host.output("once").await;
    assert_eq!(std::fs::read_to_string(file.path()).unwrap(), "run\n");
    let error = host.start(&sh("once", "echo other")).await.unwrap_err();
    assert_eq!(error.code, ErrorCode::Conflict);
}

#[tokio::test]
async fn input_is_sent_by_offset_and_a_repeat_changes_nothing() {
    let host = Host::configured().await;
    let mut request = sh("in", "cat");
    request.stdin = true;
    host.start(&request).await.unwrap();
    assert_eq!(
        host.stdin("in", "offset=0", b"hello ")
            .await
            .unwrap()
            .accepted_to,
        6
    );
    assert_eq!(
        host.stdin("in", "offset=0", b"hello w")
            .await
            .unwrap()
            .accepted_to,
        7
    );
    let error = host.stdin("in", "offset=50", b"x").await.unwrap_err();
    assert_eq!(error.code, ErrorCode::Conflict);
    assert_eq!(
        host.stdin("in", "offset=7&eof=1", b"orld")
            .await
            .unwrap()
            .accepted_to,
        11
    );
    let output = host.output("in").await;
    assert_eq!(output.stdout, b"hello world");
    assert_eq!(output.exit, Some(Exit::Code { code: 0 }));
}

#[tokio::test]
async fn input_for_a_command_that_is_gone_is_refused() {
    let host = Host::configured().await;
    let mut request = sh("gone", "exec sleep 0");
    request.stdin = true;
    host.start(&request).await.unwrap();
    let error = host
        .stdin("gone", "offset=0", &vec![0; 4_000_000])
        .await
        .unwrap_err();
    assert_eq!(error.code, ErrorCode::Conflict);
}

#[tokio::test]
async fn a_terminal_is_a_terminal() {
    let host = Host::configured().await;
    let mut request = sh(
        "tty",
        "test -t 0 && test -t 1 && stty size && read line && echo got $line",
    );
    request.pty = Some(Pty {
        rows: 33,
        cols: 101,
    });
    host.start(&request).await.unwrap();
    host.stdin("tty", "offset=0", b"typed\n").await.unwrap();
    let output = host.output("tty").await;
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(text.contains("33 101"), "{text}");
    assert!(text.contains("got typed"), "{text}");
    assert_eq!(output.exit, Some(Exit::Code { code: 0 }));
}

#[tokio::test]
async fn b215_a_session_ends_with_its_leader() {
    let host = Host::configured().await;
    let mut request = sh("leader", "(trap '' HUP; exec sleep 300) & echo done");
    request.pty = Some(Pty { rows: 24, cols: 80 });
    let output = host.run(request).await;
    assert_eq!(output.exit, Some(Exit::Code { code: 0 }));
}

#[tokio::test]
async fn signals_reach_the_group() {
    let host = Host::configured().await;
    host.start(&sh(
        "sig",
        "trap 'echo caught; exit 5' USR1; echo ready; while :; do sleep 0.05; done",
    ))
    .await
    .unwrap();
    let exec_path = api::exec_signal("sig");
    // The trap is set once `ready` was printed.
    let mut frames = host
        .0
        .clone()
        .send_request(
            Request::get(format!("http://guest{}", api::exec_stream("sig")))
                .body(Full::default())
                .unwrap(),
        )
        .await
        .unwrap()
        .into_body();
    frames.frame().await.unwrap().unwrap();
    let signal = SignalRequest {
        signal: 10,
        scope: SignalScope::Group,
    };
    host.post::<serde_json::Value>(&exec_path, &signal)
        .await
        .unwrap();
    let output = host.output("sig").await;
    assert_eq!(output.exit, Some(Exit::Code { code: 5 }));
    let error = host
        .post::<serde_json::Value>(&exec_path, &signal)
        .await
        .unwrap_err();
    assert_eq!(error.code, ErrorCode::Conflict);
}

#[tokio::test]
async fn b218_files_go_both_ways_at_once() {
    let host = Host::configured().await;
    let folder = tempfile::tempdir().unwrap();
    let content: Vec<u8> = (0..16 * 1024 * 1024_u32).map(|n| (n % 251) as u8).collect();
    let source = folder.path().join("source");
    std::fs::write(&source, &content).unwrap();
    let up = format!(
        "{}?path={}/new/up&mode=640",
        api::FILES,
        folder.path().display()
    );
    let down = format!("{}?path={}", api::FILES, source.display());
    let (written, read) = tokio::join!(
        host.send(Method::PUT, &up, content.clone()),
        host.send(Method::GET, &down, Vec::new())
    );
    assert_eq!(written.0, StatusCode::OK);
    assert_eq!(read.0, StatusCode::OK);
    assert!(read.1 == content);
    let target = folder.path().join("new/up");
    assert!(std::fs::read(&target).unwrap() == content);
    let mode = std::os::unix::fs::PermissionsExt::mode(&target.metadata().unwrap().permissions());
    assert_eq!(mode & 0o7777, 0o640);
    let left: Vec<_> = std::fs::read_dir(folder.path().join("new"))
        .unwrap()
        .collect();
    assert_eq!(left.len(), 1);
}

#[tokio::test]
async fn files_that_cannot_be_read_say_why() {
    let host = Host::configured().await;
    for (path, status) in [
        ("/no/such/file", 404),
        ("/etc", 409),
        ("relative", 400),
        ("/", 400),
    ] {
        let (found, _) = host
            .send(
                Method::GET,
                &format!("{}?path={path}", api::FILES),
                Vec::new(),
            )
            .await;
        assert_eq!(found.as_u16(), status, "{path}");
    }
}

#[tokio::test]
async fn c20_what_is_no_regular_file_is_not_even_opened() {
    let host = Host::configured().await;
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name).display().to_string();
    nix::unistd::mkfifo(at("fifo").as_str(), nix::sys::stat::Mode::S_IRWXU).unwrap();
    std::os::unix::fs::symlink("loop", at("loop")).unwrap();
    let file = |path: &str| format!("{}?path={path}", api::FILES);
    for path in [
        at("fifo"),
        "/dev/zero".to_owned(),
        at("loop"),
        "/".to_owned() + "etc",
    ] {
        let (status, _) = host.send(Method::GET, &file(&path), Vec::new()).await;
        assert_eq!(status, StatusCode::CONFLICT, "{path}");
    }
    for path in [
        at("fifo"),
        "/dev/zero".to_owned(),
        folder.path().display().to_string(),
    ] {
        let (status, _) = host.send(Method::PUT, &file(&path), b"x".to_vec()).await;
        assert_eq!(status, StatusCode::CONFLICT, "{path}");
    }
    for path in ["/tmp/a%00b".to_owned(), at(&"n".repeat(4096))] {
        let (status, _) = host.send(Method::PUT, &file(&path), b"x".to_vec()).await;
        assert_eq!(status, StatusCode::BAD_REQUEST, "{path}");
    }
    let (status, _) = host
        .send(Method::PUT, &file(&at(&"n".repeat(255))), b"x".to_vec())
        .await;
    assert_eq!(status, StatusCode::OK);
}

#[tokio::test]
async fn a_file_that_does_not_know_its_size_is_read_to_its_end() {
    let host = Host::configured().await;
    let path = format!("{}?path=/proc/self/status", api::FILES);
    let (status, text) = host.send(Method::GET, &path, Vec::new()).await;
    assert_eq!(status, StatusCode::OK);
    assert!(text.starts_with(b"Name:"), "{text:?}");
}

#[tokio::test]
async fn a_replaced_file_keeps_its_mode_and_a_link_is_replaced_itself() {
    use std::os::unix::fs::PermissionsExt;

    let host = Host::configured().await;
    let folder = tempfile::tempdir().unwrap();
    let (file, link) = (folder.path().join("file"), folder.path().join("link"));
    std::fs::write(&file, "old").unwrap();
    std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o751)).unwrap();
    std::os::unix::fs::symlink(&file, &link).unwrap();
    let put = |path: &std::path::Path| format!("{}?path={}", api::FILES, path.display());
    host.send(Method::PUT, &put(&file), b"new".to_vec()).await;
    assert_eq!(std::fs::read(&file).unwrap(), b"new");
    assert_eq!(
        file.metadata().unwrap().permissions().mode() & 0o7777,
        0o751
    );
    host.send(Method::PUT, &put(&link), b"own".to_vec()).await;
    assert_eq!(std::fs::read(&file).unwrap(), b"new");
    assert!(link.symlink_metadata().unwrap().is_file());
    let nowhere = format!("{}&parents=0", put(&folder.path().join("no/file")));
    let (status, _) = host.send(Method::PUT, &nowhere, b"x".to_vec()).await;
    assert_eq!(status, StatusCode::NOT_FOUND);
}

#[tokio::test]
async fn a_range_is_a_part_of_the_file() {
    let host = Host::configured().await;
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), "0123456789").unwrap();
    for (range, status, part) in [
        ("bytes=2-4", 206, "234"),
        ("bytes=-3", 206, "789"),
        ("bytes=8-99", 206, "89"),
        ("bytes=10-", 416, ""),
        ("bytes=4-2", 400, ""),
    ] {
        let request = Request::get(format!(
            "http://guest{}?path={}",
            api::FILES,
            file.path().display()
        ))
        .header("range", range)
        .body(Full::default())
        .unwrap();
        let response = host.0.clone().send_request(request).await.unwrap();
        assert_eq!(response.status().as_u16(), status, "{range}");
        if status == 206 {
            assert_eq!(
                response.into_body().collect().await.unwrap().to_bytes(),
                part,
                "{range}"
            );
        }
    }
}
