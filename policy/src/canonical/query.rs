//! The query: forwarded byte for byte, read as pairs for matching and for the record.

use std::borrow::Cow;

use crate::{Reason, Reject};

/// Refuses bytes that could end the request line or start a fragment, and the few others that HTTP
/// libraries refuse.
pub(super) fn check(query: &str) -> Result<(), Reject> {
    let strange = |byte: u8| !matches!(byte, 0x21..=0x7e) || b"#\"<>".contains(&byte);
    match query.bytes().find(|byte| strange(*byte)) {
        Some(byte) => {
            let detail = format!("the query has the byte 0x{byte:02x}, which must be escaped");
            Err(Reject::new(Reason::BadRequest, detail))
        }
        None => Ok(()),
    }
}

/// The query with `…` for each value.
pub(super) fn hide_values(query: &str) -> String {
    let hidden = query.split('&').map(|pair| match pair.split_once('=') {
        Some((name, _)) => Cow::Owned(format!("{name}=…")),
        None => Cow::Borrowed(pair),
    });
    hidden.collect::<Vec<_>>().join("&")
}

/// Names and values in order, decoded as `application/x-www-form-urlencoded`; bytes that are no
/// UTF-8 are replaced. A pair without `=` has an empty value; empty pairs are skipped.
#[derive(Clone, Debug)]
pub struct QueryPairs<'a> {
    rest: Option<&'a str>,
}

impl<'a> QueryPairs<'a> {
    pub(crate) const fn new(query: Option<&'a str>) -> Self {
        Self { rest: query }
    }
}

impl<'a> Iterator for QueryPairs<'a> {
    type Item = (Cow<'a, str>, Cow<'a, str>);

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            let query = self.rest?;
            let (pair, rest) = query
                .split_once('&')
                .map_or((query, None), |(p, r)| (p, Some(r)));
            self.rest = rest;
            if !pair.is_empty() {
                let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
                return Some((decode(name), decode(value)));
            }
        }
    }
}

fn decode(text: &str) -> Cow<'_, str> {
    if !text.contains(['%', '+']) {
        return Cow::Borrowed(text);
    }
    let spaced = text.replace('+', " ");
    let mut bytes = Vec::with_capacity(spaced.len());
    let mut pieces = spaced.split('%');
    bytes.extend(pieces.next().unwrap_or_default().bytes());
    for piece in pieces {
        let digits = piece
            .get(..2)
            .filter(|two| two.bytes().all(|b| b.is_ascii_hexdigit()));
        match digits.and_then(|two| u8::from_str_radix(two, 16).ok()) {
            Some(value) => {
                bytes.push(value);
                bytes.extend(piece.bytes().skip(2));
            }
            None => {
                bytes.push(b'%');
                bytes.extend(piece.bytes());
            }
        }
    }
    Cow::Owned(String::from_utf8_lossy(&bytes).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pairs(query: &str) -> Vec<(String, String)> {
        QueryPairs::new(Some(query))
            .map(|(n, v)| (n.into_owned(), v.into_owned()))
            .collect()
    }

    fn owned(expected: &[(&str, &str)]) -> Vec<(String, String)> {
        expected
            .iter()
            .map(|(n, v)| ((*n).to_owned(), (*v).to_owned()))
            .collect()
    }

    #[test]
    fn pairs_are_decoded_in_order() {
        assert_eq!(
            pairs("a=1&b=x%20y+z&&c&a=%zz%4"),
            owned(&[("a", "1"), ("b", "x y z"), ("c", ""), ("a", "%zz%4")])
        );
        assert_eq!(pairs("%61=%ff"), owned(&[("a", "\u{fffd}")]));
        assert_eq!(pairs(""), owned(&[]));
        assert_eq!(QueryPairs::new(None).count(), 0);
    }
}
