//! The start of the domain, and what it then owns.

use alloc::rc::Rc;
use core::cell::RefCell;
use core::ops::Range;
use core::sync::atomic::AtomicU64;

use xen_proto::ids::PAGE_SIZE;
use xen_proto::{MachineAddr, Mfn, Pfn, Port};

use crate::abi::mmu::MACH2PHYS_VIRT_START;
use crate::abi::rings::{ConsoleInterface, StoreInterface};
use crate::abi::shared_info::SharedInfo;
use crate::abi::start_info::StartInfo;
use crate::clock::Clock;
use crate::event::EventChannels;
use crate::grant::GrantTable;
use crate::hypercall::{maximum_ram_page, register, xen_version};
use crate::memory::{DirectMap, Early, Memory, Pool, Tables, Window, used_frames};
use crate::store::StoreRing;
use crate::{command_line, console, heap, log_sink, sleep, trap};

/// Where grants are mapped: beyond any RAM. 16 tables map 8192 pages, e.g. 512 rings of 16 pages.
const GRANT_WINDOW: usize = 0x40_0000_0000;
const GRANT_WINDOW_TABLES: usize = 16;

/// All there is one of, given to the guest's `main`.
#[derive(Debug)]
pub struct Machine {
    /// `cmdline=` of the domain's config; see [`command_line`](crate::command_line).
    pub command_line: &'static str,
    /// RAM and device registers.
    pub memory: Memory,
    /// Grants, both sides.
    pub grants: GrantTable,
    /// Event channels, and sleep.
    pub events: EventChannels,
    /// System time.
    pub clock: Clock,
    /// xenstore's ring. Its port is unmasked.
    pub store: StoreRing,
}

/// Where the linker has put things, in virtual addresses.
#[derive(Clone, Debug)]
pub struct Image {
    /// Frame 0.
    pub base: usize,
    /// Code.
    pub text: Range<usize>,
    /// What is only read.
    pub constants: Range<usize>,
    /// The stack in use; its lowest page becomes the guard.
    pub stack: Range<usize>,
}

/// Takes the domain into possession. Panics (silently before the console is up) if Xen refuses what it cannot refuse.
///
/// # Safety
/// Called once, on the stack that `image` names, in a PV domain that was just started with this `start_info`.
#[must_use]
pub unsafe fn start(image: &Image, start_info: &'static StartInfo) -> Machine {
    // SAFETY: the builder maps the list of `nr_pages` frames and never touches it again (`struct start_info`, xen.h).
    let direct = unsafe { direct_map(image, start_info) };
    // SAFETY: the builder puts the frame of a console ring there.
    let console = unsafe { ring_page::<ConsoleInterface>(&direct, start_info.console_mfn) };
    console::init(console, Port(start_info.console_evtchn));
    log_sink::init();
    trap::init(image.stack.clone(), image.text.clone()).expect("traps can be registered");

    let tables = Tables::new(direct, direct.frame(register(start_info.pt_base)));
    // SAFETY: this function's contract, passed on.
    let (early, shared) = unsafe { protect_and_map(image, start_info, direct, tables) };
    console::set_shared_info(shared);
    let command_line = command_line::from_nul_terminated(&start_info.cmd_line);
    log_sink::set_level(command_line);

    let (heap_range, pool_frames) = early.divide();
    // SAFETY: `divide` gives away free, mapped memory, once.
    unsafe { heap::init(heap_range) };
    // SAFETY: likewise.
    let pool = Rc::new(RefCell::new(unsafe { Pool::new(direct, pool_frames) }));
    let memory = Memory::new(pool.clone(), tables);

    sleep::register_upcall().expect("callbacks can be registered");
    let mut events = EventChannels::new(shared).expect("the timer can be bound");
    let store_port = Port(start_info.store_evtchn);
    events.unmask(store_port);
    // A key that is typed wakes us, and room in the console for what is still to be printed.
    events.unmask(Port(start_info.console_evtchn));
    let window = Window::new(GRANT_WINDOW, GRANT_WINDOW_TABLES, tables, pool.clone());
    let grants = GrantTable::new(window, pool).expect("there is a grant table");
    // SAFETY: the builder puts the frame of xenstore's ring there.
    let store = StoreRing::new(unsafe { ring_page::<StoreInterface>(&direct, start_info.store_mfn) }, store_port);

    log_start(start_info, &memory);
    Machine { command_line, memory, grants, events, clock: Clock::new(shared), store }
}

