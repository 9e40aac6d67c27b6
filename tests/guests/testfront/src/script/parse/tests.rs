//! The grammar, as tables: what is accepted, and how mistakes are told.

use std::vec;

use super::*;

const PLAIN: Shape =
    Shape { abi: Abi::X86_64, order: 0, naming: Naming::Single, start: 0, form: Form::Direct, skew: 0, segment: 8 };

fn on(numbers: &[u32], action: Action) -> Deed {
    Deed::On(Which::These(numbers.to_vec()), action)
}

fn connect(shape: Shape, haste: Haste, seconds: u64) -> Connect {
    Connect { shape, haste, limit: Nanos::from_millis(seconds * 1000) }
}

fn transfer(purpose: Purpose, sector: u64, count: u64, expect: Status) -> Action {
    Action::Transfer(Transfer { purpose, sector, count, expect })
}

#[test]
fn steps_are_read() {
    let load =
        Load { depth: 32, until: Until::Requests(10), mix: Mix::Writes, size: 8, sector: 0, count: None, seed: 1 };
    let table = [
        ("list", Deed::List),
        ("echo  now = 1;", Deed::Echo("now = 1".to_string())),
        ("sleep ms=5", Deed::Sleep(Nanos::from_millis(5))),
        ("vanish", Deed::Vanish { how: Ending::Crash, depth: 0 }),
        ("vanish how=poweroff depth=32", Deed::Vanish { how: Ending::Poweroff, depth: 32 }),
        ("end", Deed::End(Ending::Poweroff)),
        ("end stay", Deed::End(Ending::Stay)),
        ("connect vbd=51712", on(&[51712], Action::Connect(connect(PLAIN, Haste::Patient, 30)))),
        (
            "connect early order=2 vbd=0xca00,51728 abi=32 form=indirect skew=3 segment=2 start=0xfffffff0 seconds=7",
            on(
                &[51712, 51728],
                Action::Connect(connect(
                    Shape {
                        abi: Abi::X86_32,
                        order: 2,
                        naming: Naming::Numbered,
                        start: 0xffff_fff0,
                        form: Form::Indirect,
                        skew: 3,
                        segment: 2,
                    },
                    Haste::Early,
                    7,
                )),
            ),
        ),
        ("publish vbd=1 numbered", on(&[1], Action::Publish(Shape { naming: Naming::Numbered, ..PLAIN }))),
        ("reconnect vbd=all", Deed::On(Which::All, Action::Reconnect(connect(PLAIN, Haste::Patient, 30)))),
        ("write vbd=1 sector=16 count=9 pattern=7", on(&[1], transfer(Purpose::Write(7), 16, 9, Status::Okay))),
        ("verify vbd=1 pattern=7", on(&[1], transfer(Purpose::Verify(7), 0, 8, Status::Okay))),
        ("read vbd=1 expect=error", on(&[1], transfer(Purpose::Read, 0, 8, Status::Error))),
        ("flush vbd=1", on(&[1], transfer(Purpose::Flush, 0, 0, Status::Okay))),
        ("discard vbd=1 expect=unsupported", on(&[1], transfer(Purpose::Discard, 0, 8, Status::Unsupported))),
        ("load vbd=1 requests=10", on(&[1], Action::Load(load))),
        (
            "load vbd=1 seconds=2 depth=4 mix size=88 sector=8 count=880 pattern=9",
            on(
                &[1],
                Action::Load(Load {
                    depth: 4,
                    until: Until::Elapsed(Nanos::from_millis(2000)),
                    mix: Mix::Both,
                    size: 88,
                    sector: 8,
                    count: Some(880),
                    seed: 9,
                }),
            ),
        ),
        ("state vbd=1 7", on(&[1], Action::State(7))),
        ("set vbd=1 key=ring-ref value=9", on(&[1], Action::Set { key: "ring-ref".into(), value: Some("9".into()) })),
        ("set vbd=1 key=ring-ref", on(&[1], Action::Set { key: "ring-ref".into(), value: None })),
        ("check vbd=1 key=mode value=r", on(&[1], Action::Check { key: "mode".into(), value: Some("r".into()) })),
        ("close vbd=1", on(&[1], Action::Close(Farewell::Polite, PATIENCE))),
        ("close6 vbd=1 seconds=1", on(&[1], Action::Close(Farewell::Abrupt, Nanos::from_millis(1000)))),
        ("toggle vbd=1 n=1000", on(&[1], Action::Toggle(1000))),
        ("storm vbd=1 n=50", on(&[1], Action::Storm(50))),
        ("wait vbd=1 state=6", on(&[1], Action::Wait(Awaited::State(6), PATIENCE))),
        ("wait vbd=1 state=gone", on(&[1], Action::Wait(Awaited::Gone, PATIENCE))),
        ("malformed vbd=1", on(&[1], Action::Malformed(Cases::All))),
        ("never-close vbd=1", on(&[1], Action::NeverClose)),
    ];
    for (text, deed) in table {
        let expected = vec![Step { aim: Aim::Success, deed }];
        assert_eq!(parse_steps(text), Ok(expected), "{text}");
    }
}

