//! Steps of a test frontend that waits for them: `step` and `result` below its `data` directory.

use std::time::Instant;

use anyhow::Context;
use xen_proto::DomId;

use super::{Said, TIMED_OUT};
use crate::store::Store;

/// The first line is the guest's domain number, each other `NUMBER STEP`. Runs the steps up to the first that does not end well, and
/// prints the result of each.
pub(super) fn run(text: &str, deadline: Instant) -> anyhow::Result<Said> {
    let mut lines = text.lines();
    let domain: DomId = lines.next().context("no domain")?.parse().map(DomId).context("a domain")?;
    let data = format!("/local/domain/{domain}/data");
    let mut store = Store::connect()?;
    store.watch(&format!("{data}/result"))?;
    let mut said = Said::default();
    for line in lines {
        let number = line.split(' ').next().unwrap_or_default();
        store.write(&format!("{data}/step"), line)?;
        let Some(result) = result(&mut store, &data, number, deadline)? else {
            return Ok(Said { code: TIMED_OUT, ..said });
        };
        said.out.extend_from_slice(result.as_bytes());
        said.out.push(b'\n');
        if !result.strip_prefix(number).is_some_and(|rest| rest.starts_with(" ok")) {
            return Ok(Said { code: 1, ..said });
        }
    }
    Ok(said)
}

/// The result of step `number`; none if it does not come in time, or the guest goes.
fn result(store: &mut Store, data: &str, number: &str, deadline: Instant) -> anyhow::Result<Option<String>> {
    let paths = [format!("{data}/result"), data.to_owned()];
    loop {
        let values = store.read(&paths)?;
        let [result, home] = values.as_slice() else { return Ok(None) };
        let text = result.as_deref().map(String::from_utf8_lossy);
        match text {
            Some(text) if text.split(' ').next() == Some(number) => return Ok(Some(text.into_owned())),
            _ if home.is_none() || Instant::now() >= deadline => return Ok(None),
            _ => {}
        }
        store.next_change(Some(deadline))?;
    }
}
