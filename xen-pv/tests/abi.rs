//! The ABI types and numbers against Xen's public headers, by way of a C compiler: a program printing every size, offset and
//! number is made from the tables below. Missing tools fail the test, since an unchecked ABI is a broken one.

use std::mem::offset_of;
use std::path::Path;
use std::process::Command;

use xen_pv::abi::{DOMID_IO, DOMID_SELF, event, grant, mmu, number, pciif, rings, sched, shared_info, start_info};

/// A C expression and what it is here.
type Row = (String, i128);

/// Rows for a structure: its size, and offset and size of each field.
macro_rules! structure {
    ($rows:expr, $kind:ty = $c:literal { $($field:ident = $c_field:literal),* $(,)? }) => {
        $rows.push((format!("sizeof({})", $c), size_of::<$kind>() as i128));
        $(
            $rows.push((format!("offsetof({}, {})", $c, $c_field), offset_of!($kind, $field) as i128));
            $rows.push((format!("sizeof((({} *)0)->{})", $c, $c_field), field_size(|it: &$kind| &it.$field)));
        )*
    };
}

/// Rows for numbers.
macro_rules! numbers {
    ($rows:expr, $($value:expr => $c:literal,)*) => {
        $($rows.push(($c.to_string(), $value as i128));)*
    };
}

fn field_size<T, F>(_: impl Fn(&T) -> &F) -> i128 {
    size_of::<F>() as i128
}

const INCLUDES: [&str; 13] = [
    "stddef.h",
    "stdint.h",
    "stdio.h",
    "xen/xen.h",
    "xen/event_channel.h",
    "xen/grant_table.h",
    "xen/memory.h",
    "xen/sched.h",
    "xen/vcpu.h",
    "xen/io/console.h",
    "xen/io/pciif.h",
    "xen/io/xs_wire.h",
    "xen/version.h",
];

#[test]
fn structures_are_those_of_the_headers() {
    let mut rows = Vec::new();
    start_and_shared_info(&mut rows);
    rings_and_pci(&mut rows);
    events_and_scheduling(&mut rows);
    grants_and_page_tables(&mut rows);
    check("structures", &rows);
}

#[test]
fn numbers_are_those_of_the_headers() {
    let mut rows = Vec::new();
    hypercall_numbers(&mut rows);
    grant_numbers(&mut rows);
    pci_numbers(&mut rows);
    check("numbers", &rows);
}

fn start_and_shared_info(rows: &mut Vec<Row>) {
    structure!(rows, start_info::StartInfo = "struct start_info" {
        magic = "magic", nr_pages = "nr_pages", shared_info = "shared_info", flags = "flags", store_mfn = "store_mfn",
        store_evtchn = "store_evtchn", console_mfn = "console.domU.mfn", console_evtchn = "console.domU.evtchn",
        pt_base = "pt_base", nr_pt_frames = "nr_pt_frames", mfn_list = "mfn_list", mod_start = "mod_start",
        mod_len = "mod_len", cmd_line = "cmd_line", first_p2m_pfn = "first_p2m_pfn", nr_p2m_frames = "nr_p2m_frames",
    });
    structure!(rows, shared_info::SharedInfo = "struct shared_info" {
        vcpu_info = "vcpu_info", evtchn_pending = "evtchn_pending", evtchn_mask = "evtchn_mask",
        wc_version = "wc_version", wc_sec = "wc_sec", wc_nsec = "wc_nsec", wc_sec_hi = "wc_sec_hi", arch = "arch",
    });
    structure!(rows, shared_info::VcpuInfo = "struct vcpu_info" {
        evtchn_upcall_pending = "evtchn_upcall_pending", evtchn_upcall_mask = "evtchn_upcall_mask",
        evtchn_pending_sel = "evtchn_pending_sel", arch = "arch", time = "time",
    });
    structure!(rows, shared_info::ArchVcpuInfo = "struct arch_vcpu_info" { cr2 = "cr2" });
    structure!(rows, shared_info::VcpuTimeInfo = "struct vcpu_time_info" {
        version = "version", tsc_timestamp = "tsc_timestamp", system_time = "system_time",
        tsc_to_system_mul = "tsc_to_system_mul", tsc_shift = "tsc_shift", flags = "flags",
    });
    structure!(rows, shared_info::ArchSharedInfo = "struct arch_shared_info" {
        max_pfn = "max_pfn", pfn_to_mfn_frame_list_list = "pfn_to_mfn_frame_list_list", nmi_reason = "nmi_reason",
        p2m_cr3 = "p2m_cr3", p2m_vaddr = "p2m_vaddr", p2m_generation = "p2m_generation",
    });
}

