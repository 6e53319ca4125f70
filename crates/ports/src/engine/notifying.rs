//! Notifications about names: dead names, and names to which a message has been accepted.

use crate::body::{HeldRight, Parcel};
use crate::effect::{Notification, Outcome};
use crate::error::PortError;
use crate::id::{Name, Once, PortId};
use crate::message::{Disposition, RightToSend, notification};
use crate::names::Entry;

use super::Engine;

impl Engine {
    pub(super) fn notify_dead_name(&mut self, name: Name, once: Once) {
        self.notify_about(notification::DEAD_NAME, name, once);
    }

    pub(super) fn notify_accepted(&mut self, name: Name, once: Once) {
        self.notify_about(notification::MESSAGE_ACCEPTED, name, once);
    }

    fn notify_about(&mut self, id: u32, name: Name, once: Once) {
        let inline = name.to_bits().to_le_bytes().to_vec();
        self.send_by_once(once, Parcel::notification(id, inline, Vec::new(), self.me));
    }

    pub(super) fn request_notification(
        &mut self,
        name: Name,
        of: Notification,
        notify: Option<RightToSend>,
    ) -> Result<Outcome, PortError> {
        if let Some(notify) = notify {
            let is_once = matches!(notify.disposition, Disposition::MakeSendOnce | Disposition::MoveSendOnce);
            if !is_once || notify.name == name && notify.disposition == Disposition::MoveSendOnce {
                return Err(PortError::InvalidRight);
            }
            self.check_rights(core::iter::once(notify))?;
        }
        self.names.has_room(1)?;
        let receives = |engine: &Engine| match engine.names.get(name)? {
            Entry::Port { port, receive: true, .. } => Ok(*port),
            _ => Err(PortError::InvalidRight),
        };
        let previous = match of {
            Notification::DeadName => {
                if matches!(self.names.get(name)?, Entry::Set { .. }) {
                    return Err(PortError::InvalidRight);
                }
                let once = self.take_notify(notify);
                match self.names.get_mut(name)? {
                    Entry::Port { dead_name, .. } | Entry::Once { dead_name, .. } => {
                        core::mem::replace(dead_name, once)
                    }
                    Entry::Dead { references } => {
                        if let Some(once) = once {
                            *references += 1;
                            self.notify_dead_name(name, once);
                        }
                        None
                    }
                    Entry::Set { .. } => None,
                }
            }
            Notification::NoSenders { sync } => {
                let port = receives(self)?;
                let once = self.take_notify(notify);
                self.todo.holdings.insert(port);
                let body = self.body(port).ok_or(PortError::InvalidRight)?;
                core::mem::replace(&mut body.no_senders, once.map(|once| (sync, once))).map(|(_, once)| once)
            }
            Notification::PortDestroyed => {
                let port = receives(self)?;
                let once = self.take_notify(notify);
                let body = self.body(port).ok_or(PortError::InvalidRight)?;
                core::mem::replace(&mut body.port_destroyed, once)
            }
        };
        let previous = previous.map(|once| self.name_right(HeldRight::Once(once)).name);
        Ok(Outcome::Previous(previous))
    }

    fn take_notify(&mut self, notify: Option<RightToSend>) -> Option<Once> {
        match notify.map(|notify| self.take_right(notify)) {
            Some(Ok(HeldRight::Once(once))) => Some(once),
            _ => None,
        }
    }

    /// Returns the port of a receive right.
    pub(super) fn port_of(&self, name: Name) -> Result<PortId, PortError> {
        match self.names.get(name)? {
            Entry::Port { port, receive: true, .. } => Ok(*port),
            _ => Err(PortError::InvalidRight),
        }
    }
}
