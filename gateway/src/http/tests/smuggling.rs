//! What an upstream receives when a guest sends something that two readers could read differently.

use super::*;

const OK: &str = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\nok";

/// Sends `bytes` over clear text; answers what the guest read and how many requests the origin saw.
async fn send(bytes: &str) -> (String, Vec<String>, Lab) {
    let (origin, mut seen) = raw_origin(OK).await;
    let lab = Lab::new(&allow("http", origin.port(), ""), None);
    let bytes = bytes.replace("{host}", &format!("a.test:{}", origin.port()));
    let answer = exchange(
        lab.connect(&format!("a.test:{}", origin.port())),
        bytes.as_bytes(),
    )
    .await;
    let mut requests = Vec::new();
    while let Ok(request) = seen.try_recv() {
        requests.push(request);
    }
    (answer, requests, lab)
}

#[tokio::test]
async fn c07_malformed_requests_are_answered_400_and_never_reach_the_upstream() {
    let heads = [
        "Content-Length: 5\r\nTransfer-Encoding: chunked", // B053
        "Transfer-Encoding: chunked\r\nContent-Length: 5", // B055
        "Transfer-Encoding: chunked\t\r\nContent-Length: 60", // B054
        "Transfer-Encoding : chunked",
        "Transfer-Encoding: chunked, identity",
        "Transfer-Encoding: xchunked",
        "Content-Length: +5",
        "Content-Length: 5, 5",
        "Content-Length: 5\r\nContent-Length: 5",
        "Content-Length: 0x5",
        "Content-Length: 18446744073709551616",
        "X: a\r\n b",
        "X: a\nY: b",
        "X : a",
        "X: a\0",
        "Host: evil.test",
    ];
    for head in heads {
        let (answer, requests, lab) = send(&format!(
            "POST / HTTP/1.1\r\nHost: {{host}}\r\n{head}\r\n\r\nGET /admin HTTP/1.1\r\n\r\n"
        ))
        .await;
        assert!(
            answer.starts_with("HTTP/1.1 400 Bad Request\r\n"),
            "{head:?}: {answer}"
        );
        assert!(
            answer.to_lowercase().contains("connection: close\r\n"),
            "{answer}"
        );
        assert!(
            answer.contains("refused this request: bad_request"),
            "{head:?}: {answer}"
        );
        assert_eq!(
            answer.matches("HTTP/1.1").count(),
            1,
            "one answer, then the end: {answer}"
        );
        assert_eq!(requests, Vec::<String>::new(), "{head:?}");
        let reject = lab.record("reject").await;
        assert_eq!(
            (&reject["verdict"], &reject["reason"]),
            (&"deny".into(), &"bad_request".into())
        );
        assert!(
            answer.contains(reject["id"].as_str().unwrap()),
            "the answer names its record"
        );
    }
}

#[tokio::test]
async fn b057_http_1_0_with_transfer_encoding_is_rejected() {
    let (answer, requests, _) =
        send("POST / HTTP/1.0\r\nHost: {host}\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n")
            .await;
    assert!(answer.contains(" 400 Bad Request\r\n"), "{answer}");
    assert!(requests.is_empty());
}

#[tokio::test]
async fn a_pipelined_request_that_is_malformed_is_answered_after_the_one_before_it() {
    let (answer, requests, _) = send(
        "GET /first HTTP/1.1\r\nHost: {host}\r\n\r\n\
         GET /second HTTP/1.1\r\nHost: {host}\r\nHost: {host}\r\n\r\n\
         GET /third HTTP/1.1\r\nHost: {host}\r\n\r\n",
    )
    .await;
    let first = answer
        .find("HTTP/1.1 200 OK")
        .expect("the first is answered");
    let second = answer
        .find("HTTP/1.1 400 Bad Request")
        .expect("the second is rejected");
    assert!(
        first < second && answer.matches("HTTP/1.1").count() == 2,
        "{answer}"
    );
    assert_eq!(requests.len(), 1);
    assert!(requests[0].starts_with("GET /first HTTP/1.1\r\n"));
}

