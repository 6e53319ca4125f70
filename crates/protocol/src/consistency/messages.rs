//! Messages: chooses the part of the node that handles each, and keeps those that must wait.

use hiroba_base::{NodeId, PageId, PageRange};
use hiroba_wire::Message;

use super::Consistency;
use crate::barrier::{Arrival, Departure};
use crate::coherence::AfterRelease;
use crate::cond::CondAction;
use crate::subject::Subject;
use crate::{Expected, Fact, ProtocolError, Synchronisation, unexpected};

impl Consistency {
    fn subject(&self, message: &Message<'_>) -> Option<Subject> {
        Subject::of(message, |page| self.site.homes.is_allocated(page))
    }

    /// Keeps a message to a home if earlier messages of its sender are kept, or not handled yet: a later diff
    /// must not be applied before an earlier one, and no page be served without diffs that its reader has
    /// sent. Returns true if so.
    pub(super) fn comes_behind_kept(&mut self, from: NodeId, message: &Message<'_>) -> bool {
        if self.comes_behind_deferred(from, message) {
            return true;
        }
        let waits = |kept: &(NodeId, Vec<u8>)| kept.0 == from;
        let is_behind = self.site.out.kept().any(waits) && self.is_for_home(message);
        if is_behind {
            self.site.out.keep([(from, message.encode())]);
        }
        is_behind
    }

    fn is_for_home(&self, message: &Message<'_>) -> bool {
        self.subject(message).is_some_and(|subject| subject.is_for_home)
    }

    /// Queues a message for a home behind its sender's queued ones. Returns true if queued.
    pub(super) fn comes_behind_deferred(&mut self, from: NodeId, message: &Message<'_>) -> bool {
        let is_behind =
            self.site.deferred.iter().any(|(sender, _)| *sender == from) && self.is_for_home(message);
        if is_behind {
            self.site.deferred.push((from, message.encode()));
        }
        is_behind
    }

    pub(super) fn dispatch(&mut self, from: NodeId, message: &Message<'_>) -> Result<(), ProtocolError> {
        if let Some(subject) = self.subject(message) {
            return self.dispatch_to_protocol(from, message, subject);
        }
        let out = &mut self.site.out;
        if let Some(actions) = self.locks.handle_message(from, message, &self.site.timestamp)? {
            self.carry_out(actions);
            return Ok(());
        }
        if let Some(action) = self.conds.handle_message(from, message, out)? {
            match action {
                CondAction::Nothing => {}
                CondAction::Release(lock, waiter) => self.site.release_for(AfterRelease::Wait(lock, waiter)),
                CondAction::Acquire(lock, waiter) => self.synchronise(Synchronisation::Acquire(lock), waiter),
            }
            return Ok(());
        }
        match message {
            Message::LockGrant { knowledge, .. } | Message::Publish { knowledge, .. }
                if self.is_of_later_epoch(knowledge) =>
            {
                self.keep_for_its_epoch(from, message);
            }
            Message::LockGrant { lock, turn, knowledge } => {
                let voided = self.absorb(knowledge, true);
                let action = self.locks.handle_grant(*lock, *turn)?;
                self.each(|protocol, site| protocol.begin_hold(site, *lock, &voided));
                self.carry_out([action]);
            }
            Message::Publish { knowledge, count } => {
                let voided = self.absorb(knowledge, true);
                self.each(|protocol, site| protocol.note_lost(site, &voided));
                self.site.tell(|| Some(Fact::PublicationSeen { from, count: *count }));
            }
            Message::Arrive { epoch, collective, caller, least, knowledge, moves, contributions } => {
                let (least, knowledge) = (least.clone(), knowledge.clone());
                let (collective, caller, moves) = (*collective, *caller, moves.clone());
                let contributions = contributions.iter().map(|one| (one.node, one.bytes.to_vec())).collect();
                let arrival = Arrival { collective, caller, least, knowledge, moves, contributions };
                self.handle_arrival(from, *epoch, arrival)?;
            }
            Message::Place { first, count } => {
                self.handle_place(from, PageRange { first: *first, count: *count })?;
            }
            Message::Placed { first } => self.handle_placed(from, *first)?,
            Message::KeepHomes { epoch } => self.handle_keep_homes(from, *epoch)?,
            Message::HomesKept { epoch } => self.handle_homes_kept(*epoch)?,
            Message::Depart { epoch, collective, knowledge, moves } => {
                let (news, moves) = (knowledge.clone(), moves.clone());
                let departure = Departure { collective: *collective, news, moves };
                self.handle_departure(from, *epoch, departure)?;
            }
            _ => {
                return Err(unexpected(
                    Expected::ProtocolMessage,
                    "one for the host, or without pages".to_owned(),
                ));
            }
        }
        Ok(())
    }

    /// Checks that the pages of a message about several pages under sequential consistency are pages of the
    /// protocol of `first`.
    fn check_run(&self, message: &Message<'_>, first: PageId) -> Result<(), ProtocolError> {
        let protocol = self.protocols.index_of(first);
        let check = |page: PageId| {
            if self.site.locate(page).page == page && self.protocols.index_of(page) == protocol {
                return Ok(());
            }
            Err(unexpected(Expected::PagesOfOneProtocol, format!("{page} with {first}")))
        };
        match message {
            Message::CopiesRequest { pages, .. }
            | Message::OwnershipRequest { pages }
            | Message::OwnershipForward { pages, .. }
            | Message::InvalidateCopy { pages, .. }
            | Message::CopyInvalidated { pages } => pages.iter().try_for_each(check),
            Message::Ownership { pages } => pages.iter().try_for_each(|owned| check(owned.page)),
            _ => Ok(()),
        }
    }

    fn dispatch_to_protocol(
        &mut self,
        from: NodeId,
        message: &Message<'_>,
        subject: Subject,
    ) -> Result<(), ProtocolError> {
        match subject {
            Subject { page, is_known: true, .. } => {
                self.site.out.note_touched(PageRange::single(page));
                if self.handle_conversion(from, message)? {
                    return Ok(());
                }
                self.check_run(message, page)?;
                self.protocols.of(page).handle_message(&mut self.site, from, message)
            }
            Subject { is_for_home: true, .. } => {
                self.site.deferred.push((from, message.encode()));
                Ok(())
            }
            Subject { page, .. } => {
                Err(unexpected(Expected::AnswerAboutAllocatedPages, format!("one about {page}")))
            }
        }
    }
}
