//! Mutual authentication of two nodes that a connection joins. Sans-IO.
//!
//! ```text
//! the node that connects (higher number)                  the node that accepts
//!    | -- Hello: job, from, to, nonce a, tag ----------------> |
//!    | <------------------------- Welcome: nonce b, tag ------ |   authenticates the accepting side
//!    | -- a record without frames ---------------------------> |   authenticates the connecting side
//!    | <---------------------- a record without frames ------- |   the connecting side sends from now on
//! ```
//!
//! Read first: RFC 5869 and ISO/IEC 9798-2 (three-pass mutual authentication), which this follows with
//! sealing in place of encryption. Every tag is sealed with a key of its own that is derived from the job's
//! key, both nonces, the direction and the step. A step that is replayed from another connection, sent back
//! to its sender, or meant for another node therefore opens nothing. Only the `Hello` can be replayed,
//! because it answers nothing: the replayer gets a `Welcome` and cannot go on. The connecting side sends
//! nothing before the second record, so until then it may start again without loss.

use hiroba_base::NodeId;
use hiroba_wire::control::JobKey;
use thiserror::Error;

use super::key::{NONCE_BYTES, Nonce, RecordKey};
use crate::seal::{DirectionKey, Forged, TAG_BYTES};

/// Identifies the protocol and its version.
const MAGIC: [u8; 8] = *b"hiroba\x00\x01";
/// Magic, job, from, to, nonce, tag.
pub const HELLO_BYTES: usize = 8 + 8 + 2 + 2 + NONCE_BYTES + TAG_BYTES;
/// Nonce, tag.
pub const WELCOME_BYTES: usize = NONCE_BYTES + TAG_BYTES;

/// Why a connection is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum Refused {
    /// Another program, or another version.
    #[error("expected a node of this version of hiroba, got something else")]
    Magic,
    /// A node of another job.
    #[error("expected a node of job {expected:#x}, got one of {got:#x}")]
    Job {
        /// This node's job.
        expected: u64,
        /// The other node's job.
        got: u64,
    },
    /// The connection was meant for another node.
    #[error("expected a connection to node {expected}, got one to node {got}")]
    Destination {
        /// This node.
        expected: NodeId,
        /// The node that was meant.
        got: NodeId,
    },
    /// The sender is not a node that connects to this one.
    #[error("expected a connection from a node of a higher number below {nodes}, got one from node {got}")]
    Source {
        /// The number of nodes.
        nodes: u16,
        /// The claimed sender.
        got: NodeId,
    },
    /// The sender does not have the job's key.
    #[error(transparent)]
    Forged(#[from] Forged),
}

/// A node's identity, and the key that proves it.
#[derive(Clone, Debug)]
pub struct Identity {
    /// The job's secret.
    pub key: JobKey,
    /// The job's number.
    pub job: u64,
    /// This node.
    pub local: NodeId,
    /// The number of nodes in the job.
    pub nodes: u16,
    /// True if records after the handshake are sealed.
    pub seals_records: bool,
}

/// The keys of a connection.
#[derive(Debug)]
pub struct Session {
    /// The key of sending.
    pub outgoing: RecordKey,
    /// The key of receiving.
    pub incoming: RecordKey,
}

/// The step for which a key is derived. All labels have the same length, because they stand first in the
/// derivation.
#[derive(Clone, Copy)]
enum Step {
    Hello,
    Welcome,
}

impl Identity {
    fn derive(&self, step: Step, nonces: &[&Nonce], from: NodeId, to: NodeId) -> DirectionKey {
        let label = match step {
            Step::Hello => b"tcp hello..",
            Step::Welcome => b"tcp welcome",
        };
        let (from, to) = (from.0.to_be_bytes(), to.0.to_be_bytes());
        let mut context: Vec<&[u8]> = vec![label];
        context.extend(nonces.iter().map(|nonce| nonce.as_slice()));
        context.extend([&from[..], &to[..]]);
        DirectionKey::derive(&self.key, &context)
    }

