//! Data goes between the guest's pages and the disk, never through driverdom: Xen's own list of mappings shows it.

use anyhow::{bail, ensure};
use serde_json::json;

use super::Scenario;
use super::vbd::Vbd;
use crate::driverdom::{Config, Driverdom};
use crate::guest::{LinuxConfig, LinuxGuest};
use crate::qmp::Qmp;
use crate::world::{Boot, DISK, World};

pub(super) const SCENARIOS: &[Scenario] = &[Scenario {
    name: "direct-data-never-passes-through",
    about: "in mid-I/O, Xen shows data pages mapped for the device alone, and more of them than driverdom has memory",
    boot: Boot::Default,
    run: data_never_passes_through,
}];

/// How slow the disk is made, in bytes a second, for requests to pile up: each of a MiB would take minutes.
const SLOW: u64 = 1 << 12;
/// The guest's requests.
const WRITERS: u32 = 24;
const MEMORY_MIB: u32 = 8;

fn data_never_passes_through(world: &mut World) -> anyhow::Result<()> {
    let driverdom = Driverdom::start(&world.dom0, &Config { memory_mib: MEMORY_MIB, ..Config::default() })?;
    let mut config = LinuxConfig::new("s-direct").disk("xvda", "rw", "gpt:demo");
    config.words = "xen_blkfront.max_ring_page_order=4 xen_blkfront.max_indirect_segments=256".into();
    config.memory_mib = 320;
    let guest = LinuxGuest::create(&world.dom0, &config)?;
    Vbd::of(&world.dom0, &driverdom, &guest.name, "xvda")?.wait_connected()?;
    let owner: u32 = world.dom0.check("xl domid s-direct", 30)?.parse()?;

    throttle(&mut world.qmp, SLOW)?;
    let write = format!(
        "for i in $(seq {WRITERS}); do dd if=/dev/zero of=/dev/xvda bs=1M count=1 seek=$i oflag=direct status=none & done; wait"
    );
    let writing = guest.begin(&write, 300)?;
    // The first may be over before the disk is slow.
    let waiting = format!("read r w < /sys/block/xvda/inflight; [ $w -ge {} ]", WRITERS - 2);
    guest.check(&format!("until {waiting}; do usleep 100000; done"), 200)?;
    let pins = Pins::of(world, owner, driverdom.domid)?;
    throttle(&mut world.qmp, 0)?;
    let written = writing.wait()?;
    ensure!(written.rc == 0, "the writers failed: {written:?}");
    let shown = format!("{pins:?}");
    ensure!(
        pins.device_only * PAGE > u64::from(MEMORY_MIB) << 20,
        "no more bytes under way than driverdom has memory: {shown}"
    );
    // The ring's pages are driverdom's to read, and nothing of the device's.
    ensure!(pins.both == 0 && pins.host_only == RING_PAGES, "data pages are mapped into driverdom: {shown}");
    Ok(())
}

const PAGE: u64 = 4096;
/// Of a ring of order 4.
const RING_PAGES: u64 = 16;

/// Limits the data disk in QEMU; 0 lifts the limit.
fn throttle(qmp: &mut Qmp, bytes_per_second: u64) -> anyhow::Result<()> {
    let device = format!("/machine/peripheral/data{DISK}/virtio-backend");
    let limits =
        json!({"id": device, "bps": bytes_per_second, "bps_rd": 0, "bps_wr": 0, "iops": 0, "iops_rd": 0, "iops_wr": 0});
    qmp.execute("block_set_io_throttle", &limits)?;
    Ok(())
}

/// How many of a guest's pages are mapped by driverdom, and for whom.
#[derive(Debug, Default, PartialEq, Eq)]
struct Pins {
    device_only: u64,
    host_only: u64,
    both: u64,
}

impl Pins {
    /// From what Xen prints on the debug key 'g' for `owner`'s grants to `grantee`, on the serial line: `xl dmesg` keeps but the end of it.
    fn of(world: &World, owner: u32, grantee: u32) -> anyhow::Result<Self> {
        let from = world.serial.text()?.len();
        world.dom0.check("xl debug-keys g", 120)?;
        let text = world.serial.text()?;
        Self::parse(&text[from..], owner, grantee)
    }

    /// Lines are `(XEN) [0xREF] DOMAIN 0xMFN 0xPIN ...` under a heading `grant-table for remote dN`. The bytes of a pin
    /// count, from the lowest, mappings by the host to write and to read, and by a device to write and to read
    /// (xen/include/xen/grant_table.h).
    fn parse(text: &str, owner: u32, grantee: u32) -> anyhow::Result<Self> {
        let heading = format!("grant-table for remote d{owner} ");
        let Some((_, table)) = text.split_once(&heading) else {
            bail!("Xen lists no grants of domain {owner}: {text}")
        };
        let table = table.split("grant-table for remote").next().unwrap_or("");
        let mut pins = Self::default();
        for line in table.lines() {
            let words: Vec<_> = line
                .split_once('[')
                .map_or(vec![], |(_, rest)| rest.split([']', ' ']).filter(|word| !word.is_empty()).collect());
            let [_, domain, _, pin, ..] = words[..] else { continue };
            let Some(pin) = pin.strip_prefix("0x").and_then(|digits| u32::from_str_radix(digits, 16).ok()) else {
                continue;
            };
            if domain != grantee.to_string() {
                continue;
            }
            match (pin & 0xffff != 0, pin >> 16 != 0) {
                (true, true) => pins.both += 1,
                (true, false) => pins.host_only += 1,
                (false, true) => pins.device_only += 1,
                (false, false) => {}
            }
        }
        Ok(pins)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pins_of_a_guest() {
        let text = "\
(XEN) grant-table for remote d3 (v1)\n(XEN) [0x008]      1 0x01bc04 0x01000000          1 0x01bc04 0x19\n\
(XEN) grant-table for remote d7 (v1)\n(XEN)   1 frames (64 max), 0 maptrack frames (1024 max)\n\
(XEN) [0x000]      0 0x01bc01 0x00000001          0 0x01bc01 0x19\n\
(XEN) [0x008]      1 0x01bc04 0x00000001          1 0x01bc04 0x19\n\
(XEN) [0x009]      1 0x01bc05 0x01000000          1 0x01bc05 0x0d\n\
(XEN) [0x00a]      1 0x01bc06 0x00010000          1 0x01bc06 0x19\n\
(XEN) [0x00b]      1 0x01bc06 0x00010001          1 0x01bc06 0x19\n\
(XEN) grant-table for remote d9 (v1)\n(XEN) [0x008]      1 0x01bc04 0x01000000          1 0x01bc04 0x19\n";
        assert_eq!(Pins::parse(text, 7, 1).expect("a table"), Pins { device_only: 2, host_only: 1, both: 1 });
        assert_eq!(Pins::parse(text, 9, 2).expect("a table"), Pins::default());
        assert!(Pins::parse(text, 8, 1).is_err());
    }
}
