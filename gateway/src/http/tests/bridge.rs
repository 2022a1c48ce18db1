//! HTTP/1 on one side, HTTP/2 on the other, and what must survive the way.

use http::{HeaderMap, HeaderValue, Method, StatusCode, Version};
use http_body::Frame;

use super::*;

/// Echoes body and trailers, and says how it was asked.
async fn echo(request: Request<Incoming>) -> Response<ResponseBody> {
    let (parts, body) = request.into_parts();
    let described = format!(
        "{:?} {} host={:?} cookies={} te={:?}",
        parts.version,
        parts.uri,
        parts.headers.get("host"),
        parts.headers.get_all("cookie").iter().count(),
        parts.headers.get("te"),
    );
    let body = body.map_err(Into::into).boxed();
    Response::builder()
        .header("x-asked", described)
        .header(
            "x-cookie",
            parts
                .headers
                .get("cookie")
                .cloned()
                .unwrap_or(HeaderValue::from_static("")),
        )
        .header("alt-svc", "h3=\":443\"")
        .header("trailer", "x-sum")
        .body(body)
        .unwrap()
}

async fn lab(alpn: &[&str]) -> (Lab, String) {
    let tls = OriginTls::new();
    let port = origin(Some(tls.acceptor("a.test", alpn).await), echo).await;
    (
        Lab::new(&allow("https", port, ""), Some(&tls)),
        format!("a.test:{port}"),
    )
}

fn trailers() -> HeaderMap {
    HeaderMap::from_iter([(
        http::HeaderName::from_static("x-sum"),
        HeaderValue::from_static("7"),
    )])
}

#[tokio::test]
async fn http2_to_http2_with_trailers_both_ways() {
    let (lab, to) = lab(&["h2", "http/1.1"]).await;
    let (frames, body) = channel_body();
    let request = Request::post(format!("https://{to}/x?y"))
        .header("te", "trailers")
        .header("cookie", "a=1")
        .header("cookie", "b=2")
        .body(body)
        .unwrap();
    let mut guest = lab.http2(&to).await;
    patient(async {
        let answer = tokio::spawn(guest.send_request(request));
        frames.send(Frame::data("hello".into())).await.unwrap();
        frames.send(Frame::trailers(trailers())).await.unwrap();
        drop(frames);
        let answer = answer.await.unwrap().unwrap();
        assert_eq!(answer.status(), StatusCode::OK);
        assert!(!answer.headers().contains_key("alt-svc"));
        let asked = answer.headers()["x-asked"].to_str().unwrap().to_owned();
        assert_eq!(
            asked,
            format!("HTTP/2.0 https://{to}/x?y host=None cookies=1 te=Some(\"trailers\")")
        );
        assert_eq!(answer.headers()["x-cookie"], "a=1; b=2");
        let collected = answer.into_body().collect().await.unwrap();
        assert_eq!(collected.trailers(), Some(&trailers()));
        assert_eq!(collected.to_bytes(), "hello");
    })
    .await;
    drop(guest);
    let record = lab.record("response").await;
    assert_eq!(
        (&record["bytes_sent"], &record["bytes_received"]),
        (&5.into(), &5.into())
    );
    assert_eq!(record["upstream_http_version"], "HTTP/2.0");
    assert!(
        record["upstream_cert_sha256"].is_string() && record["detail"].is_null(),
        "{record}"
    );
}

#[tokio::test]
async fn http2_to_http1() {
    let (lab, to) = lab(&["http/1.1"]).await;
    let mut guest = lab.http2(&to).await;
    let request = Request::post(format!("https://{to}/x"))
        .header("cookie", "a=1")
        .header("cookie", "b=2")
        .body(full("hello"))
        .unwrap();
    let answer = patient(guest.send_request(request)).await.unwrap();
    let asked = answer.headers()["x-asked"].to_str().unwrap().to_owned();
    assert_eq!(
        asked,
        format!("HTTP/1.1 /x host=Some(\"{to}\") cookies=1 te=None")
    );
    assert_eq!(answer.headers()["x-cookie"], "a=1; b=2");
    assert_eq!(answer.version(), Version::HTTP_2);
    assert_eq!(text(answer.into_body()).await, "hello");
}

#[tokio::test]
async fn http1_to_http2_and_methods_without_content() {
    let (lab, to) = lab(&["h2"]).await;
    for (method, body) in [
        (Method::GET, ""),
        (Method::HEAD, ""),
        (Method::PUT, "hello"),
    ] {
        let io = TokioIo::new(lab.connect_tls(&to, "a.test", "http/1.1").await.unwrap());
        let (mut guest, connection) = hyper::client::conn::http1::handshake(io).await.unwrap();
        tokio::spawn(connection);
        let request = Request::builder()
            .method(method)
            .uri("/x")
            .header("host", &to)
            .body(full(body))
            .unwrap();
        let answer = patient(guest.send_request(request)).await.unwrap();
        assert_eq!(answer.status(), StatusCode::OK);
        let asked = answer.headers()["x-asked"].to_str().unwrap().to_owned();
        assert_eq!(
            asked,
            format!("HTTP/2.0 https://{to}/x host=None cookies=0 te=None")
        );
        assert_eq!(text(answer.into_body()).await, body);
    }
}

#[tokio::test]
async fn b067_an_authority_and_a_host_that_differ_are_refused() {
    let (lab, to) = lab(&["h2"]).await;
    let mut guest = lab.http2(&to).await;
    for (uri, host, status) in [
        (format!("https://{to}/"), "evil.test", 421),
        ("https://evil.test/".to_owned(), "evil.test", 421),
        (format!("http://{to}/"), to.as_str(), 421),
        (format!("https://{to}/"), to.as_str(), 200),
    ] {
        let request = Request::get(&uri)
            .header("host", host)
            .body(no_body())
            .unwrap();
        let answer = patient(guest.send_request(request)).await.unwrap();
        assert_eq!(answer.status(), status, "{uri} {host}");
    }
}

#[tokio::test]
async fn grpc_denials_are_in_the_trailers_where_grpc_looks() {
    let (lab, to) = lab(&["h2"]).await;
    let mut guest = lab.http2(&to).await;
    lab.sandbox.set_policy(Policy::none());
    let request = Request::post(format!("https://{to}/pkg.Svc/Call"))
        .header("content-type", "application/grpc+proto")
        .header("te", "trailers")
        .body(full("\0\0\0\0\0"))
        .unwrap();
    let answer = patient(guest.send_request(request)).await.unwrap();
    assert_eq!(answer.status(), StatusCode::OK);
    assert_eq!(answer.headers()["grpc-status"], "7");
    assert!(
        answer.headers()["grpc-message"]
            .to_str()
            .unwrap()
            .starts_with("outgate: ")
    );
    assert!(answer.headers().contains_key("x-outgate-decision"));
    assert!(
        http_body::Body::is_end_stream(answer.body()),
        "trailers only"
    );
}