#[tokio::test]
async fn a_body_that_breaks_its_framing_aborts_the_upstream_request() {
    let (answer, requests, lab) = send(
        "POST / HTTP/1.1\r\nHost: {host}\r\nTransfer-Encoding: chunked\r\n\r\n\
         3\r\nabc\r\n0x3\r\ndef\r\n0\r\n\r\n",
    )
    .await;
    let response = lab.record("response").await;
    assert_eq!(response["reason"], "bad_request");
    assert_eq!(response["detail"], "`0x3` is no chunk size");
    assert!(
        requests
            .iter()
            .all(|request| !request.contains("0\r\n\r\n")),
        "{requests:?}"
    );
    assert!(answer.is_empty() || !answer.contains("400") || answer.contains("is no chunk size"));
}

#[tokio::test]
async fn the_upstream_receives_fields_in_the_guests_order_and_case() {
    let (answer, requests, _) = send(
        "GET /a/./b/../c?x=%2F&y HTTP/1.1\r\nhOst: {host}\r\nX-Zebra: 1\r\nacCEPT: */*\r\n\
         Connection: keep-alive, X-Hop\r\nX-Hop: 1\r\nKeep-Alive: timeout=5\r\nX-apple: two  words\r\n\
         Upgrade: h2c\r\nHTTP2-Settings: AAMAAABkAAQAAP__\r\nTE: trailers, deflate\r\nCookie: b=2; a=1\r\n\r\n",
    )
    .await;
    assert!(answer.ends_with("\r\n\r\nok"), "{answer}");
    let [request] = requests.as_slice() else {
        panic!("{requests:?}")
    };
    let port = request
        .split("a.test:")
        .nth(1)
        .unwrap()
        .split('\r')
        .next()
        .unwrap();
    assert_eq!(
        *request,
        format!(
            "GET /a/c?x=%2F&y HTTP/1.1\r\nhOst: a.test:{port}\r\nX-Zebra: 1\r\nacCEPT: */*\r\n\
             X-apple: two  words\r\nTE: trailers\r\nCookie: b=2; a=1\r\n\r\n"
        )
    );
}

#[tokio::test]
async fn an_allowed_body_that_looks_like_a_request_stays_a_body() {
    let body = "GET /admin HTTP/1.1\r\nHost: a.test\r\n\r\n";
    let (answer, requests, lab) = send(&format!(
        "POST / HTTP/1.1\r\nHost: {{host}}\r\nContent-Length: {}\r\n\r\n{body}",
        body.len()
    ))
    .await;
    assert_eq!(answer.matches("HTTP/1.1 200").count(), 1, "{answer}");
    assert_eq!(requests.len(), 1);
    let response = lab.record("response").await;
    assert_eq!(
        (&response["status"], &response["bytes_sent"]),
        (&200.into(), &body.len().into())
    );
    assert_eq!(
        (&response["bytes_received"], lab.count("request")),
        (&2.into(), 1)
    );
}

#[tokio::test]
async fn a_path_that_looks_like_an_authority_stays_a_path() {
    let (_, requests, _) = send(
        "GET //evil.test/x?u=https://evil.test/ HTTP/1.1\r\nHost: {host}\r\n\
         Connection: host, content-length, authorization\r\nAuthorization: x\r\n\r\n",
    )
    .await;
    let [request] = requests.as_slice() else {
        panic!("{requests:?}")
    };
    assert!(
        request.starts_with("GET //evil.test/x?u=https://evil.test/ HTTP/1.1\r\n"),
        "{request}"
    );
    assert!(
        request.to_lowercase().contains("host: a.test:"),
        "{request}"
    );
    assert!(!request.contains("Authorization"), "{request}");
}

#[tokio::test]
async fn a_guest_that_pipelines_without_end_is_served_one_request_at_a_time() {
    let one = "GET /n HTTP/1.1\r\nHost: {host}\r\n\r\n";
    let (answer, requests, lab) = send(&one.repeat(50)).await;
    assert_eq!(answer.matches("HTTP/1.1 200").count(), 50);
    assert_eq!(
        (requests.len(), lab.count("request"), lab.count("reject")),
        (50, 50, 0)
    );
}
