//! What a guest is told when it may not.

use super::*;

#[tokio::test]
async fn b177_a_denial_says_why_and_what_to_change() {
    let deny = "  - id: no-secrets\n    action: deny\n    protocol: http\n    \
                to: { hosts: [a.test], ports: [8080] }\n    http: { paths: [\"/secrets/**\"] }\n    \
                message: Ask in the platform channel.\n";
    let lab = Lab::new(&allow("http", 8080, deny), None);
    let ask = |accept: &str| {
        format!(
            "GET /secrets/x?token=hunter2 HTTP/1.1\r\nHost: a.test:8080\r\nAccept: {accept}\r\n\
             Connection: close\r\n\r\n"
        )
    };
    let answer = exchange(
        lab.connect("a.test:8080"),
        ask("application/json").as_bytes(),
    )
    .await;
    let record = lab.record("request").await;
    let id = record["id"].as_str().unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    assert!(head.starts_with("HTTP/1.1 403 Forbidden\r\n"), "{head}");
    assert!(
        head.contains(&format!("x-outgate-decision: {id}")),
        "{head}"
    );
    assert!(
        head.contains(&format!("content-length: {}", body.len())),
        "{head}"
    );
    let body: Value = serde_json::from_str(body).unwrap();
    assert_eq!(
        body,
        serde_json::json!({
            "reason": "rule_deny",
            "rule": "no-secrets",
            "message": "Ask in the platform channel.",
            "request": body["request"],
            "how_to_fix": outgate_policy::Reason::RuleDeny.how_to_fix(),
            "id": id,
        })
    );
    let request = body["request"].as_str().unwrap();
    assert!(
        request.starts_with("GET http://a.test:8080/secrets/x?token="),
        "{request}"
    );
    assert!(!answer.contains("hunter2") && !record.to_string().contains("hunter2"));
    assert_eq!(record["rule"]["id"], "no-secrets");

    let answer = exchange(lab.connect("a.test:8080"), ask("*/*").as_bytes()).await;
    assert!(
        answer.contains("content-type: text/plain; charset=utf-8\r\n"),
        "{answer}"
    );
    assert!(
        answer.contains("\r\n\r\noutgate refused this request: rule_deny\n"),
        "{answer}"
    );
    assert!(
        answer.contains("\nmessage: Ask in the platform channel.\n"),
        "{answer}"
    );

    let head = ask("*/*").replacen("GET", "HEAD", 1);
    let answer = exchange(lab.connect("a.test:8080"), head.as_bytes()).await;
    assert!(
        answer.starts_with("HTTP/1.1 403") && answer.ends_with("\r\n\r\n"),
        "{answer}"
    );
}

#[tokio::test]
async fn c06_every_authority_must_be_that_of_the_flow() {
    let lab = Lab::new(&allow("http", 8080, ""), None);
    let heads = [
        ("GET / HTTP/1.1\r\nHost: evil.test:8080\r\n", "421"),
        ("GET / HTTP/1.1\r\nHost: a.test\r\n", "421"),
        (
            "GET http://evil.test:8080/ HTTP/1.1\r\nHost: a.test:8080\r\n",
            "421",
        ),
        (
            "GET http://a.test:8080/ HTTP/1.1\r\nHost: evil.test:8080\r\n",
            "421",
        ),
        (
            "GET https://a.test:8080/ HTTP/1.1\r\nHost: a.test:8080\r\n",
            "421",
        ),
        ("GET / HTTP/1.1\r\nHost: a.test:8080:8080\r\n", "400"),
        ("GET / HTTP/1.1\r\nHost: 0x7f.1:8080\r\n", "400"),
        ("GET /../x HTTP/1.1\r\nHost: a.test:8080\r\n", "400"),
        ("GET /%00 HTTP/1.1\r\nHost: a.test:8080\r\n", "400"),
        ("TRACE / HTTP/1.1\r\nHost: a.test:8080\r\n", "403"),
        (
            "CONNECT a.test:8080 HTTP/1.1\r\nHost: a.test:8080\r\n",
            "403",
        ),
        (
            "GET /ws HTTP/1.1\r\nHost: a.test:8080\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n",
            "403",
        ),
    ];
    for (head, status) in heads {
        let answer = exchange(
            lab.connect("a.test:8080"),
            format!("{head}Connection: close\r\n\r\n").as_bytes(),
        )
        .await;
        assert!(
            answer.starts_with(&format!("HTTP/1.1 {status} ")),
            "{head:?}: {answer}"
        );
    }
    assert_eq!(lab.count("response"), 0, "nothing was sent");
}