#[test]
fn every_malformed_case_can_be_named() {
    for case in malformed::CASES {
        let step: Step = format!("malformed vbd=1 kind={}", case.name).parse().unwrap();
        assert_eq!(step.deed, on(&[1], Action::Malformed(Cases::One(case))));
    }
}

#[test]
fn a_step_can_be_meant_to_fail() {
    for (text, aim) in [(" fails close vbd=1", Aim::Failure), ("echo it fails", Aim::Success)] {
        assert_eq!(text.parse::<Step>().unwrap().aim, aim, "{text}");
    }
}

#[test]
fn scripts_come_from_three_places() {
    let steps =
        vec![Step { aim: Aim::Success, deed: Deed::List }, Step { aim: Aim::Success, deed: Deed::End(Ending::Stay) }];
    let table = [
        ("script=xenstore", Script::Xenstore),
        (" log=debug script=watch ", Script::Watch),
        ("list; ;end stay;", Script::Steps(steps.clone())),
        ("log=info list\nend stay", Script::Steps(steps)),
        ("", Script::Steps(vec![])),
        ("log=info", Script::Steps(vec![])),
    ];
    for (command_line, script) in table {
        assert_eq!(Script::parse(command_line), Ok(script), "{command_line}");
    }
}

#[test]
fn what_is_wrong_is_said() {
    let table = [
        ("list; dance vbd=1", "step 2: 'dance' is not known"),
        ("dance", "step 1: 'dance' is not known"),
        ("connect", "step 1: vbd= is missing"),
        ("connect vbd=x", "step 1: vbd=x is neither 'all' nor numbers"),
        ("connect vbd=1 abi=65", "step 1: abi=65 is not known"),
        ("connect vbd=1 order=5", "step 1: order=5: a ring has at most 16 pages, order 4"),
        ("connect vbd=1 skew=4 segment=5", "step 1: segment=5: it must fit in its page after skew=4"),
        ("connect vbd=1 eraly", "step 1: 'eraly' is not known here"),
        ("write vbd=1", "step 1: pattern= is missing"),
        ("read vbd=1 sector=-1", "step 1: sector=-1 is no number that fits"),
        ("read vbd=1 sector=0xffffffffffffffff", "step 1: sector and count overflow (malformed has such requests)"),
        ("load vbd=1", "step 1: load needs either seconds= or requests="),
        ("load vbd=1 requests=1 seconds=1", "step 1: load needs either seconds= or requests="),
        ("load vbd=1 requests=1 size=0", "step 1: size and depth are at least 1"),
        ("malformed vbd=1 kind=nice", "step 1: kind=nice is not known"),
        ("state vbd=1", "step 1: state needs a number"),
        ("end dancing", "step 1: end dancing is not known"),
    ];
    for (text, why) in table {
        assert_eq!(parse_steps(text), Err(BadScript(why.into())), "{text}");
    }
}
