//! A picture of two looks: what there is, and what happened between them.

use std::fmt::Write;

use super::sample::{Device, Sample};

/// The rows of the table of rates: a title, a counter, and what it counts.
const RATES: [(&str, &str, Unit); 6] = [
    ("reads", "reads", Unit::Requests),
    ("read", "bytes_read", Unit::Bytes),
    ("writes", "writes", Unit::Requests),
    ("written", "bytes_written", Unit::Bytes),
    ("flushes", "flushes", Unit::Requests),
    ("errors", "errors", Unit::Requests),
];

#[derive(Clone, Copy)]
enum Unit {
    Requests,
    Bytes,
}

/// The picture of `now`, with rates since `before` unless that was another domain, and at most `devices` devices.
pub(super) fn render(now: &Sample, before: &Sample, devices: usize) -> String {
    let mut text = String::new();
    let get = |name: &str| now.counter(name);
    put(
        &mut text,
        format_args!(
            "driverdom, domain {}: {} devices, {} with a volume, {} connected; {} refused, {} failed",
            now.domid,
            get("devices"),
            get("vbds"),
            get("connected"),
            get("refused"),
            get("failed")
        ),
    );
    for what in ["attach", "connect"] {
        let [count, p50, p99, max] = ["count", "p50_us", "p99_us", "max_us"].map(|of| get(&format!("{what}_{of}")));
        put(
            &mut text,
            format_args!(
                "{what:<8} {count:>6} times, half within {p50} µs, 99 of 100 within {p99} µs, the longest {max} µs"
            ),
        );
    }
    put(
        &mut text,
        format_args!(
            "memory   heap {} of {}, {} of {} pages free",
            amount(get("heap_bytes"), Unit::Bytes),
            amount(get("heap_size"), Unit::Bytes),
            get("free_pages"),
            get("pool_pages")
        ),
    );
    put(
        &mut text,
        format_args!(
            "Xen      {} ports, {} rings, {} pages granted, {} mapped (at most {}); at most {} grant operations at once",
            get("ports"),
            get("rings"),
            get("granted_pages"),
            get("mapped_pages"),
            get("mapped_pages_max"),
            get("longest_batch")
        ),
    );
    put(&mut text, format_args!("\n{:<10} {:>14} {:>14}", "", "a second", "in all"));
    for (title, counter, unit) in RATES {
        let rate = rate(now, before, counter).map_or_else(|| "-".to_owned(), |rate| amount(rate, unit));
        put(&mut text, format_args!("{title:<10} {rate:>14} {:>14}", amount(get(counter), unit)));
    }
    put(&mut text, format_args!("{:<10} {:>14}", "under way", get("in_flight")));
    list(&mut text, now, devices);
    text
}

fn list(text: &mut String, now: &Sample, devices: usize) {
    if now.devices.is_empty() {
        return;
    }
    put(text, format_args!("\n{:<14} {:<6} {:<28} {:<4} state", "vbd", "name", "volume", "mode"));
    for ((guest, number), Device { state, name, volume, mode }) in now.devices.iter().take(devices) {
        let (vbd, state) = (format!("{guest}/{number}"), state_name(state));
        put(text, format_args!("{vbd:<14} {name:<6} {volume:<28} {mode:<4} {state}"));
    }
    let more = now.devices.len().saturating_sub(devices);
    if more > 0 {
        put(text, format_args!("and {more} more"));
    }
}

fn put(text: &mut String, line: std::fmt::Arguments<'_>) {
    // A string takes all that is written to it.
    let _ = writeln!(text, "{line}");
}

/// What a counter grew by in a second; none if driverdom was started anew between.
#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a rate is shown in whole units")]
fn rate(now: &Sample, before: &Sample, counter: &str) -> Option<u64> {
    let grown = now.counter(counter).checked_sub(before.counter(counter))?;
    let seconds = now.seconds - before.seconds;
    (now.domid == before.domid && seconds > 0.0).then(|| (grown as f64 / seconds).round() as u64)
}

fn amount(count: u64, unit: Unit) -> String {
    match (unit, count) {
        (Unit::Bytes, 1_024..1_048_576) => format!("{:.1} KiB", count as f64 / 1_024.0),
        (Unit::Bytes, 1_048_576..) => format!("{:.1} MiB", count as f64 / 1_048_576.0),
        (Unit::Bytes, _) => format!("{count} B"),
        (Unit::Requests, _) => count.to_string(),
    }
}

/// A state of xenbus (xen/include/public/io/xenbus.h).
fn state_name(state: &str) -> &str {
    match state {
        "1" => "initialising",
        "2" => "waits for the guest",
        "3" => "initialised",
        "4" => "connected",
        "5" => "closing",
        "6" => "closed",
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(seconds: f64, domid: u32, reads: u64, bytes_read: u64) -> Sample {
        let device = |state: &str| Device {
            state: state.into(),
            name: "xvda".into(),
            volume: "gpt:demo".into(),
            mode: "w".into(),
        };
        let counters = [("devices", 3), ("vbds", 2), ("connected", 1), ("reads", reads), ("bytes_read", bytes_read)];
        Sample {
            seconds,
            domid,
            counters: counters.into_iter().map(|(name, count)| (name.to_owned(), count)).collect(),
            devices: [((7, 51712), device("4")), ((8, 51712), device("2")), ((9, 51712), device("6"))].into(),
        }
    }

    #[test]
    fn rates_are_by_the_second_between_two_looks_at_the_same_domain() {
        let before = sample(10.0, 3, 100, 0);
        for (now, reads) in [
            (sample(12.0, 3, 300, 0), Some(100)),
            (sample(12.0, 3, 100, 0), Some(0)),
            (sample(12.0, 4, 300, 0), None),
            (sample(12.0, 3, 99, 0), None),
            (sample(10.0, 3, 300, 0), None),
        ] {
            assert_eq!(rate(&now, &before, "reads"), reads, "{now:?}");
        }
    }

    #[test]
    fn a_picture() {
        let text = render(&sample(12.0, 3, 300, 4 << 20), &sample(10.0, 3, 100, 0), 2);
        for line in [
            "driverdom, domain 3: 3 devices, 2 with a volume, 1 connected; 0 refused, 0 failed",
            "reads                 100            300",
            "read              2.0 MiB        4.0 MiB",
            "7/51712        xvda   gpt:demo                     w    connected",
            "8/51712        xvda   gpt:demo                     w    waits for the guest",
            "and 1 more",
        ] {
            assert!(text.lines().any(|have| have == line), "{line:?} is not in\n{text}");
        }
        assert!(!text.contains("9/51712"));
    }

    #[test]
    fn amounts() {
        for (count, unit, text) in [
            (0, Unit::Bytes, "0 B"),
            (1_023, Unit::Bytes, "1023 B"),
            (1_536, Unit::Bytes, "1.5 KiB"),
            (3 << 20, Unit::Bytes, "3.0 MiB"),
            (12_345, Unit::Requests, "12345"),
        ] {
            assert_eq!(amount(count, unit), text);
        }
    }
}
