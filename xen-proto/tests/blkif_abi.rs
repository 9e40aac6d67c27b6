//! The block ring's ABI against Debian's headers (package libxen-dev): a small C program prints what the compiler makes of them.
//!
//! The headers give only the layout of the machine they are compiled for. The 32-bit ABI is the same structs as an i386 compiler
//! lays them out, where `uint64_t` is aligned to 4: `#pragma pack(4)` makes a 64-bit compiler do exactly that, because nothing in
//! these structs but `uint64_t` has an alignment above 4. The one `#ifdef __i386__` in them, padding at the end of
//! `blkif_request_indirect`, has no effect on offsets.

use std::process::Command;
use std::{env, fs};

use xen_proto::GrantRef;
use xen_proto::blkif::{self, Abi, Request, Response, Segment, Slot, Status, op};
use xen_proto::ring::{Layout, REQ_EVENT, REQ_PROD, RSP_EVENT, RSP_PROD, SLOTS};

const PROGRAM: &str = r#"
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <xen/xen.h>
#ifdef X86_32_ABI
#pragma pack(4)
#endif
#include <xen/io/ring.h>
#include <xen/io/blkif.h>
#pragma pack()
#include <xen/io/protocols.h>

#define OFFSET(type, field) printf(#type "." #field " %zu\n", offsetof(struct type, field))
#define SIZE(type) printf(#type " %zu\n", sizeof(struct type))
#define VALUE(name) printf(#name " %lld\n", (long long)(name))
#define TEXT(name) printf(#name " %s\n", name)

int main(void) {
    SIZE(blkif_request); SIZE(blkif_response); SIZE(blkif_request_segment);
    OFFSET(blkif_request, operation); OFFSET(blkif_request, nr_segments); OFFSET(blkif_request, handle);
    OFFSET(blkif_request, id); OFFSET(blkif_request, sector_number); OFFSET(blkif_request, seg);
    OFFSET(blkif_request_segment, gref); OFFSET(blkif_request_segment, first_sect);
    OFFSET(blkif_request_segment, last_sect);
    OFFSET(blkif_request_indirect, operation); OFFSET(blkif_request_indirect, indirect_op);
    OFFSET(blkif_request_indirect, nr_segments); OFFSET(blkif_request_indirect, id);
    OFFSET(blkif_request_indirect, sector_number); OFFSET(blkif_request_indirect, handle);
    OFFSET(blkif_request_indirect, indirect_grefs);
    OFFSET(blkif_response, id); OFFSET(blkif_response, operation); OFFSET(blkif_response, status);
    OFFSET(blkif_sring, req_prod); OFFSET(blkif_sring, req_event);
    OFFSET(blkif_sring, rsp_prod); OFFSET(blkif_sring, rsp_event); OFFSET(blkif_sring, ring);
    printf("slots %u\n", (unsigned)__CONST_RING_SIZE(blkif, 4096));
    VALUE(BLKIF_OP_READ); VALUE(BLKIF_OP_WRITE); VALUE(BLKIF_OP_WRITE_BARRIER);
    VALUE(BLKIF_OP_FLUSH_DISKCACHE); VALUE(BLKIF_OP_DISCARD); VALUE(BLKIF_OP_INDIRECT);
    VALUE(BLKIF_RSP_OKAY); VALUE(BLKIF_RSP_ERROR); VALUE(BLKIF_RSP_EOPNOTSUPP);
    VALUE(BLKIF_MAX_SEGMENTS_PER_REQUEST); VALUE(BLKIF_MAX_INDIRECT_PAGES_PER_REQUEST);
    VALUE(VDISK_CDROM); VALUE(VDISK_REMOVABLE); VALUE(VDISK_READONLY);
    TEXT(XEN_IO_PROTO_ABI_X86_32); TEXT(XEN_IO_PROTO_ABI_X86_64);
    return 0;
}
"#;

