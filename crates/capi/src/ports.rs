//! Ports. `hiroba_port.h` describes each function.

use std::collections::BTreeMap;
use std::ffi::{CStr, c_char, c_int, c_void};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use hiroba_node::{Runtime, call_site};
use hiroba_ports::{
    Call, DataType, Disposition, Message, Name, Notification, Outcome, Patience, PortError, Received, Region,
    RightKind, RightReceived, RightToSend, Status, service,
};

use crate::reporting::{note, null};

/// `hiroba_port_right`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct PortRight {
    name: u64,
    kind: i32,
}

/// `hiroba_port_type`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct PortType {
    name: u16,
    element_bytes: u16,
    count: u32,
}

/// `hiroba_port_region`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct PortRegion {
    start: *mut c_void,
    bytes: usize,
    moves: i32,
}

/// `hiroba_port_message`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct PortMessage {
    id: u32,
    inline_data: *const c_void,
    inline_bytes: usize,
    types: *const PortType,
    type_count: usize,
    regions: *const PortRegion,
    region_count: usize,
    rights: *const PortRight,
    right_count: usize,
    reply: PortRight,
    port: u64,
    sender: i32,
    received: *mut c_void,
}

/// `hiroba_port_status`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct PortStatus {
    receive: i32,
    set: i32,
    send_once: i32,
    send: u32,
    dead: u32,
    queued: u32,
    limit: u32,
    make_send: u32,
}

/// The memory that a received message points to.
struct Kept {
    inline: Vec<u8>,
    buffers: Vec<Region>,
    types: Vec<PortType>,
    regions: Vec<PortRegion>,
    rights: Vec<PortRight>,
}

/// Memory that can be moved into messages, by its address.
static REGIONS: Mutex<BTreeMap<usize, Region>> = Mutex::new(BTreeMap::new());

