//! A sandbox that is drained: answers under way are whole, and connections end after them.

use http_body::Frame;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use super::*;

/// An origin whose one answer comes out of a channel.
async fn held_origin(
    acceptor: Option<TlsAcceptor>,
) -> (u16, tokio::sync::mpsc::Sender<Frame<Bytes>>) {
    let (frames, body) = channel_body();
    let body = Arc::new(std::sync::Mutex::new(Some(body)));
    let port = origin(acceptor, move |_| {
        let body = body.lock().unwrap().take().unwrap();
        async move { Response::new(body) }
    })
    .await;
    (port, frames)
}

#[tokio::test]
async fn an_answer_under_way_is_whole_and_the_connection_ends_after_it() {
    let (port, frames) = held_origin(None).await;
    let lab = Lab::new(&allow("http", port, ""), None);
    let to = format!("a.test:{port}");
    let mut guest = lab.connect(&to);
    let request = format!("GET / HTTP/1.1\r\nHost: {to}\r\n\r\n");
    patient(async {
        guest.write_all(request.as_bytes()).await.unwrap();
        lab.record("request").await;
        lab.sandbox.drain();
        frames.send(Frame::data("whole".into())).await.unwrap();
        drop(frames);
        let mut answer = String::new();
        guest.read_to_string(&mut answer).await.unwrap();
        assert!(answer.contains("connection: close\r\n"), "{answer}");
        assert!(answer.ends_with("5\r\nwhole\r\n0\r\n\r\n"), "{answer}");
        drop(guest);
        lab.sandbox.drained().await;
    })
    .await;
    assert!(lab.record("response").await["reason"].is_null());
}

#[tokio::test]
async fn an_idle_connection_ends_at_once() {
    let port = origin(None, |_| async { Response::new(full("x")) }).await;
    let lab = Lab::new(&allow("http", port, ""), None);
    let to = format!("a.test:{port}");
    let mut guest = lab.http1(&to).await;
    let request = Request::get("/")
        .header("host", &to)
        .body(no_body())
        .unwrap();
    patient(async {
        let answer = guest.send_request(request).await.unwrap();
        assert_eq!(text(answer.into_body()).await, "x");
        guest.ready().await.unwrap();
        lab.sandbox.drain();
        while guest.ready().await.is_ok() {
            tokio::task::yield_now().await;
        }
        lab.sandbox.drained().await;
    })
    .await;
}

#[tokio::test]
async fn a_stream_under_way_is_whole_and_no_other_begins() {
    let tls = OriginTls::new();
    let acceptor = tls.acceptor("a.test", &["http/1.1"]).await;
    let (port, frames) = held_origin(Some(acceptor)).await;
    let lab = Lab::new(&allow("https", port, ""), Some(&tls));
    let to = format!("a.test:{port}");
    let mut guest = lab.http2(&to).await;
    let request = || {
        Request::get(format!("https://{to}/"))
            .body(no_body())
            .unwrap()
    };
    patient(async {
        let answer = tokio::spawn(guest.send_request(request()));
        lab.record("request").await;
        lab.sandbox.drain();
        frames.send(Frame::data("whole".into())).await.unwrap();
        drop(frames);
        let answer = answer.await.unwrap().unwrap();
        assert_eq!(text(answer.into_body()).await, "whole");
        lab.sandbox.drained().await;
        while guest.ready().await.is_ok() {
            tokio::task::yield_now().await;
        }
        assert!(guest.send_request(request()).await.is_err());
    })
    .await;
}
