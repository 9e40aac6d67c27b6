//! What is made of many measurements.

/// The middle one; of an even number, the upper of the two in the middle.
pub(super) fn median(mut values: Vec<f64>) -> Option<f64> {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied()
}

/// The slope of the straight line that fits the points `(x, y)` best, by least squares; none unless there are two different x.
pub(super) fn slope(points: &[(f64, f64)]) -> Option<f64> {
    let count = points.len() as f64;
    let mean = |value: fn(&(f64, f64)) -> f64| points.iter().map(value).sum::<f64>() / count;
    let (x, y) = (mean(|point| point.0), mean(|point| point.1));
    let spread: f64 = points.iter().map(|point| (point.0 - x).powi(2)).sum();
    let together: f64 = points.iter().map(|point| (point.0 - x) * (point.1 - y)).sum();
    (spread > 0.0).then(|| together / spread)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians() {
        for (values, expected) in
            [(vec![], None), (vec![3.0], Some(3.0)), (vec![3.0, 1.0, 2.0], Some(2.0)), (vec![4.0, 1.0], Some(4.0))]
        {
            assert_eq!(median(values), expected);
        }
    }

    #[test]
    fn slopes() {
        for (points, expected) in [
            (vec![], None),
            (vec![(1.0, 2.0)], None),
            (vec![(1.0, 2.0), (1.0, 3.0)], None),
            (vec![(1.0, 2.0), (3.0, 8.0)], Some(3.0)),
            (vec![(0.0, 1.0), (1.0, 1.0), (2.0, 4.0)], Some(1.5)),
        ] {
            assert_eq!(slope(&points), expected, "{points:?}");
        }
    }
}
