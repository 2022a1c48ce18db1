//! Nothing is held back: each test makes the next byte depend on the one before it.

use http::StatusCode;
use http_body::Frame;

use super::*;

/// More than all buffers on the way together.
const BIG: usize = 32 * 1024 * 1024;

#[tokio::test]
async fn b078_each_event_of_a_stream_arrives_before_the_next_is_made() {
    let (made, body) = channel_body();
    let body = std::sync::Mutex::new(Some(body));
    let body = Arc::new(body);
    let port = origin(None, move |_| {
        let body = body.lock().unwrap().take().unwrap();
        async {
            Response::builder()
                .header("content-type", "text/event-stream")
                .body(body)
                .unwrap()
        }
    })
    .await;
    let lab = Lab::new(&allow("http", port, ""), None);
    let to = format!("a.test:{port}");
    let mut guest = lab.http1(&to).await;
    let request = Request::get("/")
        .header("host", &to)
        .body(no_body())
        .unwrap();
    patient(async {
        let mut events = guest.send_request(request).await.unwrap().into_body();
        for number in 0..5 {
            let event = format!("data: {number}\n\n");
            made.send(Frame::data(event.clone().into())).await.unwrap();
            assert_eq!(
                events.frame().await.unwrap().unwrap().into_data().unwrap(),
                event
            );
        }
        drop(made);
        assert!(events.frame().await.is_none());
    })
    .await;
}

#[tokio::test]
async fn a_response_begins_and_flows_while_the_upload_goes_on() {
    let port = origin(None, |request: Request<Incoming>| async {
        Response::new(request.into_body().map_err(Into::into).boxed())
    })
    .await;
    let lab = Lab::new(&allow("http", port, ""), None);
    let to = format!("a.test:{port}");
    let mut guest = lab.http1(&to).await;
    let (frames, body) = channel_body();
    let request = Request::post("/").header("host", &to).body(body).unwrap();
    patient(async {
        let mut echo = guest.send_request(request).await.unwrap().into_body();
        for round in ["one", "two", "three"] {
            frames.send(Frame::data(round.into())).await.unwrap();
            assert_eq!(
                echo.frame().await.unwrap().unwrap().into_data().unwrap(),
                round
            );
        }
        drop(frames);
        assert!(echo.frame().await.is_none());
    })
    .await;
}

#[tokio::test]
async fn an_early_answer_reaches_a_guest_that_still_uploads() {
    let port = origin(None, |request: Request<Incoming>| async {
        tokio::spawn(request.into_body().collect());
        let mut response = Response::new(full("too early"));
        *response.status_mut() = StatusCode::CONFLICT;
        response
    })
    .await;
    let lab = Lab::new(&allow("http", port, ""), None);
    let to = format!("a.test:{port}");
    let mut guest = lab.http1(&to).await;
    let (frames, body) = channel_body();
    let request = Request::post("/").header("host", &to).body(body).unwrap();
    patient(async {
        let answer = guest.send_request(request).await.unwrap();
        assert_eq!(answer.status(), StatusCode::CONFLICT);
        assert_eq!(text(answer.into_body()).await, "too early");
        drop(frames);
    })
    .await;
    let record = lab.record("response").await;
    assert_eq!(record["status"], 409);
}

async fn echo_big(lab: &Lab, to: &str, is_http2: bool) {
    let (frames, body) = channel_body();
    let answer: Response<Incoming> = if is_http2 {
        let request = Request::post(format!("https://{to}/")).body(body).unwrap();
        lab.http2(to).await.send_request(request).await.unwrap()
    } else {
        let request = Request::post("/").header("host", to).body(body).unwrap();
        lab.http1(to).await.send_request(request).await.unwrap()
    };
    let chunk = Bytes::from(vec![b'x'; 64 * 1024]);
    let upload = async {
        for _ in 0..BIG / chunk.len() {
            frames.send(Frame::data(chunk.clone())).await.unwrap();
        }
        drop(frames);
    };
    let download = async {
        let (mut body, mut total) = (answer.into_body(), 0);
        while let Some(frame) = body.frame().await {
            total += frame.unwrap().into_data().unwrap().len();
        }
        total
    };
    let ((), total) = tokio::join!(upload, download);
    assert_eq!(total, BIG);
}

#[tokio::test]
async fn an_echo_larger_than_all_buffers_gets_through() {
    let echo = |request: Request<Incoming>| async {
        Response::new(request.into_body().map_err(Into::into).boxed())
    };
    let port = origin(None, echo).await;
    let lab = Lab::new(&allow("http", port, ""), None);
    patient(echo_big(&lab, &format!("a.test:{port}"), false)).await;

    let tls = OriginTls::new();
    let port = origin(Some(tls.acceptor("a.test", &["h2"]).await), echo).await;
    let lab = Lab::new(&allow("https", port, ""), Some(&tls));
    patient(echo_big(&lab, &format!("a.test:{port}"), true)).await;
    let record = lab.record("response").await;
    assert_eq!(
        (&record["bytes_sent"], &record["bytes_received"]),
        (&BIG.into(), &BIG.into())
    );
}

