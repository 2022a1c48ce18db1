//! SOCKS5: the messages of a client.
//!
//! No prefix of a message is another message, a destination is canonical, and what goes into a record
//! is printable.

#![no_main]

use libfuzzer_sys::fuzz_target;
use outgate_gateway::fuzzing::{socks_credentials, socks_greeting, socks_request};
use outgate_policy::Authority;

/// Lengths are one byte each.
const MOST_BYTES: usize = 3 + 2 * 256;

fuzz_target!(|data: &[u8]| {
    if let Ok(Some(length)) = socks_greeting(data) {
        assert!(length <= MOST_BYTES && length <= data.len());
        assert_eq!(socks_greeting(&data[..length - 1]), Ok(None));
    }
    if let Ok(Some((user, password))) = socks_credentials(data) {
        let length = 3 + user + password;
        assert!(length <= MOST_BYTES && length <= data.len());
        assert_eq!(socks_credentials(&data[..length - 1]), Ok(None));
    }
    let Ok(Some(request)) = socks_request(data) else {
        return;
    };
    assert!(request.length <= MOST_BYTES && request.length <= data.len());
    assert_eq!(socks_request(&data[..request.length - 1]), Ok(None));
    let printable = |byte: u8| (b' '..=b'~').contains(&byte);
    assert!(request.target.bytes().all(printable), "{}", request.target);
    if let Some(authority) = request.authority {
        let read = Authority::parse(&authority, None).expect("what is opened is canonical");
        assert_eq!(read.to_string(), authority);
        assert!(
            !authority.contains(['\0', ' ', '%', '@', '/', '\\']),
            "{authority}"
        );
    }
});
