//! What the first bytes of a connection say about where it goes: the server name of a ClientHello, or
//! the `Host` of an HTTP/1 request.
//!
//! The bytes are only looked at; whoever serves the connection reads all of them again, with all its
//! checks. A first byte that begins neither says nothing, and nothing is guessed from it.

use outgate_policy::{Host, Reject};

use crate::http::host_of_head;
use crate::tls::HelloReader;

/// First byte of a TLS handshake record (RFC 8446 section 5.1).
const TLS_HANDSHAKE: u8 = 22;

/// What was found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Sniffed {
    /// TLS, with the server that it is for if the client named one.
    Tls(Option<Host>),
    /// An HTTP/1 request, with the text of its `Host`; a malformed head has none, and its reader
    /// will say why.
    Http(Option<String>),
    /// Something else.
    Other,
}

/// Looks at a connection's bytes as they come.
pub(crate) struct Sniffer {
    /// Bytes that were looked at.
    seen: usize,
    hello: HelloReader,
}

impl Sniffer {
    pub(crate) fn new() -> Self {
        Self {
            seen: 0,
            hello: HelloReader::default(),
        }
    }

    /// Looks at `all` that has come so far, which begins with what was there before. `None` when more
    /// is needed.
    ///
    /// # Errors
    /// A ClientHello that can't be one, with a name that is no name, or larger than any.
    pub(crate) fn look(&mut self, all: &[u8]) -> Result<Option<Sniffed>, Reject> {
        match all.first() {
            None => Ok(None),
            Some(&TLS_HANDSHAKE) => {
                let new = all.get(self.seen..).unwrap_or_default();
                self.seen = all.len();
                let facts = self.hello.push(new);
                let facts =
                    facts.map_err(|error| Reject::new(error.reason(), error.to_string()))?;
                Ok(facts.map(|facts| Sniffed::Tls(facts.sni)))
            }
            Some(first) if first.is_ascii_alphabetic() => {
                let found = host_of_head(all, &mut self.seen);
                Ok(found.map(Sniffed::Http))
            }
            Some(_) => Ok(Some(Sniffed::Other)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What is found, and after how many bytes.
    fn sniff(bytes: &[u8]) -> (usize, Option<Sniffed>) {
        let mut sniffer = Sniffer::new();
        for end in 1..=bytes.len() {
            if let Some(found) = sniffer.look(&bytes[..end]).unwrap() {
                let at_once = Sniffer::new().look(bytes).unwrap();
                assert_eq!(at_once.as_ref(), Some(&found), "cuts change nothing");
                return (end, Some(found));
            }
        }
        (bytes.len(), None)
    }

    #[test]
    fn a_request_says_its_host() {
        let head = b"GET /x HTTP/1.1\r\nHost: A.test:81\r\n\r\nbody";
        let (end, found) = sniff(head);
        assert_eq!(end, head.len() - 4);
        assert_eq!(found, Some(Sniffed::Http(Some("A.test:81".to_owned()))));
        for odd in [
            &b"GET /x HTTP/1.1\r\n\r\n"[..],
            b"GET /x HTTP/1.1\r\nHost: a.test\r\nHost: b.test\r\n\r\n",
            b"GET /x HTTP/1.1\nHost: a.test\r\n\r\n",
            b"SSH-2.0-OpenSSH_9\r\n\r\n",
        ] {
            assert_eq!(
                sniff(odd).1,
                Some(Sniffed::Http(None)),
                "{}",
                odd.escape_ascii()
            );
        }
    }

    #[test]
    fn what_is_incomplete_says_nothing_yet() {
        for bytes in [
            &b""[..],
            b"GET / HTTP/1.1\r\nHost: a.test\r\n",
            b"SSH-2.0-x\r\n",
            &[22, 3, 1],
        ] {
            assert_eq!(sniff(bytes).1, None);
        }
    }

    #[test]
    fn another_first_byte_is_something_else() {
        for first in [0, 5, 21, 23, 128, b'\n', b' ', 255] {
            assert_eq!(sniff(&[first, 1, 2]), (1, Some(Sniffed::Other)));
        }
    }

    #[test]
    fn a_hello_that_can_be_none_is_refused() {
        for bad in [
            &[22, 3, 1, 0, 4, 1, 1, 0, 1][..],
            &[22, 3, 1, 0, 5, 2, 0, 0, 1, 0],
            &[22, 9, 9, 0, 1, 1],
        ] {
            Sniffer::new().look(bad).unwrap_err();
        }
    }
}