#[tokio::test]
async fn a_denied_upload_is_answered_at_once_and_the_guest_can_read_the_answer() {
    let lab = Lab::new(&allow("http", 8080, ""), None);
    let mut guest = lab.connect("a.test:8080");
    lab.sandbox.set_policy(Policy::none());
    let length = 8 * 1024 * 1024;
    let head = format!(
        "POST /up HTTP/1.1\r\nHost: a.test:8080\r\nExpect: 100-continue\r\nContent-Length: {length}\r\n\r\n"
    );
    patient(async {
        guest.write_all(head.as_bytes()).await.unwrap();
        // A client that does not wait, and does not read before it has sent everything.
        guest.write_all(&vec![b'x'; length]).await.unwrap();
        let mut answer = String::new();
        guest.read_to_string(&mut answer).await.unwrap();
        assert!(
            answer.starts_with("HTTP/1.1 403 Forbidden\r\n"),
            "no 100 before the verdict: {answer}"
        );
        assert!(
            answer.to_lowercase().contains("\r\nconnection: close\r\n"),
            "{answer}"
        );
    })
    .await;
}

/// A lab with two rules for one host, of which only that for `/in/` attaches the credential that is
/// kept in `secret`; and the `Authorization` fields that its origin saw.
async fn credential_lab(
    secret: &std::path::Path,
) -> (Lab, String, tokio::sync::mpsc::Receiver<String>) {
    let (seen, received) = tokio::sync::mpsc::channel(8);
    let answer = move |request: Request<Incoming>| {
        let seen = seen.clone();
        async move {
            let field = request.headers().get("authorization").cloned();
            let field = field.map_or_else(String::new, |value| value.to_str().unwrap().to_owned());
            seen.send(field).await.unwrap();
            Response::new(no_body())
        }
    };
    let tls = OriginTls::new();
    let acceptor = tls.acceptor("a.test", &["http/1.1"]).await;
    let port = origin(Some(acceptor), answer).await;
    let to = format!("to: {{ hosts: [a.test], ports: [{port}], private: true }}");
    let policy = format!(
        "version: 1\nrules:\n\
         \x20 - {{ id: in, action: allow, {to}, http: {{ paths: [\"/in/**\"] }}, credential: token }}\n\
         \x20 - {{ id: out, action: allow, {to}, http: {{ paths: [\"/out/**\"] }} }}\n\
         credentials:\n  - name: token\n    source: {{ file: {} }}\n\
         \x20   attach: [{{ header: Authorization, format: \"Bearer {{}}\" }}]\n\
         \x20   expose: {{ env: TOKEN, shape: \"tok_{{32}}\" }}\n",
        secret.display()
    );
    (
        Lab::new(&policy, Some(&tls)),
        format!("a.test:{port}"),
        received,
    )
}

async fn ask(lab: &Lab, to: &str, path: &str, field: &str) -> String {
    let guest = lab.connect_tls(to, "a.test", "http/1.1").await.unwrap();
    let request = format!("GET {path} HTTP/1.1\r\nHost: {to}\r\n{field}Connection: close\r\n\r\n");
    exchange(guest, request.as_bytes()).await
}

#[tokio::test]
async fn c13_a_placeholder_goes_nowhere_but_to_its_own_rule() {
    let secret = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(secret.path(), "s3cret").unwrap();
    let (lab, to, mut seen) = credential_lab(secret.path()).await;
    let placeholder = lab.sandbox.services().placeholders.load().env()["TOKEN"].clone();
    let field = format!("AuthoriZation: Bearer {placeholder}\r\n");
    for (path, field) in [
        ("/out/x".to_owned(), field.clone()),
        (format!("/out/{placeholder}"), String::new()),
        (format!("/out/x?k={placeholder}"), String::new()),
    ] {
        let answer = ask(&lab, &to, &path, &field).await;
        assert!(answer.contains("placeholder_out_of_scope"), "{answer}");
    }
    assert!(seen.try_recv().is_err(), "nothing was sent");

    let answer = ask(&lab, &to, "/in/x", &field).await;
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    assert_eq!(seen.recv().await.unwrap(), "Bearer s3cret");
    let used = lab.record("credential_use").await;
    assert_eq!(used["credential"]["name"], "token");
    assert!(
        lab.records()
            .iter()
            .all(|record| !record.to_string().contains("s3cret"))
    );
}

