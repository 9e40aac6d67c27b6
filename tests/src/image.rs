//! The host's own view of a raw disk image: laying it out, finding bytes in it, and asking e2fsprogs about its file systems.
//!
//! All of it works on the file behind a running or stopped QEMU; nothing here asks a guest.

use std::fs::File;
use std::io::Read;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use anyhow::{Context, bail, ensure};

use crate::gpt::{self, Partition};

/// A partition table to write: names and sizes in MiB.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Layout(pub Vec<(&'static str, u64)>);

impl Default for Layout {
    /// Two partitions to be used by name, and two which share a name and so may not be.
    fn default() -> Self {
        Self(vec![("demo", 256), ("second", 128), ("twin", 16), ("twin", 16)])
    }
}

/// Makes `file` a sparse image of `bytes` with a fresh GPT and no other data.
///
/// # Errors
/// What the file system or sfdisk says.
pub fn lay_out(file: &Path, bytes: u64, layout: &Layout) -> anyhow::Result<()> {
    let image = File::options()
        .create(true)
        .truncate(false)
        .write(true)
        .open(file)
        .with_context(|| file.display().to_string())?;
    // Punches out all old data; QEMU, if it has the file open, sees zeros.
    image.set_len(0)?;
    image.set_len(bytes)?;
    let mut script = String::from("label: gpt\n");
    for (name, mib) in &layout.0 {
        script.push_str(&format!("size={mib}MiB, name=\"{name}\"\n"));
    }
    let mut sfdisk = Command::new("sfdisk");
    sfdisk
        .args(["--quiet", "--no-reread", "--no-tell-kernel", "--lock=no"])
        .arg(file)
        .stdin(Stdio::piped())
        .stdout(Stdio::null());
    let mut child = sfdisk.spawn().context("cannot start sfdisk: run 'cargo xtask setup'")?;
    std::io::Write::write_all(&mut child.stdin.take().context("sfdisk's input")?, script.as_bytes())?;
    let status = child.wait()?;
    ensure!(status.success(), "sfdisk: {status}");
    Ok(())
}

/// Byte offsets in `file` at which `pattern` stands, in order, at most `most`.
///
/// # Errors
/// When the file cannot be read.
pub fn find(file: &Path, pattern: &[u8], most: usize) -> anyhow::Result<Vec<u64>> {
    const CHUNK: usize = 1 << 20;
    ensure!(!pattern.is_empty() && pattern.len() < CHUNK, "a pattern of {} bytes", pattern.len());
    let mut input = File::open(file).with_context(|| file.display().to_string())?;
    let (mut held, mut at, mut found) = (Vec::new(), 0u64, vec![]);
    loop {
        let read = input.by_ref().take(CHUNK as u64).read_to_end(&mut held)?;
        let mut from = 0;
        while let Some(hit) = position(&held[from..], pattern) {
            found.push(at + (from + hit) as u64);
            from += hit + 1;
            if found.len() == most {
                return Ok(found);
            }
        }
        if read == 0 {
            return Ok(found);
        }
        // Keep what may be the beginning of a pattern across the border.
        let keep_from = held.len().saturating_sub(pattern.len() - 1).max(from);
        held.drain(..keep_from);
        at += keep_from as u64;
    }
}

fn position(haystack: &[u8], needle: &[u8]) -> Option<usize> {
    let first = needle[0];
    let mut from = 0;
    while let Some(hit) = haystack[from..].iter().position(|&byte| byte == first) {
        let at = from + hit;
        if haystack[at..].starts_with(needle) {
            return Some(at);
        }
        from = at + 1;
    }
    None
}

/// `length` bytes of `file` at `offset`.
///
/// # Errors
/// When the file is shorter.
pub fn read_at(file: &Path, offset: u64, length: usize) -> anyhow::Result<Vec<u8>> {
    let mut bytes = vec![0; length];
    File::open(file)?.read_exact_at(&mut bytes, offset).with_context(|| format!("{} at {offset}", file.display()))?;
    Ok(bytes)
}

/// Puts `bytes` into `file` at `offset`, under a machine that runs or not.
///
/// # Errors
/// What the file system says.
pub fn write_at(file: &Path, offset: u64, bytes: &[u8]) -> anyhow::Result<()> {
    let image = File::options().write(true).open(file).with_context(|| file.display().to_string())?;
    image.write_all_at(bytes, offset).with_context(|| format!("{} at {offset}", file.display()))
}

/// The named partition of the image.
///
/// # Errors
/// When there is none, or the table is not valid.
pub fn partition(file: &Path, name: &str) -> anyhow::Result<Partition> {
    let all = gpt::read(file)?;
    all.into_iter()
        .find(|partition| partition.name == name)
        .with_context(|| format!("no partition {name} in {}", file.display()))
}

