//! The addresses of allocations that have a network of their own.

use std::collections::BTreeSet;

use ipnet::Ipv4Net;

/// The addresses of one subnet. A returned address is reused as late as possible, so that old peers of its last
/// allocation do not reach another allocation.
#[derive(Clone, Debug)]
pub struct AddressPool {
    first: u32,
    last: u32,
    next: u32,
    taken: BTreeSet<u32>,
}

/// A subnet that is too small.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{subnet} is not a subnet for allocations: use one with a prefix between /8 and /29, such as 172.26.64.0/20"
)]
pub struct SmallSubnetError {
    pub subnet: Ipv4Net,
}

impl AddressPool {
    /// Creates a pool of every address of `subnet` but the first two and the last, which have other conventional uses.
    ///
    /// # Errors
    ///
    /// [`SmallSubnetError`].
    pub fn new(subnet: Ipv4Net) -> Result<Self, SmallSubnetError> {
        if !(8..=29).contains(&subnet.prefix_len()) {
            return Err(SmallSubnetError { subnet });
        }
        let first = u32::from_be_bytes(subnet.network().octets()) + 2;
        let last = u32::from_be_bytes(subnet.broadcast().octets()) - 1;
        Ok(Self {
            first,
            last,
            next: first,
            taken: BTreeSet::new(),
        })
    }

    /// Takes the next free address; `None` if all are taken.
    pub fn take(&mut self) -> Option<[u8; 4]> {
        let free = self
            .free_from(self.next)
            .or_else(|| self.free_from(self.first))?;
        self.taken.insert(free);
        self.next = free + 1;
        Some(free.to_be_bytes())
    }

    /// Takes `address`, which an earlier agent gave away. Returns whether the address belongs to the pool.
    pub fn adopt(&mut self, address: [u8; 4]) -> bool {
        let address = u32::from_be_bytes(address);
        let is_ours = (self.first..=self.last).contains(&address);
        if is_ours {
            self.taken.insert(address);
            self.next = self.next.max(address + 1);
        }
        is_ours
    }

    /// Returns `address` to the pool.
    pub fn give_back(&mut self, address: [u8; 4]) {
        self.taken.remove(&u32::from_be_bytes(address));
    }

    /// The number of addresses in the pool.
    #[must_use]
    pub fn size(&self) -> u32 {
        self.last - self.first + 1
    }

    fn free_from(&self, start: u32) -> Option<u32> {
        let mut candidate = start;
        for taken in self.taken.range(start..) {
            if *taken != candidate {
                break;
            }
            candidate += 1;
        }
        (candidate <= self.last).then_some(candidate)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pool(subnet: &str) -> AddressPool {
        AddressPool::new(subnet.parse().unwrap()).unwrap()
    }

    #[test]
    fn every_address_is_given_once() {
        let mut pool = pool("10.0.0.0/29");
        let given: Vec<_> = std::iter::from_fn(|| pool.take()).collect();

        let expected: Vec<_> = (2..=6).map(|last| [10, 0, 0, last]).collect();
        assert_eq!(given, expected);
        assert_eq!(pool.size(), 5);
    }

    #[test]
    fn returned_addresses_are_assigned_last() {
        let mut pool = pool("10.0.0.0/29");
        let first = pool.take().unwrap();
        pool.take().unwrap();
        pool.give_back(first);

        let given: Vec<_> = std::iter::from_fn(|| pool.take()).collect();

        assert_eq!(given.last(), Some(&first));
        assert_eq!(given.len(), 4);
    }

    #[test]
    fn addresses_of_earlier_agents_are_adopted() {
        let mut pool = pool("10.0.0.0/29");

        assert!(pool.adopt([10, 0, 0, 2]));
        assert!(!pool.adopt([10, 0, 0, 7]), "for broadcasts");
        assert!(!pool.adopt([10, 0, 1, 2]));
        pool.give_back([10, 0, 0, 2]);
        assert_eq!(
            pool.take(),
            Some([10, 0, 0, 3]),
            "not the one just given back"
        );
    }

    #[test]
    fn subnet_rejects_too_small_or_too_large_prefix() {
        for subnet in ["10.0.0.0/30", "10.0.0.1/32", "0.0.0.0/0", "8.0.0.0/7"] {
            let refused = AddressPool::new(subnet.parse().unwrap());
            assert!(refused.is_err(), "{subnet}");
        }
        assert_eq!(pool("172.26.64.0/20").size(), 4_093);
    }
}
