//! The address and maximum length of shared memory.

/// The default start of the region: clear of position-independent executables, heaps, stacks and libraries,
/// and of the shadow memory of the address and thread sanitizers, on x86-64 and 48-bit aarch64.
pub const REGION_START: usize = 0x4000_0000_0000;

/// The maximum and default length of the region: two views of it fit a 47-bit address space, two of 64 TiB
/// would not.
pub const REGION_BYTES_MAX: u64 = 16 << 40;