/// A file system copied out of an image, for the tools of e2fsprogs.
#[derive(Debug)]
pub struct Ext4Copy {
    file: PathBuf,
    /// Where it began in the image, in bytes.
    start: u64,
}

impl Ext4Copy {
    /// Copies `partition` of `image` to `file`, holes and all.
    ///
    /// # Errors
    /// What the file system says.
    pub fn of(image: &Path, partition: &Partition, file: &Path) -> anyhow::Result<Self> {
        let start = partition.first_lba * gpt::SECTOR;
        let mib = 1 << 20;
        ensure!(start.is_multiple_of(mib), "a partition at {start} is not aligned to MiB");
        let status = Command::new("dd")
            .args(["bs=1M", "conv=sparse", "status=none", "iflag=count_bytes"])
            .args([format!("skip={}", start / mib), format!("count={}", partition.bytes())])
            .args([format!("if={}", image.display()), format!("of={}", file.display())])
            .status()?;
        ensure!(status.success(), "dd: {status}");
        Ok(Self { file: file.to_path_buf(), start })
    }

    /// Checks the whole file system without changing it.
    ///
    /// # Errors
    /// With e2fsck's words, when it is not clean.
    pub fn check(&self) -> anyhow::Result<()> {
        let output = run(Command::new("e2fsck").arg("-fn").arg(&self.file))?;
        ensure!(output.status.success(), "e2fsck: {}{}", text(&output.stdout), text(&output.stderr));
        Ok(())
    }

    /// The bytes of a file in it.
    ///
    /// # Errors
    /// When there is no such file.
    pub fn read(&self, path: &str) -> anyhow::Result<Vec<u8>> {
        Ok(self.debugfs(&format!("cat {path}"))?.stdout)
    }

    /// Byte offsets in the *image* of the blocks of a file, in the file's order.
    ///
    /// # Errors
    /// When there is no such file.
    pub fn extents(&self, path: &str) -> anyhow::Result<Vec<u64>> {
        let block_bytes = self.block_bytes()?;
        let blocks = text(&self.debugfs(&format!("blocks {path}"))?.stdout);
        blocks
            .split_whitespace()
            .map(|block| {
                Ok(self.start
                    + block.parse::<u64>().with_context(|| format!("a block number: {blocks}"))? * block_bytes)
            })
            .collect()
    }

    fn block_bytes(&self) -> anyhow::Result<u64> {
        let stats = text(&self.debugfs("stats -h")?.stdout);
        let line = stats
            .lines()
            .find_map(|line| line.strip_prefix("Block size:"))
            .context("no block size in debugfs's stats")?;
        Ok(line.trim().parse()?)
    }

    fn debugfs(&self, request: &str) -> anyhow::Result<Output> {
        let output = run(Command::new("debugfs").args(["-R", request]).arg(&self.file))?;
        let err = text(&output.stderr);
        // debugfs exits with 0 whatever happens; beside its version line, an error is all it says there.
        if let Some(error) = err.lines().find(|line| !line.starts_with("debugfs 1.")) {
            bail!("debugfs {request}: {error}");
        }
        Ok(output)
    }
}

fn run(command: &mut Command) -> anyhow::Result<Output> {
    command
        .env("PATH", path_with_sbin())
        .output()
        .with_context(|| format!("cannot start {command:?}: run 'cargo xtask setup'"))
}

/// `e2fsck` and its kin are in directories which are not on everybody's path.
fn path_with_sbin() -> String {
    std::env::var("PATH").unwrap_or_default() + ":/usr/sbin:/sbin"
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scratch(name: &str) -> PathBuf {
        std::env::temp_dir().join(format!("nested-tests-{}-{name}", std::process::id()))
    }

    #[test]
    fn a_pattern_is_found_across_chunk_borders_and_overlapping() {
        let file = scratch("find");
        let mut bytes = vec![0u8; 3 << 20];
        for at in [0, (1 << 20) - 3, (1 << 20) + 100, (2 << 20) - 1, (3 << 20) - 5] {
            bytes[at..at + 5].copy_from_slice(b"nonce");
        }
        std::fs::write(&file, &bytes).expect("a file");
        let hits = find(&file, b"nonce", 10).expect("a search");
        assert_eq!(hits, [0, (1 << 20) - 3, (1 << 20) + 100, (2 << 20) - 1, (3 << 20) - 5]);
        assert_eq!(find(&file, b"nonce", 2).expect("a search"), [0, (1 << 20) - 3]);
        assert_eq!(find(&file, b"absent", 2).expect("a search"), [0u64; 0]);
        std::fs::write(&file, b"aaaa").expect("a file");
        assert_eq!(find(&file, b"aa", 10).expect("a search"), [0, 1, 2]);
        std::fs::remove_file(&file).expect("removed");
    }
}
