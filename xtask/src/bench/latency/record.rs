//! What `dom0-tools record` noted, as attaches: `SECONDS PATH VALUE` a line, of both ends' states.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::Context;

/// A device by its two numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Vbd {
    /// The guest's domain number.
    pub guest: u32,
    /// The device's number.
    pub device: u32,
}

/// One life of a backend's directory. All times are dom0's uptime, in seconds.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Attach {
    pub vbd: Vbd,
    /// When the directory was first heard of.
    pub seen: f64,
    /// Whether the backend's state was not 1 when it was first read: the recorder was late.
    pub is_seen_late: bool,
    /// When the backend was first seen at 2 (InitWait), or beyond it: the recorder looks at states, it is not told them.
    pub offered: Option<f64>,
    /// When the frontend was first seen at 3 (Initialised).
    pub ready: Option<f64>,
    /// When the backend was first seen at 4 (Connected).
    pub connected: Option<f64>,
}

/// The attaches to the domain `backend`, in the order in which their directories appeared.
///
/// # Errors
/// At a line that is none of the recorder's.
pub(super) fn attaches(record: &str, backend: u32) -> anyhow::Result<Vec<Attach>> {
    let mut all: Vec<Attach> = vec![];
    // The attach that a vbd's lines belong to now.
    let mut current: BTreeMap<Vbd, usize> = BTreeMap::new();
    let mut unread = BTreeSet::new();
    for line in record.lines() {
        let (seconds, path, value) = split(line).with_context(|| format!("not a line of the recorder's: {line:?}"))?;
        match place(path, backend) {
            Some((End::Back, vbd)) => {
                if value == "-" {
                    current.remove(&vbd);
                    continue;
                }
                let at = *current.entry(vbd).or_insert_with(|| {
                    unread.insert(vbd);
                    all.push(Attach {
                        vbd,
                        seen: seconds,
                        is_seen_late: false,
                        offered: None,
                        ready: None,
                        connected: None,
                    });
                    all.len() - 1
                });
                let attach = &mut all[at];
                if matches!(value, "2" | "4") {
                    attach.offered.get_or_insert(seconds);
                }
                if value != "+" && unread.remove(&vbd) {
                    attach.is_seen_late = value != "1";
                }
                if value == "4" {
                    attach.connected.get_or_insert(seconds);
                }
            }
            Some((End::Front, vbd)) => {
                if let (Some(at), "3") = (current.get(&vbd), value) {
                    all[*at].ready.get_or_insert(seconds);
                }
            }
            None => {}
        }
    }
    Ok(all)
}

#[derive(Debug, PartialEq, Eq)]
enum End {
    Back,
    Front,
}

fn split(line: &str) -> Option<(f64, &str, &str)> {
    let mut words = line.split(' ');
    let found = (words.next()?.parse().ok()?, words.next()?, words.next()?);
    words.next().is_none().then_some(found)
}

/// Whose state is at `path`.
fn place(path: &str, backend: u32) -> Option<(End, Vbd)> {
    let words: Vec<&str> = path.strip_prefix("/local/domain/")?.split('/').collect();
    match words.as_slice() {
        [domain, "backend", "vbd", guest, device, "state"] if domain.parse() == Ok(backend) => {
            Some((End::Back, Vbd { guest: guest.parse().ok()?, device: device.parse().ok()? }))
        }
        [guest, "device", "vbd", device, "state"] => {
            Some((End::Front, Vbd { guest: guest.parse().ok()?, device: device.parse().ok()? }))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn back(guest: u32) -> String {
        format!("/local/domain/5/backend/vbd/{guest}/51712/state")
    }

    fn front(guest: u32) -> String {
        format!("/local/domain/{guest}/device/vbd/51712/state")
    }

    fn attach(guest: u32, seen: f64, offered: Option<f64>, ready: Option<f64>, connected: Option<f64>) -> Attach {
        let is_seen_late = offered == connected && connected.is_some();
        Attach { vbd: Vbd { guest, device: 51712 }, seen, is_seen_late, offered, ready, connected }
    }

    #[test]
    fn lines_become_attaches() {
        let whole = vec![
            (1.0, back(7), "+"),
            (1.05, back(7), "1"),
            (1.1, back(7), "2"),
            (1.2, front(7), "3"),
            (1.7, back(7), "4"),
        ];
        let gone = [(9.0, back(7), "5"), (9.1, back(7), "6"), (9.5, back(7), "-")];
        let again = [whole.clone(), gone.to_vec(), vec![(10.0, back(7), "1"), (10.5, back(7), "2")]].concat();
        let first = attach(7, 1.0, Some(1.1), Some(1.2), Some(1.7));
        for (lines, expect) in [
            (vec![], vec![]),
            (whole, vec![first.clone()]),
            (again, vec![first, attach(7, 10.0, Some(10.5), None, None)]),
            // Two guests side by side; a directory that was not seen before it was at 4; one that is taken away.
            (
                vec![
                    (1.0, back(7), "1"),
                    (1.25, back(8), "+"),
                    (1.5, back(8), "4"),
                    (2.0, back(7), "2"),
                    (3.0, back(9), "1"),
                    (4.0, back(9), "-"),
                ],
                vec![
                    attach(7, 1.0, Some(2.0), None, None),
                    attach(8, 1.25, Some(1.5), None, Some(1.5)),
                    attach(9, 3.0, None, None, None),
                ],
            ),
            // A reconnect is no attach, and closing none either; others' states are nobody's.
            (
                vec![
                    (1.0, back(7), "1"),
                    (2.0, back(7), "2"),
                    (3.0, back(7), "6"),
                    (4.0, back(7), "2"),
                    (5.0, front(8), "3"),
                ],
                vec![attach(7, 1.0, Some(2.0), None, None)],
            ),
            (vec![(1.0, "/local/domain/6/backend/vbd/7/51712/state".to_owned(), "1")], vec![]),
        ] {
            let text: String = lines.iter().map(|(at, path, value)| format!("{at:.6} {path} {value}\n")).collect();
            assert_eq!(attaches(&text, 5).expect("a record"), expect, "{text}");
        }
    }

    #[test]
    fn what_is_no_record_is_refused() {
        for line in ["", "1.0", "1.0 /x", "x /y 1", "1.0 /x 1 2"] {
            assert!(attaches(&format!("{line}\n"), 5).is_err(), "{line:?}");
        }
    }
}
