//! The harness checks itself: a CPU model under which dom0 computes wrong checksums beside a guest is no ground to judge on.

use anyhow::ensure;

use crate::dom0::Dom0;
use crate::guest::{LinuxConfig, LinuxGuest};
use crate::infrastructure::infrastructure;

/// Fewer rounds than this would have shown nothing.
const ROUNDS_WANTED: u32 = 20;

/// Compresses and sums in dom0 while a guest boots and computes beside it.
///
/// # Errors
/// An infrastructure error when a sum was wrong, or nothing was computed.
pub fn self_check(dom0: &Dom0) -> anyhow::Result<String> {
    let stop = "/run/check-sums.stop";
    dom0.check(&format!("rm -f {stop}"), 20)?;
    let sums = dom0.spawn(&format!("check-sums {stop} {ROUNDS_WANTED}"), 300)?;
    let guest = LinuxGuest::create(dom0, &LinuxConfig::new("selfcheck"));
    let beside = guest.and_then(|guest| {
        guest.check("for i in 1 2; do gzip -c /bin/busybox | gunzip -c | sha256sum; done | sort -u | wc -l", 120)
    });
    dom0.check(&format!("touch {stop}"), 20)?;
    let output = sums.wait()?;
    judge(&output.out, &beside.map_err(|error| infrastructure(format!("the self-check's guest: {error:#}")))?)
}

/// `sums` is dom0's 'ROUNDS WRONG', `different` the number of different sums the guest got of the same data.
fn judge(sums: &str, different: &str) -> anyhow::Result<String> {
    let (rounds, wrong) =
        sums.trim().split_once(' ').ok_or_else(|| infrastructure(format!("no sums from dom0: {sums:?}")))?;
    let (rounds, wrong): (u32, u32) = (rounds.parse()?, wrong.parse()?);
    ensure!(
        wrong == 0,
        infrastructure(format!(
            "{wrong} of {rounds} checksums in dom0 are wrong beside a guest: this CPU model corrupts"
        ))
    );
    ensure!(
        different == "1",
        infrastructure(format!(
            "a guest got {different} different checksums of the same data: this CPU model corrupts"
        ))
    );
    ensure!(rounds >= ROUNDS_WANTED, infrastructure(format!("only {rounds} checksums in dom0: nothing was shown")));
    Ok(format!("{rounds} checksums in dom0 beside a guest, all right"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::infrastructure::Infrastructure;

    #[test]
    fn only_enough_right_sums_pass() {
        for (sums, different, good) in [
            ("20 0", "1", true),
            ("400 0\n", "1", true),
            ("400 1", "1", false),
            ("400 0", "2", false),
            ("19 0", "1", false),
            ("", "1", false),
            ("400", "1", false),
        ] {
            let judged = judge(sums, different);
            assert_eq!(judged.is_ok(), good, "{sums:?} {different}");
            assert!(judged.is_ok() || judged.unwrap_err().downcast_ref::<Infrastructure>().is_some());
        }
    }
}
