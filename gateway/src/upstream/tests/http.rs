//! What HTTP looks like on the wire, and what is made of sloppy origins.

use std::sync::{Arc, Mutex};

use http::header::{CONTENT_LENGTH, TRANSFER_ENCODING};
use http::{HeaderMap, HeaderValue, StatusCode};
use hyper::body::Frame;
use hyper_util::rt::TokioIo;
use outgate_policy::{Protocol, Reason};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use super::lab::{
    Frames, LabRoot, Origin, config, get, http, https, post, read_head, sandbox, send, text,
};
use crate::upstream::{SandboxUpstream, SendOptions, Upstream, UpstreamError};

/// An origin that reads one request head and answers with `answer`, then waits for the end.
async fn answering(answer: &'static str) -> Origin {
    Origin::raw(move |mut stream: TcpStream| async move {
        read_head(&mut stream).await.unwrap();
        stream.write_all(answer.as_bytes()).await.unwrap();
        read_head(&mut stream).await;
    })
    .await
}

fn plain_sandbox() -> SandboxUpstream {
    Upstream::new(config(Some(&LabRoot::new())))
        .unwrap()
        .for_sandbox()
}

#[tokio::test]
async fn b058_a_length_beside_chunks_is_removed_and_the_connection_not_used_again() {
    let origin = answering(
        "HTTP/1.1 200 OK\r\nContent-Length: 10\r\nTransfer-Encoding: chunked\r\n\r\n\
         5\r\nhello\r\n0\r\n\r\n",
    )
    .await;
    let sandbox = plain_sandbox();
    for connections in 1..=2 {
        let sent = send(&sandbox, &http(&origin), get("/")).await.unwrap();
        assert!(sent.conflicting_length);
        assert!(!sent.response.headers().contains_key(CONTENT_LENGTH));
        assert!(sent.response.headers().contains_key(TRANSFER_ENCODING));
        assert_eq!(text(sent).await, "hello");
        assert_eq!(origin.connections(), connections);
    }
}

#[tokio::test]
async fn interim_answers_are_passed_to_whoever_asks() {
    let origin = answering(
        "HTTP/1.1 103 Early Hints\r\nlink: </a>\r\n\r\n\
         HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok",
    )
    .await;
    let seen = Arc::new(Mutex::new(Vec::new()));
    let mut request = get("/");
    let noted = seen.clone();
    hyper::ext::on_informational(&mut request, move |interim| {
        noted.lock().unwrap().push(interim.status());
    });
    let sent = send(&plain_sandbox(), &http(&origin), request)
        .await
        .unwrap();
    assert_eq!(text(sent).await, "ok");
    assert_eq!(*seen.lock().unwrap(), [StatusCode::EARLY_HINTS]);
}

#[tokio::test]
async fn an_origin_that_switches_protocols_unasked_is_refused() {
    let origin =
        answering("HTTP/1.1 101 Switching Protocols\r\nupgrade: x\r\nconnection: upgrade\r\n\r\n")
            .await;
    let error = send(&plain_sandbox(), &http(&origin), get("/"))
        .await
        .unwrap_err();
    assert_eq!(error.reason(), Reason::UpstreamProtocol);
}

#[tokio::test]
async fn b070_after_a_switch_bytes_flow_both_ways_those_in_the_same_segment_included() {
    let origin = Origin::raw(|mut stream: TcpStream| async move {
        read_head(&mut stream).await.unwrap();
        let answer =
            b"HTTP/1.1 101 Switching Protocols\r\nupgrade: echo\r\nconnection: upgrade\r\n\r\nhi";
        stream.write_all(answer).await.unwrap();
        let (mut from, mut to) = stream.split();
        tokio::io::copy(&mut from, &mut to).await.unwrap();
    })
    .await;
    let mut request = get("/");
    request
        .headers_mut()
        .insert("connection", HeaderValue::from_static("upgrade"));
    request
        .headers_mut()
        .insert("upgrade", HeaderValue::from_static("echo"));
    let options = SendOptions {
        upgrade: true,
        ..SendOptions::default()
    };
    let sandbox = plain_sandbox();
    let sent = sandbox
        .send(&http(&origin), Protocol::Http, request, options)
        .await
        .unwrap();
    assert_eq!(sent.response.status(), StatusCode::SWITCHING_PROTOCOLS);
    let mut tunnel = TokioIo::new(hyper::upgrade::on(sent.response).await.unwrap());
    tunnel.write_all(b" there").await.unwrap();
    let mut heard = [0; 8];
    tunnel.read_exact(&mut heard).await.unwrap();
    assert_eq!(&heard, b"hi there");
}