/// The reason why a call fails.
enum Failure {
    Port(PortError),
    Argument(&'static str),
    Outside,
    Unknown,
}

impl From<PortError> for Failure {
    fn from(error: PortError) -> Failure {
        Failure::Port(error)
    }
}

fn errno_of(error: PortError) -> c_int {
    match error {
        PortError::InvalidName => libc::EBADF,
        PortError::InvalidRight => libc::EPERM,
        PortError::InvalidValue => libc::EINVAL,
        PortError::NameExists => libc::EEXIST,
        PortError::ReferencesOverflow => libc::EOVERFLOW,
        PortError::DeadDestination => libc::EPIPE,
        PortError::InvalidMessage => libc::EBADMSG,
        PortError::MessageTooLarge { .. } => libc::EMSGSIZE,
        PortError::SendTimedOut | PortError::ReceiveTimedOut => libc::ETIMEDOUT,
        PortError::NotifyInProgress => libc::EALREADY,
        PortError::ReceiveTooLarge { .. } => libc::ENOBUFS,
        PortError::ReceiveRightGone => libc::EIDRM,
        PortError::NoSpace { .. } => libc::ENOSPC,
        PortError::Interrupted => libc::EINTR,
    }
}

/// Runs a call in the job, and converts its result for C.
fn carry_out(
    call: &'static str,
    act: impl FnOnce(&'static Runtime, &'static str) -> Result<c_int, Failure>,
) -> c_int {
    call_site::note(0);
    let result = match Runtime::get() {
        Some(runtime) => act(runtime, call),
        None => Err(Failure::Outside),
    };
    let (errno, why) = match result {
        Ok(result) => return result,
        Err(Failure::Port(error)) => (errno_of(error), error.to_string()),
        Err(Failure::Argument(expected)) => (libc::EINVAL, format!("expected {expected}")),
        Err(Failure::Outside) => (
            libc::EPERM,
            "expected a call between hiroba_init and hiroba_finalize, got one outside".to_owned(),
        ),
        Err(Failure::Unknown) => {
            (libc::ENOENT, "expected a registered name; its port may have died".to_owned())
        }
    };
    note(&format!("{call}: {why}"));
    -errno
}

fn name(bits: u64) -> Name {
    Name::from_bits(bits)
}

fn right(right: PortRight) -> Result<RightToSend, Failure> {
    let disposition = match right.kind {
        1 => Disposition::MoveReceive,
        2 => Disposition::MoveSend,
        3 => Disposition::CopySend,
        4 => Disposition::MakeSend,
        5 => Disposition::MoveSendOnce,
        6 => Disposition::MakeSendOnce,
        _ => {
            return Err(Failure::Argument(
                "a kind of HIROBA_PORT_MOVE_RECEIVE to HIROBA_PORT_MAKE_SEND_ONCE",
            ));
        }
    };
    Ok(RightToSend { name: name(right.name), disposition })
}

fn optional_right(given: PortRight) -> Result<Option<RightToSend>, Failure> {
    if given.name == 0 { Ok(None) } else { right(given).map(Some) }
}

fn received_right(right: RightReceived) -> PortRight {
    let kind = match right.kind {
        RightKind::Receive => 1,
        RightKind::Send => 2,
        RightKind::SendOnce => 3,
        RightKind::Dead => 4,
    };
    PortRight { name: right.name.to_bits(), kind }
}

fn patience(runtime: &Runtime, timeout_us: i64) -> Result<Patience, Failure> {
    match u64::try_from(timeout_us) {
        Ok(timeout_us) => Ok(runtime.port_patience(Some(Duration::from_micros(timeout_us)))),
        Err(_) if timeout_us == -1 => Ok(runtime.port_patience(None)),
        Err(_) => Err(Failure::Argument("a time of 0 or more microseconds, or HIROBA_PORT_FOREVER")),
    }
}

/// Copies the elements of a caller's array, which may lie in shared memory, or change.
///
/// # Safety
/// `start` has `count` readable elements.
unsafe fn copied<T: Copy>(start: *const T, count: usize) -> Result<Vec<T>, Failure> {
    if count == 0 {
        return Ok(Vec::new());
    }
    if start.is_null() {
        return Err(Failure::Argument("an array with its count of elements, got NULL"));
    }
    if count > isize::MAX as usize / size_of::<T>().max(1) {
        return Err(Failure::Argument("an array that fits the address space"));
    }
    // SAFETY: the caller guarantees that many elements.
    Ok(unsafe { std::slice::from_raw_parts(start, count) }.to_vec())
}

fn take_region(start: *mut c_void, bytes: usize) -> Result<Region, Failure> {
    let mut regions = REGIONS.lock().unwrap_or_else(PoisonError::into_inner);
    let is_whole = regions.get(&(start as usize)).is_some_and(|region| region.len() == bytes);
    let region = if is_whole { regions.remove(&(start as usize)) } else { None };
    region.ok_or(Failure::Argument(
        "the start and length of a whole region from hiroba_port_region_allocate to be moved",
    ))
}

/// Which regions of a message were moved into it.
struct Moved(Vec<bool>);

impl Moved {
    /// Returns the regions of a message that was not accepted to the program.
    fn give_back(&self, returned: Vec<Region>) {
        let mut regions = REGIONS.lock().unwrap_or_else(PoisonError::into_inner);
        for (mut region, moved) in returned.into_iter().zip(&self.0) {
            if *moved {
                regions.insert(region.as_mut_ptr() as usize, region);
            }
        }
    }
}

/// Takes the regions of a message. If one of them is invalid, returns those before it to the program.
///
/// # Safety
/// Each region that does not move has as many bytes as it says.
unsafe fn regions_of(given: Vec<PortRegion>) -> Result<(Vec<Region>, Moved), Failure> {
    let moved = Moved(given.iter().map(|region| region.moves != 0).collect());
    let mut taken = Vec::with_capacity(given.len());
    for region in given {
        let bytes = match region.moves {
            // SAFETY: a region that does not move has that many bytes.
            0 => unsafe { copied(region.start.cast::<u8>().cast_const(), region.bytes) }.map(Region::from),
            _ => take_region(region.start, region.bytes),
        };
        match bytes {
            Ok(bytes) => taken.push(bytes),
            Err(failure) => {
                moved.give_back(taken);
                return Err(failure);
            }
        }
    }
    Ok((taken, moved))
}

/// Makes a call with a message, whose regions are returned to the program if it is not accepted.
fn call_with_message(
    runtime: &Runtime,
    call: &'static str,
    asked: Call,
    moved: &Moved,
) -> Result<Outcome, Failure> {
    let mut returned = Vec::new();
    let result = runtime.port_call_returning(call, asked, &mut returned);
    moved.give_back(returned);
    Ok(result?)
}

/// # Safety
/// `message` is NULL or points to a message whose arrays are as long as it says.
unsafe fn message_of(message: *const PortMessage) -> Result<(Message, Moved), Failure> {
    if message.is_null() {
        return Err(Failure::Argument("a message, got NULL"));
    }
    // SAFETY: the caller passes a message.
    let given = unsafe { message.read() };
    // SAFETY: the arrays are as long as the message says.
    let inline = unsafe { copied(given.inline_data.cast::<u8>(), given.inline_bytes) }?;
    // SAFETY: as above.
    let types = unsafe { copied(given.types, given.type_count) }?;
    // SAFETY: as above.
    let regions = unsafe { copied(given.regions, given.region_count) }?;
    // SAFETY: as above.
    let rights = unsafe { copied(given.rights, given.right_count) }?;
    let mut types: Vec<_> = types
        .into_iter()
        .map(|PortType { name, element_bytes, count }| DataType { name, element_bytes, count })
        .collect();
    if types.is_empty() && !inline.is_empty() {
        let count = u32::try_from(inline.len()).map_err(|_| PortError::InvalidMessage)?;
        types.push(DataType { name: 0, element_bytes: 1, count });
    }
    let rights = rights.into_iter().map(right).collect::<Result<_, _>>()?;
    let reply = optional_right(given.reply)?;
    // Done last, since nothing fails after this.
    // SAFETY: a region has as many bytes as the message says.
    let (regions, moved) = unsafe { regions_of(regions) }?;
    Ok((Message { id: given.id, types, inline, regions, reply, rights, ..Message::default() }, moved))
}

fn message_received(received: Received) -> PortMessage {
    let Received { port, sender, id, types, inline, regions, reply, rights, .. } = received;
    let types = types
        .into_iter()
        .map(|DataType { name, element_bytes, count }| PortType { name, element_bytes, count })
        .collect();
    let mut kept = Box::new(Kept {
        inline,
        buffers: regions,
        types,
        regions: Vec::new(),
        rights: rights.into_iter().map(received_right).collect(),
    });
    let region =
        |buffer: &mut Region| PortRegion { start: buffer.as_mut_ptr().cast(), bytes: buffer.len(), moves: 0 };
    kept.regions = kept.buffers.iter_mut().map(region).collect();
    PortMessage {
        id,
        inline_data: kept.inline.as_ptr().cast(),
        inline_bytes: kept.inline.len(),
        types: kept.types.as_ptr(),
        type_count: kept.types.len(),
        regions: kept.regions.as_ptr(),
        region_count: kept.regions.len(),
        rights: kept.rights.as_ptr(),
        right_count: kept.rights.len(),
        reply: reply.map_or(PortRight { name: 0, kind: 0 }, received_right),
        port: port.to_bits(),
        sender: i32::from(sender.0),
        received: Box::into_raw(kept).cast(),
    }
}

/// Writes a result to the caller's place.
///
/// # Safety
/// `place` is NULL or writable.
unsafe fn hand_over<T>(place: *mut T, value: T) {
    if !place.is_null() {
        // SAFETY: the caller guarantees that it is writable.
        unsafe { place.write(value) };
    }
}

fn not_null<T>(place: *mut T) -> Result<(), Failure> {
    if place.is_null() { Err(Failure::Argument("a place for the result, got NULL")) } else { Ok(()) }
}

/// # Safety
/// As for [`hand_over`].
unsafe fn name_by(call: &'static str, place: *mut u64, asked: Call) -> c_int {
    carry_out(call, |runtime, call| {
        not_null(place)?;
        if let Outcome::Name(name) = runtime.port_call(call, asked)? {
            // SAFETY: the caller's place is writable.
            unsafe { hand_over(place, name.to_bits()) };
        }
        Ok(0)
    })
}

fn simply(call: &'static str, asked: Call) -> c_int {
    carry_out(call, |runtime, call| Ok(runtime.port_call(call, asked).map(|_| 0)?))
}

/// # Safety
/// As for [`hand_over`].
unsafe fn receive_by(
    runtime: &Runtime,
    call: &'static str,
    place: *mut PortMessage,
    asked: Call,
    moved: &Moved,
) -> Result<c_int, Failure> {
    not_null(place)?;
    if let Outcome::Received(received) = call_with_message(runtime, call, asked, moved)? {
        // SAFETY: the caller's place is writable.
        unsafe { hand_over(place, message_received(*received)) };
    }
    Ok(0)
}

/// See `hiroba_port.h`.
///
/// # Safety
/// `place` is NULL or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hiroba_port_allocate(place: *mut u64) -> c_int {
    // SAFETY: as said above.
    unsafe { name_by("hiroba_port_allocate", place, Call::AllocatePort) }
}

