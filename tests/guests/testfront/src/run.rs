//! Runs a script: from the command line, from xenstore, or step by step as dom0 writes them.

use alloc::format;
use alloc::string::String;

use xen_proto::Nanos;

use crate::platform::Platform;
use crate::report::{Outcome, Tally};
use crate::script::{Aim, Deed, Ending, Script, Step, parse_steps};
use crate::store::token;
use crate::world::World;
use crate::{Fallible, steps};

/// Where a script is read from.
const SCRIPT: &str = "data/script";
/// Where dom0 writes `NUMBER STEP`.
const STEP: &str = "data/step";
/// Where the outcome goes: `NUMBER ok ...` or `NUMBER failed: ...`.
const RESULT: &str = "data/result";
/// What a node may hold, less what the number takes (xenstored's default quota is 2 KiB a node).
const RESULT_BYTES: usize = 1900;

/// Does what the command line says; never returns.
pub fn run<P: Platform>(platform: P, command_line: &str) -> ! {
    let mut runner = Runner { world: World::new(platform), tally: Tally::default(), number: 0 };
    let ending = runner.run(command_line).unwrap_or_else(|why| runner.give_up(&why));
    runner.end(ending)
}

struct Runner<P: Platform> {
    world: World<P>,
    tally: Tally,
    /// The step that is run.
    number: u64,
}

impl<P: Platform> Runner<P> {
    fn run(&mut self, command_line: &str) -> Fallible<Ending> {
        self.world.store.watch(&mut self.world.platform, "control/shutdown", token::CONTROL)?;
        self.world.store.watch(&mut self.world.platform, "device/vbd", token::VBDS)?;
        match Script::parse(command_line).map_err(|bad| bad.0)? {
            Script::Steps(steps) => self.all(&steps),
            Script::Xenstore => {
                let text = self.world.store.read(&mut self.world.platform, SCRIPT)?;
                let steps = parse_steps(&text.ok_or("there is no data/script")?).map_err(|bad| bad.0)?;
                self.all(&steps)
            }
            Script::Watch => self.watch(),
        }
    }

    fn all(&mut self, steps: &[Step]) -> Fallible<Ending> {
        for step in steps {
            self.number += 1;
            if let Deed::End(ending) = step.deed {
                return Ok(ending);
            }
            self.step(step);
        }
        Ok(Ending::Poweroff)
    }

    /// Runs each step that dom0 writes, until one ends it.
    fn watch(&mut self) -> Fallible<Ending> {
        self.world.store.watch(&mut self.world.platform, STEP, token::STEP)?;
        self.world.platform.say("watching data/step");
        loop {
            while !core::mem::take(&mut self.world.step_waits) {
                self.idle()?;
            }
            let text = self.world.store.read(&mut self.world.platform, STEP)?.unwrap_or_default();
            let Some((number, step)) = numbered(&text).filter(|(number, _)| *number != self.number) else { continue };
            self.number = number;
            let verdict = match step.parse::<Step>() {
                Ok(Step { deed: Deed::End(ending), .. }) => {
                    self.report("ok")?;
                    return Ok(ending);
                }
                Ok(step) => self.step(&step),
                Err(bad) => self.judge(Aim::Success, Err(bad.0)),
            };
            self.report(&verdict)?;
        }
    }

    /// Serves what the backends want until something happens.
    fn idle(&mut self) -> Fallible<()> {
        self.world.turn()?;
        if !self.world.step_waits {
            let far = self.world.after(Nanos::from_millis(3_600_000));
            self.world.platform.sleep(far);
        }
        Ok(())
    }

    fn report(&mut self, verdict: &str) -> Fallible<()> {
        let end = (0..=RESULT_BYTES.min(verdict.len())).rev().find(|&end| verdict.is_char_boundary(end)).unwrap_or(0);
        let result = format!("{} {}", self.number, &verdict[..end]);
        self.world.store.write(&mut self.world.platform, RESULT, &result)
    }

    /// Runs a step and says how it ended.
    fn step(&mut self, step: &Step) -> String {
        let outcome = self.deed(&step.deed);
        let faults = core::mem::take(&mut self.world.faults);
        let outcome = match (outcome, faults.as_slice()) {
            (outcome, []) => outcome,
            (Ok(said), faults) => Err(format!("{} ({said})", faults.join("; "))),
            (Err(why), faults) => Err(format!("{why}; {}", faults.join("; "))),
        };
        self.judge(step.aim, outcome)
    }

    fn judge(&mut self, aim: Aim, outcome: Outcome) -> String {
        let verdict = self.tally.judge(aim, outcome);
        self.world.platform.say(&Tally::step_line(self.number, &verdict));
        verdict
    }

    fn deed(&mut self, deed: &Deed) -> Outcome {
        match deed {
            Deed::On(which, action) => steps::act(&mut self.world, which, action),
            Deed::List => steps::list(&mut self.world),
            Deed::Echo(text) => Ok(text.clone()),
            Deed::Sleep(span) => {
                let deadline = self.world.after(*span);
                self.world.wait(deadline, |_, _| None::<()>).map(|_| String::new())
            }
            Deed::Vanish { how, depth } => {
                let started = steps::launch(&mut self.world, *depth);
                self.world.platform.say(&format!("vanishing with {started} requests in flight"));
                self.world.platform.shut_down(*how)
            }
            // Those who run steps end with it.
            Deed::End(_) => Ok(String::new()),
        }
    }

    /// There is no step to lay this to.
    fn give_up(&mut self, why: &str) -> Ending {
        self.judge(Aim::Success, Err(why.into()));
        Ending::Poweroff
    }

    fn end(mut self, ending: Ending) -> ! {
        let line = self.tally.end_line();
        self.world.platform.say(&line);
        if ending != Ending::Stay {
            self.world.platform.shut_down(ending);
        }
        loop {
            if let Err(why) = self.idle() {
                self.world.platform.say(&why);
                self.world.platform.shut_down(Ending::Crash);
            }
            self.world.step_waits = false;
        }
    }
}

/// A step with its number before it.
fn numbered(text: &str) -> Option<(u64, &str)> {
    let (number, step) = text.trim().split_once(' ')?;
    Some((number.parse().ok()?, step))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_carry_their_number() {
        for (text, expected) in
            [("3 list", Some((3, "list"))), (" 4  read vbd=1\n", Some((4, " read vbd=1"))), ("list", None), ("", None)]
        {
            assert_eq!(numbered(text), expected);
        }
    }
}
