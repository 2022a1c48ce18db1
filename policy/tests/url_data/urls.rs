//! `urltestdata.json` of the WHATWG URL standard, as the crate `url` carries it.

use outgate_policy::{Authority, Protocol, Reject, RequestUrl};
use serde::Deserialize;

use crate::packages;
use crate::table::Table;

/// A case of the data; those with `failure` have no other field.
#[derive(Debug, Deserialize)]
pub(crate) struct Case {
    pub(crate) input: String,
    #[serde(default)]
    failure: bool,
    #[serde(default)]
    protocol: String,
    #[serde(default)]
    hostname: String,
    #[serde(default)]
    port: String,
    #[serde(default)]
    pub(crate) pathname: String,
}

/// Every case whose input is an absolute URL of a scheme that speaks HTTP.
pub(crate) fn cases() -> Vec<Case> {
    let text = packages::read("url", "2.5.8", "tests/urltestdata.json");
    let entries: Vec<serde_json::Value> = serde_json::from_str(&text).unwrap();
    // Single strings are comments.
    let cases = entries.into_iter().filter(serde_json::Value::is_object);
    let cases = cases.map(|case| serde_json::from_value::<Case>(case).unwrap());
    cases.filter(|case| scheme(&case.input).is_some()).collect()
}

/// The scheme as the standard finds it, which drops tabs and line breaks anywhere.
fn scheme(input: &str) -> Option<&'static str> {
    let text: String = input.chars().filter(|c| !"\t\n\r".contains(*c)).collect();
    let text = text
        .trim_start_matches(|c: char| c <= ' ')
        .to_ascii_lowercase();
    let (scheme, _) = text.split_once(':')?;
    ["http", "https", "ws", "wss"]
        .into_iter()
        .find(|known| *known == scheme)
}

/// Reads the input as we do. A WebSocket's URL is that of the HTTP request that opens it.
pub(crate) fn read(input: &str) -> Result<RequestUrl, Reject> {
    for (web_socket, http) in [("ws:", "http:"), ("wss:", "https:")] {
        let front = input.get(..web_socket.len()).unwrap_or_default();
        if front.eq_ignore_ascii_case(web_socket) {
            let rest = input.get(web_socket.len()..).unwrap_or_default();
            return RequestUrl::parse(&format!("{http}{rest}"));
        }
    }
    RequestUrl::parse(input)
}

/// The authority that the data gives.
fn expected(case: &Case) -> (String, u16) {
    let default = match case.protocol.as_str() {
        "http:" | "ws:" => 80,
        "https:" | "wss:" => 443,
        other => panic!("`{}` has the scheme {other}", case.input),
    };
    let port = if case.port.is_empty() {
        default
    } else {
        case.port.parse().unwrap()
    };
    (case.hostname.clone(), port)
}

/// Our host as the data would write it.
fn serialised(authority: &Authority) -> String {
    authority.destination.to_string()
}

/// Why we refuse what the standard reads, told by the input: the first that holds.
fn kind_of_refusal(case: &Case, reject: &Reject) -> &'static str {
    let after = case.input.split_once(':').map_or("", |(_, rest)| rest);
    if case.input.chars().any(|c| "\t\n\r".contains(c))
        || case.input.trim_matches(|c: char| c <= ' ') != case.input
    {
        return "space, tab or line break that the standard drops";
    }
    let Some(rest) = after
        .strip_prefix("//")
        .filter(|rest| !rest.starts_with(['/', '\\']))
    else {
        return "not exactly `//` after the scheme";
    };
    let end = rest.find(['/', '?', '#', '\\']).unwrap_or(rest.len());
    let authority = rest.get(..end).unwrap_or_default();
    if authority.contains('@') {
        return "userinfo";
    }
    if !authority.is_ascii() {
        return "non-ASCII on the wire";
    }
    if authority.contains('%') {
        return "percent in the host";
    }
    let detail = &reject.detail;
    if detail.contains("ends in a number") {
        return "numeric form of an address";
    }
    if detail.contains("is no port") {
        return "port that is empty, has a leading zero or is 0";
    }
    if detail.contains("empty label") {
        return "empty label";
    }
    if detail.contains("character") {
        return "character that no host name has";
    }
    panic!("`{}` is refused for something new: {reject}", case.input);
}

#[test]
fn no_url_is_read_as_another_host_or_port_than_the_standard_says() {
    let mut refusals = Table::default();
    let mut agreed = Table::default();
    let mut wrong = Vec::new();
    for case in cases() {
        match (read(&case.input), case.failure) {
            (Err(_), true) => agreed.count("refused by both", &case.input),
            (Ok(url), true) => wrong.push(format!("`{}` is no URL, we read {url:?}", case.input)),
            (Err(reject), false) => {
                refusals.count(
                    kind_of_refusal(&case, &reject),
                    format!("{} ({reject})", case.input),
                );
            }
            (Ok(url), false) => {
                let (host, port) = expected(&case);
                if url.authority.port == port && serialised(&url.authority) == host {
                    agreed.count("the same host and port", &case.input);
                } else {
                    wrong.push(format!(
                        "`{}` goes to {host} port {port}, we read {url:?}",
                        case.input
                    ));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    agreed.assert(
        "as the standard reads it",
        &[("refused by both", 203), ("the same host and port", 105)],
    );
    refusals.assert(
        "refused although the standard reads it",
        &[
            ("character that no host name has", 2),
            ("empty label", 3),
            ("non-ASCII on the wire", 6),
            ("not exactly `//` after the scheme", 31),
            ("numeric form of an address", 10),
            ("percent in the host", 4),
            ("port that is empty, has a leading zero or is 0", 4),
            ("space, tab or line break that the standard drops", 7),
            ("userinfo", 22),
        ],
    );
}

/// What a client sends is the serialised host, not what its user typed.
#[test]
fn every_serialised_host_reads_as_itself_or_is_refused() {
    let mut table = Table::default();
    for case in cases().into_iter().filter(|case| !case.failure) {
        let (host, _) = expected(&case);
        match Authority::parse(&host, Protocol::Https.default_port()) {
            Ok(ours) if serialised(&ours) == host => table.count("reads as itself", host),
            Ok(ours) => panic!("`{host}` is read as {ours}"),
            Err(reject) => table.count(kind_of_host(&host, &reject), host),
        }
    }
    table.assert(
        "serialised hosts",
        &[
            ("reads as itself", 189),
            ("refused: character that no host name has", 2),
            ("refused: empty label", 3),
        ],
    );
}

fn kind_of_host(host: &str, reject: &Reject) -> &'static str {
    if reject.detail.contains("empty label") {
        return "refused: empty label";
    }
    if reject.detail.contains("character") {
        return "refused: character that no host name has";
    }
    panic!("`{host}` is refused for something new: {reject}");
}
