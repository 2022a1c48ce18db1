//! The query of a request: `name=value`, percent-encoded.

use hyper::Request;

use outgate_pid1::api::{ApiError, ErrorCode};

/// See the module.
pub(crate) struct Query<'a>(&'a str);

impl<'a> Query<'a> {
    pub(crate) fn of<B>(request: &'a Request<B>) -> Self {
        Self(request.uri().query().unwrap_or(""))
    }

    pub(crate) fn has(&self, name: &str) -> bool {
        self.raw(name).is_some()
    }

    /// A text that must be there.
    pub(crate) fn text(&self, name: &str) -> Result<String, ApiError> {
        self.raw(name)
            .and_then(decode)
            .ok_or_else(|| bad(name, "text, percent-encoded"))
    }

    pub(crate) fn number(&self, name: &str) -> Result<Option<u64>, ApiError> {
        self.raw(name)
            .map(|raw| raw.parse().map_err(|_| bad(name, "a number")))
            .transpose()
    }

    pub(crate) fn octal(&self, name: &str) -> Result<Option<u32>, ApiError> {
        let parse = |raw| u32::from_str_radix(raw, 8).map_err(|_| bad(name, "a mode such as 644"));
        self.raw(name).map(parse).transpose()
    }

    fn raw(&self, name: &str) -> Option<&'a str> {
        self.0.split('&').find_map(|pair| {
            let (found, value) = pair.split_once('=').unwrap_or((pair, ""));
            (found == name).then_some(value)
        })
    }
}

fn decode(raw: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(raw.len());
    let mut rest = raw.bytes();
    while let Some(byte) = rest.next() {
        if byte != b'%' {
            bytes.push(byte);
            continue;
        }
        let digit = |byte: Option<u8>| char::from(byte?).to_digit(16);
        let (high, low) = (digit(rest.next())?, digit(rest.next())?);
        bytes.push(u8::try_from(high * 16 + low).ok()?);
    }
    String::from_utf8(bytes).ok()
}

fn bad(name: &str, wanted: &str) -> ApiError {
    let message = format!("`{name}` is missing or can't be read");
    ApiError::new(
        ErrorCode::BadRequest,
        message,
        format!("send it as {wanted}"),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_decoded_once() {
        let request = Request::get("/v1/files?path=/a%20b%2520%2Bc&mode=0640&eof")
            .body(())
            .unwrap();
        let query = Query::of(&request);
        assert_eq!(query.text("path").unwrap(), "/a b%20+c");
        assert_eq!(query.octal("mode").unwrap(), Some(0o640));
        assert!(query.has("eof"));
        assert_eq!(query.number("offset").unwrap(), None);
        assert_eq!(
            query.number("path").unwrap_err().code,
            ErrorCode::BadRequest
        );
        for raw in ["%", "%2", "%zz", "%ff"] {
            assert_eq!(decode(raw), None, "{raw}");
        }
    }
}
