//! Messages about a region that this node's threads do not know yet reach the region's own protocol.

use hiroba_base::{Access, NodeId, PageId, PageRange, PageSize, VectorTimestamp, VersionVector};
use hiroba_protocol::{Consistency, Effect, Engine, Protocol, Waiter, WriteTracking};
use hiroba_wire::{IntervalNotice, Knowledge, Limits, Message, PageCopy, Placement};

const WRITER: NodeId = NodeId(0);
const REGION: PageRange = PageRange { first: PageId(100), count: 4 };

#[test]
fn a_notice_that_comes_before_its_region_is_kept_for_the_regions_protocol() {
    let limits = Limits { nodes: 2, region_granules: 1 << 20, granule_bytes: 4096 };
    let sent = |engine: &mut Consistency| -> Vec<Vec<u8>> {
        let effects = std::iter::from_fn(|| engine.poll_effect());
        effects
            .filter_map(|effect| if let Effect::Send { message, .. } = effect { Some(message) } else { None })
            .collect()
    };
    for first in Protocol::ALL {
        let mut engine = Consistency::under(first, NodeId(1), limits, WriteTracking::Fault, []);
        let mut timestamp = VectorTimestamp::new(2);
        timestamp.advance(WRITER, 1);
        let pages = [REGION.first].into_iter().collect();
        let notices = vec![IntervalNotice { node: WRITER, seq: 1, pages }];
        let knowledge = Knowledge { timestamp, notices, epoch: 0, beyond_arrival: false };
        engine.handle_message(WRITER, &Message::Publish { knowledge, count: 0 }).unwrap();
        engine.add_region_under(Protocol::Lrc, REGION, PageSize::KIB_4, Placement::On(WRITER));
        engine.handle_fault(REGION.first, Access::Read, Some(Waiter(0)));
        assert_eq!(
            sent(&mut engine),
            [Message::PageRequest { page: REGION.first, needed: VersionVector::new() }.encode()]
        );
        // The home's copy is from before the interval: its diff must come too.
        let copies = vec![PageCopy { page: REGION.first, version: VersionVector::new(), is_zero: true }];
        engine.handle_message(WRITER, &Message::PagesReply { copies, content: &[] }).unwrap();
        let request = Message::DiffsRequest { page: REGION.first, after: 0, through: 1 };
        assert_eq!(sent(&mut engine), [request.encode()], "with {first:?} as the job's protocol");
    }
}