/// # Safety
/// `start_info` is that of the builder, whose list of frames nobody writes from now on.
unsafe fn direct_map(image: &Image, start_info: &StartInfo) -> DirectMap {
    let list: *const u64 = core::ptr::with_exposed_provenance(register(start_info.mfn_list));
    // The direct map ends where the windows begin; nobody gives a driver domain 255 GiB.
    let frames = register(start_info.nr_pages).min((GRANT_WINDOW - image.base) / PAGE_SIZE);
    // SAFETY: the builder maps the list of `nr_pages` frames, for good; nobody writes it from now on.
    let p2m = unsafe { core::slice::from_raw_parts(list, frames) };
    let table: *const AtomicU64 = core::ptr::with_exposed_provenance(MACH2PHYS_VIRT_START);
    // SAFETY: Xen maps this table in every PV guest, read-only, one entry a frame of RAM.
    let m2p = unsafe { core::slice::from_raw_parts(table, maximum_ram_page() + 1) };
    DirectMap::new(image.base, p2m, m2p)
}

/// # Safety
/// `mfn` is a frame of ours that holds a `T` made of atomics, shared with dom0 for the life of the domain.
unsafe fn ring_page<T>(direct: &DirectMap, mfn: u64) -> &'static T {
    let frame = direct.frame_of(Mfn(mfn)).expect("the builder's pages are ours");
    let page: *const T = core::ptr::with_exposed_provenance(direct.address(frame));
    // SAFETY: by the contract; the direct map is never taken away.
    unsafe { &*page }
}

/// Sets the rights of all pages, maps the shared info page and all RAM.
///
/// # Safety
/// As [`start`].
unsafe fn protect_and_map(
    image: &Image,
    start_info: &StartInfo,
    direct: DirectMap,
    tables: Tables,
) -> (Early, &'static SharedInfo) {
    let first_table = direct.frame(register(start_info.pt_base)).0;
    let tables_end = Pfn(first_table + start_info.nr_pt_frames);
    // Behind the page tables the builder puts the one page of stack that it starts us on.
    let boot_stack_end = Pfn(tables_end.0 + 1);
    let list_end = Pfn(direct.frame(register(start_info.mfn_list)).0 + start_info.nr_pages.div_ceil(512));
    let module_end = Pfn(if start_info.mod_len == 0 {
        0
    } else {
        direct.frame(register(start_info.mod_start + start_info.mod_len - 1)).0 + 1
    });
    let mut early = Early::new(direct, tables, used_frames(&[boot_stack_end, list_end, module_end]));
    // SAFETY: the rights follow the linker's and the builder's own division; we are far above the stack's lowest page.
    unsafe { early.protect(image, &(register(first_table)..register(tables_end.0))) };
    // SAFETY: it is the shared info page's address (`struct start_info`, xen.h).
    let shared = unsafe { early.map_in_place(MachineAddr(start_info.shared_info)) };
    early.map_the_rest();
    let shared: *const SharedInfo = core::ptr::with_exposed_provenance(shared);
    // SAFETY: just mapped, for good; all fields that Xen changes are atomics.
    (early, unsafe { &*shared })
}

fn log_start(start_info: &StartInfo, memory: &Memory) {
    let version = xen_version();
    let statistics = memory.statistics();
    log::info!(
        "Xen {}.{}, {} KiB of memory: heap {} KiB, {} free pages",
        version >> 16,
        version & 0xffff,
        start_info.nr_pages * 4,
        statistics.heap_bytes >> 10,
        statistics.free_pages
    );
}

/// Names the guest's main function, `fn main(machine: Machine) -> Shutdown`.
#[macro_export]
macro_rules! entry {
    ($main:path) => {
        #[unsafe(no_mangle)]
        extern "Rust" fn xen_pv_main(machine: $crate::Machine) -> $crate::Shutdown {
            $main(machine)
        }
    };
}
