//! The block ring's ABI (io/blkif.h). (being built)
