//! The handshake against a xenstore of a few nodes, as tables of what the back does and what we answer.

use std::collections::BTreeMap;
use std::string::String;
use std::vec::Vec;

use super::*;

const BACK: &str = "/local/domain/0/backend/pci/5/0";

/// Nodes below the back's directory, with their values.
type Nodes<'a> = &'a [(&'a str, &'a str)];

/// The nodes, and the front that sees them; what it does is noted.
struct Rig {
    nodes: BTreeMap<String, String>,
    front: Front,
    trace: Vec<String>,
    has_channels: bool,
}

impl Rig {
    /// As `xl` leaves it for a domain with these devices, before PCI's back has seen it; then the front looks.
    fn new(devices: &[&str]) -> Self {
        let mut rig = Self { nodes: BTreeMap::new(), front: Front::new(), trace: Vec::new(), has_channels: true };
        if !devices.is_empty() {
            rig.offer(devices);
        }
        rig.see();
        rig
    }

    fn offer(&mut self, devices: &[&str]) {
        for (name, value) in [("backend", BACK), ("backend-id", "0"), ("state", "1")] {
            self.nodes.insert(own(name), value.to_owned());
        }
        self.back(&[("state", "2"), ("num_devs", &devices.len().to_string())]);
        for (n, device) in devices.iter().enumerate() {
            self.back(&[(&format!("vdev-{n}"), device), (&format!("state-{n}"), "3")]);
        }
    }

    /// The back or the toolstack writes below the back's directory; nobody is told yet.
    fn back(&mut self, nodes: &[(&str, &str)]) {
        for (name, value) in nodes {
            self.nodes.insert(format!("{BACK}/{name}"), (*value).to_owned());
        }
    }

    /// Watches fire, and all that follows is done. Returns what the front did.
    fn see(&mut self) -> Vec<String> {
        self.step(Input::Changed);
        std::mem::take(&mut self.trace)
    }

    fn write_and_see(&mut self, nodes: &[(&str, &str)]) -> Vec<String> {
        self.back(nodes);
        self.see()
    }

    fn step(&mut self, input: Input) {
        for action in self.front.step(input) {
            match action {
                Action::Read(paths) => {
                    assert!(!paths.is_empty());
                    let value = |path| self.nodes.get(path).map(|value| value.clone().into_bytes());
                    let values = paths.iter().map(value).collect();
                    self.step(Input::Values(values));
                }
                Action::Write(nodes) => {
                    for (path, value) in nodes {
                        self.trace.push(format!("{}={value}", path.strip_prefix("device/pci/0/").unwrap()));
                        self.nodes.insert(path, value);
                    }
                }
                Action::Watch(path) => self.trace.push(format!("watch {path}")),
                Action::Unwatch(path) => self.trace.push(format!("unwatch {path}")),
                Action::OpenChannel(domain) => {
                    self.trace.push(format!("open to {domain}"));
                    let opened = Input::ChannelOpen { gref: GrantRef(9), port: Port(7) };
                    self.step(if self.has_channels { opened } else { Input::ChannelFailed });
                }
                Action::CloseChannel => self.trace.push("close".to_owned()),
                Action::Attach(address) => self.trace.push(format!("attach {address}")),
                Action::Detach(address) => self.trace.push(format!("detach {address}")),
            }
        }
    }

    /// A front that is connected, with these devices.
    fn connected(devices: &[&str]) -> Self {
        let mut rig = Self::new(devices);
        rig.write_and_see(&[("state", "3")]);
        rig.write_and_see(&[("state", "4")]);
        assert!(rig.front.is_settled());
        rig
    }
}

const FIRST: &str = "0000:00:00.00";
const SECOND: &str = "0000:00:01.00";

#[test]
fn without_a_device_nothing_happens() {
    let mut rig = Rig::new(&[]);
    assert_eq!(rig.see(), [""; 0]);
    assert!(rig.front.is_settled());
}

#[test]
fn the_handshake_waits_for_the_back_at_each_step() {
    let mut rig = Rig::new(&[FIRST, SECOND]);
    assert!(!rig.front.is_settled());
    let steps: [(&str, &[&str]); 6] = [
        ("2", &[]),
        ("3", &["open to 0", "pci-op-ref=9", "event-channel=7", "magic=7", "state=3"]),
        ("3", &[]),
        ("4", &["attach 0000:00:00.0", "attach 0000:00:01.0", "state=4"]),
        ("4", &[]),
        ("4", &[]),
    ];
    for (state, expected) in steps {
        assert_eq!(rig.write_and_see(&[("state", state)]), expected, "back at {state}");
    }
    assert!(rig.front.is_settled());
}

