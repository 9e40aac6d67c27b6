//! Seconds to create a guest over its number of disks, beside what was published of Xen's own block scripts.

use std::collections::BTreeMap;

use serde_json::Value;

use super::axis::{Axis, Scale};
use super::chart::{Chart, Curve, Style};

/// Disks of the published measurements.
const PUBLISHED_DISKS: [f64; 4] = [1.0, 10.0, 50.0, 100.0];
/// Seconds to create a guest with so many disks: Xen 3.0-unstable on a Core Duo of 1.8 GHz, 2007.
const PUBLISHED: [(&str, [f64; 4]); 3] = [
    ("2007: VBD, file", [1.35, 10.37, 66.23, 205.19]),
    ("2007: VBD, LVM partition", [1.18, 7.52, 53.65, 175.52]),
    ("2007: block tap", [1.17, 4.43, 19.30, 35.43]),
];

/// The picture of the rows of `bench attach`.
///
/// # Errors
/// When no row has a time.
pub(super) fn draw(rows: &[&Value]) -> anyhow::Result<String> {
    let mut curves = measured(rows);
    anyhow::ensure!(!curves.is_empty(), "no row of bench attach has backend, disks, ok and create_s");
    curves.extend(PUBLISHED.map(|(name, seconds)| Curve {
        name: name.to_owned(),
        style: Style::Dashed,
        points: PUBLISHED_DISKS.into_iter().zip(seconds).collect(),
    }));
    let points = || curves.iter().flat_map(|curve| curve.points.iter().copied());
    let chart = Chart {
        title: "Seconds to create a guest, by its number of disks".into(),
        notes: [
            "Solid: measured here, Xen 4.17",
            "nested in QEMU without KVM.",
            "Dashed: published in 2007,",
            "Xen 3.0-unstable, Core Duo 1.8 GHz;",
            "another machine, so for the",
            "shape rather than the height.",
        ]
        .map(str::to_owned)
        .into(),
        x: Axis::over("disks of the guest", Scale::Log, points().map(|(disks, _)| disks)),
        y: Axis::over("seconds of xl create", Scale::Log, points().map(|(_, seconds)| seconds)),
        curves,
    };
    Ok(chart.svg())
}

/// A curve a backend and kind of volume, through the mean of the runs that went well.
fn measured(rows: &[&Value]) -> Vec<Curve> {
    let mut curves: Vec<(String, BTreeMap<u64, Vec<f64>>)> = Vec::new();
    for row in rows.iter().filter(|row| row["ok"] == true) {
        let (Some(backend), Some(disks), Some(seconds)) =
            (row["backend"].as_str(), row["disks"].as_u64(), row["create_s"].as_f64())
        else {
            continue;
        };
        let name = row["volume"].as_str().map_or_else(|| backend.to_owned(), |volume| format!("{backend}, {volume}"));
        let place = curves.iter().position(|(other, _)| *other == name).unwrap_or_else(|| {
            curves.push((name, BTreeMap::new()));
            curves.len() - 1
        });
        curves[place].1.entry(disks).or_default().push(seconds);
    }
    let mean = |(disks, runs): (u64, Vec<f64>)| (disks as f64, runs.iter().sum::<f64>() / runs.len() as f64);
    let curve = |(name, runs): (String, BTreeMap<u64, Vec<f64>>)| Curve {
        name,
        style: Style::Solid,
        points: runs.into_iter().map(mean).collect(),
    };
    curves.into_iter().map(curve).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn runs_of_a_backend_are_a_curve_and_those_that_failed_are_not() {
        let rows = [
            json!({"backend": "driverdom", "volume": "gpt", "disks": 10, "ok": true, "create_s": 3.0}),
            json!({"backend": "driverdom", "volume": "gpt", "disks": 1, "ok": true, "create_s": 1.0}),
            json!({"backend": "driverdom", "volume": "gpt", "disks": 10, "ok": true, "create_s": 5.0}),
            json!({"backend": "script", "volume": null, "disks": 20, "ok": false, "create_s": null}),
            json!({"backend": "script", "volume": null, "disks": 8, "ok": true, "create_s": 20.3}),
        ];
        let curves = measured(&rows.iter().collect::<Vec<_>>());
        let found: Vec<_> = curves.iter().map(|curve| (curve.name.as_str(), curve.points.as_slice())).collect();
        assert_eq!(found, [("driverdom, gpt", &[(1.0, 1.0), (10.0, 4.0)][..]), ("script", &[(8.0, 20.3)])]);
    }

    #[test]
    fn nothing_is_drawn_of_nothing() {
        assert!(draw(&[]).is_err());
    }
}
