//! A new policy reaches what an earlier one let through, whatever it is waiting for (B178).

use http::StatusCode;
use http_body::Frame;

use super::*;

/// A policy like `allow(protocol, port, "")` that speaks of another name.
fn elsewhere(protocol: &str, port: u16) -> Policy {
    load(&allow(protocol, port, "").replace("a.test", "b.test"))
}

/// An origin that streams what comes out of a channel, one request after the other.
async fn streaming_origin(
    acceptor: Option<TlsAcceptor>,
) -> (
    u16,
    tokio::sync::mpsc::Receiver<tokio::sync::mpsc::Sender<Frame<Bytes>>>,
) {
    let (streams, opened) = tokio::sync::mpsc::channel(8);
    let port = origin(acceptor, move |_| {
        let streams = streams.clone();
        async move {
            let (frames, body) = channel_body();
            streams.send(frames).await.unwrap();
            Response::new(body)
        }
    })
    .await;
    (port, opened)
}

#[tokio::test]
async fn b178_a_stream_under_way_goes_on_or_is_cut_as_the_new_policy_says() {
    let tls = OriginTls::new();
    for http2 in [false, true] {
        let acceptor = tls.acceptor("a.test", &["http/1.1"]).await;
        let (port, mut opened) = streaming_origin(http2.then_some(acceptor)).await;
        let protocol = if http2 { "https" } else { "http" };
        let lab = Lab::new(&allow(protocol, port, ""), Some(&tls));
        let to = format!("a.test:{port}");
        patient(async {
            let answer = if http2 {
                let request = Request::get(format!("https://{to}/"))
                    .body(no_body())
                    .unwrap();
                lab.http2(&to).await.send_request(request).await.unwrap()
            } else {
                let request = Request::get("/")
                    .header("host", &to)
                    .body(no_body())
                    .unwrap();
                lab.http1(&to).await.send_request(request).await.unwrap()
            };
            let mut body = answer.into_body();
            let made = opened.recv().await.unwrap();
            made.send(Frame::data("one".into())).await.unwrap();
            assert_eq!(
                body.frame().await.unwrap().unwrap().into_data().unwrap(),
                "one"
            );

            // Another policy that still allows it changes nothing.
            lab.sandbox
                .set_policy(load(&format!("{}# Longer.\n", allow(protocol, port, ""))));
            made.send(Frame::data("two".into())).await.unwrap();
            assert_eq!(
                body.frame().await.unwrap().unwrap().into_data().unwrap(),
                "two"
            );

            // Silent, and cut all the same; the origin hears of it too.
            lab.sandbox.set_policy(elsewhere(protocol, port));
            assert!(body.frame().await.unwrap().is_err());
            made.closed().await;
        })
        .await;
        let record = lab.record("response").await;
        assert_eq!(record["reason"], "default_deny");
        assert_eq!(record["bytes_received"], 6);
    }
}

#[tokio::test]
async fn b178_a_request_that_waits_for_its_answer_is_denied() {
    let port = origin(None, |_| std::future::pending()).await;
    let lab = Lab::new(&allow("http", port, ""), None);
    let to = format!("a.test:{port}");
    let mut guest = lab.http1(&to).await;
    let request = Request::get("/")
        .header("host", &to)
        .body(no_body())
        .unwrap();
    patient(async {
        let answer = tokio::spawn(guest.send_request(request));
        lab.record("request").await;
        lab.sandbox.set_policy(elsewhere("http", port));
        let answer = answer.await.unwrap().unwrap();
        assert_eq!(answer.status(), StatusCode::FORBIDDEN);
    })
    .await;
    let record = lab.record("response").await;
    assert_eq!(
        (&record["reason"], &record["status"]),
        (&"default_deny".into(), &403.into())
    );
}

#[tokio::test]
async fn b178_an_upload_under_way_is_cut_and_never_looks_whole() {
    let (whole, mut seen) = tokio::sync::mpsc::channel(1);
    let port = origin(None, move |request: Request<Incoming>| {
        let whole = whole.clone();
        async move {
            let mut body = request.into_body();
            let first = body.frame().await.unwrap();
            whole.send(first.is_ok()).await.unwrap();
            whole.send(body.collect().await.is_ok()).await.unwrap();
            Response::new(no_body())
        }
    })
    .await;
    let lab = Lab::new(&allow("http", port, ""), None);
    let to = format!("a.test:{port}");
    let mut guest = lab.http1(&to).await;
    let (frames, body) = channel_body();
    let request = Request::post("/").header("host", &to).body(body).unwrap();
    patient(async {
        let answer = tokio::spawn(guest.send_request(request));
        frames.send(Frame::data("half".into())).await.unwrap();
        assert!(seen.recv().await.unwrap());
        lab.sandbox.set_policy(elsewhere("http", port));
        assert!(
            !seen.recv().await.unwrap(),
            "the origin took half a body for a whole one"
        );
        assert_eq!(
            answer.await.unwrap().unwrap().status(),
            StatusCode::FORBIDDEN
        );
    })
    .await;
}
