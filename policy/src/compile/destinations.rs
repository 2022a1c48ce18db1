//! The `to:` of a rule: names, networks and what no rule may open.

use ipnet::IpNet;

use crate::AddressClass;
use crate::document::{Action, At, Findings, RuleSpec};
use crate::host_pattern::HostPattern;

/// Checks hosts and networks; what is wrong is reported and left out.
pub(super) fn check(spec: &RuleSpec, found: &mut Findings) -> (Vec<HostPattern>, Vec<IpNet>) {
    if spec.to.hosts.is_none() && spec.to.ips.is_none() {
        let help = "name `hosts` or `ips`; `hosts: [any]` is everything";
        found.error_help(
            "no_destination",
            &spec.to.span,
            "the rule names no destination",
            help,
        );
    }
    let hosts = spec.to.hosts.iter().flatten();
    let hosts: Vec<HostPattern> = hosts.filter_map(|entry| host(spec, entry, found)).collect();
    let ips = spec.to.ips.iter().flatten();
    let ips = ips
        .filter_map(|entry| network(spec, entry, found))
        .collect();
    (hosts, ips)
}

fn host(spec: &RuleSpec, entry: &At<String>, found: &mut Findings) -> Option<HostPattern> {
    let pattern = match HostPattern::parse(&entry.value) {
        Ok(pattern) => pattern,
        Err(error) => {
            match error.help {
                Some(help) => found.error_help(error.code, &entry.span, error.message, help),
                None => found.error(error.code, &entry.span, error.message),
            }
            return None;
        }
    };
    if let (Some(suffix), false, Action::Allow | Action::Ask) = (
        pattern.public_suffix(),
        spec.allow_public_suffix,
        spec.action.value,
    ) {
        let message = format!(
            "`{}` spans the public suffix `{suffix}`, below which anybody can register names",
            entry.value
        );
        let help = "name the hosts that you need, or add `allow_public_suffix: true` to the rule";
        found.error_help("public_suffix", &entry.span, message, help);
        return None;
    }
    Some(pattern)
}

fn network(spec: &RuleSpec, entry: &At<String>, found: &mut Findings) -> Option<IpNet> {
    let shown = entry.value.escape_default();
    let single = entry.value.parse::<std::net::IpAddr>().ok();
    let Some(network) = single.map(IpNet::from).or_else(|| entry.value.parse().ok()) else {
        let help = "write `192.0.2.7`, `192.0.2.0/24`, `2001:db8::7` or `2001:db8::/32`; names go under `hosts:`";
        found.error_help(
            "bad_ip",
            &entry.span,
            format!("`{shown}` is no address or network"),
            help,
        );
        return None;
    };
    let canonical = match (single, inner_v4(network)) {
        (Some(address), _) => address.to_canonical().to_string(),
        (None, Some(inner)) => inner.to_string(),
        (None, None) => network.trunc().to_string(),
    };
    if canonical != entry.value {
        let message = format!("`{shown}` is not the canonical spelling");
        found.error_help(
            "non_canonical_ip",
            &entry.span,
            message,
            format!("write `{canonical}`"),
        );
        return None;
    }
    let only_metadata = network.prefix_len() == network.max_prefix_len()
        && AddressClass::of(network.addr()) == AddressClass::Metadata;
    if only_metadata && spec.action.value != Action::Deny {
        let message = format!("`{shown}` is a cloud metadata service, which no rule can open");
        found.error_help(
            "metadata_address",
            &entry.span,
            message,
            "give the sandbox what it needs through a credential",
        );
        return None;
    }
    Some(network)
}

/// The IPv4 network that an IPv6 network of mapped addresses stands for.
fn inner_v4(network: IpNet) -> Option<IpNet> {
    let IpNet::V6(v6) = network else { return None };
    let address = v6.network().to_ipv4_mapped()?;
    let length = v6.prefix_len().checked_sub(96)?;
    IpNet::new(address.into(), length).ok()
}