/// See `hiroba_port.h`.
///
/// # Safety
/// `place` is NULL or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hiroba_port_allocate_set(place: *mut u64) -> c_int {
    // SAFETY: as said above.
    unsafe { name_by("hiroba_port_allocate_set", place, Call::AllocateSet) }
}

/// See `hiroba_port.h`.
#[unsafe(no_mangle)]
pub extern "C" fn hiroba_port_deallocate(port: u64) -> c_int {
    simply("hiroba_port_deallocate", Call::Deallocate(name(port)))
}

/// See `hiroba_port.h`.
#[unsafe(no_mangle)]
pub extern "C" fn hiroba_port_destroy(port: u64) -> c_int {
    simply("hiroba_port_destroy", Call::Destroy(name(port)))
}

/// See `hiroba_port.h`.
#[unsafe(no_mangle)]
pub extern "C" fn hiroba_port_mod_refs(port: u64, delta: i32) -> c_int {
    simply("hiroba_port_mod_refs", Call::ModifyReferences { name: name(port), delta })
}

/// See `hiroba_port.h`.
#[unsafe(no_mangle)]
pub extern "C" fn hiroba_port_insert_right(port: u64, from: PortRight) -> c_int {
    carry_out("hiroba_port_insert_right", |runtime, call| {
        let from = right(from)?;
        Ok(runtime.port_call(call, Call::InsertRight { name: name(port), from }).map(|_| 0)?)
    })
}

