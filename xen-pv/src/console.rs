//! The PV console: lines for dom0's `xenconsoled`, and what a person types there. A reader that is stuck costs us lines, never
//! time; a writer that makes no sense is not listened to.

use core::fmt::{self, Write};
use core::sync::atomic::Ordering;

use spin::{Mutex, Once};
use xen_proto::{Nanos, Port};

use crate::abi::event::Send;
use crate::abi::rings::{CONSOLE_IN, CONSOLE_OUT, ConsoleInterface};
use crate::abi::shared_info::SharedInfo;
use crate::clock::Clock;
use crate::{event, hypercall, ring};

/// How long the last words wait for a reader that makes no progress.
const PATIENCE: Nanos = Nanos::from_millis(1000);
/// How often they look.
const LOOK: Nanos = Nanos::from_millis(5);

static CONSOLE: Once<Console> = Once::new();

struct Console {
    ring: &'static ConsoleInterface,
    port: Port,
    /// Set once the page is mapped; without it there is no time, and the last words do not wait.
    shared: Once<&'static SharedInfo>,
    dropped: Mutex<u32>,
}

/// Takes the console ring into use.
pub(crate) fn init(ring: &'static ConsoleInterface, port: Port) {
    CONSOLE.call_once(|| Console { ring, port, shared: Once::new(), dropped: Mutex::new(0) });
}

/// From now on the last words can wait for their reader.
pub(crate) fn set_shared_info(shared: &'static SharedInfo) {
    if let Some(console) = CONSOLE.get() {
        console.shared.call_once(|| shared);
    }
}

/// The page shared with Xen, if it is mapped yet: for those who have nothing but statics.
pub(crate) fn shared_info() -> Option<&'static SharedInfo> {
    CONSOLE.get()?.shared.get().copied()
}

/// Writes a line, or drops it if it does not fit: then the next line that fits says how many were lost.
pub(crate) fn write_line(line: &Line) {
    let Some(console) = CONSOLE.get() else { return };
    // Held for a copy only, which cannot panic; taken already only if a trap came in that copy.
    let Some(mut dropped) = console.dropped.try_lock() else { return };
    let mut note = Line::new();
    if *dropped > 0 {
        let _ = write!(note, "({} lines dropped)", *dropped);
        note.end();
    }
    if console.room() < note.len + line.len {
        *dropped = dropped.saturating_add(1);
        return;
    }
    *dropped = 0;
    console.push(note.bytes());
    console.push(line.bytes());
    console.notify();
}

/// Writes the last words: waits for room, but not for ever.
pub(crate) fn write_urgently(line: &Line) {
    let Some(console) = CONSOLE.get() else { return };
    console.wait_for(|console| console.room() >= line.len);
    if console.room() >= line.len {
        console.push(line.bytes());
        console.notify();
    }
}

/// Room that [`print`] leaves for lines of the log.
const ROOM_FOR_LOG: usize = CONSOLE_OUT / 2;

/// There is no room now: an event of the console's port says when to try again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NoRoom;

/// Writes a line that a person asked for, cut if it is too long.
///
/// # Errors
/// [`NoRoom`]: the line was not written.
pub fn print(text: &str) -> Result<(), NoRoom> {
    let console = CONSOLE.get().ok_or(NoRoom)?;
    let mut line = Line::new();
    let _ = line.write_str(text);
    line.end();
    if console.room() < ROOM_FOR_LOG + line.len {
        return Err(NoRoom);
    }
    console.push(line.bytes());
    console.notify();
    Ok(())
}

/// Takes what was typed, up to `into.len()` bytes; 0: nothing.
pub fn read(into: &mut [u8]) -> usize {
    let Some(console) = CONSOLE.get() else { return 0 };
    let count = take_typed(console.ring, into);
    if count > 0 {
        // The daemon may be waiting for room.
        console.notify();
    }
    count
}

/// What the daemon's index claims beyond the ring's size was never typed: all of it is skipped.
fn take_typed(ring: &ConsoleInterface, into: &mut [u8]) -> usize {
    let prod = ring.in_prod.load(Ordering::Acquire);
    let cons = ring.in_cons.load(Ordering::Relaxed);
    let Some(filled) = ring::filled(prod, cons, CONSOLE_IN) else {
        ring.in_cons.store(prod, Ordering::Release);
        return 0;
    };
    let count = filled.min(into.len());
    ring::copy_out(&ring.input, cons, &mut into[..count]);
    #[expect(clippy::cast_possible_truncation, reason = "at most the ring's size")]
    ring.in_cons.store(cons.wrapping_add(count as u32), Ordering::Release);
    count
}

