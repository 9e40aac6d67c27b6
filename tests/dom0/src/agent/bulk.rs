//! Whole files, over the port `org.driverdom.bulk`: the host has one of these at a time.

use std::fs::File;
use std::io::{Read, Write};
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};

use super::Said;

const PORT: &str = "/dev/virtio-ports/org.driverdom.bulk";

/// How long to wait where nobody is connected.
const RETRY: Duration = Duration::from_millis(10);

/// `LENGTH PATH`: makes the file of so many bytes, which come; one that is there is replaced as a whole.
pub(super) fn put(text: &str, deadline: Instant) -> anyhow::Result<Said> {
    let (length, path) = text.split_once(' ').context("no length and path")?;
    let length: u64 = length.parse()?;
    let new = format!("{path}.new");
    let mut file = File::create(&new).with_context(|| new.clone())?;
    let mut port = File::open(PORT).context(PORT)?;
    let mut copied = 0;
    while copied < length {
        let more = std::io::copy(&mut (&mut port).take(length - copied), &mut file).context(PORT)?;
        copied += more;
        if more == 0 {
            // The request may be quicker than the word that the host is connected: a read then ends at once.
            ensure!(Instant::now() < deadline, "{copied} of {length} bytes came");
            std::thread::sleep(RETRY);
        }
    }
    std::fs::rename(&new, path).with_context(|| path.to_owned())?;
    Ok(Said::default())
}

/// A path: sends the file's length, in eight bytes of the little end first, and its bytes. A log may grow meanwhile: what is there now.
pub(super) fn get(path: &str) -> anyhow::Result<Said> {
    let bytes = std::fs::read(path).with_context(|| path.to_owned());
    let mut port = File::options().write(true).open(PORT).context(PORT)?;
    // The host waits for a length, whatever happened.
    let length = bytes.as_ref().map_or(0, Vec::len) as u64;
    port.write_all(&length.to_le_bytes()).context(PORT)?;
    port.write_all(&bytes?).context(PORT)?;
    Ok(Said::default())
}