    fn session(&self, peer: NodeId, a: &Nonce, b: &Nonce) -> Session {
        if !self.seals_records {
            return Session { outgoing: RecordKey::none(), incoming: RecordKey::none() };
        }
        Session {
            outgoing: RecordKey::new(&self.key, [*a, *b], self.local, peer),
            incoming: RecordKey::new(&self.key, [*a, *b], peer, self.local),
        }
    }

    /// Returns true if `peer` is one of the nodes that connect to this one.
    pub fn awaits(&self, peer: NodeId) -> bool {
        peer.0 > self.local.0 && peer.0 < self.nodes
    }

    /// Makes the first step, to node `to`. No nonce may be used twice.
    pub fn hello(&self, to: NodeId, nonce: &Nonce) -> [u8; HELLO_BYTES] {
        let mut hello = [0; HELLO_BYTES];
        let mut rest = &mut hello[..];
        let (job, from, into) = (self.job.to_be_bytes(), self.local.0.to_be_bytes(), to.0.to_be_bytes());
        for field in [&MAGIC[..], &job, &from, &into, nonce] {
            let (place, after) = rest.split_at_mut(field.len());
            place.copy_from_slice(field);
            rest = after;
        }
        let (fields, tag) = hello.split_at_mut(HELLO_BYTES - TAG_BYTES);
        tag.copy_from_slice(&self.derive(Step::Hello, &[nonce], self.local, to).seal(
            0,
            fields,
            HELLO_BYTES - TAG_BYTES,
        ));
        hello
    }

    /// Checks the first step and makes the second, with a fresh nonce. Returns the node that wants to
    /// connect, the answer, and the keys under which that node must still prove that its step was no replay.
    ///
    /// # Errors
    ///
    /// Fails if the sender may not connect. It gets no answer then.
    pub fn welcome(
        &self,
        hello: &[u8; HELLO_BYTES],
        nonce: &Nonce,
    ) -> Result<(NodeId, [u8; WELCOME_BYTES], Session), Refused> {
        let mut hello = *hello;
        let field = |at: usize| u64::from_be_bytes(*hello[at..].first_chunk().expect("a hello is longer"));
        let node =
            |at: usize| NodeId(u16::from_be_bytes(*hello[at..].first_chunk().expect("a hello is longer")));
        let (job, peer, destination) = (field(8), node(16), node(18));
        if hello[..MAGIC.len()] != MAGIC {
            return Err(Refused::Magic);
        }
        if job != self.job {
            return Err(Refused::Job { expected: self.job, got: job });
        }
        if destination != self.local {
            return Err(Refused::Destination { expected: self.local, got: destination });
        }
        if !self.awaits(peer) {
            return Err(Refused::Source { nodes: self.nodes, got: peer });
        }
        let theirs: Nonce = *hello[20..].first_chunk().expect("a hello is longer");
        let (fields, tag) = hello.split_at_mut(HELLO_BYTES - TAG_BYTES);
        let tag = tag.first_chunk().expect("a hello ends with a tag");
        self.derive(Step::Hello, &[&theirs], peer, self.local).open(
            0,
            fields,
            HELLO_BYTES - TAG_BYTES,
            tag,
        )?;

        let mut welcome = [0; WELCOME_BYTES];
        let (place, tag) = welcome.split_at_mut(NONCE_BYTES);
        place.copy_from_slice(nonce);
        let key = self.derive(Step::Welcome, &[&theirs, nonce], self.local, peer);
        tag.copy_from_slice(&key.seal(0, place, NONCE_BYTES));
        Ok((peer, welcome, self.session(peer, &theirs, nonce)))
    }

