//! Frames of a guest into the stack: no panic, no hang, bounded memory, and nothing is opened,
//! relayed or answered that the handler did not accept.

#![no_main]

use libfuzzer_sys::fuzz_target;
use outgate_gateway::link::fuzzing;

fuzz_target!(|data: &[u8]| fuzzing::frames(data));