/// See `hiroba_port.h`.
///
/// # Safety
/// `place` is NULL or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hiroba_port_extract_right(from: PortRight, place: *mut u64) -> c_int {
    match right(from) {
        // SAFETY: as said above.
        Ok(from) => unsafe { name_by("hiroba_port_extract_right", place, Call::ExtractRight(from)) },
        Err(failure) => carry_out("hiroba_port_extract_right", |_, _| Err(failure)),
    }
}

/// See `hiroba_port.h`.
#[unsafe(no_mangle)]
pub extern "C" fn hiroba_port_move_member(member: u64, set: u64) -> c_int {
    let into = (set != 0).then(|| name(set));
    simply("hiroba_port_move_member", Call::MoveMember { member: name(member), into })
}

/// See `hiroba_port.h`.
#[unsafe(no_mangle)]
pub extern "C" fn hiroba_port_set_queue_limit(port: u64, limit: u32) -> c_int {
    simply("hiroba_port_set_queue_limit", Call::SetQueueLimit { name: name(port), limit })
}

/// See `hiroba_port.h`.
#[unsafe(no_mangle)]
pub extern "C" fn hiroba_port_set_make_send_count(port: u64, count: u32) -> c_int {
    simply("hiroba_port_set_make_send_count", Call::SetMakeSendCount { name: name(port), count })
}

