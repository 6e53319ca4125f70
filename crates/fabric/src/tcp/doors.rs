//! Connections that are not yet established: those that this node makes, and those that others make to it.
//!
//! A node connects to every node of a lower number as soon as its fabric is opened, and listens for those of
//! higher numbers. Listeners exist before any node starts, so there is no circular wait. When all expected
//! nodes have connected, it stops listening. Until then strangers may connect, too. At most [`CALLERS_MAX`]
//! connections wait for their proof at a time, each with one buffer of fixed length and a deadline. An
//! attempt of this node's own also has a deadline, after which it starts again, because the awaited answer
//! may be lost for good (a peer's machine that has restarted, a stranger that listens there).

use std::io;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;

use hiroba_base::NodeId;
use rustix::event::epoll::EventFlags;
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, Shutdown, SocketFlags, SocketType, accept_with, connect, ipproto,
    listen, recv, send, shutdown, socket_with, sockopt,
};
use rustix::rand::{GetRandomFlags, getrandom};
use thiserror::Error;

use super::handshake::{HELLO_BYTES, Identity, Session, WELCOME_BYTES};
use super::key::RecordKey;
use super::key::{NONCE_BYTES, Nonce};
use super::record::{Incoming, RECORD_OVERHEAD_BYTES, proof};
use super::ticker::TICK;
use super::watch::{Source, Watch};

/// Maximum number of incoming connections whose proof is outstanding.
pub const CALLERS_MAX: usize = 64;
/// Maximum number of connections accepted in one turn, so that a crowd of strangers does not keep a node from
/// its work.
const ACCEPTED_AT_ONCE: usize = 16;
/// Number of ticks within which a caller must prove its identity.
const CALLER_TICKS_MAX: u32 = 25;
/// Number of ticks within which an attempt to connect must lead to a connection on which both sides have
/// proved their identity.
const ATTEMPT_TICKS_MAX: u32 = 25;
/// Maximum number of ticks between two attempts to connect; the interval grows up to this.
const DIAL_TICKS_MAX: u32 = 8;
/// Maximum number of connections that the system completes before this node accepts them.
const LISTEN_BACKLOG: i32 = 4096;

/// A connection on which both sides have proved their identity.
pub struct Established {
    /// The peer.
    pub peer: NodeId,
    /// The socket, non-blocking.
    pub socket: OwnedFd,
    /// The receiving half.
    pub incoming: Incoming,
    /// The key of sending.
    pub key: RecordKey,
}

/// Why a connection failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum Gone {
    /// The system reports an error.
    #[error(transparent)]
    System(#[from] Errno),
    /// The other side has closed the connection.
    #[error("the other side closed it before it had proved its identity")]
    Closed,
    /// The other side sent an invalid proof.
    #[error("expected a proof of the job's key, got something else: another program listens there")]
    NotAPeer,
    /// The other side, or the network, took too long.
    #[error("no answer within {} s", (TICK * ATTEMPT_TICKS_MAX).as_secs())]
    TooLate,
}

/// The received part of the next step.
struct Step {
    bytes: [u8; HELLO_BYTES],
    got: usize,
}

impl Step {
    fn new() -> Step {
        Step { bytes: [0; HELLO_BYTES], got: 0 }
    }

    /// Reads at most `N` bytes in all, because what follows belongs to another step. Returns them once they
    /// have arrived.
    fn read<const N: usize>(&mut self, socket: &OwnedFd) -> Result<Option<[u8; N]>, Gone> {
        while self.got < N {
            match recv(socket, &mut self.bytes[self.got..N], RecvFlags::DONTWAIT) {
                Ok((_, 0)) => return Err(Gone::Closed),
                Ok((_, got)) => self.got += got,
                Err(Errno::AGAIN) => return Ok(None),
                Err(Errno::INTR) => {}
                Err(errno) => return Err(errno.into()),
            }
        }
        self.got = 0;
        Ok(Some(*self.bytes.first_chunk().expect("no step is longer than a hello")))
    }

