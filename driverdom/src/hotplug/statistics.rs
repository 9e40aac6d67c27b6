//! What hotplug counts about itself.

use xen_proto::Nanos;

/// Upper ends of the buckets of a [`Histogram`], in milliseconds; a last bucket has no end.
pub const BUCKET_MILLIS: [u64; 13] = [1, 2, 5, 10, 20, 50, 100, 200, 500, 1_000, 2_000, 5_000, 10_000];

/// How long something took, how often.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Histogram {
    /// Counts by bucket: bucket `i` has what took at most `BUCKET_MILLIS[i]`.
    pub counts: [u64; BUCKET_MILLIS.len() + 1],
    /// The sum of all, in nanoseconds.
    pub sum: Nanos,
    /// The longest.
    pub max: Nanos,
}

impl Histogram {
    pub(super) fn add(&mut self, took: Nanos) {
        let bucket =
            BUCKET_MILLIS.iter().position(|end| took <= Nanos::from_millis(*end)).unwrap_or(BUCKET_MILLIS.len());
        self.counts[bucket] += 1;
        self.sum = self.sum + took;
        self.max = self.max.max(took);
    }

    /// How many there were.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.counts.iter().sum()
    }
}

/// Counters since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Statistics {
    /// From seeing a new directory to having written `InitWait`.
    pub attach: Histogram,
    /// From seeing the frontend ready (state 3), or from the end of the hold in `InitWait` if that is later, to having written
    /// `Connected`.
    pub connect: Histogram,
    /// Devices known now.
    pub devices: u64,
    /// Devices that hold a volume now.
    pub held: u64,
    /// Devices refused.
    pub refused: u64,
    /// Devices whose frontend broke the protocol.
    pub failed: u64,
    /// Devices removed after an orderly close.
    pub removed: u64,
    /// Times that a device's nodes were read.
    pub refreshes: u64,
    /// Transactions that had to be done again because somebody else changed something.
    pub conflicts: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_falls_into_the_first_bucket_that_holds_it() {
        let mut histogram = Histogram::default();
        for (nanos, bucket) in [(0, 0), (1_000_000, 0), (1_000_001, 1), (10_000_000_000, 12), (10_000_000_001, 13)] {
            let before = histogram.counts[bucket];
            histogram.add(Nanos(nanos));
            assert_eq!(histogram.counts[bucket], before + 1, "{nanos} ns");
        }
        assert_eq!((histogram.count(), histogram.max), (5, Nanos(10_000_000_001)));
    }
}