#[test]
fn the_back_is_watched_as_soon_as_it_is_named() {
    let mut rig = Rig::new(&[]);
    rig.offer(&[FIRST]);
    assert_eq!(rig.see(), [format!("watch {BACK}/state")]);
}

#[test]
fn a_back_that_is_ready_before_us_is_met() {
    let mut rig = Rig::new(&[]);
    rig.offer(&[FIRST]);
    rig.back(&[("state", "3")]);
    assert_eq!(rig.see()[1..], ["open to 0", "pci-op-ref=9", "event-channel=7", "magic=7", "state=3"]);
}

#[test]
fn a_state_that_changes_while_we_write_ours_is_not_missed() {
    let mut rig = Rig::new(&[FIRST]);
    rig.back(&[("state", "3")]);
    // The back goes on as soon as it sees our 3, before our next look: no further event will come.
    let actions = rig.front.step(Input::Changed);
    assert_eq!(actions.len(), 1);
    let bytes = |text: &str| Some(text.as_bytes().to_vec());
    let own = vec![bytes(BACK), bytes("0"), bytes("1")];
    assert!(matches!(rig.front.step(Input::Values(own))[..], [Action::Read(_)]));
    let back = vec![bytes("3"), bytes("1")];
    assert!(matches!(rig.front.step(Input::Values(back))[..], [Action::OpenChannel(DomId(0))]));
    let offered = rig.front.step(Input::ChannelOpen { gref: GrantRef(1), port: Port(1) });
    assert!(
        matches!(offered[..], [Action::Write(_), Action::Write(_), Action::Read(_)]),
        "it looks again: {offered:?}"
    );
}

#[test]
fn events_during_a_reading_lead_to_one_more() {
    let mut front = Front::new();
    assert_eq!(front.step(Input::Changed).len(), 1);
    for _ in 0..5 {
        assert_eq!(front.step(Input::Changed), [], "one reading at a time");
    }
    assert_eq!(front.step(Input::Values(vec![None; 3])).len(), 1, "once more");
    assert_eq!(front.step(Input::Values(vec![None; 3])), []);
}

#[test]
fn events_while_the_channel_is_opened_do_not_start_it_over() {
    let mut rig = Rig::new(&[FIRST]);
    rig.back(&[("state", "3")]);
    rig.front.step(Input::Changed);
    let bytes = |text: &str| Some(text.as_bytes().to_vec());
    rig.front.step(Input::Values(vec![bytes(BACK), bytes("0"), bytes("1")]));
    rig.front.step(Input::Values(vec![bytes("3"), bytes("1")]));
    assert_eq!(rig.front.step(Input::Changed), [], "our state is still 1 there, and would be read");
    rig.step(Input::ChannelOpen { gref: GrantRef(9), port: Port(7) });
    assert_eq!(rig.trace, ["pci-op-ref=9", "event-channel=7", "magic=7", "state=3"]);
}

