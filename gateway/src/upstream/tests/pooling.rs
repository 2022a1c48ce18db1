//! Which requests share a connection.

use std::sync::Arc;

use outgate_policy::Protocol;
use tokio::io::AsyncWriteExt as _;
use tokio::net::TcpStream;
use tokio::sync::{Notify, mpsc, watch};
use tokio::task::JoinSet;
use tokio::time::{Duration, advance, pause};

use super::lab::{LabRoot, Origin, config, get, http, https, read_head, sandbox, send, text};
use crate::upstream::{SandboxUpstream, SendOptions, Upstream};

/// Sends, reads the answer to its end, and waits until the connection is back on its shelf.
async fn exchange(sandbox: &SandboxUpstream, origin: &Origin, version: Option<u64>) {
    let options = SendOptions {
        credential_version: version,
        ..SendOptions::default()
    };
    let sent = sandbox
        .send(&http(origin), Protocol::Http, get("/"), options)
        .await
        .unwrap();
    text(sent).await;
    settle().await;
}

/// Lets the tasks of this test's single thread run until none has anything left to do.
async fn settle() {
    for _ in 0..32 {
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn an_http1_connection_serves_one_request_after_another() {
    let origin = Origin::http().await;
    let sandbox = Upstream::new(config(Some(&LabRoot::new())))
        .unwrap()
        .for_sandbox();
    for _ in 0..3 {
        exchange(&sandbox, &origin, None).await;
    }
    assert_eq!(origin.connections(), 1);
}

#[tokio::test]
async fn an_http1_connection_is_not_used_before_its_answer_was_read() {
    let (finish, finished) = watch::channel(false);
    let origin = Origin::raw(move |mut stream: TcpStream| {
        let mut finished = finished.clone();
        async move {
            read_head(&mut stream).await.unwrap();
            stream
                .write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\nfi")
                .await
                .unwrap();
            finished.wait_for(|finished| *finished).await.unwrap();
            stream.write_all(b"ne").await.unwrap();
            read_head(&mut stream).await;
        }
    })
    .await;
    let sandbox = Upstream::new(config(Some(&LabRoot::new())))
        .unwrap()
        .for_sandbox();
    let first = send(&sandbox, &http(&origin), get("/one")).await.unwrap();
    settle().await;
    let second = send(&sandbox, &http(&origin), get("/two")).await.unwrap();
    assert_eq!(origin.connections(), 2);
    finish.send(true).unwrap();
    assert_eq!(
        (text(first).await, text(second).await),
        ("fine".into(), "fine".into())
    );
}

#[tokio::test]
async fn http2_requests_share_a_connection_even_when_all_come_at_once() {
    let root = LabRoot::new();
    let origin = Origin::https(root.server("a.test", &["h2"], |_| {})).await;
    let sandbox = sandbox(&root);
    let permit = https(&origin);
    let mut requests = JoinSet::new();
    for number in 0..20 {
        let (sandbox, permit) = (sandbox.clone(), permit.clone());
        requests.spawn(async move {
            let sent = send(&sandbox, &permit, get(&format!("/{number}")))
                .await
                .unwrap();
            assert!(text(sent).await.contains(&format!("/{number}\n")));
        });
    }
    requests.join_all().await;
    let later = send(&sandbox, &permit, get("/later")).await.unwrap();
    assert_eq!((later.timings.connect, later.timings.tls), (None, None));
    assert_eq!(origin.connections(), 1);
}

#[tokio::test]
async fn many_requests_to_a_new_http1_origin_each_get_their_own_connection() {
    let root = LabRoot::new();
    let origin = Origin::https(root.server("a.test", &["http/1.1"], |_| {})).await;
    let sandbox = sandbox(&root);
    let permit = https(&origin);
    let (one, two, three) = tokio::join!(
        send(&sandbox, &permit, get("/1")),
        send(&sandbox, &permit, get("/2")),
        send(&sandbox, &permit, get("/3")),
    );
    assert!(one.is_ok() && two.is_ok() && three.is_ok());
    assert_eq!(origin.connections(), 3);
}

#[tokio::test]
async fn c08_two_sandboxes_never_share_a_connection() {
    let origin = Origin::http().await;
    let upstream = Upstream::new(config(Some(&LabRoot::new()))).unwrap();
    exchange(&upstream.for_sandbox(), &origin, None).await;
    exchange(&upstream.for_sandbox(), &origin, None).await;
    assert_eq!(origin.connections(), 2);
}

#[tokio::test]
async fn b181_a_rotated_credential_gets_a_connection_of_its_own() {
    let origin = Origin::http().await;
    let sandbox = Upstream::new(config(Some(&LabRoot::new())))
        .unwrap()
        .for_sandbox();
    for (version, connections) in [(Some(1), 1), (Some(1), 1), (Some(2), 2), (None, 3)] {
        exchange(&sandbox, &origin, version).await;
        assert_eq!(origin.connections(), connections, "{version:?}");
    }
}

#[tokio::test]
async fn a_connection_that_the_origin_closed_in_the_meantime_is_not_used() {
    let origin = Origin::raw(async |mut stream| {
        read_head(&mut stream).await.unwrap();
        stream
            .write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok")
            .await
            .unwrap();
    })
    .await;
    let sandbox = Upstream::new(config(Some(&LabRoot::new())))
        .unwrap()
        .for_sandbox();
    for _ in 0..3 {
        // Whether the close was seen before the request or hit it, the request succeeds.
        let sent = send(&sandbox, &http(&origin), get("/")).await.unwrap();
        assert_eq!(text(sent).await, "ok");
    }
    assert_eq!(origin.connections(), 3);
}

#[tokio::test]
async fn a_sandbox_that_goes_takes_its_connections_along() {
    let (closed, mut closes) = mpsc::channel(1);
    let origin = Origin::raw(move |mut stream: TcpStream| {
        let closed = closed.clone();
        async move {
            read_head(&mut stream).await.unwrap();
            stream
                .write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok")
                .await
                .unwrap();
            assert_eq!(read_head(&mut stream).await, None);
            closed.send(()).await.unwrap();
        }
    })
    .await;
    let sandbox = Upstream::new(config(Some(&LabRoot::new())))
        .unwrap()
        .for_sandbox();
    exchange(&sandbox, &origin, None).await;
    drop(sandbox);
    closes.recv().await.unwrap();
}

#[tokio::test]
async fn an_unused_connection_is_closed_by_us_first() {
    let closed = Arc::new(Notify::new());
    let closes = closed.clone();
    let origin = Origin::raw(move |mut stream: TcpStream| {
        let closed = closed.clone();
        async move {
            read_head(&mut stream).await.unwrap();
            stream
                .write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok")
                .await
                .unwrap();
            assert_eq!(read_head(&mut stream).await, None);
            closed.notify_one();
        }
    })
    .await;
    let sandbox = Upstream::new(config(Some(&LabRoot::new())))
        .unwrap()
        .for_sandbox();
    exchange(&sandbox, &origin, None).await;
    pause();
    advance(Duration::from_secs(80)).await;
    closes.notified().await;
}

#[tokio::test]
async fn when_every_place_is_taken_unused_connections_make_room() {
    let origin = Origin::http().await;
    let sandbox = Upstream::new(config(Some(&LabRoot::new())))
        .unwrap()
        .for_sandbox();
    let permit = http(&origin);
    // 16 connections for each of 16 versions: all that one sandbox may have, and all idle.
    for version in 0..16 {
        let options = SendOptions {
            credential_version: Some(version),
            ..SendOptions::default()
        };
        let mut answers = JoinSet::new();
        for _ in 0..16 {
            let (sandbox, permit) = (sandbox.clone(), permit.clone());
            answers.spawn(async move {
                sandbox
                    .send(&permit, Protocol::Http, get("/"), options)
                    .await
                    .unwrap()
            });
        }
        for sent in answers.join_all().await {
            text(sent).await;
        }
        settle().await;
    }
    assert_eq!(origin.connections(), 256);
    exchange(&sandbox, &origin, None).await;
    assert_eq!(origin.connections(), 257);
}