/// Waits, but not for ever, until all that was written has been read: at the end of a domain its console ring is lost, and
/// lines that come faster than they are read are dropped.
pub fn drain() {
    if let Some(console) = CONSOLE.get() {
        console.wait_for(|console| console.room() == CONSOLE_OUT);
    }
}

impl Console {
    /// Free bytes; none if the reader's index makes no sense.
    fn room(&self) -> usize {
        let cons = self.ring.out_cons.load(Ordering::Acquire);
        let prod = self.ring.out_prod.load(Ordering::Relaxed);
        ring::filled(prod, cons, CONSOLE_OUT).map_or(0, |filled| CONSOLE_OUT - filled)
    }

    /// Appends bytes, for which there is room.
    fn push(&self, bytes: &[u8]) {
        let prod = self.ring.out_prod.load(Ordering::Relaxed);
        ring::copy_in(&self.ring.output, prod, bytes);
        #[expect(clippy::cast_possible_truncation, reason = "a line is shorter than the ring")]
        self.ring.out_prod.store(prod.wrapping_add(bytes.len() as u32), Ordering::Release);
    }

    fn notify(&self) {
        // An error means that nobody listens, which we can tell nobody.
        let _ = hypercall::event_channel_op(&mut Send { port: self.port.0 });
    }

    /// Waits for a condition that the reader brings about, as long as it makes some progress.
    fn wait_for(&self, done: impl Fn(&Self) -> bool) {
        let Some(shared) = self.shared.get() else { return };
        let clock = Clock::new(shared);
        let mut seen = self.room();
        let mut since = clock.now();
        while !done(self) && clock.now().since(since) < PATIENCE {
            self.notify();
            event::clear_pending(shared, self.port);
            hypercall::poll(self.port.0, clock.now() + LOOK);
            if self.room() != seen {
                seen = self.room();
                since = clock.now();
            }
        }
    }
}

/// A line being made: bounded, without control characters, so that text of others cannot forge lines.
pub(crate) struct Line {
    text: [u8; Line::MAX],
    len: usize,
}

impl Line {
    /// Bytes at most, with the end of line; what is longer is cut.
    const MAX: usize = 512;
    const END: &[u8] = b"\r\n";

    pub(crate) const fn new() -> Self {
        Self { text: [0; Self::MAX], len: 0 }
    }

    /// Ends the line.
    pub(crate) fn end(&mut self) {
        self.text[self.len..][..Self::END.len()].copy_from_slice(Self::END);
        self.len += Self::END.len();
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        &self.text[..self.len]
    }
}

impl Write for Line {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        let room = (Self::MAX - Self::END.len()).saturating_sub(self.len);
        for byte in text.bytes().take(room) {
            self.text[self.len] = if byte < b' ' || byte == 0x7f { b'.' } else { byte };
            self.len += 1;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_typed_is_taken_once_and_nonsense_is_skipped() {
        // SAFETY: all fields are atomics of integers, for which zero is valid.
        let ring: ConsoleInterface = unsafe { core::mem::zeroed() };
        for (place, byte) in ring.input.iter().zip((b'a'..=b'z').cycle()) {
            place.store(byte, Ordering::Relaxed);
        }
        let mut into = [0; 4];
        for (prod, cons, taken, cons_after) in [
            (0, 0, &b""[..], 0),
            (3, 0, b"abc", 3),
            (6, 0, b"abcd", 4),
            (1, u32::MAX, b"ja", 1),
            (1025, 0, b"", 1025),
            (0, 1, b"", 0),
            (1024, 0, b"abcd", 4),
        ] {
            ring.in_prod.store(prod, Ordering::Relaxed);
            ring.in_cons.store(cons, Ordering::Relaxed);
            let count = take_typed(&ring, &mut into);
            assert_eq!((&into[..count], ring.in_cons.load(Ordering::Relaxed)), (taken, cons_after), "{prod} {cons}");
        }
    }

    #[test]
    fn lines_are_bounded_and_without_control_characters() {
        let long = "x".repeat(600);
        let cut = "x".repeat(Line::MAX - 2);
        for (text, expect) in
            [("hello", "hello"), ("a\nb\x1b[2J\x7f", "a.b.[2J."), ("", ""), (long.as_str(), cut.as_str())]
        {
            let mut line = Line::new();
            let _ = line.write_str(text);
            line.end();
            assert_eq!(core::str::from_utf8(line.bytes()), Ok(format!("{expect}\r\n").as_str()));
        }
    }
}
