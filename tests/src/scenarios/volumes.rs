//! Disks given at creation: which place on which disk each shows, how big it is, and who may write.

use anyhow::ensure;

use super::Scenario;
use super::host_bytes::nonce;
use super::vbd::wait_all_connected;
use crate::driverdom::Config;
use crate::gpt::SECTOR;
use crate::guest::LinuxConfig;
use crate::image::{self, Layout};
use crate::world::{Boot, DISK, LOGGED_DISK, World};

pub(super) const SCENARIOS: &[Scenario] = &[Scenario {
    name: "volumes-eight-of-all-kinds",
    about: "partitions by name and GUID, a whole disk and RAM: each shows its own place, size and access, by the host's view",
    boot: Boot::Default,
    run: eight_of_all_kinds,
}];

/// A disk to give to the guest, and what the host knows of it.
struct Case {
    access: &'static str,
    target: String,
    /// Size in bytes.
    bytes: u64,
    /// Slot of the disk it is on and its first byte there; none in RAM.
    place: Option<(u8, u64)>,
}

impl Case {
    fn ram(access: &'static str, mib: u64) -> Self {
        Self { access, target: format!("ram:{mib}M"), bytes: mib << 20, place: None }
    }
}

fn cases(world: &World) -> anyhow::Result<Vec<Case>> {
    let table = crate::gpt::read(&world.disk(DISK).file)?;
    let on_disk = |access, index: usize, by_guid: bool| {
        let partition = &table[index];
        let key = if by_guid { &partition.guid } else { &partition.name };
        Case {
            access,
            target: format!("gpt:{key}"),
            bytes: partition.bytes(),
            place: Some((DISK, partition.first_lba * SECTOR)),
        }
    };
    let whole = std::fs::metadata(&world.disk(LOGGED_DISK).file)?.len();
    Ok(vec![
        on_disk("rw", 0, false),
        on_disk("r", 1, false),
        on_disk("rw", 2, true),
        on_disk("r", 3, true),
        Case { access: "rw", target: "disk1".into(), bytes: whole, place: Some((LOGGED_DISK, 0)) },
        Case::ram("rw", 1),
        Case::ram("rw", 3),
        Case::ram("r", 2),
    ])
}

/// Where in each volume the host leaves a word for the guest, and the guest one for the host: behind a partition table.
const HOSTS_WORD: u64 = 64 * SECTOR;
const GUESTS_WORD: u64 = 96 * SECTOR;

fn eight_of_all_kinds(world: &mut World) -> anyhow::Result<()> {
    // Names on it would be on both disks.
    world.lay_out(LOGGED_DISK, &Layout(vec![]))?;
    let cases = cases(world)?;
    let mut config = LinuxConfig::new("s-eight");
    let mut words = vec![];
    for (case, vdev) in cases.iter().zip(VDEVS) {
        config = config.disk(vdev, case.access, &case.target);
        words.push((nonce()?, nonce()?));
        if let Some((slot, start)) = case.place {
            image::write_at(&world.disk(slot).file, start + HOSTS_WORD, words[words.len() - 1].0.as_bytes())?;
        }
    }
    let pci = world.disks.iter().map(crate::qemu::DataDisk::address).collect();
    let driverdom = world.driverdom(&Config { memory_mib: 16, pci, ..Config::default() })?;
    let guest = world.linux(&config)?;
    wait_all_connected(&world.dom0, &driverdom, &guest.name, cases.len())?;
    let guests_words: Vec<_> = words.iter().map(|(_, guests)| guests.as_str()).collect();
    let seen = guest.check(&format!("set -- {}; {LOOK}", guests_words.join(" ")), 180)?;
    ensure!(seen.lines().count() == cases.len(), "the guest sees {seen}");
    for ((case, line), (hosts, guests)) in cases.iter().zip(seen.lines()).zip(&words) {
        let read_only = case.access == "r";
        let word = if case.place.is_some() { hosts.clone() } else { ".".repeat(32) };
        let expect = format!(
            "{} {} {word} {}",
            case.bytes / SECTOR,
            u8::from(read_only),
            if read_only { "refused" } else { "written" }
        );
        ensure!(line == expect, "{}: the guest sees '{line}', not '{expect}'", case.target);
        if let Some((slot, start)) = case.place {
            let found = image::read_at(&world.disk(slot).file, start + GUESTS_WORD, 32)?;
            ensure!(
                (found == guests.as_bytes()) != read_only,
                "{}: the image is not as the write should have left it",
                case.target
            );
        }
    }
    Ok(())
}

/// What the guest does with each of its disks, in order: shows size and access, the host's word, and whether its own (`$1`, `$2`, ...)
/// could be written.
const LOOK: &str = r"
for d in /dev/xvd*; do
    n=${d#/dev/}
    word=$(dd if=$d bs=512 count=1 skip=64 iflag=direct status=none | head -c 32 | tr '\0' .)
    printf %-512s $1 | dd of=$d bs=512 seek=96 oflag=direct status=none 2> /dev/null && end=written || end=refused
    echo $(cat /sys/block/$n/size /sys/block/$n/ro) $word $end
    shift
done";

const VDEVS: [&str; 8] = ["xvda", "xvdb", "xvdc", "xvdd", "xvde", "xvdf", "xvdg", "xvdh"];
