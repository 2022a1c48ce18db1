//! The paths of `urltestdata.json`: what a client sends for a URL, and what we make of the URL itself,
//! is judged as one path.

use outgate_policy::{Authority, CanonicalRequest, Protocol, Reject, RequestParts};

use crate::table::Table;
use crate::urls::{cases, read};

/// Ours and the browser's. A character that RFC 3986 doesn't know in paths, and that is common in
/// them, is passed on as it came; a deny pattern matches both spellings.
const REVIEWED: [(&str, &str); 1] = [("/\"quoted\"", "/%22quoted%22")];

fn canonical(target: &str) -> Result<String, Reject> {
    let authority = Authority::parse("a.test", 443)?;
    let request = CanonicalRequest::new(RequestParts {
        protocol: Protocol::Https,
        authority: &authority,
        method: "GET",
        target,
        body_len: None,
    })?;
    Ok(request.path().to_owned())
}

#[test]
fn a_path_as_written_and_as_a_browser_sends_it_are_one_path() {
    let mut table = Table::default();
    let mut wrong = Vec::new();
    for case in cases() {
        let Ok(url) = read(&case.input) else { continue };
        match (canonical(&url.target), canonical(&case.pathname)) {
            (Ok(ours), Ok(_)) if ours == case.pathname => table.count("the same path", &case.input),
            (Ok(ours), Ok(sent)) if ours == sent => {
                table.count("the same path, other escapes", &case.input)
            }
            (Ok(ours), Ok(sent)) if REVIEWED.contains(&(&ours, &sent)) => {
                table.count("another path, reviewed", &case.input);
            }
            (Ok(ours), Ok(sent)) => wrong.push(format!("`{}`: {ours} {sent}", case.input)),
            (Err(reject), Ok(_)) => {
                table.count(kind(&reject), format!("{} ({reject})", case.input))
            }
            (Ok(ours), Err(reject)) => wrong.push(format!("`{}`: {ours} but {reject}", case.input)),
            (Err(_), Err(reject)) => {
                table.count(kind(&reject), format!("{} ({reject})", case.input))
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    table.assert(
        "paths",
        &[
            ("another path, reviewed", 1),
            ("refused: `..` above the root", 3),
            ("refused: backslash", 2),
            ("refused: broken escape", 6),
            ("refused: character that must be escaped", 16),
            ("refused: encoded control byte", 4),
            ("refused: fragment", 16),
            ("the same path", 54),
            ("the same path, other escapes", 3),
        ],
    );
}

fn kind(reject: &Reject) -> &'static str {
    for (part, kind) in [
        ("leaves the root", "refused: `..` above the root"),
        ("backslash", "refused: backslash"),
        ("fragment", "refused: fragment"),
        ("byte 0x23", "refused: fragment"),
        ("must be escaped", "refused: character that must be escaped"),
        ("two hex digits", "refused: broken escape"),
        ("encoded control", "refused: encoded control byte"),
    ] {
        if reject.detail.contains(part) {
            return kind;
        }
    }
    panic!("refused for something new: {reject}");
}
