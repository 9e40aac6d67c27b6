//! States in every order that a frontend may write them, and in orders that it may not.

use anyhow::{Context, ensure};

use super::Scenario;
use super::vbd::{Vbd, device_number};
use crate::dom0::Node;
use crate::driverdom::{Config, Driverdom};
use crate::testfront::{TestFront, TestFrontConfig};
use crate::world::{Boot, World};

pub(super) const SCENARIOS: &[Scenario] = &[
    Scenario {
        name: "frontend-closes-in-any-order",
        about: "however a frontend leaves its vbd, it may come back to it; the guest's other vbd stays connected",
        boot: Boot::Default,
        run: closes_in_any_order,
    },
    Scenario {
        name: "frontend-states-that-make-no-sense",
        about: "such a state, or ring, closes that device alone and says why; it may be connected again",
        boot: Boot::Default,
        run: no_sense,
    },
    Scenario {
        name: "frontend-toggles-100-times",
        about: "a vbd that closes and reconnects 100 times works then, and nothing has leaked",
        boot: Boot::Default,
        run: toggles,
    },
];

/// A guest with a vbd to play with and another that must not notice, and what proves that it did not.
struct Pair<'a> {
    guest: TestFront<'a>,
    played: u32,
    beside: u32,
}

impl<'a> Pair<'a> {
    fn create(world: &'a World, name: &str) -> anyhow::Result<Self> {
        let config = TestFrontConfig::new(name).disk("xvda", "rw", "gpt:demo").disk("xvdb", "rw", "gpt:second");
        let guest = TestFront::create(&world.dom0, &config)?;
        let [played, beside] = ["xvda", "xvdb"].map(device_number);
        guest.step("connect vbd=all order=1")?;
        guest.step(&format!("write vbd={beside} count=512 pattern=1"))?;
        Ok(Self { guest, played, beside })
    }

    /// Steps on the vbd that is played with; `VBD` stands for it.
    fn play(&self, steps: &[&str]) -> anyhow::Result<()> {
        let steps: Vec<_> = steps.iter().map(|step| step.replace("VBD", &format!("vbd={}", self.played))).collect();
        self.guest.steps(&steps)?;
        Ok(())
    }

    /// The vbd works, with a pattern of this seed.
    fn check_works(&self, seed: u64) -> anyhow::Result<()> {
        let steps = ["write", "verify"].map(|verb| format!("{verb} VBD count=300 pattern={seed}"));
        self.play(&steps.each_ref().map(String::as_str))
    }

    /// The other vbd has never been closed: a read needs no new connection.
    fn check_beside(&self) -> anyhow::Result<()> {
        self.guest.step(&format!("verify vbd={} count=512 pattern=1", self.beside))?;
        Ok(())
    }
}

/// How to leave, and whether the vbd is then to be reconnected by the frontend: it may have come back already.
const WAYS: [&[&str]; 9] = [
    &["close VBD"],
    &["close6 VBD"],
    // The backend's 5 makes testfront go on to 6.
    &["state VBD 5", "wait VBD state=6"],
    // From connected back to the beginning.
    &["state VBD 1", "wait VBD state=2", "close6 VBD"],
    // Closed twice.
    &["close VBD", "state VBD 5", "state VBD 6"],
    &["close VBD", "state VBD 5", "sleep ms=200", "state VBD 6"],
    // Closed before it was connected again.
    &["close VBD", "state VBD 1", "wait VBD state=2", "state VBD 6", "wait VBD state=6"],
    &[
        "close VBD",
        "state VBD 1",
        "wait VBD state=2",
        "state VBD 5",
        "wait VBD state=5",
        "state VBD 6",
        "wait VBD state=6",
    ],
    &["toggle VBD n=3", "close VBD"],
];

fn closes_in_any_order(world: &mut World) -> anyhow::Result<()> {
    let driverdom = world.driverdom(&Config::default())?;
    let pair = Pair::create(world, "f-closes")?;
    let vbd = Vbd::of(&world.dom0, &driverdom, &pair.guest.name, "xvda")?;
    for (seed, way) in (10..).zip(WAYS) {
        let round = || -> anyhow::Result<()> {
            pair.play(way)?;
            let (backend, online) = (vbd.backend_node("state")?, vbd.backend_node("online")?);
            ensure!((backend.as_str(), online.as_str()) == ("6", "1"), "the backend is at {backend}, online={online}");
            pair.check_beside()?;
            pair.play(&["reconnect VBD"])?;
            pair.check_works(seed)
        };
        round().with_context(|| way.join("; "))?;
    }
    // Connected anew without having been closed, as after a resume: the ring is the same, so it goes on.
    pair.play(&["state VBD 3", "sleep ms=1000", "wait VBD state=4", "state VBD 4"])?;
    vbd.wait_connected()?;
    pair.check_works(9)?;
    pair.check_beside()
}