    /// Writes a step; a new socket takes it whole.
    fn write(socket: &OwnedFd, bytes: &[u8]) -> Result<(), Gone> {
        match send(socket, bytes, SendFlags::DONTWAIT | SendFlags::NOSIGNAL) {
            Ok(sent) if sent == bytes.len() => Ok(()),
            Ok(_) => Err(Gone::Closed),
            Err(errno) => Err(errno.into()),
        }
    }
}

/// Returns the receiving half of a session, once the peer's proof has arrived.
fn proved(step: &mut Step, socket: &OwnedFd, key: &mut Option<RecordKey>) -> Result<Option<Incoming>, Gone> {
    let Some(mut record) = step.read::<RECORD_OVERHEAD_BYTES>(socket)? else { return Ok(None) };
    let mut incoming = Incoming::new(key.take().ok_or(Gone::NotAPeer)?);
    match incoming.open(&mut record) {
        Ok(Some((frames, _))) if frames.is_empty() => Ok(Some(incoming)),
        _ => Err(Gone::NotAPeer),
    }
}

/// A connection made to this node.
struct Caller {
    number: u32,
    socket: OwnedFd,
    step: Step,
    /// The identity it claims, and the keys under which it must prove it.
    claim: Option<(NodeId, RecordKey, Option<RecordKey>)>,
    ticks: u32,
}

impl Caller {
    fn advance(&mut self, identity: &Identity) -> Result<Option<(NodeId, Incoming)>, Gone> {
        if self.claim.is_none() {
            let Some(hello) = self.step.read::<HELLO_BYTES>(&self.socket)? else { return Ok(None) };
            let (peer, welcome, session) = identity.welcome(&hello, &fresh()?).map_err(|_| Gone::NotAPeer)?;
            Step::write(&self.socket, &welcome)?;
            let Session { outgoing, incoming } = session;
            self.claim = Some((peer, outgoing, Some(incoming)));
        }
        let Some((peer, outgoing, key)) = &mut self.claim else { return Ok(None) };
        let Some(incoming) = proved(&mut self.step, &self.socket, key)? else { return Ok(None) };
        Step::write(&self.socket, &proof(outgoing))?;
        Ok(Some((*peer, incoming)))
    }
}

/// The event that this node waits for on its way to a peer.
enum Stage {
    /// The next attempt, after this many ticks.
    Pause(u32),
    /// The system's report that there is a connection.
    Connecting,
    /// The peer's answer.
    Welcome(Nonce),
    /// The peer's proof, with the keys of sending and receiving.
    Proof(RecordKey, Option<RecordKey>),
}

/// A peer to connect to.
struct Dial {
    peer: NodeId,
    address: SocketAddr,
    socket: Option<OwnedFd>,
    stage: Stage,
    step: Step,
    /// Ticks of this attempt.
    ticks: u32,
    attempts: u32,
    /// Why the last attempt failed.
    last: Option<Gone>,
}

/// The failed attempts to connect to a peer.
#[derive(Clone, Copy, Debug, Error)]
#[error("no connection to {address} in {attempts} attempts; the last one failed: {last}")]
pub struct Unconnected {
    address: SocketAddr,
    attempts: u32,
    last: Gone,
}

impl Dial {
    fn begin(&mut self, watch: &Watch) -> Result<(), Gone> {
        let family = if self.address.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = socket_with(family, SocketType::STREAM, flags, Some(ipproto::TCP))?;
        let _ = sockopt::set_tcp_nodelay(&socket, true);
        watch.add(&socket, Source::Dial(self.peer), EventFlags::OUT)?;
        let connected = connect(&socket, &self.address);
        self.socket = Some(socket);
        (self.stage, self.step) = (Stage::Connecting, Step::new());
        match connected {
            Ok(()) | Err(Errno::INPROGRESS | Errno::INTR) => Ok(()),
            Err(errno) => Err(errno.into()),
        }
    }

