//! Rules that look inside a request: what the upstream then gets is what the guest sent, and nothing
//! of it goes out before the verdict.

use std::sync::Mutex;

use super::*;

/// A policy whose rule for a.test:{port} has these matchers.
fn matching(port: u16, http: &str) -> String {
    format!(
        "version: 1\nrules:\n  - id: lab\n    action: allow\n    protocol: http\n    \
         to: {{ hosts: [a.test], ports: [{port}], private: true }}\n    http: {http}\n"
    )
}

/// An origin that keeps the bodies it got.
async fn keeper() -> (u16, Arc<Mutex<Vec<Vec<u8>>>>) {
    let kept: Arc<Mutex<Vec<Vec<u8>>>> = Arc::default();
    let keep = Arc::clone(&kept);
    let port = origin(None, move |request: Request<Incoming>| {
        let keep = Arc::clone(&keep);
        async move {
            if let Ok(body) = request.into_body().collect().await {
                keep.lock().unwrap().push(body.to_bytes().to_vec());
            }
            Response::new(no_body())
        }
    })
    .await;
    (port, kept)
}

async fn post(lab: &Lab, port: u16, fields: &str, body: &[u8]) -> String {
    let mut request = format!(
        "POST /rpc HTTP/1.1\r\nHost: a.test:{port}\r\nConnection: close\r\n\
         Content-Length: {}\r\n{fields}\r\n",
        body.len()
    )
    .into_bytes();
    request.extend_from_slice(body);
    exchange(lab.connect(&format!("a.test:{port}")), &request).await
}

fn status(answer: &str) -> &str {
    answer.split(' ').nth(1).unwrap_or_default()
}

