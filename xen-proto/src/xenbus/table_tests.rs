//! The table, row by row.

use super::backend::destroy_dwell;
use super::*;
use crate::Nanos;

const NOW: Nanos = Nanos::from_millis(10_000);
const LATER: Nanos = Nanos::from_millis(10_001);
const PAST: Times = Times { now: NOW, hold_until: Nanos(0), remove_at: Nanos(0), drain_until: Nanos(0) };
const DWELLING: Times = Times { now: NOW, hold_until: LATER, remove_at: LATER, drain_until: LATER };

const ONLINE: bool = true;
const LEAVING: bool = false;

fn seen(own: u32, online: bool, frontend: u32) -> Seen {
    let state = |number| (number != MISSING).then_some(State(number));
    Seen { own: state(own), online, frontend: state(frontend), frontend_before: state(frontend) }
}

/// In the rows: the node is not there.
const MISSING: u32 = u32::MAX;

type Row = (Phase, u32, bool, u32, Step);

fn check(times: Times, rows: &[Row]) {
    for (phase, own, online, frontend, step) in rows {
        let found = next_step(*phase, seen(*own, *online, *frontend), times);
        assert_eq!(found, *step, "{phase:?}, own {own}, online {online}, frontend {frontend}");
    }
}

#[test]
fn attach() {
    use Phase::*;
    check(
        PAST,
        &[
            (Fresh, 1, ONLINE, 1, Step::Open),
            (Fresh, 1, ONLINE, 3, Step::Open),
            (Opened, 1, ONLINE, 1, Step::Offer),
            (Opened, 1, ONLINE, 3, Step::Offer),
            (Ready, 2, ONLINE, 1, Step::Rest),
            (Ready, 2, ONLINE, 3, Step::Connect),
            (Ready, 2, ONLINE, 4, Step::Connect),
            (Linked, 2, ONLINE, 3, Step::Announce),
            (Linked, 2, ONLINE, 4, Step::Announce),
            (Linked, 2, ONLINE, 6, Step::Disconnect),
            (Connected, 4, ONLINE, 3, Step::Rest),
            (Connected, 4, ONLINE, 4, Step::Rest),
        ],
    );
}

#[test]
fn init_wait_is_held_whatever_the_frontend_does() {
    use Phase::*;
    check(
        DWELLING,
        &[
            (Ready, 2, ONLINE, 1, Step::Rest),
            (Ready, 2, ONLINE, 3, Step::Wait(LATER)),
            (Ready, 2, ONLINE, 5, Step::Wait(LATER)),
            (Ready, 2, ONLINE, 6, Step::Wait(LATER)),
            (Ready, 2, ONLINE, 99, Step::Wait(LATER)),
            (Ready, 2, ONLINE, MISSING, Step::Wait(LATER)),
            (Ready, 5, LEAVING, 3, Step::Close),
        ],
    );
}

#[test]
fn close_by_the_guest_in_any_order() {
    use Phase::*;
    check(
        PAST,
        &[
            (Connected, 4, ONLINE, 5, Step::Disconnect),
            (Ready, 4, ONLINE, 5, Step::Switch(State::CLOSING)),
            (Ready, 5, ONLINE, 5, Step::Rest),
            (Ready, 5, ONLINE, 6, Step::Switch(State::CLOSED)),
            (Ready, 6, ONLINE, 6, Step::Rest),
            // 6 directly after 4
            (Connected, 4, ONLINE, 6, Step::Disconnect),
            (Ready, 4, ONLINE, 6, Step::Switch(State::CLOSED)),
            // the directory vanished
            (Connected, 4, ONLINE, MISSING, Step::Disconnect),
            (Ready, 4, ONLINE, MISSING, Step::Switch(State::CLOSED)),
            (Ready, 6, ONLINE, MISSING, Step::Rest),
            // before it ever connected
            (Ready, 2, ONLINE, 5, Step::Switch(State::CLOSING)),
            (Ready, 2, ONLINE, 6, Step::Switch(State::CLOSED)),
            (Ready, 6, ONLINE, 5, Step::Rest),
        ],
    );
}

