//! What a frontend publishes to be connected. All of it is the guest's word: read strictly, bounded, and refused with a reason.

use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec::Vec;

use xen_proto::GrantRef;
use xen_proto::blkif::Abi;
use xen_proto::xenbus::parse_number;
use xen_proto::xenstore::StoreError;

use super::Rings;
use super::batch::Batch;

/// The largest ring that we take, as a power of two in pages (`max-ring-page-order`, blkif.h).
pub(super) const MAX_RING_PAGE_ORDER: u32 = 4;

/// The keys that are read first, in the order of the batch.
pub(super) const KEYS: [&str; 6] =
    ["event-channel", "protocol", "multi-queue-num-queues", "ring-page-order", "ring-ref", "num-ring-pages"];

/// What follows from the first keys.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Found {
    /// A ring of one page: all is known.
    Complete(Rings),
    /// A ring that says its size: `ring-ref0` and so on are still to be read, this many, into `pages`.
    More(Rings, usize),
}

/// Reads the replies to [`KEYS`].
///
/// # Errors
/// What is wrong, for a person.
pub(super) fn parse_keys(batch: &Batch) -> Result<Found, String> {
    let event_channel = number(KEYS[0], batch.value(0))?;
    let abi = match optional(KEYS[1], batch.value(1))? {
        // The default of the protocol on x86 is the 32-bit layout, whatever the guest (protocols.h).
        None => Abi::X86_32,
        Some(name) => core::str::from_utf8(name)
            .ok()
            .and_then(Abi::from_protocol)
            .ok_or("protocol is neither x86_64-abi nor x86_32-abi")?,
    };
    if let Some(queues) = optional(KEYS[2], batch.value(2))?
        && parse_number(queues) != Some(1)
    {
        return Err("multi-queue-num-queues is not 1, and more was not offered".to_string());
    }
    let rings = Rings { pages: Vec::new(), event_channel, abi };
    match said_pages(batch)? {
        Some(pages) => Ok(Found::More(rings, pages)),
        None => Ok(Found::Complete(Rings { pages: alloc::vec![GrantRef(number(KEYS[4], batch.value(4))?)], ..rings })),
    }
}

/// How many pages the ring has, if the frontend says so: by an order, or by the older key, which goes with `max-ring-pages`.
fn said_pages(batch: &Batch) -> Result<Option<usize>, String> {
    if let Some(order) = optional(KEYS[3], batch.value(3))? {
        return match parse_number(order).and_then(|order| u32::try_from(order).ok()) {
            Some(order) if order <= MAX_RING_PAGE_ORDER => Ok(Some(1 << order)),
            _ => Err(format!("ring-page-order is not a number from 0 to {MAX_RING_PAGE_ORDER}")),
        };
    }
    let Some(pages) = optional(KEYS[5], batch.value(5))? else { return Ok(None) };
    match parse_number(pages).and_then(|pages| usize::try_from(pages).ok()) {
        // A ring of one page is in `ring-ref` unless an order is said.
        Some(1) => Ok(None),
        Some(pages) if pages.is_power_of_two() && pages <= 1 << MAX_RING_PAGE_ORDER => Ok(Some(pages)),
        _ => Err(format!("num-ring-pages is not a power of two up to {}", 1 << MAX_RING_PAGE_ORDER)),
    }
}

/// The key of a page of a ring that says its size.
pub(super) fn page_key(page: usize) -> String {
    format!("ring-ref{page}")
}

/// Reads the replies to the keys of `count` pages.
///
/// # Errors
/// What is wrong, for a person.
pub(super) fn parse_pages(rings: Rings, count: usize, batch: &Batch) -> Result<Rings, String> {
    let page = |page| number(&page_key(page), batch.value(page)).map(GrantRef);
    Ok(Rings { pages: (0..count).map(page).collect::<Result<_, _>>()?, ..rings })
}

fn number(key: &str, value: Result<&[u8], StoreError>) -> Result<u32, String> {
    let value = optional(key, value)?.ok_or_else(|| format!("{key} is missing"))?;
    parse_number(value).and_then(|number| u32::try_from(number).ok()).ok_or_else(|| format!("{key} is not a number"))
}

/// A key's value, if it is there. A frontend may keep us from reading it; that is as if it were not there.
fn optional<'a>(key: &str, value: Result<&'a [u8], StoreError>) -> Result<Option<&'a [u8]>, String> {
    match value {
        Ok(value) => Ok(Some(value)),
        Err(StoreError::NoEntry | StoreError::Access) => Ok(None),
        Err(error) => Err(format!("{key} cannot be read: {error:?}")),
    }
}

