//! Requests to the name service, and its answers. The inline data of a request are the name, 1 to
//! [`NAME_BYTES_MAX`] bytes; those of an answer are its status, 4 bytes, little-endian. The id of an answer
//! is that of the request plus [`ANSWER`].

/// The maximum length of a name in bytes.
pub const NAME_BYTES_MAX: usize = 255;
/// Registers the send right in the message, in place of an earlier registration of the name.
pub const REGISTER: u32 = 1;
/// Requests a copy of a right.
pub const LOOK_UP: u32 = 2;
/// Requests a copy of a right; the answer comes when the name has been registered.
pub const LOOK_UP_WAITING: u32 = 3;
/// Withdraws a name.
pub const WITHDRAW: u32 = 4;
/// The difference between the id of an answer and that of its request.
pub const ANSWER: u32 = 100;
/// Success; the answer to a look-up contains the right.
pub const OK: u32 = 0;
/// No right is registered by that name, or its port has died.
pub const UNKNOWN: u32 = 1;
/// The request is unknown, or lacks a name or a right.
pub const BAD_REQUEST: u32 = 2;
