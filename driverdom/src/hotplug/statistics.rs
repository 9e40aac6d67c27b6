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

    /// The longest, in milliseconds, rounded up.
    #[must_use]
    pub fn max_millis(&self) -> u64 {
        self.max.0.div_ceil(1_000_000)
    }

    /// A time in milliseconds that `percent` of all did not exceed: the end of a bucket, or the longest.
    #[must_use]
    pub fn percentile_millis(&self, percent: u64) -> u64 {
        let wanted = (self.count() * percent).div_ceil(100);
        let mut count = 0;
        let ends = BUCKET_MILLIS.iter().zip(&self.counts);
        let reached = |(end, bucket): (&u64, &u64)| {
            count += bucket;
            (count >= wanted).then_some(*end)
        };
        ends.into_iter().find_map(reached).unwrap_or(u64::MAX).min(self.max_millis())
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
    /// Devices that are connected now: their rings are served and state 4 is written.
    pub connected: u64,
    /// Devices refused.
    pub refused: u64,
    /// Devices whose frontend broke the protocol.
    pub failed: u64,
    /// Devices removed after an orderly close.
    pub removed: u64,
    /// Steps of the engine: a task begun, gone on with, or something asked for all.
    pub steps: u64,
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

    #[test]
    fn percentiles() {
        let half_slow = [[1; 50], [30; 50]].concat();
        for (millis, p50, p99, max) in [
            (&[][..], 0, 0, 0),
            (&[7], 7, 7, 7),
            (&[1, 7], 1, 7, 7),
            (&[3; 99], 3, 3, 3),
            (&half_slow, 1, 30, 30),
            (&[[3; 98].as_slice(), &[40, 90]].concat(), 5, 50, 90),
            (&[20_000, 30_000], 30_000, 30_000, 30_000),
        ] {
            let mut histogram = Histogram::default();
            millis.iter().for_each(|millis| histogram.add(Nanos::from_millis(*millis)));
            let found = (histogram.percentile_millis(50), histogram.percentile_millis(99), histogram.max_millis());
            assert_eq!(found, (p50, p99, max), "{millis:?}");
        }
    }
}