    fn advance(
        &mut self,
        identity: &Identity,
        watch: &Watch,
        flags: EventFlags,
    ) -> Result<Option<Incoming>, Gone> {
        let Some(socket) = &self.socket else { return Ok(None) };
        if let Stage::Connecting = self.stage {
            if !flags.intersects(EventFlags::OUT | EventFlags::ERR | EventFlags::HUP) {
                return Ok(None);
            }
            sockopt::socket_error(socket)??;
            let nonce = fresh()?;
            Step::write(socket, &identity.hello(self.peer, &nonce))?;
            watch.change(socket, Source::Dial(self.peer), EventFlags::IN);
            self.stage = Stage::Welcome(nonce);
        }
        if let Stage::Welcome(nonce) = &self.stage {
            let Some(welcome) = self.step.read::<WELCOME_BYTES>(socket)? else { return Ok(None) };
            let session = identity.welcomed(self.peer, nonce, &welcome).map_err(|_| Gone::NotAPeer)?;
            Step::write(socket, &proof(&session.outgoing))?;
            self.stage = Stage::Proof(session.outgoing, Some(session.incoming));
        }
        let Stage::Proof(_, key) = &mut self.stage else { return Ok(None) };
        proved(&mut self.step, socket, key)
    }

    /// Begins an attempt now, or schedules it for later.
    fn attempt(&mut self, watch: &Watch) {
        self.ticks = 0;
        if let Err(gone) = self.begin(watch) {
            self.give_up(gone, watch);
        }
    }

    /// Handles a tick.
    fn tick(&mut self, watch: &Watch) {
        self.ticks += 1;
        match &mut self.stage {
            Stage::Pause(ticks @ 2..) => *ticks -= 1,
            Stage::Pause(_) => self.attempt(watch),
            _ if self.ticks > ATTEMPT_TICKS_MAX => self.give_up(Gone::TooLate, watch),
            _ => {}
        }
    }

    /// Gives this attempt up.
    fn give_up(&mut self, gone: Gone, watch: &Watch) {
        self.last = Some(gone);
        if let Some(socket) = self.socket.take() {
            watch.remove(&socket);
        }
        self.attempts += 1;
        self.stage = Stage::Pause(self.attempts.min(DIAL_TICKS_MAX));
    }
}

fn fresh() -> Result<Nonce, Gone> {
    let mut nonce = Nonce::default();
    match getrandom(&mut nonce, GetRandomFlags::empty()) {
        Ok(NONCE_BYTES) => Ok(nonce),
        Ok(_) => Err(Errno::INTR.into()),
        Err(errno) => Err(errno.into()),
    }
}

/// All connections that are not established. Belongs to the receiving role.
pub struct Doors {
    identity: Identity,
    listener: Option<OwnedFd>,
    /// True if the system has no room for another connection; retried at the next tick.
    is_full: bool,
    callers: Vec<Caller>,
    next_caller: u32,
    dials: Vec<Dial>,
    /// Number of nodes that have still to connect.
    awaited: usize,
    /// Number of refused connections.
    pub refused: u64,
}

impl Doors {
    /// Listens for nodes of higher numbers and connects to those of lower ones, which listen at `addresses`.
    ///
    /// # Errors
    ///
    /// Fails if the listener does not listen, or if the system has no room.
    pub fn open(
        identity: Identity,
        listener: OwnedFd,
        addresses: &[SocketAddr],
        watch: &Watch,
    ) -> io::Result<Doors> {
        rustix::io::ioctl_fionbio(&listener, true)?;
        listen(&listener, LISTEN_BACKLOG)?;
        watch.add(&listener, Source::Listener, EventFlags::IN)?;
        let local = identity.local.index();
        let dial = |(node, address): (NodeId, &SocketAddr)| Dial {
            peer: node,
            address: *address,
            socket: None,
            stage: Stage::Pause(0),
            step: Step::new(),
            ticks: 0,
            attempts: 0,
            last: None,
        };
        let mut dials: Vec<Dial> = NodeId::all(identity.nodes).zip(addresses).take(local).map(dial).collect();
        dials.iter_mut().for_each(|dial| dial.attempt(watch));
        let awaited = usize::from(identity.nodes) - 1 - local;
        let mut doors = Doors {
            identity,
            listener: Some(listener),
            is_full: false,
            callers: Vec::new(),
            next_caller: 0,
            dials,
            awaited,
            refused: 0,
        };
        doors.close_when_all_have_come(watch);
        Ok(doors)
    }

