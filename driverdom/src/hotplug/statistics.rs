//! What hotplug counts about itself.

use xen_proto::Nanos;

/// Each doubling of a time is divided into this many buckets: a percentile is at most an eighth too long.
const PARTS: usize = 8;
/// The first bucket has what took less than 2 to this power, in nanoseconds: 65 µs, less than one round to xenstored and back.
const FIRST_BITS: u32 = 16;
/// The last bucket has what took 2 to this power, in nanoseconds, and more: 17 s, longer than libxl waits.
const LAST_BITS: u32 = 34;
/// Buckets of a [`Histogram`].
const BUCKETS: usize = (LAST_BITS - FIRST_BITS) as usize * PARTS + 2;

/// How long something took, how often.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Histogram {
    /// Counts by bucket; each has an upper end, which belongs to the next.
    counts: [u32; BUCKETS],
    /// The longest.
    max: Nanos,
}

impl Default for Histogram {
    fn default() -> Self {
        Self { counts: [0; BUCKETS], max: Nanos(0) }
    }
}

impl Histogram {
    pub(super) fn add(&mut self, took: Nanos) {
        let count = &mut self.counts[bucket(took)];
        *count = count.saturating_add(1);
        self.max = self.max.max(took);
    }

    /// How many there were.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.counts.iter().map(|count| u64::from(*count)).sum()
    }

    /// The longest.
    #[must_use]
    pub fn max(&self) -> Nanos {
        self.max
    }

    /// A time that `per_mille` of a thousand did not exceed: the end of a bucket, or the longest.
    #[must_use]
    pub fn percentile(&self, per_mille: u64) -> Nanos {
        let wanted = (self.count() * per_mille).div_ceil(1000);
        let mut count = 0;
        let reached = self.counts.iter().position(|bucket| {
            count += u64::from(*bucket);
            count >= wanted
        });
        reached.and_then(end).unwrap_or(self.max).min(self.max)
    }
}

/// Where a time belongs: the power of two gives the octave, the three bits below it the part.
fn bucket(took: Nanos) -> usize {
    let bits = took.0.checked_ilog2().unwrap_or(0);
    if bits < FIRST_BITS {
        0
    } else if bits >= LAST_BITS {
        BUCKETS - 1
    } else {
        let [part, ..] = (took.0 >> (bits - PARTS.ilog2())).to_le_bytes();
        1 + (bits - FIRST_BITS) as usize * PARTS + usize::from(part) % PARTS
    }
}

/// The end of a bucket; the last has none.
fn end(bucket: usize) -> Option<Nanos> {
    if bucket + 1 == BUCKETS {
        return None;
    }
    let (octave, parts) = (bucket / PARTS, (PARTS + bucket % PARTS) as u64);
    Some(Nanos((parts << FIRST_BITS >> PARTS.ilog2()) << octave))
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
    use alloc::vec::Vec;

    use super::*;

    #[test]
    fn buckets_follow_each_other_without_a_gap() {
        assert_eq!(bucket(Nanos(0)), 0);
        for at in 0..BUCKETS - 1 {
            let end = end(at).expect("only the last has none");
            assert_eq!((bucket(Nanos(end.0 - 1)), bucket(end)), (at, at + 1), "{end:?}");
        }
        assert_eq!((bucket(Nanos(u64::MAX)), end(BUCKETS - 1)), (BUCKETS - 1, None));
        assert_eq!((end(0), end(BUCKETS - 2)), (Some(Nanos(1 << FIRST_BITS)), Some(Nanos(1 << LAST_BITS))));
    }

    #[test]
    fn percentiles() {
        let ms = |millis: u64| millis * 1_000_000;
        let half_slow = [[ms(1); 50], [ms(30); 50]].concat();
        let one_slow = [vec![ms(10); 1000].as_slice(), &[ms(9_000)]].concat();
        for (nanos, p50, p999, max) in [
            (&[][..], 0, 0, 0),
            (&[3], 3, 3, 3),
            (&[ms(7)], ms(7), ms(7), ms(7)),
            (&half_slow, 1_048_576, ms(30), ms(30)),
            (&one_slow, 10_485_760, 10_485_760, ms(9_000)),
            (&[ms(20_000), ms(30_000)], ms(30_000), ms(30_000), ms(30_000)),
        ] {
            let mut histogram = Histogram::default();
            nanos.iter().for_each(|nanos| histogram.add(Nanos(*nanos)));
            let found = (histogram.percentile(500).0, histogram.percentile(999).0, histogram.max().0);
            assert_eq!(found, (p50, p999, max), "{nanos:?}");
            assert_eq!(histogram.count(), nanos.len() as u64);
        }
    }

    #[test]
    fn a_percentile_is_at_most_an_eighth_too_long() {
        let times: Vec<u64> = (0..200).map(|step| 70_000 + step * step * 300_000).collect();
        for (rank, exact) in times.iter().enumerate() {
            let mut histogram = Histogram::default();
            times.iter().for_each(|nanos| histogram.add(Nanos(*nanos)));
            let found = histogram.percentile((rank as u64 + 1) * 5).0;
            assert!((*exact..=*exact + *exact / 8).contains(&found), "{found} for {exact}");
        }
    }
}