/// What the C compiler says, a line a fact.
fn headers_say(abi: Abi) -> Vec<String> {
    let name = format!("{}/blkif-{}", env!("CARGO_TARGET_TMPDIR"), abi.protocol());
    fs::write(format!("{name}.c"), PROGRAM).expect("the target directory can be written");
    let cc = env::var("CC").unwrap_or("cc".into());
    let mut compile = Command::new(&cc);
    compile.args(["-m64", "-Werror", "-D__XEN_INTERFACE_VERSION__=__XEN_LATEST_INTERFACE_VERSION__"]);
    if abi == Abi::X86_32 {
        compile.arg("-DX86_32_ABI");
    }
    compile.args([format!("{name}.c"), "-o".into(), name.clone()]);
    let compiled = compile.output().unwrap_or_else(|error| panic!("cannot run {cc}: {error}; install gcc"));
    assert!(
        compiled.status.success(),
        "{cc} cannot compile against xen/io/blkif.h; install libxen-dev and libc6-dev: {}",
        String::from_utf8_lossy(&compiled.stderr).lines().find(|line| line.contains("error")).unwrap_or("?")
    );
    let run = Command::new(&name).output().expect("what was just compiled runs");
    String::from_utf8(run.stdout).expect("text").lines().map(str::to_owned).collect()
}

/// Where a value is in a slot, found by writing a request that has it and looking for its bytes.
fn find(slot: &Slot, bytes: &[u8]) -> usize {
    let mut places = slot.windows(bytes.len()).enumerate().filter(|(_, window)| *window == bytes);
    let place = places.next().expect("the value is in the slot").0;
    assert!(places.next().is_none(), "{bytes:x?} is in the slot once");
    place
}

const ID: u64 = 0x1112_1314_1516_1718;
const SECTOR: u64 = 0x2122_2324_2526_2728;
const GREF: GrantRef = GrantRef(0x3132_3334);

