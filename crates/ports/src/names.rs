//! The table of a node's names, with what each denotes, and its number of user references.

use std::collections::BTreeSet;

use rustc_hash::FxHashMap;

use crate::error::PortError;
use crate::id::{Name, Once, PortId};

/// The maximum number of user references of one name (`MACH_PORT_UREFS_MAX`).
pub(crate) const REFERENCES_MAX: u32 = 65_534;

/// What a name denotes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Entry {
    /// Rights to a port, at least one.
    Port { port: PortId, receive: bool, send: u32, dead_name: Option<Once> },
    /// One send-once right.
    Once { once: Once, dead_name: Option<Once> },
    /// A former right to a port that has died.
    Dead { references: u32 },
    /// A set.
    Set { members: BTreeSet<PortId> },
}

#[derive(Clone, Debug, Default)]
struct Place {
    generation: u32,
    entry: Option<Entry>,
}

/// The table.
#[derive(Clone, Debug, Default)]
pub(crate) struct Names {
    places: Vec<Place>,
    free: Vec<u32>,
    by_port: FxHashMap<PortId, Name>,
    /// Names of send-once rights, by port.
    onces: BTreeSet<(PortId, Name)>,
    sets: BTreeSet<Name>,
    used: u32,
    limit: u32,
}

impl Names {
    pub(crate) fn new(limit: u32) -> Names {
        Names { limit, ..Names::default() }
    }

    /// Checks that `more` names can still be made.
    pub(crate) fn has_room(&self, more: usize) -> Result<(), PortError> {
        let good = self.used as usize + more <= self.limit as usize;
        if good { Ok(()) } else { Err(PortError::NoSpace { limit: self.limit }) }
    }

    /// Makes a name. Rights that a message brings may exceed the limit, because they must not be lost.
    pub(crate) fn add(&mut self, entry: Entry) -> Name {
        let place = self.free.pop().unwrap_or_else(|| {
            self.places.push(Place::default());
            u32::try_from(self.places.len() - 1).expect("fewer than 2 to the 32nd names")
        });
        let slot = &mut self.places[place as usize];
        slot.generation = slot.generation.wrapping_add(1).max(1);
        let name = Name::new(place, slot.generation);
        match &entry {
            Entry::Port { port, .. } => _ = self.by_port.insert(*port, name),
            Entry::Once { once, .. } => _ = self.onces.insert((once.port, name)),
            Entry::Set { .. } => _ = self.sets.insert(name),
            Entry::Dead { .. } => {}
        }
        slot.entry = Some(entry);
        self.used += 1;
        name
    }

    pub(crate) fn get(&self, name: Name) -> Result<&Entry, PortError> {
        let slot = self.places.get(name.place()).ok_or(PortError::InvalidName)?;
        let entry = slot.entry.as_ref().ok_or(PortError::InvalidName)?;
        let current = Name::new(name.place() as u32, slot.generation) == name;
        if current { Ok(entry) } else { Err(PortError::InvalidName) }
    }

    pub(crate) fn get_mut(&mut self, name: Name) -> Result<&mut Entry, PortError> {
        self.get(name)?;
        self.places[name.place()].entry.as_mut().ok_or(PortError::InvalidName)
    }

    /// Removes the name, which denotes nothing from now on.
    pub(crate) fn remove(&mut self, name: Name) -> Option<Entry> {
        self.get(name).ok()?;
        let entry = self.places[name.place()].entry.take()?;
        match &entry {
            Entry::Port { port, .. } => _ = self.by_port.remove(port),
            Entry::Once { once, .. } => _ = self.onces.remove(&(once.port, name)),
            Entry::Set { .. } => _ = self.sets.remove(&name),
            Entry::Dead { .. } => {}
        }
        self.free.push(name.place() as u32);
        self.used -= 1;
        Some(entry)
    }

    /// Returns the name of the receive or send rights to a port.
    pub(crate) fn of_port(&self, port: PortId) -> Option<Name> {
        self.by_port.get(&port).copied()
    }

    /// Returns the number of user references of send rights to a port.
    pub(crate) fn send_references(&self, port: PortId) -> u32 {
        let entry = self.of_port(port).and_then(|name| self.get(name).ok());
        match entry {
            Some(Entry::Port { send, .. }) => *send,
            _ => 0,
        }
    }

    /// Returns true if the receive right of a port has a name.
    pub(crate) fn receives(&self, port: PortId) -> bool {
        let entry = self.of_port(port).and_then(|name| self.get(name).ok());
        matches!(entry, Some(Entry::Port { receive: true, .. }))
    }

    /// Returns the entry of a port, a new empty one if there is none.
    pub(crate) fn port_entry(&mut self, port: PortId) -> (Name, &mut bool, &mut u32) {
        let name = self
            .of_port(port)
            .unwrap_or_else(|| self.add(Entry::Port { port, receive: false, send: 0, dead_name: None }));
        match self.get_mut(name) {
            Ok(Entry::Port { receive, send, .. }) => (name, receive, send),
            _ => unreachable!("the index of ports leads to entries of ports"),
        }
    }

    /// Removes a name that denotes no right any more. Returns the right for its requested dead-name
    /// notification.
    pub(crate) fn tidy(&mut self, port: PortId) -> Option<Once> {
        let name = self.of_port(port)?;
        let empty = matches!(self.get(name), Ok(Entry::Port { receive: false, send: 0, .. }));
        match if empty { self.remove(name) } else { None } {
            Some(Entry::Port { dead_name, .. }) => dead_name,
            _ => None,
        }
    }

    /// Makes dead names of all names of a port. Returns those for which a notification was requested.
    pub(crate) fn bury(&mut self, port: PortId) -> Vec<(Name, Once)> {
        let mut told = Vec::new();
        let onces: Vec<_> =
            self.onces.range((port, Name::NULL)..).take_while(|(of, _)| *of == port).copied().collect();
        let named = self.by_port.remove(&port).into_iter().chain(onces.into_iter().map(|(_, name)| name));
        for name in named {
            self.onces.remove(&(port, name));
            let Some(entry) = self.places[name.place()].entry.as_mut() else { continue };
            let (references, dead_name) = match entry {
                Entry::Port { send, dead_name, .. } => (*send, *dead_name),
                Entry::Once { dead_name, .. } => (1, *dead_name),
                Entry::Dead { .. } | Entry::Set { .. } => continue,
            };
            if references == 0 {
                self.places[name.place()].entry = None;
                self.free.push(name.place() as u32);
                self.used -= 1;
                continue;
            }
            // The notification adds a reference of its own.
            *entry = Entry::Dead { references: references + u32::from(dead_name.is_some()) };
            told.extend(dead_name.map(|once| (name, once)));
        }
        told
    }

    /// Returns the set that a receive right is in.
    pub(crate) fn set_of(&self, port: PortId) -> Option<Name> {
        let has =
            |name: &&Name| matches!(self.get(**name), Ok(Entry::Set { members }) if members.contains(&port));
        self.sets.iter().find(has).copied()
    }

    /// Returns all names and what they denote.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (Name, &Entry)> {
        self.places.iter().enumerate().filter_map(|(place, slot)| {
            Some((Name::new(place as u32, slot.generation), slot.entry.as_ref()?))
        })
    }
}