/// See `hiroba_port.h`.
///
/// # Safety
/// `place` is NULL or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hiroba_port_get_status(port: u64, place: *mut PortStatus) -> c_int {
    carry_out("hiroba_port_get_status", |runtime, call| {
        not_null(place)?;
        if let Outcome::Status(status) = runtime.port_call(call, Call::Status(name(port)))? {
            let Status { receive, send, send_once, dead, set, queued, limit, make_send } = status;
            let (receive, set, send_once) = (i32::from(receive), i32::from(set), i32::from(send_once));
            let status = PortStatus { receive, set, send_once, send, dead, queued, limit, make_send };
            // SAFETY: the caller's place is writable.
            unsafe { hand_over(place, status) };
        }
        Ok(0)
    })
}

/// See `hiroba_port.h`.
///
/// # Safety
/// `previous` is NULL or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hiroba_port_request_notification(
    port: u64,
    of: i32,
    sync: u32,
    notify: PortRight,
    previous: *mut u64,
) -> c_int {
    carry_out("hiroba_port_request_notification", |runtime, call| {
        let of = match of {
            1 => Notification::DeadName,
            2 => Notification::NoSenders { sync },
            3 => Notification::PortDestroyed,
            _ => return Err(Failure::Argument("one of HIROBA_PORT_NOTIFY_DEAD_NAME and its like")),
        };
        let notify = optional_right(notify)?;
        let asked = Call::RequestNotification { name: name(port), of, notify };
        if let Outcome::Previous(former) = runtime.port_call(call, asked)? {
            // SAFETY: the caller's place is writable, or NULL.
            unsafe { hand_over(previous, former.map_or(0, Name::to_bits)) };
        }
        Ok(0)
    })
}

/// See `hiroba_port.h`.
///
/// # Safety
/// `message` is NULL or points to a message whose arrays are as long as it says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hiroba_port_send(
    to: PortRight,
    message: *const PortMessage,
    timeout_us: i64,
) -> c_int {
    carry_out("hiroba_port_send", |runtime, call| {
        let (to, patience) = (right(to)?, patience(runtime, timeout_us)?);
        // SAFETY: as said above.
        let (message, moved) = unsafe { message_of(message) }?;
        let asked = Call::Send { to, message, patience, notify: None };
        call_with_message(runtime, call, asked, &moved).map(|_| 0)
    })
}

/// See `hiroba_port.h`.
///
/// # Safety
/// `message` is NULL or points to a message whose arrays are as long as it says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hiroba_port_send_notify(
    to: PortRight,
    message: *const PortMessage,
    notify: PortRight,
) -> c_int {
    carry_out("hiroba_port_send_notify", |runtime, call| {
        let (to, notify) = (right(to)?, Some(right(notify)?));
        // SAFETY: as said above.
        let (message, moved) = unsafe { message_of(message) }?;
        let asked = Call::Send { to, message, patience: Patience::None, notify };
        Ok(c_int::from(call_with_message(runtime, call, asked, &moved)? == Outcome::WillNotify))
    })
}

