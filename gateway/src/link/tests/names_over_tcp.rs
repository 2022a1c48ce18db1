//! DNS over TCP (RFC 7766) as a guest's stub resolver uses it.

use std::str::FromStr;

use hickory_proto::op::{Message, MessageType, OpCode, Query, ResponseCode};
use hickory_proto::rr::{Name, RecordType};
use smoltcp::iface::SocketHandle;
use smoltcp::socket::tcp;

use super::guest::Guest;
use super::*;

/// As many as one sandbox may have.
const CONNECTIONS: usize = 32;

fn question(id: u16, name: &str) -> Vec<u8> {
    let mut message = Message::new(id, MessageType::Query, OpCode::Query);
    message.add_query(Query::query(Name::from_str(name).unwrap(), RecordType::A));
    let message = message.to_vec().unwrap();
    let len = u16::try_from(message.len()).unwrap();
    [&len.to_be_bytes(), message.as_slice()].concat()
}

async fn connected(guest: &mut Guest) -> SocketHandle {
    let handle = guest.connect((GATEWAY_IP, 53));
    guest.until_established(handle).await;
    handle
}

/// Reads whole answers until there are `count`.
async fn answers(guest: &mut Guest, handle: SocketHandle, count: usize) -> Vec<Message> {
    let mut received = Vec::new();
    guest
        .until(|sockets| {
            let socket = sockets.get_mut::<tcp::Socket<'_>>(handle);
            socket
                .recv(|data| (data.len(), received.extend_from_slice(data)))
                .unwrap();
            let mut rest = received.as_slice();
            let mut messages = Vec::new();
            while let Some((len, more)) = rest.split_first_chunk::<2>() {
                let len = usize::from(u16::from_be_bytes(*len));
                let Some(message) = more.get(..len) else {
                    break;
                };
                messages.push(Message::from_vec(message).unwrap());
                rest = &more[len..];
            }
            (messages.len() == count).then_some(messages)
        })
        .await
}

#[tokio::test]
async fn questions_sent_without_waiting_are_answered_in_order() {
    let (mut guest, _stack) = Guest::start(&Recorder::refusing());
    let handle = connected(&mut guest).await;
    let all: Vec<u8> = (0..50)
        .flat_map(|id| question(id, if id % 2 == 0 { "a.test." } else { "evil.test." }))
        .collect();
    guest.tcp(handle).send_slice(&all).unwrap();
    // The guest has no more to say; it still wants to hear (RFC 7766 section 6.2.4).
    guest.tcp(handle).close();
    for (id, answer) in answers(&mut guest, handle, 50).await.iter().enumerate() {
        assert_eq!(usize::from(answer.metadata.id), id);
        let expected = if id % 2 == 0 {
            ResponseCode::NoError
        } else {
            ResponseCode::NXDomain
        };
        assert_eq!(answer.metadata.response_code, expected);
    }
    guest.until_state(handle, tcp::State::TimeWait).await;
}

#[tokio::test]
async fn a_question_in_single_bytes_is_one_question() {
    let (mut guest, _stack) = Guest::start(&Recorder::refusing());
    let handle = connected(&mut guest).await;
    for byte in question(9, "a.test.") {
        guest.tcp(handle).send_slice(&[byte]).unwrap();
        // Each byte is on its way before the next is written.
        guest
            .until(|sockets| {
                let socket = sockets.get_mut::<tcp::Socket<'_>>(handle);
                (socket.send_queue() == 0).then_some(())
            })
            .await;
    }
    assert_eq!(answers(&mut guest, handle, 1).await[0].metadata.id, 9);
}

#[tokio::test]
async fn a_length_beyond_any_question_or_a_message_that_is_none_ends_the_connection() {
    for bytes in [&[0xff, 0xff][..], &[0, 0], &[0, 3, 1, 2, 3]] {
        let (mut guest, _stack) = Guest::start(&Recorder::refusing());
        let handle = connected(&mut guest).await;
        guest.tcp(handle).send_slice(bytes).unwrap();
        guest.until_state(handle, tcp::State::Closed).await;
    }
}

#[tokio::test]
async fn c18_more_connections_than_the_cap_are_reset_and_counted() {
    let recorder = Recorder::refusing();
    let (mut guest, _stack) = Guest::start(&recorder);
    let mut handles = Vec::new();
    for id in 0..CONNECTIONS {
        let handle = connected(&mut guest).await;
        let message = question(u16::try_from(id).unwrap(), "a.test.");
        guest.tcp(handle).send_slice(&message).unwrap();
        answers(&mut guest, handle, 1).await;
        handles.push(handle);
    }
    let beyond = guest.connect((GATEWAY_IP, 53));
    guest.until_state(beyond, tcp::State::Closed).await;
    recorder.until_dropped(Dropped::DnsConnections, 1).await;
    // One that ends makes room for the next.
    guest.tcp(handles[0]).close();
    guest.until_state(handles[0], tcp::State::TimeWait).await;
    let handle = connected(&mut guest).await;
    guest
        .tcp(handle)
        .send_slice(&question(7, "b.test."))
        .unwrap();
    assert_eq!(answers(&mut guest, handle, 1).await[0].metadata.id, 7);
}
