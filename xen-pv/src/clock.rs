//! Xen's system time: nanoseconds since Xen started, made monotonic.

use core::arch::x86_64::_rdtsc;
use core::sync::atomic::{AtomicU64, Ordering, fence};

use xen_proto::Nanos;

use crate::abi::shared_info::{SharedInfo, VcpuTimeInfo};

/// The latest time that any [`Clock`] has shown.
static LATEST: AtomicU64 = AtomicU64::new(0);

/// The domain's clock. Copies show the same time.
#[derive(Clone, Copy, Debug)]
pub struct Clock {
    shared: &'static SharedInfo,
}

/// One consistent reading of Xen's time record.
#[derive(Clone, Copy, Debug)]
struct Stamp {
    tsc: u64,
    system_ns: u64,
    mul: u32,
    shift: i8,
}

impl Clock {
    pub(crate) const fn new(shared: &'static SharedInfo) -> Self {
        Self { shared }
    }

    /// The time now. It never goes back, though the TSC may read a little less than the record's stamp.
    #[must_use]
    pub fn now(&self) -> Nanos {
        let stamp = Stamp::read(&self.shared.vcpu_info[0].time);
        // SAFETY: every x86-64 has a TSC, and Xen lets PV guests read it (or emulates it).
        let tsc = unsafe { _rdtsc() };
        let now = stamp.system_time_at(tsc);
        Nanos(LATEST.fetch_max(now, Ordering::Relaxed).max(now))
    }
}

impl Stamp {
    /// Reads until no update came between (`struct vcpu_time_info`, xen.h).
    fn read(time: &VcpuTimeInfo) -> Self {
        loop {
            let version = time.version.load(Ordering::Acquire);
            let stamp = Self {
                tsc: time.tsc_timestamp.load(Ordering::Relaxed),
                system_ns: time.system_time.load(Ordering::Relaxed),
                mul: time.tsc_to_system_mul.load(Ordering::Relaxed),
                shift: time.tsc_shift.load(Ordering::Relaxed),
            };
            fence(Ordering::Acquire);
            if version & 1 == 0 && version == time.version.load(Ordering::Relaxed) {
                return stamp;
            }
        }
    }

    fn system_time_at(&self, tsc: u64) -> u64 {
        let ticks = tsc.saturating_sub(self.tsc);
        self.system_ns.saturating_add(scale(ticks, self.mul, self.shift))
    }
}

/// Ticks to nanoseconds: shift, then multiply by a 0.32 fixed-point number.
fn scale(ticks: u64, mul: u32, shift: i8) -> u64 {
    let by = u32::from(shift.unsigned_abs());
    let shifted = if shift >= 0 {
        u128::from(ticks).checked_shl(by).unwrap_or(u128::MAX)
    } else {
        u128::from(ticks.checked_shr(by).unwrap_or(0))
    };
    let ns = shifted.saturating_mul(u128::from(mul)) >> 32;
    u64::try_from(ns).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    const HALF: u32 = 1 << 31;

    #[test]
    fn ticks_scale_by_shift_and_fraction() {
        for (ticks, mul, shift, expect) in [
            (0, HALF, 0, 0),
            (1000, HALF, 0, 500),
            (1000, HALF, 1, 1000),
            (1000, HALF, 3, 4000),
            (1000, HALF, -1, 250),
            (1000, HALF, -128, 0),
            (u64::MAX, u32::MAX, 0, u64::MAX - (1 << 32)),
            (u64::MAX, u32::MAX, 8, u64::MAX),
            (1, HALF, 127, u64::MAX),
        ] {
            assert_eq!(scale(ticks, mul, shift), expect, "{ticks} ticks, mul {mul:#x}, shift {shift}");
        }
    }

    #[test]
    fn a_tsc_behind_the_stamp_reads_as_the_stamp() {
        let stamp = Stamp { tsc: 100, system_ns: 7, mul: HALF, shift: 1 };
        assert_eq!([99, 100, 105].map(|tsc| stamp.system_time_at(tsc)), [7, 7, 12]);
    }
}
