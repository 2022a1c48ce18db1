//! The synthetic addresses that stand for names inside one sandbox (RFC 2544's 198.18.0.0/15).
//!
//! A guest learns an address that means nothing anywhere else; what it connects to is the name.
//! The address of a name is chosen by a keyed hash, so it is the same again after it was evicted or
//! the gateway was restarted. Nothing here resolves a name.

use std::collections::HashMap;
use std::fmt;
use std::net::Ipv4Addr;
use std::sync::{Arc, Mutex};

use lru::LruCache;
use outgate_policy::Host;
use sha2::{Digest, Sha256};

use super::lock;

/// Names that one sandbox can hold at a time. A guest that asks for more loses those that it
/// has not used for longest, and gets them back when it asks again.
pub(super) const CAPACITY: usize = 4096;

const BASE: u32 = u32::from_be_bytes([198, 18, 0, 0]);
const PREFIX_LEN: u32 = 15;
const ADDRESSES: u32 = 1 << (32 - PREFIX_LEN);

/// The secret that maps names to addresses; random unless given.
#[derive(Clone)]
pub struct NameKey([u8; 32]);

impl NameKey {
    /// A key that the caller keeps, to give the same one to a sandbox's next stack.
    #[must_use]
    pub fn new(key: [u8; 32]) -> Self {
        Self(key)
    }
}

impl Default for NameKey {
    fn default() -> Self {
        let mut key = [0; 32];
        super::fill_random(&mut key);
        Self(key)
    }
}

impl fmt::Debug for NameKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("NameKey(..)")
    }
}

/// Whether an address is one of those that stand for names.
pub(super) fn is_synthetic(address: Ipv4Addr) -> bool {
    u32::from(address) & !(ADDRESSES - 1) == BASE
}

/// The names of one sandbox.
#[derive(Debug)]
pub(super) struct Names {
    key: NameKey,
    by_name: LruCache<Host, Entry>,
    by_address: HashMap<Ipv4Addr, Host>,
}

#[derive(Debug)]
struct Entry {
    address: Ipv4Addr,
    open_flows: usize,
}

impl Names {
    pub(super) fn new(key: NameKey) -> Self {
        Self {
            key,
            by_name: LruCache::unbounded(),
            by_address: HashMap::new(),
        }
    }

    /// The address of a name, the same one while the name is held. `None` if every held name has
    /// an open flow, which the cap on flows rules out.
    pub(super) fn address(&mut self, name: &Host) -> Option<Ipv4Addr> {
        if let Some(entry) = self.by_name.get(name) {
            return Some(entry.address);
        }
        if self.by_name.len() >= CAPACITY {
            self.evict()?;
        }
        let address = self.free_address(name)?;
        self.by_name.put(
            name.clone(),
            Entry {
                address,
                open_flows: 0,
            },
        );
        self.by_address.insert(address, name.clone());
        Some(address)
    }

    /// Whether a name has an address now.
    pub(super) fn holds(&self, name: &Host) -> bool {
        self.by_name.contains(name)
    }

    /// The name at an address.
    pub(super) fn at(&self, address: Ipv4Addr) -> Option<Host> {
        self.by_address.get(&address).cloned()
    }

    /// Forgets the name that was used longest ago, among those without open flows.
    fn evict(&mut self) -> Option<()> {
        let idle = self
            .by_name
            .iter()
            .rev()
            .find(|(_, entry)| entry.open_flows == 0);
        let name = idle.map(|(name, _)| name.clone())?;
        let entry = self.by_name.pop(&name)?;
        self.by_address.remove(&entry.address);
        Some(())
    }

    fn free_address(&self, name: &Host) -> Option<Ipv4Addr> {
        let digest = Sha256::new()
            .chain_update(self.key.0)
            .chain_update(name.as_str())
            .finalize();
        let start = u32::from_be_bytes([digest[0], digest[1], digest[2], digest[3]]);
        (0..ADDRESSES)
            .map(|step| BASE | (start.wrapping_add(step) & (ADDRESSES - 1)))
            // Some clients take an address that ends in 0 or 255 for a network's.
            .filter(|address| !matches!(address & 0xff, 0 | 0xff))
            .map(Ipv4Addr::from)
            .find(|address| !self.by_address.contains_key(address))
    }
}

/// Keeps a name at its address while a flow to it is open.
#[derive(Debug)]
pub(super) struct NameLease {
    names: Arc<Mutex<Names>>,
    name: Host,
}

impl NameLease {
    /// The name at a synthetic address, if it has one.
    pub(super) fn take(names: &Arc<Mutex<Names>>, address: Ipv4Addr) -> Option<Self> {
        let mut held = lock(names);
        let name = held.by_address.get(&address)?.clone();
        held.by_name.get_mut(&name)?.open_flows += 1;
        drop(held);
        Some(Self {
            names: Arc::clone(names),
            name,
        })
    }

    pub(super) fn name(&self) -> &Host {
        &self.name
    }
}

impl Drop for NameLease {
    fn drop(&mut self) {
        if let Some(entry) = lock(&self.names).by_name.peek_mut(&self.name) {
            entry.open_flows -= 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names() -> Arc<Mutex<Names>> {
        Arc::new(Mutex::new(Names::new(NameKey::new([7; 32]))))
    }

    fn host(number: usize) -> Host {
        Host::parse(&format!("n{number}.test")).unwrap()
    }

    #[test]
    fn a_name_keeps_its_address_and_an_address_its_name() {
        let names = names();
        let address = lock(&names).address(&host(1)).unwrap();
        assert!(is_synthetic(address));
        assert_eq!(lock(&names).address(&host(1)), Some(address));
        assert_eq!(NameLease::take(&names, address).unwrap().name(), &host(1));
        let again = Names::new(NameKey::new([7; 32])).address(&host(1));
        assert_eq!(
            again,
            Some(address),
            "the same key gives the same address after a restart"
        );
        let elsewhere = Names::new(NameKey::new([8; 32])).address(&host(1));
        assert_ne!(
            elsewhere,
            Some(address),
            "another sandbox's addresses tell nothing"
        );
    }

    #[test]
    fn the_least_recently_used_name_goes_unless_a_flow_is_open() {
        let names = names();
        let first = lock(&names).address(&host(0)).unwrap();
        let second = lock(&names).address(&host(1)).unwrap();
        let lease = NameLease::take(&names, first).unwrap();
        for number in 2..=CAPACITY {
            lock(&names).address(&host(number)).unwrap();
        }
        assert_eq!(lock(&names).by_name.len(), CAPACITY);
        assert_eq!(lock(&names).by_address.len(), CAPACITY);
        assert!(NameLease::take(&names, second).is_none(), "evicted");
        assert!(NameLease::take(&names, first).is_some(), "in use");
        drop(lease);
        for number in CAPACITY..2 * CAPACITY {
            lock(&names).address(&host(number)).unwrap();
        }
        assert!(NameLease::take(&names, first).is_none());
        assert_eq!(lock(&names).by_address.len(), CAPACITY);
    }

    #[test]
    fn addresses_are_distinct_and_look_like_hosts() {
        let mut names = Names::new(NameKey::default());
        let mut seen = std::collections::HashSet::new();
        for number in 0..CAPACITY {
            let address = names.address(&host(number)).unwrap();
            assert!(seen.insert(address));
            assert!(!matches!(address.octets()[3], 0 | 255), "{address}");
        }
    }
}