fn rings_and_pci(rows: &mut Vec<Row>) {
    structure!(rows, rings::ConsoleInterface = "struct xencons_interface" {
        input = "in", output = "out", in_cons = "in_cons", in_prod = "in_prod", out_cons = "out_cons", out_prod = "out_prod",
    });
    structure!(rows, rings::StoreInterface = "struct xenstore_domain_interface" {
        req = "req", rsp = "rsp", req_cons = "req_cons", req_prod = "req_prod", rsp_cons = "rsp_cons",
        rsp_prod = "rsp_prod", server_features = "server_features", connection = "connection", error = "error",
    });
    structure!(rows, pciif::SharedPage = "struct xen_pci_sharedinfo" { flags = "flags", op = "op", aer_op = "aer_op" });
    structure!(rows, pciif::PciOp = "struct xen_pci_op" {
        cmd = "cmd", err = "err", domain = "domain", bus = "bus", devfn = "devfn", offset = "offset", size = "size",
        value = "value", info = "info", msix_entries = "msix_entries",
    });
    structure!(rows, pciif::MsixEntry = "struct xen_msix_entry" { vector = "vector", entry = "entry" });
    structure!(rows, pciif::AerOp = "struct xen_pcie_aer_op" {
        cmd = "cmd", err = "err", domain = "domain", bus = "bus", devfn = "devfn",
    });
}

fn events_and_scheduling(rows: &mut Vec<Row>) {
    structure!(rows, event::AllocUnbound = "struct evtchn_alloc_unbound" {
        dom = "dom", remote_dom = "remote_dom", port = "port",
    });
    structure!(rows, event::BindInterdomain = "struct evtchn_bind_interdomain" {
        remote_dom = "remote_dom", remote_port = "remote_port", local_port = "local_port",
    });
    structure!(rows, event::BindVirq = "struct evtchn_bind_virq" { virq = "virq", vcpu = "vcpu", port = "port" });
    structure!(rows, event::BindPirq = "struct evtchn_bind_pirq" { pirq = "pirq", flags = "flags", port = "port" });
    structure!(rows, event::Close = "struct evtchn_close" { port = "port" });
    structure!(rows, event::Send = "struct evtchn_send" { port = "port" });
    structure!(rows, sched::SchedShutdown = "struct sched_shutdown" { reason = "reason" });
    structure!(rows, sched::SchedPoll = "struct sched_poll" { ports = "ports", nr_ports = "nr_ports", timeout = "timeout" });
}

fn grants_and_page_tables(rows: &mut Vec<Row>) {
    structure!(rows, grant::GrantEntry = "struct grant_entry_v1" { flags = "flags", domid = "domid", frame = "frame" });
    structure!(rows, grant::MapGrantRef = "struct gnttab_map_grant_ref" {
        host_addr = "host_addr", flags = "flags", gref = "ref", dom = "dom", status = "status", handle = "handle",
        dev_bus_addr = "dev_bus_addr",
    });
    structure!(rows, grant::UnmapGrantRef = "struct gnttab_unmap_grant_ref" {
        host_addr = "host_addr", dev_bus_addr = "dev_bus_addr", handle = "handle", status = "status",
    });
    structure!(rows, grant::Copy = "struct gnttab_copy" {
        source = "source", dest = "dest", len = "len", flags = "flags", status = "status",
    });
    structure!(rows, grant::CopyPtr = "struct gnttab_copy_ptr" { page = "u", domid = "domid", offset = "offset" });
    structure!(rows, grant::SetupTable = "struct gnttab_setup_table" {
        dom = "dom", nr_frames = "nr_frames", status = "status", frame_list = "frame_list",
    });
    structure!(rows, grant::QuerySize = "struct gnttab_query_size" {
        dom = "dom", nr_frames = "nr_frames", max_nr_frames = "max_nr_frames", status = "status",
    });
    structure!(rows, mmu::MmuUpdate = "struct mmu_update" { ptr = "ptr", val = "val" });
    structure!(rows, mmu::TrapInfo = "struct trap_info" {
        vector = "vector", flags = "flags", cs = "cs", address = "address",
    });
}

