//! One parameter of a URL's query, when every server finds the same value for it.
//!
//! Query parsers differ in what they do with a name that is there twice, with `name[]`, with a `;`
//! between pairs, with broken escapes. All of that is unclear.

use super::{Unclear, shown};
use crate::CanonicalRequest;

/// The value of the parameter, decoded. `None` when no server would find one.
pub(super) fn parameter(
    request: &CanonicalRequest,
    wanted: &str,
) -> Result<Option<String>, Unclear> {
    let Some(query) = request.query() else {
        return Ok(None);
    };
    if query.contains(';') {
        let why = "the query has a `;`, at which some servers split parameters";
        return Err(Unclear::new(why));
    }
    if !has_whole_escapes(query) {
        return Err(Unclear::new("the query has a `%` without two hex digits"));
    }
    let mut found = None;
    for (name, value) in request.query_pairs() {
        if name == wanted {
            if value.contains(char::REPLACEMENT_CHARACTER) {
                let why = format!("the query parameter `{wanted}` isn't UTF-8");
                return Err(Unclear::new(why));
            }
            if found.replace(value.into_owned()).is_some() {
                let why = format!("the query parameter `{wanted}` is there twice");
                return Err(Unclear::new(why));
            }
        } else if could_be(&name, wanted) {
            let why = format!(
                "some servers take the query parameter `{}` for `{wanted}`",
                shown(&*name)
            );
            return Err(Unclear::new(why));
        }
    }
    Ok(found)
}

/// Whether a lenient server takes one name for the other: case, blanks around it, and the brackets
/// and dots by which some write lists and maps.
fn could_be(name: &str, wanted: &str) -> bool {
    let name = name.trim_matches(|c: char| c.is_whitespace() || c.is_control());
    let plain = name.split(['[', '.', '\0']).next().unwrap_or_default();
    plain.eq_ignore_ascii_case(wanted)
}

fn has_whole_escapes(query: &str) -> bool {
    query.split('%').skip(1).all(|after| {
        after
            .as_bytes()
            .get(..2)
            .is_some_and(|digits| digits.iter().all(u8::is_ascii_hexdigit))
    })
}

#[cfg(test)]
mod tests {
    use super::super::fixture::request;
    use super::*;

    fn service(query: &str) -> Result<Option<String>, Unclear> {
        parameter(&request("GET", &format!("/x{query}")), "service")
    }

    #[test]
    fn a_plain_parameter_is_found_once() {
        for (query, value) in [
            ("", None),
            ("?", None),
            ("?services=a&xservice=b", None),
            ("?service", Some("")),
            ("?a=1&service=git-upload-pack&b=2", Some("git-upload-pack")),
            ("?%73ervice=a%20b+c", Some("a b c")),
            ("?service=%C3%A9%3B", Some("é;")),
        ] {
            assert_eq!(service(query), Ok(value.map(str::to_owned)), "{query}");
        }
    }

    #[test]
    fn what_servers_read_in_two_ways_is_unclear() {
        for query in [
            "?service=a&service=a",
            "?service=a&Service=b",
            "?SERVICE=a",
            "?service[]=a",
            "?service%5B0%5D=a",
            "?service.x=a",
            "?%20service=a",
            "?service%00=a",
            "?service%00x=a",
            "?x=1;service=a",
            "?service=a%",
            "?service=a%2",
            "?x=%u0022&service=a",
            "?service=%C0%A2",
            "?service=%FF",
        ] {
            assert!(service(query).is_err(), "{query}");
        }
    }
}
