//! What the name service is asked, and answers. The inline data of a request are the name, 1 to
//! [`NAME_BYTES_MAX`] bytes; those of an answer are its status, 4 bytes, little-endian, and the id of an
//! answer is that of the request plus [`ANSWER`].

/// The longest name, in bytes.
pub const NAME_BYTES_MAX: usize = 255;
/// Register the send right that goes along; it takes the place of one that was registered before.
pub const REGISTER: u32 = 1;
/// Ask for a copy of a right.
pub const LOOK_UP: u32 = 2;
/// The same; the answer comes when the name has been registered.
pub const LOOK_UP_WAITING: u32 = 3;
/// Forget a name.
pub const WITHDRAW: u32 = 4;
/// From the id of a request to that of its answer.
pub const ANSWER: u32 = 100;
/// It is done; an answer to a question brings the right.
pub const OK: u32 = 0;
/// Nothing is registered by that name, or its port has died.
pub const UNKNOWN: u32 = 1;
/// No such request, no name, or no right.
pub const BAD_REQUEST: u32 = 2;