    /// Returns true if a tick has something to do.
    pub fn need_ticks(&self) -> bool {
        self.is_full || !self.callers.is_empty() || !self.dials.is_empty()
    }

    /// Iterates over the peers to which attempts to connect have failed.
    pub fn unconnected(&self) -> impl Iterator<Item = (NodeId, Unconnected)> {
        self.dials.iter().filter_map(|&Dial { peer, address, attempts, last, .. }| {
            Some((peer, Unconnected { address, attempts, last: last? }))
        })
    }

    /// Accepts incoming connections.
    pub fn accept(&mut self, watch: &Watch) {
        for _ in 0..ACCEPTED_AT_ONCE {
            let Some(listener) = &self.listener else { return };
            let socket = match accept_with(listener, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK) {
                Ok(socket) => socket,
                Err(Errno::AGAIN) => return,
                // Connections that ended before they were accepted report their errors here (accept(2)).
                Err(Errno::MFILE | Errno::NFILE | Errno::NOMEM | Errno::NOBUFS) => {
                    watch.change(listener, Source::Listener, EventFlags::empty());
                    self.is_full = true;
                    return;
                }
                Err(_) => continue,
            };
            if self.callers.len() >= CALLERS_MAX {
                self.make_room(watch);
            }
            let _ = sockopt::set_tcp_nodelay(&socket, true);
            let number = self.next_caller;
            self.next_caller = number.wrapping_add(1);
            if watch.add(&socket, Source::Caller(number), EventFlags::IN).is_ok() {
                self.callers.push(Caller { number, socket, step: Step::new(), claim: None, ticks: 0 });
            }
        }
    }

    /// Refuses the oldest caller that has sent nothing valid: callers with the job's key do so within one
    /// turn.
    fn make_room(&mut self, watch: &Watch) {
        let oldest = self.callers.iter().position(|caller| caller.claim.is_none()).unwrap_or(0);
        self.refuse(oldest, watch);
    }

    fn refuse(&mut self, index: usize, watch: &Watch) {
        // In order, because the oldest stands first.
        let caller = self.callers.remove(index);
        watch.remove(&caller.socket);
        self.refused += 1;
    }

    /// Handles bytes from a caller. Returns the connection if they prove its identity.
    pub fn hear_caller(&mut self, number: u32, watch: &Watch) -> Option<Established> {
        let index = self.callers.iter().position(|caller| caller.number == number)?;
        match self.callers[index].advance(&self.identity) {
            Ok(None) => None,
            Err(_) => {
                self.refuse(index, watch);
                None
            }
            Ok(Some((peer, incoming))) => {
                let Caller { socket, claim, .. } = self.callers.remove(index);
                Some(Established { peer, socket, incoming, key: claim?.1 })
            }
        }
    }

    /// Handles an event of the connection to `peer`. Returns the connection if it is established now.
    pub fn hear_dialled(&mut self, peer: NodeId, flags: EventFlags, watch: &Watch) -> Option<Established> {
        let index = self.dials.iter().position(|dial| dial.peer == peer)?;
        let dial = &mut self.dials[index];
        match dial.advance(&self.identity, watch, flags) {
            Ok(None) => None,
            Err(gone) => {
                dial.give_up(gone, watch);
                None
            }
            Ok(Some(incoming)) => match self.dials.swap_remove(index) {
                Dial { socket: Some(socket), stage: Stage::Proof(key, _), .. } => {
                    Some(Established { peer, socket, incoming, key })
                }
                _ => None,
            },
        }
    }

