//! Reads pages from their home's frames, on the faulting thread.

use hiroba_base::{NodeId, PageId};
use hiroba_fabric::OneSided;
use hiroba_protocol::ReadOutcome;

use crate::runtime::Runtime;
use crate::runtime::host::{Core, HomePages};

impl Runtime {
    pub(crate) fn one_sided(&self) -> &dyn OneSided {
        let one_sided = self.fabric().one_sided();
        one_sided.expect("the engine reads only where the fabric can")
    }

    /// Carries out `Effect::Read`.
    pub(crate) fn read_from_home(&self, core: &mut Core, wanted: &HomePages<'_>, merge: bool) -> ReadOutcome {
        let HomePages { home, pages, page_bytes, needed } = *wanted;
        let one_sided = self.one_sided();
        let published = |(writer, seq): &(NodeId, u64)| one_sided.published(home, *writer) >= *seq;
        let granules_per_page = u64::from(page_bytes / self.job.limits.granule_bytes);
        let mut page_ids = (pages.first.0..pages.end().0).step_by(granules_per_page as usize);
        if !needed.entries().iter().all(published) || !page_ids.all(|page| one_sided.announce(home, page)) {
            return ReadOutcome::Behind;
        }
        if merge {
            return ReadOutcome::Installed {
                dirty: self.merge_from_home(core, pages.first, page_bytes, home),
            };
        }
        // Each byte is read only once, because frame and twin must get the same value.
        let for_twins = core.engine.notes_stores(pages.first);
        let fill = |first, room: &mut [u8]| self.copy_from_home(home, first, room);
        let filled = core.twins.fill_frames(pages, for_twins, fill);
        self.or_fatal(filled);
        ReadOutcome::Installed { dirty: false }
    }

    /// Merges a page by way of a buffer: each byte is read only once, because frame and twin must get the
    /// same value. Returns true if there were unsent writes.
    fn merge_from_home(&self, core: &mut Core, page: PageId, page_bytes: u32, home: NodeId) -> bool {
        let mut buffer = std::mem::take(&mut core.page);
        buffer.resize(buffer.len().max(page_bytes as usize), 0);
        let content = &mut buffer[..page_bytes as usize];
        self.copy_from_home(home, page, content);
        let dirty = self.merge(core, page, Some(content));
        core.page = buffer;
        dirty
    }

    fn copy_from_home(&self, home: NodeId, page: PageId, into: &mut [u8]) {
        let offset = page.0 * u64::from(self.job.limits.granule_bytes);
        if let Err(error) = self.one_sided().read(home, offset, into) {
            self.fatal(&format!("cannot read {page} from the memory of node {home}: {error}"));
        }
    }
}
