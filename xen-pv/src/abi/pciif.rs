//! The page shared with pciback (`struct xen_pci_sharedinfo`, io/pciif.h).

/// `XEN_PCIF_active`: the frontend sets it with a request, the backend clears it with the answer.
pub const XEN_PCIF_ACTIVE: u32 = 1 << 0;
/// `XEN_PCI_MAGIC`, published by the frontend.
pub const XEN_PCI_MAGIC: &str = "7";

/// `XEN_PCI_OP_conf_read`
pub const XEN_PCI_OP_CONF_READ: u32 = 0;
/// `XEN_PCI_OP_conf_write`
pub const XEN_PCI_OP_CONF_WRITE: u32 = 1;
/// `XEN_PCI_OP_enable_msi`
pub const XEN_PCI_OP_ENABLE_MSI: u32 = 2;
/// `XEN_PCI_OP_disable_msi`
pub const XEN_PCI_OP_DISABLE_MSI: u32 = 3;
/// `XEN_PCI_OP_enable_msix`
pub const XEN_PCI_OP_ENABLE_MSIX: u32 = 4;
/// `XEN_PCI_OP_disable_msix`
pub const XEN_PCI_OP_DISABLE_MSIX: u32 = 5;

/// `XEN_PCI_ERR_success`
pub const XEN_PCI_ERR_SUCCESS: i32 = 0;
/// `XEN_PCI_ERR_dev_not_found`
pub const XEN_PCI_ERR_DEV_NOT_FOUND: i32 = -1;
/// `XEN_PCI_ERR_invalid_offset`
pub const XEN_PCI_ERR_INVALID_OFFSET: i32 = -2;
/// `XEN_PCI_ERR_access_denied`
pub const XEN_PCI_ERR_ACCESS_DENIED: i32 = -3;
/// `XEN_PCI_ERR_not_implemented`
pub const XEN_PCI_ERR_NOT_IMPLEMENTED: i32 = -4;
/// `XEN_PCI_ERR_op_failed`
pub const XEN_PCI_ERR_OP_FAILED: i32 = -5;

/// `SH_INFO_MAX_VEC`
pub const SH_INFO_MAX_VEC: usize = 128;

/// `struct xen_msix_entry`
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct MsixEntry {
    /// Out: the pirq to bind.
    pub vector: u16,
    /// In: index in the device's MSI-X table.
    pub entry: u16,
}

/// `struct xen_pci_op`
#[repr(C)]
#[derive(Clone, Debug)]
pub struct PciOp {
    /// `XEN_PCI_OP_*`.
    pub cmd: u32,
    /// Out: `XEN_PCI_ERR_*`, or an errno of Linux.
    pub err: i32,
    /// Segment.
    pub domain: u32,
    /// Bus, in the guest's view (`vdev-N`).
    pub bus: u32,
    /// Device and function, in the guest's view.
    pub devfn: u32,
    /// Configuration register, bytes.
    pub offset: i32,
    /// 1, 2 or 4 bytes.
    pub size: i32,
    /// Read, to be written, or the number of vectors.
    pub value: u32,
    /// More.
    pub info: u32,
    /// For MSI-X.
    pub msix_entries: [MsixEntry; SH_INFO_MAX_VEC],
}

/// `struct xen_pcie_aer_op`: error recovery, unused here.
#[repr(C)]
#[derive(Clone, Debug)]
pub struct AerOp {
    /// `XEN_PCI_OP_aer_*`.
    pub cmd: u32,
    /// In and out.
    pub err: i32,
    /// Segment.
    pub domain: u32,
    /// Bus.
    pub bus: u32,
    /// Device and function.
    pub devfn: u32,
}

/// `struct xen_pci_sharedinfo`
#[repr(C)]
#[derive(Clone, Debug)]
pub struct SharedPage {
    /// `XEN_PCIF_*`.
    pub flags: u32,
    /// The request and its answer.
    pub op: PciOp,
    /// Error recovery.
    pub aer_op: AerOp,
}

const _: () = assert!(size_of::<PciOp>() == 548);
const _: () = assert!(size_of::<SharedPage>() == 572);