#[tokio::test]
async fn a_body_that_a_rule_looked_at_arrives_as_it_was_sent() {
    let (port, kept) = keeper().await;
    let lab = Lab::new(&matching(port, "{ mcp: { tools: [\"read_*\"] } }"), None);
    let call = |tool: &str, filler: usize| {
        let filler = "x".repeat(filler);
        format!(
            r#"{{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{{"name":"{tool}","arguments":{{"f":"{filler}"}}}}}}"#
        )
    };
    let json = "Content-Type: application/json\r\n";
    for filler in [0, 10_000, 900_000] {
        let body = call("read_file", filler);
        let answer = post(&lab, port, json, body.as_bytes()).await;
        assert_eq!(status(&answer), "200", "{answer}");
        assert_eq!(kept.lock().unwrap().pop(), Some(body.into_bytes()));
    }
    for body in [
        call("write_file", 0),
        // Larger than a rule looks at, so it has no reading.
        call("read_file", 2 * 1024 * 1024),
        format!("[{}]", call("read_file", 0)),
        call("read_file", 0).replace(r#""id":1"#, r#""method":"tools/list","id":1"#),
    ] {
        let answer = post(&lab, port, json, body.as_bytes()).await;
        assert_eq!(status(&answer), "403", "{answer}");
        assert!(answer.contains("fails on mcp"), "{answer}");
    }
    assert_eq!(
        kept.lock().unwrap().len(),
        0,
        "nothing of a denied body went out"
    );
    let denied = lab
        .records()
        .into_iter()
        .find(|record| record["verdict"] == "deny")
        .unwrap();
    assert_eq!(denied["closest"]["failed"], "mcp");
    assert!(
        !denied.to_string().contains("write_file"),
        "a body is not recorded"
    );
}

#[tokio::test]
async fn a_chunked_body_and_its_trailers_survive_being_looked_at() {
    let (address, mut seen) = raw_origin("HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n").await;
    let port = address.port();
    let lab = Lab::new(&matching(port, "{ content_types: [text/plain] }"), None);
    let request = format!(
        "POST / HTTP/1.1\r\nHost: a.test:{port}\r\nConnection: close\r\nContent-Type: text/plain\r\n\
         Transfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n"
    );
    let answer = exchange(lab.connect(&format!("a.test:{port}")), request.as_bytes()).await;
    assert_eq!(status(&answer), "200", "{answer}");
    assert!(patient(seen.recv()).await.unwrap().contains("text/plain"));
    let other = request.replace("text/plain", "text/html");
    let answer = exchange(lab.connect(&format!("a.test:{port}")), other.as_bytes()).await;
    assert_eq!(status(&answer), "403", "{answer}");
}

#[tokio::test]
async fn headers_decide_and_only_where_a_rule_names_them() {
    let (port, kept) = keeper().await;
    let matcher = "{ headers: { x-api-version: [\"2024-*\"], x-debug: absent } }";
    let lab = Lab::new(&matching(port, matcher), None);
    let good = "X-Api-Version: 2024-05\r\n";
    assert_eq!(status(&post(&lab, port, good, b"x").await), "200");
    assert_eq!(kept.lock().unwrap().pop(), Some(b"x".to_vec()));
    for bad in [
        "",
        "X-Api-Version: 2023-05\r\n",
        "X-Api-Version: 2024-05\r\nX-Api-Version: 2023-05\r\n",
        "X-Api-Version: 2024-05\r\nX-DEBUG: 1\r\n",
    ] {
        let answer = post(&lab, port, bad, b"x").await;
        assert_eq!(status(&answer), "403", "{bad} {answer}");
        assert!(answer.contains("fails on header"), "{answer}");
    }
    assert!(kept.lock().unwrap().is_empty());
}

#[tokio::test]
async fn a_body_over_the_limit_never_arrives_whole() {
    let (port, kept) = keeper().await;
    let lab = Lab::new(&matching(port, "{ max_body: 1KiB }"), None);
    assert_eq!(status(&post(&lab, port, "", &[b'a'; 1024]).await), "200");
    assert_eq!(
        kept.lock().unwrap().pop().map(|body| body.len()),
        Some(1024)
    );
    // A declared length is refused by the rule, an undeclared one on the way.
    let declared = post(&lab, port, "", &[b'a'; 1025]).await;
    assert!(declared.contains("fails on body size"), "{declared}");
    let chunked = format!(
        "POST / HTTP/1.1\r\nHost: a.test:{port}\r\nConnection: close\r\nTransfer-Encoding: chunked\r\n\r\n\
         200\r\n{0}\r\n200\r\n{0}\r\n1\r\nb\r\n0\r\n\r\n",
        "a".repeat(0x200)
    );
    let answer = exchange(lab.connect(&format!("a.test:{port}")), chunked.as_bytes()).await;
    assert_eq!(status(&answer), "413", "{answer}");
    assert!(answer.contains("request_too_large"), "{answer}");
    assert!(
        kept.lock().unwrap().is_empty(),
        "the upstream got no whole body"
    );
    let is_cut_off =
        |record: &Value| record["kind"] == "response" && record["reason"] == "request_too_large";
    // The closing record is written once the answer is on its way.
    patient(async {
        while !lab.records().iter().any(is_cut_off) {
            tokio::task::yield_now().await;
        }
    })
    .await;
}

#[tokio::test]
async fn an_ask_is_denied_while_there_is_nobody_to_ask() {
    let (port, kept) = keeper().await;
    let policy = matching(port, "{ methods: [POST] }").replace("action: allow", "action: ask");
    let lab = Lab::new(&policy, None);
    let answer = post(&lab, port, "", b"x").await;
    assert_eq!(status(&answer), "403", "{answer}");
    assert!(answer.contains("approval_required"), "{answer}");
    assert!(kept.lock().unwrap().is_empty());
    let record = lab.record("request").await;
    assert_eq!(
        (&record["verdict"], &record["rule"]["id"]),
        (&"ask".into(), &"lab".into())
    );
}

#[tokio::test]
async fn observing_lets_through_and_records_what_it_would_do() {
    let (port, kept) = keeper().await;
    let more = "  - { id: shut, action: deny, to: { hosts: [a.test] }, http: { paths: [/rpc] } }\n";
    let policy = allow("http", port, more).replace("rules:", "mode: observe\nrules:");
    let lab = Lab::new(&policy, None);
    assert_eq!(status(&post(&lab, port, "", b"x").await), "200");
    assert_eq!(kept.lock().unwrap().pop(), Some(b"x".to_vec()));
    let record = lab.record("request").await;
    assert_eq!(record["verdict"], "allow");
    assert_eq!(record["would_deny"]["reason"], "rule_deny");
    assert_eq!(record["would_deny"]["rule"]["id"], "shut");
}

#[tokio::test]
async fn observing_opens_no_private_address() {
    let (port, kept) = keeper().await;
    let lab = Lab::new("version: 1\nmode: observe\n", None);
    let answer = post(&lab, port, "", b"x").await;
    assert!(answer.contains("private_address"), "{answer}");
    assert!(kept.lock().unwrap().is_empty());
}
