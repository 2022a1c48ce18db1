//! The first bytes of a connection that was led to the gateway: a ClientHello, a request head, or
//! something else. How they are cut up changes nothing.

#![no_main]

use libfuzzer_sys::fuzz_target;
use outgate_gateway::fuzzing::sniff;

fuzz_target!(|data: &[u8]| {
    let whole = sniff(data, data.len());
    for step in [1, 7, 64] {
        let pieces = sniff(data, step);
        match (&whole, &pieces) {
            (Ok(Some((_, name))), Ok(Some((end, same)))) => {
                assert_eq!(name, same);
                // Nothing behind it was needed.
                let exactly = sniff(&data[..*end], *end);
                assert_eq!(
                    exactly.map(|found| found.map(|(_, name)| name)),
                    Ok(Some(name.clone()))
                );
            }
            // An early piece may be enough for an answer that a later one would have spoilt.
            (Err(_), Ok(Some(_)) | Err(_)) | (Ok(None), Ok(None)) => {}
            other => panic!("in pieces of {step}: {other:?}"),
        }
    }
});