#[tokio::test]
async fn b163_expect_continue_is_answered_after_the_verdict() {
    let port = origin(None, |request: Request<Incoming>| async move {
        assert!(!request.headers().contains_key("expect"));
        Response::new(full(
            request.into_body().collect().await.unwrap().to_bytes(),
        ))
    })
    .await;
    let lab = Lab::new(&allow("http", port, ""), None);
    let to = format!("a.test:{port}");
    let mut guest = lab.connect(&to);
    patient(async {
        let head = format!(
            "POST / HTTP/1.1\r\nHost: {to}\r\nExpect: 100-continue\r\nContent-Length: 5\r\nConnection: close\r\n\r\n"
        );
        guest.write_all(head.as_bytes()).await.unwrap();
        let mut interim = [0; 25];
        guest.read_exact(&mut interim).await.unwrap();
        assert_eq!(&interim, b"HTTP/1.1 100 Continue\r\n\r\n");
        assert_eq!(lab.count("request"), 1, "the decision is recorded first");
        guest.write_all(b"hello").await.unwrap();
        let mut answer = String::new();
        guest.read_to_string(&mut answer).await.unwrap();
        assert!(answer.starts_with("HTTP/1.1 200 OK\r\n") && answer.ends_with("hello"), "{answer}");
    })
    .await;
}

#[tokio::test]
async fn b178_a_new_policy_holds_for_the_next_request_of_an_open_connection() {
    let port = origin(None, |_| async { Response::new(full("ok")) }).await;
    let lab = Lab::new(&allow("http", port, ""), None);
    let to = format!("a.test:{port}");
    let mut guest = lab.http1(&to).await;
    let ask = || {
        Request::get("/")
            .header("host", &to)
            .body(no_body())
            .unwrap()
    };
    let answer = patient(guest.send_request(ask())).await.unwrap();
    assert_eq!(
        (answer.status(), text(answer.into_body()).await),
        (StatusCode::OK, "ok".into())
    );
    lab.sandbox
        .set_policy(load(&allow("http", port, "").replace("a.test", "b.test")));
    patient(guest.ready()).await.unwrap();
    let answer = patient(guest.send_request(ask())).await.unwrap();
    assert_eq!(answer.status(), StatusCode::FORBIDDEN);
    text(answer.into_body()).await;
    lab.sandbox.set_policy(load(&allow("http", port, "")));
    patient(guest.ready()).await.unwrap();
    let answer = patient(guest.send_request(ask())).await.unwrap();
    assert_eq!(answer.status(), StatusCode::OK);
}

#[tokio::test]
async fn an_exchange_that_either_side_breaks_off_is_recorded() {
    // The upstream breaks off.
    let (origin, _seen) = raw_origin("HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nhalf").await;
    let lab = Lab::new(&allow("http", origin.port(), ""), None);
    let to = format!("a.test:{}", origin.port());
    let request = format!("GET / HTTP/1.1\r\nHost: {to}\r\n\r\n");
    let mut guest = lab.connect(&to);
    guest.write_all(request.as_bytes()).await.unwrap();
    let mut answer = Vec::new();
    // However the pipe ends: not with ten bytes of content.
    let _ = patient(guest.read_to_end(&mut answer)).await;
    assert!(answer.ends_with(b"\r\n\r\nhalf"));
    let record = lab.record("response").await;
    assert_eq!(
        (&record["reason"], &record["bytes_received"]),
        (&"upstream_closed".into(), &4.into())
    );

    // The guest leaves.
    let (frames, body) = channel_body();
    let body = Arc::new(std::sync::Mutex::new(Some(body)));
    let port = super::origin(None, move |_| {
        let body = body.lock().unwrap().take().unwrap();
        async { Response::new(body) }
    })
    .await;
    let lab = Lab::new(&allow("http", port, ""), None);
    let to = format!("a.test:{port}");
    let mut guest = lab.connect(&to);
    guest
        .write_all(format!("GET / HTTP/1.1\r\nHost: {to}\r\n\r\n").as_bytes())
        .await
        .unwrap();
    patient(async {
        frames.send(Frame::data("x".into())).await.unwrap();
        guest.read_u8().await.unwrap();
        drop(guest);
        // The next bytes find nobody; the upstream's connection ends with the exchange.
        while frames.send(Frame::data("x".into())).await.is_ok() {}
    })
    .await;
    let record = lab.record("response").await;
    assert_eq!(
        record["detail"],
        "the guest left before the end of the response"
    );
}

#[tokio::test]
async fn b058_a_response_with_two_lengths_passes_with_one() {
    let (origin, _seen) = raw_origin(
        "HTTP/1.1 200 OK\r\nContent-Length: 10\r\nTransfer-Encoding: chunked\r\nX-Case: Kept\r\n\r\n\
         2\r\nok\r\n0\r\n\r\n",
    )
    .await;
    let lab = Lab::new(&allow("http", origin.port(), ""), None);
    let to = format!("a.test:{}", origin.port());
    let request = format!("GET / HTTP/1.1\r\nHost: {to}\r\nConnection: close\r\n\r\n");
    let answer = exchange(lab.connect(&to), request.as_bytes()).await;
    assert!(
        !answer.to_lowercase().contains("content-length"),
        "{answer}"
    );
    assert!(
        answer.contains("\r\nX-Case: Kept\r\n") && answer.contains("2\r\nok\r\n"),
        "{answer}"
    );
}

#[tokio::test]
async fn an_upstream_that_can_not_be_reached_is_a_502_with_its_reason() {
    let port = {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        listener.local_addr().unwrap().port()
    };
    let lab = Lab::new(&allow("http", port, ""), None);
    let to = format!("a.test:{port}");
    let request = format!("GET / HTTP/1.1\r\nHost: {to}\r\nConnection: close\r\n\r\n");
    let answer = exchange(lab.connect(&to), request.as_bytes()).await;
    assert!(
        answer.starts_with("HTTP/1.1 502 Bad Gateway\r\n"),
        "{answer}"
    );
    assert!(
        answer.contains("upstream_unreachable") && !answer.contains("127.0.0.1"),
        "{answer}"
    );
    let record = lab.record("response").await;
    assert_eq!(
        (&record["reason"], &record["status"]),
        (&"upstream_unreachable".into(), &502.into())
    );
}