#[cfg(test)]
mod tests {
    use xen_proto::xenstore::Payload;

    use super::*;

    const MISSING: &str = "<missing>";

    fn batch(values: &[&str]) -> Batch {
        let mut batch = Batch::new(values.len());
        for (slot, value) in values.iter().enumerate() {
            let missing = *value == MISSING;
            batch.reply(slot, if missing { Err(StoreError::NoEntry) } else { Ok(Payload::Value((*value).into())) });
        }
        batch
    }

    fn rings(pages: &[u32], abi: Abi) -> Rings {
        Rings { pages: pages.iter().copied().map(GrantRef).collect(), event_channel: 7, abi }
    }

    #[test]
    fn keys_that_make_sense() {
        use Abi::{X86_32, X86_64};
        for (values, found) in [
            (["7", "x86_64-abi", MISSING, MISSING, "8", MISSING], Found::Complete(rings(&[8], X86_64))),
            (["7", "x86_32-abi", MISSING, MISSING, "8", MISSING], Found::Complete(rings(&[8], X86_32))),
            (["7", MISSING, "1", MISSING, "8", MISSING], Found::Complete(rings(&[8], X86_32))),
            (["7", "x86_64-abi", MISSING, "0", MISSING, MISSING], Found::More(rings(&[], X86_64), 1)),
            (["7", "x86_64-abi", MISSING, "4", "8", MISSING], Found::More(rings(&[], X86_64), 16)),
            (["7", "x86_64-abi", MISSING, MISSING, MISSING, "8"], Found::More(rings(&[], X86_64), 8)),
            (["7", "x86_64-abi", MISSING, MISSING, "8", "1"], Found::Complete(rings(&[8], X86_64))),
            (["7", "x86_64-abi", MISSING, "1", MISSING, "2"], Found::More(rings(&[], X86_64), 2)),
        ] {
            assert_eq!(parse_keys(&batch(&values)), Ok(found), "{values:?}");
        }
        assert_eq!(parse_pages(rings(&[], X86_64), 2, &batch(&["8", "9"])), Ok(rings(&[8, 9], X86_64)));
    }

    #[test]
    fn keys_that_do_not() {
        for (values, word) in [
            ([MISSING, "x86_64-abi", MISSING, MISSING, "8", MISSING], "event-channel"),
            (["", "x86_64-abi", MISSING, MISSING, "8", MISSING], "event-channel"),
            (["-7", "x86_64-abi", MISSING, MISSING, "8", MISSING], "event-channel"),
            (["4294967296", "x86_64-abi", MISSING, MISSING, "8", MISSING], "event-channel"),
            (["7", "arm-abi", MISSING, MISSING, "8", MISSING], "protocol"),
            (["7", "\u{0}", MISSING, MISSING, "8", MISSING], "protocol"),
            (["7", "x86_64-abi", "0", MISSING, "8", MISSING], "multi-queue-num-queues"),
            (["7", "x86_64-abi", "2", MISSING, "8", MISSING], "multi-queue-num-queues"),
            (["7", "x86_64-abi", MISSING, "5", "8", MISSING], "ring-page-order"),
            (["7", "x86_64-abi", MISSING, "99999999999999999999", "8", MISSING], "ring-page-order"),
            (["7", "x86_64-abi", MISSING, "x", "8", MISSING], "ring-page-order"),
            (["7", "x86_64-abi", MISSING, MISSING, MISSING, MISSING], "ring-ref"),
            (["7", "x86_64-abi", MISSING, MISSING, "8", "0"], "num-ring-pages"),
            (["7", "x86_64-abi", MISSING, MISSING, "8", "3"], "num-ring-pages"),
            (["7", "x86_64-abi", MISSING, MISSING, "8", "32"], "num-ring-pages"),
            (["7", "x86_64-abi", MISSING, MISSING, "8", "x"], "num-ring-pages"),
        ] {
            let reason = parse_keys(&batch(&values)).expect_err("nonsense");
            assert!(reason.contains(word), "{values:?}: {reason}");
        }
        let reason = parse_pages(rings(&[], Abi::X86_64), 2, &batch(&["8", MISSING])).expect_err("one is missing");
        assert!(reason.contains("ring-ref1"), "{reason}");
    }
}
