//! The mapped segments of all requests under way on one disk: a pool of fixed size, handed out in chains.

use alloc::vec::Vec;

use xen_proto::MachineAddr;
use xen_proto::platform::DeviceMapping;

use crate::request::Run;

/// A segment whose page a device can reach.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Mapped {
    pub(crate) mapping: DeviceMapping,
    pub(crate) run: Run,
}

/// The first node of a chain, if it has any.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Chain(Option<u32>);

#[derive(Debug)]
struct Node {
    mapped: Mapped,
    next: Chain,
}

/// The pool. The free nodes form a chain too.
#[derive(Debug)]
pub(crate) struct Pool {
    nodes: Vec<Node>,
    free: Chain,
    left: usize,
}

impl Pool {
    /// A pool for so many segments, `None` if there is not enough memory.
    pub(crate) fn new(segments: usize) -> Option<Self> {
        let empty =
            Mapped { mapping: DeviceMapping { handle: 0, addr: MachineAddr(0) }, run: Run { first: 0, sectors: 0 } };
        let mut pool = Self { nodes: Vec::new(), free: Chain(None), left: 0 };
        pool.nodes.try_reserve_exact(segments).ok()?;
        for at in (0..u32::MAX).take(segments) {
            let next = core::mem::replace(&mut pool.free, Chain(Some(at)));
            pool.nodes.push(Node { mapped: empty, next });
            pool.left = at as usize + 1;
        }
        Some(pool)
    }

    /// Segments that are free.
    pub(crate) fn left(&self) -> usize {
        self.left
    }

    /// Keeps these segments, in their order.
    ///
    /// # Panics
    /// If they are more than are free.
    pub(crate) fn keep(&mut self, segments: impl DoubleEndedIterator<Item = Mapped>) -> Chain {
        let mut chain = Chain(None);
        for mapped in segments.rev() {
            let node = node(&mut self.nodes, self.free).expect("callers keep within left()");
            node.mapped = mapped;
            let rest = core::mem::replace(&mut node.next, chain);
            chain = core::mem::replace(&mut self.free, rest);
            self.left -= 1;
        }
        chain
    }

    /// The segments of a chain.
    pub(crate) fn iter(&self, chain: Chain) -> impl Iterator<Item = Mapped> {
        let node = |chain: Chain| self.nodes.get(chain.0? as usize);
        core::iter::successors(node(chain), move |last| node(last.next)).map(|node| node.mapped)
    }

    /// Frees a chain and hands out each mapping, to be ended.
    pub(crate) fn free(&mut self, mut chain: Chain, mut ended: impl FnMut(DeviceMapping)) {
        while let Some(node) = node(&mut self.nodes, chain) {
            ended(node.mapped.mapping);
            let rest = core::mem::replace(&mut node.next, self.free);
            self.free = core::mem::replace(&mut chain, rest);
            self.left += 1;
        }
    }
}

fn node(nodes: &mut [Node], chain: Chain) -> Option<&mut Node> {
    nodes.get_mut(chain.0? as usize)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mapped(handle: u32) -> Mapped {
        Mapped { mapping: DeviceMapping { handle, addr: MachineAddr(0) }, run: Run { first: 0, sectors: 1 } }
    }

    fn handles(pool: &Pool, chain: Chain) -> Vec<u32> {
        pool.iter(chain).map(|m| m.mapping.handle).collect()
    }

    #[test]
    fn chains_keep_their_order_and_come_back() {
        let mut pool = Pool::new(5).unwrap();
        for round in 0..4 {
            let a = pool.keep((0..2).map(mapped));
            let b = pool.keep((10..13).map(mapped));
            let none = pool.keep(core::iter::empty());
            assert_eq!((handles(&pool, a), handles(&pool, b)), (vec![0, 1], vec![10, 11, 12]));
            assert_eq!((handles(&pool, none), pool.left()), (vec![], 0), "round {round}");
            let mut ended = Vec::new();
            for chain in if round % 2 == 0 { [a, b] } else { [b, a] } {
                pool.free(chain, |mapping| ended.push(mapping.handle));
            }
            ended.sort_unstable();
            assert_eq!((ended, pool.left()), (vec![0, 1, 10, 11, 12], 5));
        }
    }

    #[test]
    #[should_panic(expected = "within left()")]
    fn more_than_it_has_is_a_bug() {
        Pool::new(2).unwrap().keep((0..3).map(mapped));
    }
}
