//! A DHCPv4 server with one client and one lease (RFC 2131).
//!
//! Stateless: every guest has the same address, so there is nothing to remember or to run out of.

use std::net::Ipv4Addr;

use smoltcp::wire::{DhcpMessageType, DhcpOption, DhcpPacket, DhcpRepr};

use super::{Dropped, GATEWAY_IP, GUEST_IP, GUEST_MAC, PREFIX_LEN};

/// Lease time, in seconds. The address never changes; a day keeps renewals out of the way.
const LEASE_SECONDS: u32 = 24 * 60 * 60;
/// Interface MTU option (RFC 2132, 5.1).
const OPTION_MTU: u8 = 26;

/// An answer, still without its IP and UDP headers.
#[derive(Debug)]
pub(super) struct Reply {
    pub(super) to: Ipv4Addr,
    pub(super) message: Vec<u8>,
}

/// Answers a client's message, if it wants an answer.
pub(super) fn answer(message: &[u8], mtu: u16) -> Result<Option<Reply>, Dropped> {
    let packet = DhcpPacket::new_checked(message).map_err(|_| Dropped::Malformed)?;
    let request = DhcpRepr::parse(&packet).map_err(|_| Dropped::Malformed)?;
    if request.client_hardware_address != GUEST_MAC {
        return Err(Dropped::SpoofedMac);
    }
    if request
        .server_identifier
        .is_some_and(|server| server != GATEWAY_IP)
    {
        return Ok(None);
    }
    let wanted = request.requested_ip.unwrap_or(request.client_ip);
    let kind = match request.message_type {
        DhcpMessageType::Discover => DhcpMessageType::Offer,
        DhcpMessageType::Request if wanted == GUEST_IP => DhcpMessageType::Ack,
        DhcpMessageType::Request => DhcpMessageType::Nak,
        DhcpMessageType::Inform => DhcpMessageType::Ack,
        _ => return Ok(None),
    };
    let inform = request.message_type == DhcpMessageType::Inform;
    // A client without an address may be unable to take a unicast packet yet; on a link with one
    // guest a broadcast reaches nobody else.
    let to = if request.client_ip == GUEST_IP && kind != DhcpMessageType::Nak {
        GUEST_IP
    } else {
        Ipv4Addr::BROADCAST
    };
    let message = encode(&request, kind, inform, mtu)?;
    Ok(Some(Reply { to, message }))
}

fn encode(
    request: &DhcpRepr<'_>,
    kind: DhcpMessageType,
    inform: bool,
    mtu: u16,
) -> Result<Vec<u8>, Dropped> {
    let granted = kind != DhcpMessageType::Nak;
    let leased = granted && !inform;
    let mtu = mtu.to_be_bytes();
    let options = [DhcpOption {
        kind: OPTION_MTU,
        data: &mtu,
    }];
    let reply = DhcpRepr {
        message_type: kind,
        transaction_id: request.transaction_id,
        secs: 0,
        client_hardware_address: GUEST_MAC,
        client_ip: if granted {
            request.client_ip
        } else {
            Ipv4Addr::UNSPECIFIED
        },
        your_ip: if leased {
            GUEST_IP
        } else {
            Ipv4Addr::UNSPECIFIED
        },
        server_ip: Ipv4Addr::UNSPECIFIED,
        router: granted.then_some(GATEWAY_IP),
        subnet_mask: granted.then(|| Ipv4Addr::from(!(u32::MAX >> PREFIX_LEN))),
        relay_agent_ip: Ipv4Addr::UNSPECIFIED,
        broadcast: request.broadcast,
        requested_ip: None,
        client_identifier: request.client_identifier,
        server_identifier: Some(GATEWAY_IP),
        parameter_request_list: None,
        dns_servers: granted.then(|| std::iter::once(GATEWAY_IP).collect()),
        max_size: None,
        lease_duration: leased.then_some(LEASE_SECONDS),
        renew_duration: None,
        rebind_duration: None,
        additional_options: if granted { &options } else { &[] },
    };
    let mut message = vec![0; reply.buffer_len()];
    let mut packet = DhcpPacket::new_unchecked(message.as_mut_slice());
    reply.emit(&mut packet).map_err(|_| Dropped::Malformed)?;
    Ok(message)
}