/// What a frontend does wrong, beginning connected and ending with its part of the handshake undone, and a word of the reason.
/// `never-close` keeps testfront from answering to the backend's 5 by itself.
const NONSENSE: [(&[&str], &str); 11] = [
    (&["state VBD 2"], "2"),
    (&["state VBD 7"], "7"),
    (&["state VBD 8"], "8"),
    (&["state VBD 99"], "99"),
    (&["state VBD 4294967295"], "no sense"),
    (&["set VBD key=state value=four"], "no sense"),
    (
        &[
            "close VBD",
            "state VBD 1",
            "wait VBD state=2",
            "publish VBD",
            "set VBD key=event-channel value=x",
            "state VBD 3",
        ],
        "event-channel",
    ),
    (
        &[
            "close VBD",
            "state VBD 1",
            "wait VBD state=2",
            "publish VBD",
            "set VBD key=event-channel value=4000",
            "state VBD 3",
        ],
        "event channel",
    ),
    (
        &[
            "close VBD",
            "state VBD 1",
            "wait VBD state=2",
            "publish VBD",
            "set VBD key=ring-ref value=1000000",
            "state VBD 3",
        ],
        "ring",
    ),
    (
        &[
            "close VBD",
            "state VBD 1",
            "wait VBD state=2",
            "publish VBD",
            "set VBD key=ring-page-order value=9",
            "state VBD 3",
        ],
        "ring-page-order",
    ),
    (
        &[
            "close VBD",
            "state VBD 1",
            "wait VBD state=2",
            "publish VBD",
            "set VBD key=protocol value=arm-abi",
            "state VBD 4",
        ],
        "protocol",
    ),
];

fn no_sense(world: &mut World) -> anyhow::Result<()> {
    let driverdom = world.driverdom(&Config::default())?;
    let pair = Pair::create(world, "f-nonsense")?;
    let vbd = Vbd::of(&world.dom0, &driverdom, &pair.guest.name, "xvda")?;
    for (seed, (steps, word)) in (10..).zip(NONSENSE) {
        let round = || -> anyhow::Result<()> {
            pair.play(&["never-close VBD"])?;
            pair.play(steps)?;
            pair.play(&["wait VBD state=5"])?;
            let reason = reason(world, &driverdom, &pair)?;
            ensure!(reason.contains(word), "the reason says: {reason}");
            pair.check_beside()?;
            pair.play(&["close6 VBD", "set VBD key=ring-page-order", "reconnect VBD"])?;
            pair.check_works(seed)?;
            vbd.wait_connected()?;
            // A reason goes with what it was the reason for.
            world.dom0.wait_nodes(&[Node::Gone(reason_path(&driverdom, &pair))], 30)?;
            Ok(())
        };
        round().with_context(|| steps.join("; "))?;
    }
    pair.check_beside()
}

fn reason_path(driverdom: &Driverdom, pair: &Pair) -> String {
    format!("/local/domain/{}/error/backend/vbd/{}/{}/error", driverdom.domid, pair.guest.domid, pair.played)
}

fn reason(world: &World, driverdom: &Driverdom, pair: &Pair) -> anyhow::Result<String> {
    Ok(world.dom0.wait_nodes(&[Node::There(reason_path(driverdom, pair))], 30)?.out)
}

fn toggles(world: &mut World) -> anyhow::Result<()> {
    let dom0 = &world.dom0;
    let driverdom = world.driverdom(&Config::default())?;
    let pair = Pair::create(world, "f-toggles")?;
    pair.play(&["close VBD", "reconnect VBD order=4"])?;
    let before = super::footprint::Footprint::take(dom0, &driverdom)?;
    pair.play(&["toggle VBD n=100"])?;
    pair.check_works(10)?;
    pair.check_beside()?;
    before.check_again(dom0, &driverdom)
}