/// See `hiroba_port.h`.
///
/// # Safety
/// `message` is NULL or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hiroba_port_receive(
    from: u64,
    message: *mut PortMessage,
    bytes_max: u64,
    timeout_us: i64,
) -> c_int {
    carry_out("hiroba_port_receive", |runtime, call| {
        let patience = patience(runtime, timeout_us)?;
        let asked = Call::Receive { from: name(from), bytes_max: Some(bytes_max), patience };
        // SAFETY: as said above.
        unsafe { receive_by(runtime, call, message, asked, &Moved(Vec::new())) }
    })
}

/// See `hiroba_port.h`.
///
/// # Safety
/// `request` is NULL or points to a message whose arrays are as long as it says; `reply` is NULL or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hiroba_port_rpc(
    to: PortRight,
    request: *const PortMessage,
    reply_port: u64,
    reply: *mut PortMessage,
    bytes_max: u64,
    timeout_us: i64,
) -> c_int {
    carry_out("hiroba_port_rpc", |runtime, call| {
        not_null(reply)?;
        let (to, patience) = (right(to)?, patience(runtime, timeout_us)?);
        // SAFETY: as said above.
        let (message, moved) = unsafe { message_of(request) }?;
        let (reply_port, bytes_max) = (name(reply_port), Some(bytes_max));
        let asked = Call::Rpc { to, message, reply_port, bytes_max, patience };
        // SAFETY: as said above.
        unsafe { receive_by(runtime, call, reply, asked, &moved) }
    })
}

/// Returns the memory that a message points to, if it was received.
///
/// # Safety
/// `message` is NULL or points to a message that is zero, was received, or was made by the caller.
unsafe fn kept_of(message: *mut PortMessage) -> Option<*mut Kept> {
    if message.is_null() {
        return None;
    }
    // SAFETY: the caller passes a message.
    let received = unsafe { message.read() }.received;
    (!received.is_null()).then(|| received.cast())
}

/// See `hiroba_port.h`.
///
/// # Safety
/// `message` is NULL or points to a message that was received, or is zero.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hiroba_port_release(message: *mut PortMessage) {
    // SAFETY: as said above.
    if let Some(kept) = unsafe { kept_of(message) } {
        // SAFETY: it was made by `message_received`, and is freed once, since the message is zeroed.
        drop(unsafe { Box::from_raw(kept) });
        // SAFETY: all of a message's fields may be zero.
        let zero = unsafe { std::mem::zeroed() };
        // SAFETY: the caller's message is writable.
        unsafe { message.write(zero) };
    }
}

fn keep_region(mut region: Region) -> *mut c_void {
    let mut regions = REGIONS.lock().unwrap_or_else(PoisonError::into_inner);
    let start = region.as_mut_ptr() as usize;
    regions.entry(start).or_insert(region).as_mut_ptr().cast()
}

/// See `hiroba_port.h`.
#[unsafe(no_mangle)]
pub extern "C" fn hiroba_port_region_allocate(bytes: usize) -> *mut c_void {
    let mut region: Vec<u8> = Vec::new();
    if bytes == 0 || region.try_reserve_exact(bytes).is_err() {
        let sentence =
            format!("hiroba_port_region_allocate: expected a size that can be allocated, got {bytes}");
        return null(if bytes == 0 { libc::EINVAL } else { libc::ENOMEM }, &sentence);
    }
    region.resize(bytes, 0);
    keep_region(region.into())
}

/// See `hiroba_port.h`.
#[unsafe(no_mangle)]
pub extern "C" fn hiroba_port_region_bytes(start: *const c_void) -> usize {
    let regions = REGIONS.lock().unwrap_or_else(PoisonError::into_inner);
    regions.get(&(start as usize)).map_or(0, Region::len)
}

/// See `hiroba_port.h`.
#[unsafe(no_mangle)]
pub extern "C" fn hiroba_port_region_free(start: *mut c_void) {
    let region = REGIONS.lock().unwrap_or_else(PoisonError::into_inner).remove(&(start as usize));
    if region.is_none() && !start.is_null() {
        let sentence = format!(
            "hiroba_port_region_free: expected a region that the caller owns, got {start:p}, which was freed or moved"
        );
        match Runtime::get() {
            Some(runtime) => runtime.fatal(&sentence),
            None => eprintln!("hiroba: {sentence}"),
        }
    }
}