#[test]
fn detaching_one_of_two_is_answered_as_xl_waits_for_it() {
    let mut rig = Rig::connected(&[FIRST, SECOND]);
    let steps: [(Nodes<'_>, &[&str]); 5] = [
        (&[("state-0", "5"), ("state", "7")], &["detach 0000:00:00.0", "state=7"]),
        (&[("state", "8")], &["state=4"]),
        (&[("state", "4")], &[]),
        // xl then moves the rest down
        (&[("num_devs", "1"), ("vdev-0", SECOND), ("state-0", "3")], &[]),
        (&[("state-0", "5"), ("state", "7")], &["detach 0000:00:01.0", "state=7"]),
    ];
    for (nodes, expected) in steps {
        assert_eq!(rig.write_and_see(nodes), expected, "{nodes:?}");
    }
}

#[test]
fn a_device_added_later_is_attached_when_the_back_has_it() {
    let mut rig = Rig::connected(&[FIRST]);
    let steps: [(Nodes<'_>, &[&str]); 3] = [
        (&[("num_devs", "2"), ("state-1", "1"), ("state", "7")], &["state=7"]),
        (&[("vdev-1", SECOND), ("state-1", "3"), ("state", "8")], &["attach 0000:00:01.0", "state=4"]),
        (&[("state", "4")], &[]),
    ];
    for (nodes, expected) in steps {
        assert_eq!(rig.write_and_see(nodes), expected, "{nodes:?}");
    }
}

#[test]
fn the_last_device_goes_and_another_comes() {
    let mut rig = Rig::connected(&[FIRST]);
    assert_eq!(rig.write_and_see(&[("state-0", "5"), ("state", "7")]), ["detach 0000:00:00.0", "state=7"]);
    assert_eq!(rig.write_and_see(&[("state", "8")]), ["state=4"]);
    rig.nodes.clear();
    assert_eq!(rig.see(), ["close".to_owned(), format!("unwatch {BACK}/state")]);
    assert!(rig.front.is_settled());
    rig.offer(&[SECOND]);
    assert_eq!(rig.see(), [format!("watch {BACK}/state")]);
    assert_eq!(rig.write_and_see(&[("state", "3")]).last().unwrap(), "state=3");
    assert_eq!(rig.write_and_see(&[("state", "4")]), ["attach 0000:00:01.0", "state=4"]);
}

#[test]
fn a_back_that_closes_or_goes_takes_all_devices() {
    let lost = ["detach 0000:00:00.0", "detach 0000:00:01.0", "close"];
    for state in ["5", "6"] {
        let mut rig = Rig::connected(&[FIRST, SECOND]);
        let mut expected = lost.to_vec();
        expected.push("state=6");
        assert_eq!(rig.write_and_see(&[("state", state)]), expected, "back at {state}");
        assert_eq!(rig.write_and_see(&[("state", "6")]), [""; 0], "once");
    }
    let mut rig = Rig::connected(&[FIRST, SECOND]);
    rig.nodes.clear();
    assert_eq!(rig.see()[..3], lost);
}

#[test]
fn a_new_directory_in_place_of_the_old_is_a_new_handshake() {
    let mut rig = Rig::connected(&[FIRST]);
    rig.nodes.clear();
    rig.offer(&[SECOND]); // the front was not told in between
    let trace = rig.see();
    assert_eq!(trace[..2], ["detach 0000:00:00.0", "close"]);
    assert_eq!(rig.write_and_see(&[("state", "3")])[0], "open to 0");
}

#[test]
fn states_that_mean_nothing_here_change_nothing() {
    for state in ["0", "1", "2", "3", "8", "9", "", "four", "-4"] {
        let mut rig = Rig::connected(&[FIRST]);
        assert_eq!(rig.write_and_see(&[("state", state)]), [""; 0], "back at {state:?}");
    }
}

#[test]
fn odd_lists_of_devices_are_survived() {
    let cases: [(Nodes<'_>, &[&str]); 6] = [
        (&[("num_devs", "0")], &["state=4"]),
        (&[("num_devs", "many")], &["state=4"]),
        (&[("num_devs", "18446744073709551615")], &["attach 0000:00:00.0", "state=4"]),
        (&[("num_devs", "2"), ("vdev-1", FIRST)], &["attach 0000:00:00.0", "state=4"]), // the same twice
        (&[("num_devs", "2"), ("vdev-1", "nonsense")], &["attach 0000:00:00.0", "state=4"]),
        (&[("state-0", "5")], &["state=4"]), // going before it came
    ];
    for (nodes, expected) in cases {
        let mut rig = Rig::new(&[FIRST]);
        rig.write_and_see(&[("state", "3")]);
        rig.back(nodes);
        assert_eq!(rig.write_and_see(&[("state", "4")]), expected, "{nodes:?}");
    }
}

#[test]
fn without_a_channel_the_front_closes() {
    let mut rig = Rig::new(&[FIRST]);
    rig.has_channels = false;
    assert_eq!(rig.write_and_see(&[("state", "3")]), ["open to 0", "state=6"]);
    assert!(rig.front.is_settled());
}

#[test]
fn a_channel_that_comes_too_late_is_closed() {
    let mut front = Front::new();
    assert_eq!(front.step(Input::ChannelOpen { gref: GrantRef(1), port: Port(1) })[0], Action::CloseChannel);
}
