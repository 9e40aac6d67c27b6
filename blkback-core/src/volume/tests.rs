//! The grammar of targets, and finding what they name.

use super::*;
use crate::gpt::GptError;

#[test]
fn targets() {
    let name =
        |disk: Option<u16>, name| Ok(Target::Partition { disk: disk.map(DiskId), key: PartitionKey::Name(name) });
    let ram = |bytes| Ok(Target::Ram { bytes });
    let (syntax, size) = (Err(TargetError::Syntax), Err(TargetError::Size));
    let cases = [
        ("disk0", Ok(Target::Disk(DiskId(0)))),
        ("disk12", Ok(Target::Disk(DiskId(12)))),
        ("gpt:demo", name(None, "demo")),
        ("gpt:two words", name(None, "two words")),
        ("gpt:a:b/c", name(None, "a:b/c")),
        ("gpt:disk0", name(None, "disk0")),
        ("gpt:gpt:x", name(None, "gpt:x")),
        ("gpt:größe", name(None, "größe")),
        ("disk1/gpt:demo", name(Some(1), "demo")),
        ("disk1/gpt:x/gpt:y", name(Some(1), "x/gpt:y")),
        ("gpt:0FC63DAF-8483-4772-8E79-3D69D8477DE", name(None, "0FC63DAF-8483-4772-8E79-3D69D8477DE")),
        ("ram:64M", ram(64 << 20)),
        ("ram:4K", ram(4096)),
        ("ram:1G", ram(1 << 30)),
        ("ram:5K", ram(4096)),
        ("", syntax),
        ("disk", syntax),
        ("disk00", syntax),
        ("disk-1", syntax),
        ("disk+1", syntax),
        ("disk65536", syntax),
        ("disk0 ", syntax),
        ("Disk0", syntax),
        ("disk0/", syntax),
        ("disk0/demo", syntax),
        ("disk0/gpt:", syntax),
        ("demo/gpt:x", syntax),
        ("gpt:", syntax),
        ("/dev/sda", syntax),
        ("ram:", syntax),
        ("ram:64", syntax),
        ("ram:M", syntax),
        ("ram:64m", syntax),
        ("ram:+1M", syntax),
        ("ram:0M", size),
        ("ram:3K", size),
        ("ram:99999999999999999999G", size),
        ("ram:18446744073709551615G", size),
    ];
    for (text, expect) in cases {
        assert_eq!(Target::parse(text), expect, "{text:?}");
    }
}

#[test]
fn guids() {
    let guid = Guid([0xaf, 0x3d, 0xc6, 0x0f, 0x83, 0x84, 0x72, 0x47, 0x8e, 0x79, 0x3d, 0x69, 0xd8, 0x47, 0x7d, 0xe4]);
    for text in ["0FC63DAF-8483-4772-8E79-3D69D8477DE4", "0fc63daf-8483-4772-8e79-3d69d8477de4"] {
        assert_eq!(Guid::parse(text), Some(guid));
        let target = format!("gpt:{text}");
        let key = PartitionKey::Guid(guid);
        assert_eq!(Target::parse(&target), Ok(Target::Partition { disk: None, key }));
    }
    let wrong = [
        "",
        "0FC63DAF-8483-4772-8E79-3D69D8477DE",
        "0FC63DAF-8483-4772-8E79-3D69D8477DEG",
        "0FC63DAF-8483-4772-8E793D69-D8477DE4",
        "0FC63DAF08483-4772-8E79-3D69D8477DE4",
        "-FC63DAF-8483-4772-8E79-3D69D8477DE4",
        "äääääääääääääääääää",
    ];
    for text in wrong {
        assert_eq!(Guid::parse(text), None, "{text:?}");
    }
}

fn partition(name: &str, guid: u8, start: u64) -> Partition {
    let mut units = [0; 36];
    units.iter_mut().zip(name.encode_utf16()).for_each(|(unit, from)| *unit = from);
    Partition { guid: Guid([guid; 16]), name: units, start, sectors: 8 }
}

fn disk(partitions: Result<Vec<Partition>, GptError>) -> DiskTable {
    let geometry =
        Geometry { sectors: 1000, logical_block: 512, physical_block: 512, writable: true, write_cache: true };
    DiskTable { geometry, partitions }
}

#[test]
fn locating() {
    let longest = "x".repeat(36);
    let disks = [
        disk(Ok(vec![partition("boot", 1, 8), partition("root", 2, 16), partition("", 3, 24)])),
        disk(Ok(vec![partition("root", 4, 32), partition(&longest, 4, 40)])),
        disk(Err(GptError::Absent)),
    ];
    let at = |disk, start| Ok(Extent { disk: DiskId(disk), start, sectors: 8 });
    let unreadable = Err(TargetError::Unreadable(DiskId(2), GptError::Absent));
    let guid = |byte: u8| PartitionKey::Guid(Guid([byte; 16]));
    let cases = [
        (None, PartitionKey::Name("boot"), at(0, 8)),
        (None, PartitionKey::Name(&longest), at(1, 40)),
        (None, PartitionKey::Name("root"), Err(TargetError::Ambiguous)),
        (Some(0), PartitionKey::Name("root"), at(0, 16)),
        (Some(1), PartitionKey::Name("root"), at(1, 32)),
        (None, PartitionKey::Name("roo"), unreadable),
        (None, PartitionKey::Name("roots"), unreadable),
        (None, PartitionKey::Name("Root"), unreadable),
        (Some(0), PartitionKey::Name("home"), Err(TargetError::NoPartition)),
        (Some(2), PartitionKey::Name("root"), unreadable),
        (Some(3), PartitionKey::Name("root"), Err(TargetError::NoDisk(DiskId(3)))),
        (None, guid(2), at(0, 16)),
        (None, guid(4), Err(TargetError::Ambiguous)),
        (Some(1), guid(2), Err(TargetError::NoPartition)),
    ];
    for (disk, key, expect) in cases {
        assert_eq!(locate_partition(disk.map(DiskId), key, &disks), expect, "{disk:?} {key:?}");
    }
    assert_eq!(locate_disk(DiskId(1), &disks), Ok(Extent { disk: DiskId(1), start: 0, sectors: 1000 }));
    assert_eq!(locate_disk(DiskId(3), &disks), Err(TargetError::NoDisk(DiskId(3))));
}