    /// Checks the second step. Returns the keys of the connection to `peer`, to which `hello` was sent with
    /// `nonce`.
    ///
    /// # Errors
    ///
    /// Fails if the answer is not the peer's answer to that.
    pub fn welcomed(
        &self,
        peer: NodeId,
        nonce: &Nonce,
        welcome: &[u8; WELCOME_BYTES],
    ) -> Result<Session, Refused> {
        let mut welcome = *welcome;
        let (theirs, tag) = welcome.split_at_mut(NONCE_BYTES);
        let tag = tag.first_chunk().expect("a welcome ends with a tag");
        let theirs: &mut Nonce = theirs.first_chunk_mut().expect("a welcome begins with a nonce");
        self.derive(Step::Welcome, &[nonce, theirs], peer, self.local).open(0, theirs, NONCE_BYTES, tag)?;
        Ok(self.session(peer, nonce, theirs))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn identity(local: u16) -> Identity {
        Identity { key: JobKey::new(&[5; 32]), job: 77, local: NodeId(local), nodes: 3, seals_records: true }
    }

    const A: Nonce = [1; NONCE_BYTES];
    const B: Nonce = [2; NONCE_BYTES];

    fn refusal(by: &Identity, hello: &[u8; HELLO_BYTES]) -> Refused {
        by.welcome(hello, &B).expect_err("refused")
    }

    #[test]
    fn both_get_the_same_keys() {
        let (one, other) = (identity(2), identity(0));
        let hello = one.hello(NodeId(0), &A);
        let (peer, welcome, mut accepted) = other.welcome(&hello, &B).unwrap();
        assert_eq!(peer, NodeId(2));
        let mut connected = one.welcomed(NodeId(0), &A, &welcome).unwrap();
        for (from, to) in [
            (&mut connected.outgoing, &mut accepted.incoming),
            (&mut accepted.outgoing, &mut connected.incoming),
        ] {
            let mut bytes = *b"record";
            let tag = from.seal(0, &mut bytes, 0);
            assert_eq!(to.open(0, &mut bytes, 0, &tag), Ok(()));
        }
        let mut bytes = *b"record";
        let tag = connected.outgoing.seal(0, &mut bytes, 0);
        assert_eq!(connected.incoming.open(0, &mut bytes, 0, &tag), Err(Forged), "directions differ");
    }

    #[test]
    fn strangers_are_refused() {
        let host = identity(1);
        let hello = |by: Identity, to| by.hello(NodeId(to), &A);
        let other_key = Identity { key: JobKey::new(&[6; 32]), ..identity(2) };
        let other_job = Identity { job: 78, ..identity(2) };
        let beyond = Identity { nodes: 9, ..identity(8) };
        assert_eq!(refusal(&host, &hello(other_key, 1)), Refused::Forged(Forged));
        assert_eq!(refusal(&host, &hello(other_job, 1)), Refused::Job { expected: 77, got: 78 });
        assert_eq!(
            refusal(&host, &hello(identity(2), 0)),
            Refused::Destination { expected: NodeId(1), got: NodeId(0) }
        );
        for (by, got) in [(identity(0), NodeId(0)), (identity(1), NodeId(1)), (beyond, NodeId(8))] {
            assert_eq!(refusal(&host, &hello(by, 1)), Refused::Source { nodes: 3, got });
        }
        assert_eq!(refusal(&host, &[0; HELLO_BYTES]), Refused::Magic);
        let sound = hello(identity(2), 1);
        for bit in 0..HELLO_BYTES * 8 {
            let mut changed = sound;
            changed[bit / 8] ^= 1 << (bit % 8);
            refusal(&host, &changed);
        }
    }

    #[test]
    fn an_answer_to_another_hello_is_refused() {
        let (one, other) = (identity(2), identity(0));
        let (_, welcome, _) = other.welcome(&one.hello(NodeId(0), &A), &B).unwrap();
        assert!(one.welcomed(NodeId(0), &B, &welcome).is_err(), "another nonce");
        assert!(one.welcomed(NodeId(1), &A, &welcome).is_err(), "another peer");
        for bit in 0..WELCOME_BYTES * 8 {
            let mut changed = welcome;
            changed[bit / 8] ^= 1 << (bit % 8);
            assert!(one.welcomed(NodeId(0), &A, &changed).is_err(), "bit {bit}");
        }
    }

    #[test]
    fn a_replayed_hello_gets_keys_of_its_own() {
        let (one, other) = (identity(2), identity(0));
        let hello = one.hello(NodeId(0), &A);
        let first = other.welcome(&hello, &B).unwrap().2;
        let again = other.welcome(&hello, &[3; NONCE_BYTES]).unwrap().2;
        let mut bytes = *b"proof";
        let tag = first.incoming.seal(0, &mut bytes, 0);
        assert_eq!(again.incoming.open(0, &mut bytes, 0, &tag), Err(Forged));
    }
}