fn hypercall_numbers(rows: &mut Vec<Row>) {
    numbers!(rows,
        DOMID_SELF.0 => "DOMID_SELF",
        DOMID_IO.0 => "DOMID_IO",
        number::SET_TRAP_TABLE => "__HYPERVISOR_set_trap_table",
        number::MMU_UPDATE => "__HYPERVISOR_mmu_update",
        number::SET_CALLBACKS => "__HYPERVISOR_set_callbacks",
        number::MEMORY_OP => "__HYPERVISOR_memory_op",
        number::UPDATE_VA_MAPPING => "__HYPERVISOR_update_va_mapping",
        number::SET_TIMER_OP => "__HYPERVISOR_set_timer_op",
        number::XEN_VERSION => "__HYPERVISOR_xen_version",
        number::GRANT_TABLE_OP => "__HYPERVISOR_grant_table_op",
        number::VCPU_OP => "__HYPERVISOR_vcpu_op",
        number::SCHED_OP => "__HYPERVISOR_sched_op",
        number::EVENT_CHANNEL_OP => "__HYPERVISOR_event_channel_op",
        event::EVTCHNOP_BIND_INTERDOMAIN => "EVTCHNOP_bind_interdomain",
        event::EVTCHNOP_BIND_VIRQ => "EVTCHNOP_bind_virq",
        event::EVTCHNOP_BIND_PIRQ => "EVTCHNOP_bind_pirq",
        event::EVTCHNOP_CLOSE => "EVTCHNOP_close",
        event::EVTCHNOP_SEND => "EVTCHNOP_send",
        event::EVTCHNOP_ALLOC_UNBOUND => "EVTCHNOP_alloc_unbound",
        event::VIRQ_TIMER => "VIRQ_TIMER",
        sched::SCHEDOP_YIELD => "SCHEDOP_yield",
        sched::SCHEDOP_BLOCK => "SCHEDOP_block",
        sched::SCHEDOP_SHUTDOWN => "SCHEDOP_shutdown",
        sched::SCHEDOP_POLL => "SCHEDOP_poll",
        sched::SHUTDOWN_POWEROFF => "SHUTDOWN_poweroff",
        sched::SHUTDOWN_REBOOT => "SHUTDOWN_reboot",
        sched::SHUTDOWN_CRASH => "SHUTDOWN_crash",
        sched::VCPUOP_STOP_PERIODIC_TIMER => "VCPUOP_stop_periodic_timer",
        mmu::MMU_NORMAL_PT_UPDATE => "MMU_NORMAL_PT_UPDATE",
        mmu::UVMF_INVLPG => "UVMF_INVLPG",
        mmu::XENMEM_MAXIMUM_RAM_PAGE => "XENMEM_maximum_ram_page",
        mmu::MACH2PHYS_VIRT_START.cast_signed() => "MACH2PHYS_VIRT_START",
        mmu::FLAT_KERNEL_CS64 => "FLAT_KERNEL_CS64",
        start_info::MAX_GUEST_CMDLINE => "MAX_GUEST_CMDLINE",
        shared_info::XEN_LEGACY_MAX_VCPUS => "XEN_LEGACY_MAX_VCPUS",
        rings::XENSTORE_RING_SIZE => "XENSTORE_RING_SIZE",
    );
}

fn grant_numbers(rows: &mut Vec<Row>) {
    numbers!(rows,
        grant::GNTTABOP_MAP_GRANT_REF => "GNTTABOP_map_grant_ref",
        grant::GNTTABOP_UNMAP_GRANT_REF => "GNTTABOP_unmap_grant_ref",
        grant::GNTTABOP_SETUP_TABLE => "GNTTABOP_setup_table",
        grant::GNTTABOP_COPY => "GNTTABOP_copy",
        grant::GNTTABOP_QUERY_SIZE => "GNTTABOP_query_size",
        grant::GNTTAB_NR_RESERVED_ENTRIES => "GNTTAB_NR_RESERVED_ENTRIES",
        grant::GTF_PERMIT_ACCESS => "GTF_permit_access",
        grant::GTF_READONLY => "GTF_readonly",
        grant::GTF_READING => "GTF_reading",
        grant::GTF_WRITING => "GTF_writing",
        grant::MapFlags::DEVICE_MAP.bits() => "GNTMAP_device_map",
        grant::MapFlags::HOST_MAP.bits() => "GNTMAP_host_map",
        grant::MapFlags::READONLY.bits() => "GNTMAP_readonly",
        grant::MapFlags::CONTAINS_PTE.bits() => "GNTMAP_contains_pte",
        grant::CopyFlags::SOURCE_GREF.bits() => "GNTCOPY_source_gref",
        grant::CopyFlags::DEST_GREF.bits() => "GNTCOPY_dest_gref",
        grant::GNTST_OKAY => "GNTST_okay",
        grant::GNTST_GENERAL_ERROR => "GNTST_general_error",
        grant::GNTST_BAD_PAGE => "GNTST_bad_page",
        grant::GNTST_EAGAIN => "GNTST_eagain",
        grant::GNTST_NO_SPACE => "GNTST_no_space",
        xen_proto::platform::GNTST_GENERAL_ERROR.0 => "GNTST_general_error",
        xen_proto::platform::GNTST_BAD_GNTREF.0 => "GNTST_bad_gntref",
        xen_proto::platform::GNTST_NO_DEVICE_SPACE.0 => "GNTST_no_device_space",
    );
}