#[tokio::test]
async fn an_answer_that_refuses_the_switch_streams_to_its_end() {
    let (finish, finished) = tokio::sync::watch::channel(false);
    let origin = Origin::raw(move |mut stream: TcpStream| {
        let mut finished = finished.clone();
        async move {
            read_head(&mut stream).await.unwrap();
            let head = b"HTTP/1.1 426 Upgrade Required\r\ncontent-length: 4\r\n\r\nso";
            stream.write_all(head).await.unwrap();
            finished.wait_for(|finished| *finished).await.unwrap();
            stream.write_all(b"so").await.unwrap();
        }
    })
    .await;
    let options = SendOptions {
        upgrade: true,
        ..SendOptions::default()
    };
    let sandbox = plain_sandbox();
    let sent = sandbox
        .send(&http(&origin), Protocol::Http, get("/"), options)
        .await
        .unwrap();
    finish.send(true).unwrap();
    assert_eq!(text(sent).await, "soso");
}

#[tokio::test]
async fn what_is_not_http_is_named_and_so_is_silence() {
    for (answer, reason) in [
        ("SSH-2.0-OpenSSH_9.9\r\n\r\n", Reason::UpstreamProtocol),
        (
            "HTTP/1.1 200 OK\r\nbroken header\r\n\r\n",
            Reason::UpstreamProtocol,
        ),
    ] {
        let origin = answering(answer).await;
        let error = send(&plain_sandbox(), &http(&origin), get("/"))
            .await
            .unwrap_err();
        assert_eq!(error.reason(), reason, "{error}");
    }
    let origin = Origin::raw(|mut stream: TcpStream| async move {
        // Reads a little and goes.
        let _ = stream.read_u8().await;
    })
    .await;
    let error = send(&plain_sandbox(), &http(&origin), get("/"))
        .await
        .unwrap_err();
    assert_eq!(error.reason(), Reason::UpstreamClosed, "{error}");
}

#[tokio::test]
async fn a_request_streams_and_its_trailers_arrive_over_http2() {
    let root = LabRoot::new();
    let origin = Origin::https(root.server("a.test", &["h2"], |_| {})).await;
    let (frames, body) = Frames::channel();
    let request = post("/up", body);
    let feed = async move {
        for piece in ["one ", "two ", "three"] {
            frames.send(Ok(Frame::data(piece.into()))).await.unwrap();
        }
        let mut trailers = HeaderMap::new();
        trailers.insert("x-sum", HeaderValue::from_static("3"));
        frames.send(Ok(Frame::trailers(trailers))).await.unwrap();
    };
    let sandbox = sandbox(&root);
    let permit = https(&origin);
    let (sent, ()) = tokio::join!(send(&sandbox, &permit, request), feed);
    assert!(text(sent.unwrap()).await.ends_with("\n\none two three"));
}

#[tokio::test]
async fn a_body_that_breaks_off_is_the_guests_doing() {
    let root = LabRoot::new();
    let origin = Origin::http().await;
    let (frames, body) = Frames::channel();
    let request = post("/up", body);
    frames
        .send(Err("the guest went away".into()))
        .await
        .unwrap();
    let error = send(&sandbox(&root), &http(&origin), request)
        .await
        .unwrap_err();
    assert!(
        matches!(error, UpstreamError::RequestBody { .. }),
        "{error}"
    );
    assert!(error.to_string().contains("the guest went away"), "{error}");
}