/// See `hiroba_port.h`.
///
/// # Safety
/// `message` is NULL or points to a message that was received, or is zero.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hiroba_port_region_take(message: *mut PortMessage, index: usize) -> *mut c_void {
    // SAFETY: as said above.
    if let Some(kept) = unsafe { kept_of(message) } {
        // SAFETY: it was made by `message_received`, and belongs to the caller only.
        let kept = unsafe { &mut *kept };
        if let Some(buffer) = kept.buffers.get_mut(index).filter(|buffer| !buffer.is_empty()) {
            let buffer = std::mem::take(buffer);
            kept.regions[index].start = std::ptr::null_mut();
            kept.regions[index].bytes = 0;
            return keep_region(buffer);
        }
    }
    null(
        libc::EINVAL,
        "hiroba_port_region_take: expected the number of a region with data of a received message",
    )
}

/// Sends a request to the name service and returns its answer.
///
/// # Safety
/// `text` is NULL or a C string.
unsafe fn ask_names(
    runtime: &Runtime,
    call: &'static str,
    id: u32,
    text: *const c_char,
    rights: Vec<RightToSend>,
    patience: Patience,
) -> Result<Box<Received>, Failure> {
    if text.is_null() {
        return Err(Failure::Argument("a name of 1 to 255 bytes, got NULL"));
    }
    // SAFETY: the caller passes a C string.
    let text = unsafe { CStr::from_ptr(text) }.to_bytes().to_vec();
    let answer = runtime.ask_port_names(call, id, &text, rights, patience)?;
    if answer.inline == service::OK.to_le_bytes() {
        Ok(answer)
    } else if answer.inline == service::UNKNOWN.to_le_bytes() {
        Err(Failure::Unknown)
    } else {
        Err(Failure::Argument("a name of 1 to 255 bytes, and a receive right that the caller has"))
    }
}

/// See `hiroba_port.h`.
///
/// # Safety
/// `text` is NULL or a C string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hiroba_port_register(text: *const c_char, port: u64) -> c_int {
    carry_out("hiroba_port_register", |runtime, call| {
        let rights = vec![RightToSend { name: name(port), disposition: Disposition::MakeSend }];
        // SAFETY: as said above.
        unsafe { ask_names(runtime, call, service::REGISTER, text, rights, Patience::Endless) }?;
        Ok(0)
    })
}

/// See `hiroba_port.h`.
///
/// # Safety
/// `text` is NULL or a C string; `place` is NULL or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hiroba_port_look_up(text: *const c_char, place: *mut u64, timeout_us: i64) -> c_int {
    carry_out("hiroba_port_look_up", |runtime, call| {
        not_null(place)?;
        let (id, patience) = match patience(runtime, timeout_us)? {
            Patience::None => (service::LOOK_UP, Patience::Endless),
            patience => (service::LOOK_UP_WAITING, patience),
        };
        // SAFETY: as said above.
        let answer = unsafe { ask_names(runtime, call, id, text, Vec::new(), patience) }?;
        let right =
            answer.rights.first().filter(|right| right.kind == RightKind::Send).ok_or(Failure::Unknown)?;
        // SAFETY: the caller's place is writable.
        unsafe { hand_over(place, right.name.to_bits()) };
        Ok(0)
    })
}

/// See `hiroba_port.h`.
///
/// # Safety
/// `text` is NULL or a C string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hiroba_port_withdraw(text: *const c_char) -> c_int {
    carry_out("hiroba_port_withdraw", |runtime, call| {
        // SAFETY: as said above.
        unsafe { ask_names(runtime, call, service::WITHDRAW, text, Vec::new(), Patience::Endless) }?;
        Ok(0)
    })
}
