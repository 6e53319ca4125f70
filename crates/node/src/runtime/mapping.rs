//! Maps pages onto their homes' frames where nodes share memory, and warns the user where they do not.

use std::sync::atomic::{AtomicBool, Ordering};

use hiroba_base::{Access, NodeId, PageRange};
use hiroba_protocol::Protocol;
use hiroba_trace::Event;
use hiroba_wire::control::ToLauncher;

use crate::runtime::Runtime;

/// The warning, given once, about a protocol that maps pages over a fabric whose nodes share no memory.
#[derive(Debug)]
pub(crate) struct Unmapped {
    fabric_name: String,
    is_told: AtomicBool,
}

impl Unmapped {
    pub(crate) fn over(fabric_name: String) -> Unmapped {
        Unmapped { fabric_name, is_told: AtomicBool::new(false) }
    }
}

impl Runtime {
    /// Carries out `Effect::MapHome`.
    pub(crate) fn map_home(&self, pages: PageRange, home: NodeId) {
        let frames = (home != self.me).then(|| {
            let frames = self.one_sided().frames(home);
            frames.expect("the engine maps only where the fabric shares frames")
        });
        if let Some(faults) = &self.faults {
            self.or_fatal(faults.let_go(pages));
        }
        self.or_fatal(self.memory.map_onto(pages, frames));
        self.trace_fact(|| Event::Access { granules: pages, access: Access::Write });
    }

    /// Warns if this protocol, of the job or a region, wants to map pages and cannot.
    pub(crate) fn say_if_unmapped(&self, protocol: Protocol) {
        let Unmapped { fabric_name, is_told } = &self.unmapped;
        let falls_back =
            protocol.maps_homes() && self.has_fabric() && !self.fabric().capabilities().shared_frames;
        // All nodes know the same; the first one reports it.
        if !falls_back || self.me != NodeId::ZERO || is_told.swap(true, Ordering::Relaxed) {
            return;
        }
        if let Some(control) = &self.control {
            let sentence = format!(
                "{} cannot map pages onto their homes over {fabric_name}: updates leave in the background",
                protocol.name()
            );
            control.send(&ToLauncher::Remark { sentence });
        }
    }
}
