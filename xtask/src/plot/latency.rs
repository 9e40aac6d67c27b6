//! How long an attach took: the share of all that was not longer.

use serde_json::Value;

use super::axis::{Axis, Scale};
use super::chart::{Chart, Curve, Style};

/// What a row of `bench latency` has, with the share in percent that took no longer.
const PERCENTILES: [(&str, f64); 4] = [("p50_s", 50.0), ("p99_s", 99.0), ("p999_s", 99.9), ("max_s", 100.0)];

/// The picture of rows: of all times where a row has them as `seconds`, else of its percentiles.
///
/// # Errors
/// When no row has times.
pub(super) fn draw(rows: &[&Value]) -> anyhow::Result<String> {
    let curves: Vec<Curve> = rows.iter().filter_map(|row| curve(row)).collect();
    anyhow::ensure!(!curves.is_empty(), "no row of bench latency has backend and seconds, or p50_s and so on");
    let times = curves.iter().flat_map(|curve| curve.points.iter().map(|(seconds, _)| *seconds));
    let chart = Chart {
        title: "Latency of an attach: share that took no longer".into(),
        notes: Vec::new(),
        x: Axis::over("seconds", Scale::Log, times),
        y: Axis::over("share in percent", Scale::Linear, [100.0].into_iter()),
        curves,
    };
    Ok(chart.svg())
}

fn curve(row: &Value) -> Option<Curve> {
    let backend = row["backend"].as_str()?;
    let name = match row["load"].as_bool() {
        Some(true) => format!("{backend}, disk busy"),
        Some(false) => format!("{backend}, disk idle"),
        None => backend.to_owned(),
    };
    let (style, points) = match row["seconds"].as_array() {
        Some(seconds) => (Style::Steps, cumulative(seconds.iter().filter_map(Value::as_f64).collect())),
        None => {
            let known = PERCENTILES.iter().filter_map(|(key, share)| Some((row[key].as_f64()?, *share)));
            (Style::Solid, known.collect())
        }
    };
    // There is no place for zero on a logarithmic axis.
    let points: Vec<_> = points.into_iter().filter(|(seconds, _)| *seconds > 0.0).collect();
    (!points.is_empty()).then_some(Curve { name, style, points })
}

/// Points of the cumulative share in percent.
fn cumulative(mut seconds: Vec<f64>) -> Vec<(f64, f64)> {
    seconds.sort_by(f64::total_cmp);
    let count = seconds.len() as f64;
    let start = seconds.first().map(|first| (*first, 0.0));
    let shares = seconds.iter().enumerate().map(|(before, time)| (*time, 100.0 * (before as f64 + 1.0) / count));
    start.into_iter().chain(shares).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn shares_grow_to_all() {
        assert_eq!(cumulative(vec![3.0, 1.0]), [(1.0, 0.0), (1.0, 50.0), (3.0, 100.0)]);
        assert_eq!(cumulative(vec![]), []);
    }

    #[test]
    fn a_row_is_a_curve_of_what_it_has() {
        for (row, name, points) in [
            (json!({"backend": "a", "seconds": [1.0]}), "a", &[(1.0, 0.0), (1.0, 100.0)][..]),
            (
                json!({"backend": "b", "load": true, "p50_s": 0.1, "p99_s": 0.2, "p999_s": null, "max_s": 0.5}),
                "b, disk busy",
                &[(0.1, 50.0), (0.2, 99.0), (0.5, 100.0)],
            ),
        ] {
            let curve = curve(&row).expect("it has times");
            assert_eq!((curve.name.as_str(), curve.points.as_slice()), (name, points));
        }
        assert!(curve(&json!({"backend": "c", "p50_s": null})).is_none());
        assert!(draw(&[]).is_err());
    }
}
