//! Bytes that only the host knows until it looks for them again: nonces, random data, and their sums.

use std::fs::File;
use std::io::{Read, Write};
use std::process::{Command, Stdio};

use anyhow::Context;

/// `count` bytes from the host's random source.
///
/// # Errors
/// When there is none.
pub(super) fn random_bytes(count: usize) -> anyhow::Result<Vec<u8>> {
    let mut bytes = vec![0; count];
    File::open("/dev/urandom")?.read_exact(&mut bytes)?;
    Ok(bytes)
}

/// A word nobody can have written before: 32 hexadecimal digits.
///
/// # Errors
/// See [`random_bytes`].
pub(super) fn nonce() -> anyhow::Result<String> {
    Ok(random_bytes(16)?.iter().map(|byte| format!("{byte:02x}")).collect())
}

/// The SHA-256 of `bytes` in hexadecimal, by the host's own program: the guest's is the same program.
///
/// # Errors
/// When it cannot be run.
pub(super) fn sha256(bytes: &[u8]) -> anyhow::Result<String> {
    let mut child =
        Command::new("sha256sum").stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().context("sha256sum")?;
    child.stdin.take().context("sha256sum's input")?.write_all(bytes)?;
    let output = child.wait_with_output()?;
    Ok(String::from_utf8(output.stdout)?.split_whitespace().next().context("no sum")?.to_owned())
}