#[test]
fn reconnect() {
    use Phase::*;
    check(
        PAST,
        &[
            (Ready, 6, ONLINE, 1, Step::Switch(State::INIT_WAIT)),
            (Ready, 5, ONLINE, 1, Step::Switch(State::INIT_WAIT)),
            (Ready, 5, LEAVING, 1, Step::Close),
            (Ready, 6, LEAVING, 1, Step::Close),
            (Fresh, 6, ONLINE, 1, Step::Open),
            (Opened, 6, ONLINE, 1, Step::Offer),
            // the intermediate states were missed
            (Ready, 6, ONLINE, 3, Step::Connect),
            (Linked, 6, ONLINE, 3, Step::Announce),
            (Linked, 6, LEAVING, 3, Step::Disconnect),
            (Connected, 4, ONLINE, 1, Step::Disconnect),
            (Ready, 4, ONLINE, 1, Step::Switch(State::INIT_WAIT)),
            (Ready, 4, ONLINE, 3, Step::Connect),
        ],
    );
}

#[test]
fn a_connected_frontend_that_begins_anew_is_connected_anew() {
    let again = Seen { frontend_before: Some(State::CONNECTED), ..seen(4, ONLINE, 3) };
    assert_eq!(next_step(Phase::Connected, again, PAST), Step::Disconnect);
    assert_eq!(next_step(Phase::Ready, seen(4, ONLINE, 3), PAST), Step::Connect);
}

#[test]
fn the_toolstack_removes() {
    use Phase::*;
    check(
        PAST,
        &[
            // the frontend still uses it
            (Connected, 5, LEAVING, 3, Step::Rest),
            (Connected, 5, LEAVING, 4, Step::Rest),
            (Connected, 5, LEAVING, 5, Step::Rest),
            // it does not, or is not there
            (Connected, 5, LEAVING, 6, Step::Disconnect),
            (Connected, 5, LEAVING, MISSING, Step::Disconnect),
            (Connected, 5, LEAVING, 1, Step::Disconnect),
            (Connected, 5, LEAVING, 2, Step::Disconnect),
            (Connected, 5, LEAVING, 99, Step::Disconnect),
            (Linked, 5, LEAVING, 3, Step::Disconnect),
            (Linked, 5, LEAVING, MISSING, Step::Disconnect),
            (Opened, 5, LEAVING, MISSING, Step::Close),
            (Ready, 5, LEAVING, 6, Step::Close),
            (Ready, 5, LEAVING, MISSING, Step::Close),
            (Ready, 5, LEAVING, 3, Step::Close),
            (Fresh, 5, LEAVING, 6, Step::Switch(State::CLOSED)),
            (Fresh, 5, LEAVING, MISSING, Step::Switch(State::CLOSED)),
            (Fresh, 5, LEAVING, 4, Step::Switch(State::CLOSED)),
            (Fresh, 2, LEAVING, 1, Step::Switch(State::CLOSED)),
            // closed by the guest long ago: only `online` changes
            (Ready, 6, LEAVING, 6, Step::Close),
            (Fresh, 6, LEAVING, 6, Step::Remove),
            (Fresh, 6, LEAVING, MISSING, Step::Remove),
        ],
    );
    check(DWELLING, &[(Fresh, 6, LEAVING, MISSING, Step::Wait(LATER)), (Fresh, 6, LEAVING, 6, Step::Wait(LATER))]);
}

#[test]
fn a_directory_that_went_or_was_made_anew_takes_all_we_hold_with_it() {
    use Phase::*;
    check(
        PAST,
        &[
            (Connected, MISSING, LEAVING, 4, Step::Disconnect),
            (Linked, MISSING, LEAVING, 3, Step::Disconnect),
            (Ready, MISSING, LEAVING, 4, Step::Close),
            (Opened, MISSING, LEAVING, 1, Step::Close),
            (Fresh, MISSING, LEAVING, MISSING, Step::Forget),
            (Connected, 1, ONLINE, 1, Step::Disconnect),
            (Linked, 1, ONLINE, 1, Step::Disconnect),
            (Ready, 1, ONLINE, 1, Step::Close),
        ],
    );
}

