//! Messages to the sandbox's name server: no panic, a short answer or none, and an address only
//! for a name that the handler admits.

#![no_main]

use libfuzzer_sys::fuzz_target;
use outgate_gateway::link::fuzzing;

fuzz_target!(|data: &[u8]| fuzzing::name_message(data));