#[tokio::test]
async fn without_its_credential_or_its_record_a_request_is_not_sent() {
    let secret = std::path::Path::new("/nonexistent/secret");
    let (lab, to, mut seen) = credential_lab(secret).await;
    let answer = ask(&lab, &to, "/in/x", "").await;
    assert!(answer.starts_with("HTTP/1.1 503") && answer.contains("credential_unavailable"));
    assert!(!answer.contains("nonexistent"), "{answer}");
    assert_eq!(lab.record("response").await["status"], 503);

    lab.sandbox.services().audit.clone().close().await.unwrap();
    let answer = ask(&lab, &to, "/out/x", "").await;
    assert!(
        answer.starts_with("HTTP/1.1 503") && answer.contains("audit_unavailable"),
        "{answer}"
    );
    assert!(seen.try_recv().is_err(), "nothing was sent");
}

#[tokio::test]
async fn c18_a_sandbox_has_a_bounded_number_of_open_exchanges() {
    let lab = Lab::new(&allow("http", 8080, ""), None);
    let places: Vec<_> = std::iter::from_fn(|| lab.sandbox.admit_exchange()).collect();
    let request = b"GET / HTTP/1.1\r\nHost: a.test:8080\r\nConnection: close\r\n\r\n";
    let answer = exchange(lab.connect("a.test:8080"), request).await;
    assert!(
        answer.starts_with("HTTP/1.1 429") && answer.contains("retry-after: 1\r\n"),
        "{answer}"
    );
    assert_eq!(lab.record("request").await["reason"], "limit_exceeded");
    drop(places);
}

#[tokio::test]
async fn b045_tls_is_only_for_the_name_of_the_flow() {
    let lab = Lab::new(&allow("https", 443, ""), None);
    assert!(
        lab.connect_tls("a.test:443", "evil.test", "h2")
            .await
            .is_err()
    );
    assert_eq!(lab.record("reject").await["reason"], "sni_mismatch");

    let lab = Lab::new(&allow("https", 443, ""), None);
    assert!(
        lab.connect_tls("a.test:443", "127.0.0.1", "h2")
            .await
            .is_err()
    );
    assert_eq!(lab.record("reject").await["reason"], "sni_missing");

    let lab = Lab::new(&allow("https", 443, ""), None);
    assert_eq!(
        exchange(
            lab.connect("a.test:443"),
            b"GET / HTTP/1.1\r\nHost: a.test\r\n\r\n"
        )
        .await,
        ""
    );
    assert_eq!(lab.record("reject").await["reason"], "not_tls");

    let lab = Lab::new(&allow("http", 443, ""), None);
    assert!(lab.connect_tls("a.test:443", "a.test", "h2").await.is_err());
    assert_eq!(lab.record("reject").await["reason"], "protocol_not_allowed");
}

#[tokio::test]
async fn the_gateway_answers_for_its_own_name() {
    let lab = Lab::new(&allow("https", 443, ""), None);
    let ask = async |path: &str| {
        let request =
            format!("GET {path} HTTP/1.1\r\nHost: outgate.internal\r\nConnection: close\r\n\r\n");
        let answer = exchange(lab.connect("outgate.internal:80"), request.as_bytes()).await;
        answer
            .split_once("\r\n\r\n")
            .map(|(_, body)| body.to_owned())
            .unwrap()
    };
    assert_eq!(ask("/healthz").await, "ok\n");
    assert_eq!(ask("/ca.pem").await, lab.ca_pem);
    assert!(
        ask("/v1/whoami")
            .await
            .starts_with("{\"id\":\"s1\",\"policy_revision\":\"")
    );
    let answer = ask("/v1/explain?url=https://a.test/x").await;
    let explained: Value = serde_json::from_str(&answer).expect(&answer);
    assert_eq!(
        (&explained["verdict"], &explained["rule"]),
        (&"allow".into(), &"lab".into())
    );
    let explained: Value =
        serde_json::from_str(&ask("/v1/explain?url=https%3A%2F%2Fevil.test%2F").await).unwrap();
    assert_eq!(explained["reason"], "default_deny");
}
