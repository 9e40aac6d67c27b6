//! Parses what a guest put into its ring.

/// Segments of one request: what we advertise as `feature-max-indirect-segments`.
pub const MAX_SEGMENTS: usize = 256;
