//! RAM volumes: pages of our own; data moves by grant copy.

use alloc::vec::Vec;

use xen_proto::Mfn;
use xen_proto::platform::Pages;

/// A RAM volume's pages. Give them back with [`RamVolume::release`]: dropping it leaks them.
#[derive(Debug)]
pub struct RamVolume {
    pages: Vec<Mfn>,
}

impl RamVolume {
    /// A volume of zeros, `None` if there is not enough memory. `bytes` is rounded down to pages.
    pub fn create(bytes: u64, pages: &mut impl Pages) -> Option<Self> {
        todo!("{bytes} {:?}", pages.take_page())
    }

    /// Its size in sectors of 512 bytes.
    #[must_use]
    pub fn sectors(&self) -> u64 {
        todo!("{:?}", self.pages)
    }

    /// Gives its pages back.
    pub fn release(self, pages: &mut impl Pages) {
        for page in self.pages {
            pages.give_page(page);
        }
    }
}