    /// Counts an expected node that has connected.
    pub fn count_arrival(&mut self, watch: &Watch) {
        self.awaited -= 1;
        self.close_when_all_have_come(watch);
    }

    /// Stops listening when all have connected: later callers are strangers, which the system refuses at no
    /// cost to this node.
    fn close_when_all_have_come(&mut self, watch: &Watch) {
        if self.awaited > 0 {
            return;
        }
        if let Some(listener) = self.listener.take() {
            watch.remove(&listener);
            // Other processes may have the descriptor open, too; this ends the listening for all of them.
            let _ = shutdown(&listener, Shutdown::Read);
        }
        while !self.callers.is_empty() {
            self.refuse(0, watch);
        }
        self.is_full = false;
    }

    /// Handles a tick.
    pub fn tick(&mut self, watch: &Watch) {
        if std::mem::take(&mut self.is_full)
            && let Some(listener) = &self.listener
        {
            watch.change(listener, Source::Listener, EventFlags::IN);
        }
        self.callers.iter_mut().for_each(|caller| caller.ticks += 1);
        while self.callers.first().is_some_and(|caller| caller.ticks > CALLER_TICKS_MAX) {
            self.refuse(0, watch);
        }
        self.dials.iter_mut().for_each(|dial| dial.tick(watch));
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use hiroba_wire::control::JobKey;

    use super::*;

    /// Makes the doors of node 1 of 2, which expects node 0 at `address`.
    fn doors_towards(address: SocketAddr, watch: &Watch) -> Doors {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let addresses = [address, listener.local_addr().unwrap()];
        let key = JobKey::new(&[7; 32]);
        let identity = Identity { key, job: 3, local: NodeId(1), nodes: 2, seals_records: true };
        Doors::open(identity, listener.into(), &addresses, watch).unwrap()
    }

    fn tick(doors: &mut Doors, watch: &Watch, ticks: u32) -> Option<String> {
        let mut events = Vec::new();
        for _ in 0..ticks {
            watch.ready(&mut events).unwrap();
            for &(source, flags) in &events {
                if let Source::Dial(peer) = source {
                    assert!(doors.hear_dialled(peer, flags, watch).is_none());
                }
            }
            assert!(doors.need_ticks());
            doors.tick(watch);
        }
        doors.unconnected().map(|(_, unconnected)| unconnected.to_string()).next()
    }

    #[test]
    fn an_attempt_to_connect_ends_at_its_deadline_and_is_repeated() {
        // The system completes the connection, and the other side never sends anything.
        let silent = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = silent.local_addr().unwrap();
        let watch = Watch::new().unwrap();
        let mut doors = doors_towards(address, &watch);
        assert_eq!(tick(&mut doors, &watch, ATTEMPT_TICKS_MAX), None, "it may still come");
        let told = |attempts| {
            let why = "the last one failed: no answer within 5 s";
            Some(format!("no connection to {address} in {attempts} attempts; {why}"))
        };
        assert_eq!(tick(&mut doors, &watch, 1), told(1));
        assert!(doors.dials[0].socket.is_none());
        assert_eq!(tick(&mut doors, &watch, 1 + ATTEMPT_TICKS_MAX + 1), told(2));
        for _ in 0..2 {
            silent.accept().unwrap();
        }
    }

    #[test]
    fn why_there_is_no_connection_is_known() {
        let address = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let watch = Watch::new().unwrap();
        let mut doors = doors_towards(address, &watch);
        let why = tick(&mut doors, &watch, 5).unwrap();
        assert!(why.contains("onnection refused"), "{why}");
    }
}
