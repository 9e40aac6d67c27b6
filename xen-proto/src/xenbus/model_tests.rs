//! The table against a model of xenstore in which toolstack, guest and time act in random order.

use proptest::prelude::*;

use super::*;
use crate::Nanos;

#[derive(Clone, Copy, Debug)]
enum Act {
    /// The toolstack makes the device, unless it is there.
    Create,
    /// The toolstack removes it; it does not touch one that is closed already, but for `online`.
    Remove,
    /// The same, with the frontend's directory.
    RemoveByForce,
    /// dom0 wipes the directory.
    Wipe,
    /// The guest writes its state.
    Frontend(u32),
    /// Milliseconds pass.
    Pass(u64),
    /// We are given a turn.
    Turn,
}

fn acts() -> impl Strategy<Value = Vec<Act>> {
    let act = prop_oneof![
        3 => Just(Act::Create),
        2 => Just(Act::Remove),
        1 => Just(Act::RemoveByForce),
        1 => Just(Act::Wipe),
        6 => (0u32..10).prop_map(Act::Frontend),
        3 => (0u64..1500).prop_map(Act::Pass),
        8 => Just(Act::Turn),
    ];
    proptest::collection::vec(act, 0..120)
}

/// One device in xenstore, and what we hold for it.
struct Model {
    own: Option<State>,
    online: bool,
    frontend: Option<State>,
    frontend_before: Option<State>,
    phase: Phase,
    now: Nanos,
    hold_until: Nanos,
    remove_at: Nanos,
}

impl Model {
    fn new() -> Self {
        Self {
            own: None,
            online: false,
            frontend: None,
            frontend_before: None,
            phase: Phase::Fresh,
            now: Nanos(0),
            hold_until: Nanos(0),
            remove_at: Nanos(0),
        }
    }

    fn act(&mut self, act: Act) {
        match act {
            Act::Create if self.own.is_none() => {
                (self.own, self.online, self.frontend) = (Some(State::INITIALISING), true, Some(State::INITIALISING));
            }
            Act::Remove | Act::RemoveByForce if self.own.is_some() => {
                self.online = false;
                if self.own != Some(State::CLOSED) {
                    self.own = Some(State::CLOSING);
                }
                if matches!(act, Act::RemoveByForce) {
                    self.frontend = None;
                }
                self.remove_at = self.now + removal_dwell(1);
            }
            Act::Wipe => (self.own, self.online, self.frontend) = (None, false, None),
            Act::Frontend(state) if self.frontend.is_some() => self.frontend = Some(State(state)),
            Act::Pass(millis) => self.now = self.now + Nanos::from_millis(millis),
            Act::Turn => {
                self.turn();
            }
            _ => {}
        }
    }

    /// Steps until there is nothing to do now.
    fn turn(&mut self) -> Step {
        for _ in 0..20 {
            let seen = Seen {
                own: self.own,
                online: self.online,
                frontend: self.frontend,
                frontend_before: core::mem::replace(&mut self.frontend_before, self.frontend),
            };
            let times =
                Times { now: self.now, hold_until: self.hold_until, remove_at: self.remove_at, drain_until: Nanos(0) };
            let step = next_step(self.phase, seen, times);
            match step {
                Step::Rest | Step::Forget => return step,
                Step::Wait(until) => {
                    assert!(until > self.now, "a wait for the past");
                    return step;
                }
                _ => self.apply(step),
            }
        }
        panic!(
            "no end of steps: {:?} own {:?} online {} frontend {:?}",
            self.phase, self.own, self.online, self.frontend
        )
    }

    fn write(&mut self, state: State) {
        assert!(self.own.is_some(), "a write into a directory that is gone");
        assert_ne!(self.own, Some(state), "a write that changes nothing wakes everybody");
        if state == State::CLOSED {
            assert!(!matches!(self.phase, Phase::Linked | Phase::Connected), "rings are held");
            assert!(self.online || self.phase == Phase::Fresh, "the claim is held while the device goes");
        }
        self.own = Some(state);
    }

    fn apply(&mut self, step: Step) {
        match (step, self.phase) {
            (Step::Open, Phase::Fresh) => self.phase = Phase::Opened,
            (Step::Offer, Phase::Opened) => {
                self.write(State::INIT_WAIT);
                self.hold_until = self.now + HOLD_INIT_WAIT;
                self.phase = Phase::Ready;
            }
            (Step::Connect, Phase::Ready) => {
                assert!(self.now >= self.hold_until || self.own != Some(State::INIT_WAIT), "dom0 may not have seen 2");
                self.phase = Phase::Linked;
            }
            (Step::Announce, Phase::Linked) => {
                self.own = Some(State::CONNECTED);
                self.phase = Phase::Connected;
            }
            (Step::Switch(state), Phase::Fresh | Phase::Ready) => self.write(state),
            (Step::Fail(_), Phase::Ready) => self.write(State::CLOSING),
            (Step::Disconnect, Phase::Linked | Phase::Connected) => self.phase = Phase::Ready,
            (Step::Close, Phase::Opened | Phase::Ready) => self.phase = Phase::Fresh,
            (Step::Remove, Phase::Fresh) => {
                assert!(!self.online, "removed while online");
                assert_eq!(self.own, Some(State::CLOSED), "removed before it was closed");
                assert!(self.now >= self.remove_at, "removed before dom0 could see 6");
                (self.own, self.frontend) = (None, None);
            }
            (step, phase) => panic!("{step:?} in {phase:?}"),
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(500))]

    #[test]
    fn no_order_of_events_breaks_a_rule(acts in acts()) {
        let mut model = Model::new();
        for act in acts {
            model.act(act);
        }
        // A removal whose frontend is gone is always answered, and ends with nothing held.
        model.act(Act::RemoveByForce);
        model.turn();
        prop_assert!(model.own.is_none() || model.own == Some(State::CLOSED));
        model.act(Act::Pass(MAX_REMOVAL_DWELL.as_millis()));
        prop_assert_eq!(model.turn(), Step::Forget);
        prop_assert_eq!((model.phase, model.own), (Phase::Fresh, None));
    }

    #[test]
    fn a_well_behaved_guest_is_always_connected_in_the_end(acts in acts()) {
        let mut model = Model::new();
        for act in acts {
            model.act(act);
        }
        model.act(Act::Wipe);
        model.turn();
        model.act(Act::Create);
        model.turn();
        prop_assert_eq!(model.own, Some(State::INIT_WAIT));
        model.act(Act::Frontend(3));
        model.act(Act::Pass(HOLD_INIT_WAIT.as_millis()));
        model.turn();
        prop_assert_eq!((model.phase, model.own), (Phase::Connected, Some(State::CONNECTED)));
    }
}