/// What we say, in the same lines.
fn we_say(abi: Abi) -> Vec<String> {
    let direct = Request::direct(0x41, ID, SECTOR, &[Segment::new(GREF, 0x51, 0x52)]).with_nr_segments(0x42);
    let direct = direct.to_slot(abi);
    let indirect = Request::indirect(0x43, ID, SECTOR, 0x4445, &[GREF]).to_slot(abi);
    let response = Response::new(ID, 0x46, Status::NotSupported).to_slot();
    let segments = find(&direct, &GREF.0.to_le_bytes());
    let grefs = find(&indirect, &GREF.0.to_le_bytes());
    let mut lines = vec![
        format!("blkif_request {}", abi.slot_bytes()),
        format!("blkif_response {}", abi.response_bytes()),
        format!("blkif_request_segment {}", size_of::<Segment>()),
        format!("blkif_request.operation {}", find(&direct, &[0x41])),
        format!("blkif_request.nr_segments {}", find(&direct, &[0x42])),
        // We write 0 as the handle, which backends ignore; it follows nr_segments.
        "blkif_request.handle 2".into(),
        format!("blkif_request.id {}", find(&direct, &ID.to_le_bytes())),
        format!("blkif_request.sector_number {}", find(&direct, &SECTOR.to_le_bytes())),
        format!("blkif_request.seg {segments}"),
        "blkif_request_segment.gref 0".into(),
        format!("blkif_request_segment.first_sect {}", find(&direct, &[0x51]) - segments),
        format!("blkif_request_segment.last_sect {}", find(&direct, &[0x52]) - segments),
        format!("blkif_request_indirect.operation {}", find(&indirect, &[op::INDIRECT])),
        format!("blkif_request_indirect.indirect_op {}", find(&indirect, &[0x43])),
        format!("blkif_request_indirect.nr_segments {}", find(&indirect, &0x4445_u16.to_le_bytes())),
        format!("blkif_request_indirect.id {}", find(&indirect, &ID.to_le_bytes())),
        format!("blkif_request_indirect.sector_number {}", find(&indirect, &SECTOR.to_le_bytes())),
        format!("blkif_request_indirect.handle {}", grefs - 4),
        format!("blkif_request_indirect.indirect_grefs {grefs}"),
        format!("blkif_response.id {}", find(&response, &ID.to_le_bytes())),
        format!("blkif_response.operation {}", find(&response, &[0x46])),
        format!("blkif_response.status {}", find(&response, &(-2_i16).to_le_bytes())),
        format!("blkif_sring.req_prod {REQ_PROD}"),
        format!("blkif_sring.req_event {REQ_EVENT}"),
        format!("blkif_sring.rsp_prod {RSP_PROD}"),
        format!("blkif_sring.rsp_event {RSP_EVENT}"),
        format!("blkif_sring.ring {SLOTS}"),
        format!("slots {}", Layout::new(4096, abi.slot_bytes()).slots()),
    ];
    let values = [
        ("BLKIF_OP_READ", op::READ.into()),
        ("BLKIF_OP_WRITE", op::WRITE.into()),
        ("BLKIF_OP_WRITE_BARRIER", op::WRITE_BARRIER.into()),
        ("BLKIF_OP_FLUSH_DISKCACHE", op::FLUSH_DISKCACHE.into()),
        ("BLKIF_OP_DISCARD", op::DISCARD.into()),
        ("BLKIF_OP_INDIRECT", op::INDIRECT.into()),
        ("BLKIF_RSP_OKAY", Status::Okay as i64),
        ("BLKIF_RSP_ERROR", Status::Error as i64),
        ("BLKIF_RSP_EOPNOTSUPP", Status::NotSupported as i64),
        ("BLKIF_MAX_SEGMENTS_PER_REQUEST", blkif::MAX_SEGMENTS as i64),
        ("BLKIF_MAX_INDIRECT_PAGES_PER_REQUEST", blkif::MAX_INDIRECT_PAGES as i64),
        ("VDISK_CDROM", blkif::VDISK_CDROM.into()),
        ("VDISK_REMOVABLE", blkif::VDISK_REMOVABLE.into()),
        ("VDISK_READONLY", blkif::VDISK_READONLY.into()),
    ];
    lines.extend(values.map(|(name, value): (_, i64)| format!("{name} {value}")));
    lines.push(format!("XEN_IO_PROTO_ABI_X86_32 {}", Abi::X86_32.protocol()));
    lines.push(format!("XEN_IO_PROTO_ABI_X86_64 {}", Abi::X86_64.protocol()));
    lines
}

#[test]
fn both_abis_are_laid_out_as_the_headers_say() {
    for abi in [Abi::X86_64, Abi::X86_32] {
        assert_eq!(we_say(abi), headers_say(abi), "{abi:?}");
    }
}

#[test]
fn what_is_written_is_read_again() {
    let segments = [Segment::new(GREF, 1, 2), Segment::new(GrantRef(9), 0, 7)];
    for abi in [Abi::X86_64, Abi::X86_32] {
        let direct = Request::direct(op::WRITE, ID, SECTOR, &segments);
        let read = Request::from_slot(abi, &direct.to_slot(abi));
        assert_eq!((read, read.id(), read.sector(), read.nr_segments()), (direct, ID, SECTOR, 2));
        assert_eq!(read.segments()[..2], segments);
        let indirect = Request::indirect(op::READ, ID, SECTOR, 300, &[GREF, GrantRef(8)]);
        let read = Request::from_slot(abi, &indirect.to_slot(abi));
        assert_eq!((read.indirect_op(), read.indirect_segments()), (op::READ, 300));
        assert_eq!(read.indirect_pages()[..3], [GREF, GrantRef(8), GrantRef(0)]);
    }
    for (status, number) in [(Status::Okay, 0_i16), (Status::Error, -1), (Status::NotSupported, -2)] {
        let slot = Response::new(ID, op::READ, status).to_slot();
        assert_eq!(slot[10..12], number.to_le_bytes());
        let read = Response::from_slot(&slot);
        assert_eq!((read.id(), read.operation, read.status()), (ID, op::READ, Some(status)));
    }
}