#[test]
fn frontends_in_impossible_states_fail_alone() {
    use Phase::*;
    for garbage in [0, 2, 7, 8, 99] {
        check(
            PAST,
            &[
                (Connected, 4, ONLINE, garbage, Step::Disconnect),
                (Ready, 4, ONLINE, garbage, Step::Fail(State(garbage))),
                (Ready, 2, ONLINE, garbage, Step::Fail(State(garbage))),
                (Ready, 5, ONLINE, garbage, Step::Rest),
                (Ready, 6, ONLINE, garbage, Step::Rest),
                (Ready, 5, LEAVING, garbage, Step::Close),
            ],
        );
    }
    // After a failure it must close; then it may come back.
    check(PAST, &[(Ready, 5, ONLINE, 3, Step::Rest), (Ready, 5, ONLINE, 4, Step::Rest)]);
}

#[test]
fn draining_asks_frontends_to_close_and_takes_nothing_new() {
    use Phase::*;
    let check = |times, rows: &[Row]| {
        for (phase, own, online, frontend, step) in rows {
            let found = next_step_draining(*phase, seen(*own, *online, *frontend), times);
            assert_eq!(found, *step, "{phase:?}, own {own}, online {online}, frontend {frontend}");
        }
    };
    check(
        DWELLING,
        &[
            (Connected, 4, ONLINE, 4, Step::Switch(State::CLOSING)),
            (Connected, 5, ONLINE, 4, Step::Wait(LATER)),
            (Connected, 5, ONLINE, 6, Step::Disconnect),
            (Connected, MISSING, ONLINE, 4, Step::Disconnect),
            (Linked, 2, ONLINE, 3, Step::Disconnect),
            (Ready, 2, ONLINE, 3, Step::Close),
            (Fresh, 2, ONLINE, 3, Step::Switch(State::CLOSED)),
            (Fresh, 6, ONLINE, 1, Step::Rest),
            (Fresh, 6, LEAVING, 6, Step::Wait(LATER)),
        ],
    );
    check(PAST, &[(Connected, 5, ONLINE, 4, Step::Disconnect), (Fresh, 1, ONLINE, 1, Step::Open)]);
}

#[test]
fn dwell_grows_with_the_devices_that_close_and_has_an_end() {
    for (devices, millis) in [(0, 500), (1, 500), (50, 500), (51, 510), (100, 1_000), (800, 8_000), (5_000, 8_000)] {
        assert_eq!(removal_dwell(devices), Nanos::from_millis(millis), "{devices} devices");
    }
}

#[test]
fn dwell_of_a_destroyed_device_is_its_place_in_the_order() {
    for (asked_after, asked_for, millis) in [
        (0, 0, 500),
        (0, 1_500, 500),
        (1, 6_000, 2_000),
        (500, 500, 500),
        (501, 501, 1_000),
        (2_100, 6_000, 2_500),
        (6_200, 6_200, 6_500),
        (0, 30_000, 8_000),
        (9_000, 9_000, 8_000),
    ] {
        let dwell = destroy_dwell(Nanos::from_millis(asked_after), Nanos::from_millis(asked_for));
        assert_eq!(dwell, Nanos::from_millis(millis), "{asked_after} ms of {asked_for} ms");
    }
    assert_eq!(destroy_dwell(Nanos(u64::MAX), Nanos(u64::MAX)), MAX_REMOVAL_DWELL);
}

#[test]
fn numbers_are_read_strictly() {
    for (text, number) in [
        ("0", Some(0)),
        ("4", Some(4)),
        ("18446744073709551615", Some(u64::MAX)),
        ("18446744073709551616", None),
        ("", None),
        ("+4", None),
        ("-1", None),
        (" 4", None),
        ("4\n", None),
        ("0x4", None),
        ("000000000000000000004", None),
    ] {
        assert_eq!(parse_number(text.as_bytes()), number, "{text:?}");
    }
    assert_eq!(State::parse(b"6"), State::CLOSED);
    assert_eq!(State::parse(b"4294967296"), State::UNKNOWN);
    assert_eq!(State::parse(b"six"), State::UNKNOWN);
}
