//! Distributions of times, by what is counted rather than by what is assumed.

/// Times in seconds, sorted.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct Times(Vec<f64>);

impl FromIterator<f64> for Times {
    fn from_iter<T: IntoIterator<Item = f64>>(times: T) -> Self {
        let mut all: Vec<f64> = times.into_iter().collect();
        all.sort_by(f64::total_cmp);
        Self(all)
    }
}

impl Times {
    /// All of them, the shortest first.
    pub(super) fn all(&self) -> &[f64] {
        &self.0
    }

    /// How many there are.
    pub(super) fn count(&self) -> usize {
        self.0.len()
    }

    /// The least time that at least `per_mille` of a thousand did not exceed (the nearest rank); none if there are no times.
    pub(super) fn percentile(&self, per_mille: usize) -> Option<f64> {
        let rank = (self.0.len() * per_mille).div_ceil(1000).max(1);
        self.0.get(rank - 1).copied()
    }

    /// The longest.
    pub(super) fn max(&self) -> Option<f64> {
        self.0.last().copied()
    }

    /// The shortest.
    pub(super) fn min(&self) -> Option<f64> {
        self.0.first().copied()
    }

    /// How many took more than `seconds`.
    pub(super) fn over(&self, seconds: f64) -> usize {
        self.0.iter().filter(|time| **time > seconds).count()
    }

    /// For a person.
    pub(super) fn line(&self) -> String {
        let text = |time: Option<f64>| time.map_or("-".to_owned(), |time| format!("{time:.3}"));
        format!(
            "{} of them: median {} s, p99 {}, p99.9 {}, max {}",
            self.count(),
            text(self.percentile(500)),
            text(self.percentile(990)),
            text(self.percentile(999)),
            text(self.max())
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_times_that_were_measured() {
        let ascending = |count: u32| (1..=count).rev().map(f64::from).collect::<Times>();
        for (times, p50, p99, p999) in [
            (ascending(0), None, None, None),
            (ascending(1), Some(1.0), Some(1.0), Some(1.0)),
            (ascending(2), Some(1.0), Some(2.0), Some(2.0)),
            (ascending(100), Some(50.0), Some(99.0), Some(100.0)),
            (ascending(1000), Some(500.0), Some(990.0), Some(999.0)),
            (ascending(3352), Some(1676.0), Some(3319.0), Some(3349.0)),
        ] {
            assert_eq!((times.percentile(500), times.percentile(990), times.percentile(999)), (p50, p99, p999));
        }
        assert_eq!((ascending(7).min(), ascending(7).max()), (Some(1.0), Some(7.0)));
    }

    #[test]
    fn over_means_more_than() {
        let times: Times = [1.0, 2.0, 2.5, 9.5].into_iter().collect();
        assert_eq!((times.over(2.0), times.over(9.0), times.over(10.0)), (2, 1, 0));
    }
}