fn pci_numbers(rows: &mut Vec<Row>) {
    numbers!(rows,
        pciif::XEN_PCIF_ACTIVE => "XEN_PCIF_active",
        pciif::XEN_PCI_MAGIC.as_bytes()[0] => "XEN_PCI_MAGIC[0]",
        pciif::XEN_PCI_MAGIC.len() => "sizeof(XEN_PCI_MAGIC) - 1",
        pciif::XEN_PCI_OP_CONF_READ => "XEN_PCI_OP_conf_read",
        pciif::XEN_PCI_OP_CONF_WRITE => "XEN_PCI_OP_conf_write",
        pciif::XEN_PCI_OP_ENABLE_MSI => "XEN_PCI_OP_enable_msi",
        pciif::XEN_PCI_OP_DISABLE_MSI => "XEN_PCI_OP_disable_msi",
        pciif::XEN_PCI_OP_ENABLE_MSIX => "XEN_PCI_OP_enable_msix",
        pciif::XEN_PCI_OP_DISABLE_MSIX => "XEN_PCI_OP_disable_msix",
        pciif::XEN_PCI_ERR_SUCCESS => "XEN_PCI_ERR_success",
        pciif::XEN_PCI_ERR_DEV_NOT_FOUND => "XEN_PCI_ERR_dev_not_found",
        pciif::XEN_PCI_ERR_INVALID_OFFSET => "XEN_PCI_ERR_invalid_offset",
        pciif::XEN_PCI_ERR_ACCESS_DENIED => "XEN_PCI_ERR_access_denied",
        pciif::XEN_PCI_ERR_NOT_IMPLEMENTED => "XEN_PCI_ERR_not_implemented",
        pciif::XEN_PCI_ERR_OP_FAILED => "XEN_PCI_ERR_op_failed",
        pciif::SH_INFO_MAX_VEC => "SH_INFO_MAX_VEC",
    );
}

/// Compiles and runs a program that prints the rows' expressions, and compares.
fn check(name: &str, rows: &[Row]) {
    let output = run_c(name, &program(rows));
    let values: Vec<i128> = output.lines().map(|line| line.parse().expect("the program prints numbers")).collect();
    assert_eq!(values.len(), rows.len(), "one line a row");
    let wrong: Vec<String> = rows
        .iter()
        .zip(values)
        .filter(|((_, here), there)| here != there)
        .map(|((c, here), there)| format!("{c}: {there} in the headers, {here} here"))
        .collect();
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

fn program(rows: &[Row]) -> String {
    let includes: String = INCLUDES.map(|file| format!("#include <{file}>\n")).concat();
    let prints: String = rows.iter().map(|(c, _)| format!("    printf(\"%lld\\n\", (long long)({c}));\n")).collect();
    // The newest form of the interface is asked for: unasked, the headers show a very old one.
    format!("#define __XEN_INTERFACE_VERSION__ 0x00040e00\n{includes}int main(void) {{\n{prints}    return 0;\n}}\n")
}

fn run_c(name: &str, program: &str) -> String {
    const REMEDY: &str = "apt-get install libxen-dev gcc";
    assert!(Path::new("/usr/include/xen/xen.h").exists(), "no Xen headers: {REMEDY}");
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let (source, binary) = (folder.join(format!("{name}.c")), folder.join(name));
    std::fs::write(&source, program).expect("the target folder can be written");
    let compiler = Command::new("cc").arg("-o").arg(&binary).arg(&source).output();
    let compiled = compiler.unwrap_or_else(|error| panic!("no C compiler ({error}): {REMEDY}"));
    assert!(compiled.status.success(), "{}", String::from_utf8_lossy(&compiled.stderr));
    let run = Command::new(&binary).output().expect("what was compiled can be run");
    String::from_utf8(run.stdout).expect("numbers are ASCII")
}
