//! Page tables and traps (xen.h, arch-x86/xen.h, memory.h).

/// `struct mmu_update`: one page-table entry to be written.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct MmuUpdate {
    /// Machine address of the entry, with `MMU_*` in the low two bits.
    pub ptr: u64,
    /// The new entry.
    pub val: u64,
}

/// `MMU_NORMAL_PT_UPDATE`
pub const MMU_NORMAL_PT_UPDATE: u64 = 0;
/// `UVMF_INVLPG`
pub const UVMF_INVLPG: usize = 2;
/// `XENMEM_maximum_ram_page`
pub const XENMEM_MAXIMUM_RAM_PAGE: usize = 2;
/// `MACH2PHYS_VIRT_START` (arch-x86/xen-x86_64.h): the machine-to-physical table, read-only for guests.
pub const MACH2PHYS_VIRT_START: usize = 0xffff_8000_0000_0000;
/// `FLAT_KERNEL_CS64` (arch-x86/xen-x86_64.h)
pub const FLAT_KERNEL_CS64: u16 = 0xe033;
/// In [`TrapInfo::flags`]: mask events on entry (`TI_SET_IF`).
pub const TI_MASK_EVENTS: u8 = 4;

/// `struct trap_info`
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct TrapInfo {
    /// The exception.
    pub vector: u8,
    /// Privilege level (0-3) and [`TI_MASK_EVENTS`].
    pub flags: u8,
    /// Code selector.
    pub cs: u16,
    /// The handler; 0 ends the table.
    pub address: usize,
}

const _: () = assert!(size_of::<MmuUpdate>() == 16);
const _: () = assert!(size_of::<TrapInfo>() == 16);
