//! Backtraces by frame pointers (the guests are built with `force-frame-pointers`), within the bounds of one stack.

use core::ops::Range;

/// Return addresses, innermost first, found by following frame pointers from `frame`. Every frame must lie on `stack`,
/// aligned and above the one before, and every address in `text`, so a destroyed stack ends the trace and nothing else.
/// `word` reads the stack word at an address; it is asked only about aligned words on `stack`.
pub fn return_addresses(
    frame: usize,
    stack: Range<usize>,
    text: Range<usize>,
    word: impl Fn(usize) -> usize,
) -> impl Iterator<Item = usize> {
    const WORD: usize = size_of::<usize>();
    let mut next = Some(frame);
    core::iter::from_fn(move || {
        let at = next.take()?;
        let last = stack.end.checked_sub(2 * WORD)?;
        if at < stack.start || at > last || !at.is_multiple_of(WORD) {
            return None;
        }
        let address = word(at + WORD);
        next = Some(word(at)).filter(|above| *above > at);
        text.contains(&address).then_some(address)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const STACK: Range<usize> = 0x1000..0x1040;
    const TEXT: Range<usize> = 0x400..0x500;

    fn check(words: [usize; 8], frame: usize, expect: &[usize]) {
        let found: Vec<usize> = return_addresses(frame, STACK, TEXT, |at| words[(at - STACK.start) / 8]).collect();
        assert_eq!(found, expect, "from {frame:#x} in {words:x?}");
    }

    #[test]
    fn frames_are_followed_within_bounds() {
        check([0x1010, 0x401, 0x1030, 0x402, 0, 0, 0, 0x403], 0x1000, &[0x401, 0x402, 0x403]);
    }

    #[test]
    fn nonsense_ends_the_trace() {
        let chain = [0x1010, 0x401, 0x1000, 0x402, 0, 0, 0, 0];
        check(chain, 0x1000, &[0x401, 0x402]); // a frame below its predecessor
        check(chain, 0, &[]);
        check(chain, 0x1001, &[]); // unaligned
        check(chain, 0x1038, &[]); // its second word would be outside
        check(chain, usize::MAX - 7, &[]);
        check([0x1010, 0x500, 0, 0, 0, 0, 0, 0], 0x1000, &[]); // not in the text
        check([0x1000, 0x401, 0, 0, 0, 0, 0, 0], 0x1000, &[0x401]); // a loop
    }
}
