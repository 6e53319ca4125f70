//! Reports nodes that did not get the processors that they could have used, since the figures of such a run
//! say little about Hiroba.

use hiroba_trace::NodeStatistics;

/// The share of a core for each ready thread below which figures by the clock are marked.
pub const ENOUGH: f64 = 0.9;

/// If other processes use less than this part of the processors' time, threads have waited for those of their
/// own job.
const OTHERS_MIN: f64 = 0.05;

/// Returns true if the threads of a node waited for cores because of other threads of their own job: the job
/// has more nodes or threads than cores, or the program has started further threads.
pub fn share_cores(node: &NodeStatistics) -> bool {
    node.shares_cores || node.others_share.is_some_and(|others| others < OTHERS_MIN)
}

/// Formats a share with two digits, rounded down, so that too small a share never shows as enough.
pub fn in_words(share: f64) -> String {
    format!("{:.2}", (100.0 * share).floor() / 100.0)
}

/// Returns the least share among nodes whose threads shared no core with others of their job.
pub fn least_with_cores<'a>(nodes: impl IntoIterator<Item = &'a NodeStatistics>) -> Option<f64> {
    least(nodes.into_iter().filter(|node| !share_cores(node)))?.core_share
}

/// Returns a remark about a node that got too little, if there is one.
pub fn remark(nodes: &[NodeStatistics]) -> Option<String> {
    let too_little = || nodes.iter().filter(|node| node.core_share.is_some_and(|share| share < ENOUGH));
    let node = least(too_little().filter(|node| !share_cores(node))).or_else(|| least(too_little()))?;
    let share = node.core_share?;
    let why = if share_cores(node) { "they share cores" } else { "the machine is busy" };
    Some(format!("node {} got {} of a core for each ready thread: {why}", node.node.0, in_words(share)))
}

/// Does the same for this process, which is not a node.
pub fn remark_of_process(share: f64) -> Option<String> {
    (share < ENOUGH)
        .then(|| format!("it got {} of a core for each ready thread: the machine is busy", in_words(share)))
}

fn least<'a>(nodes: impl IntoIterator<Item = &'a NodeStatistics>) -> Option<&'a NodeStatistics> {
    let known = nodes.into_iter().filter_map(|node| Some((node, node.core_share?)));
    known.min_by(|one, other| one.1.total_cmp(&other.1)).map(|(node, _)| node)
}

#[cfg(test)]
mod tests {
    use hiroba_base::NodeId;
    use hiroba_trace::{Counters, TimeBreakdown};

    use super::*;

    fn nodes(shares: &[Option<f64>], shares_cores: bool) -> Vec<NodeStatistics> {
        let of = |(node, core_share): (usize, &Option<f64>)| NodeStatistics {
            node: NodeId(node as u16),
            wall_s: 1.0,
            core_share: *core_share,
            shares_cores,
            others_share: None,
            regions: Vec::new(),
            time_s: TimeBreakdown::default(),
            counters: Counters::default(),
        };
        shares.iter().enumerate().map(of).collect()
    }

    #[test]
    fn a_busy_machine_is_told_by_the_node_that_got_least() {
        let of = |shares: &[Option<f64>]| remark(&nodes(shares, false));
        assert_eq!(
            of(&[Some(0.95), Some(0.617), None]).as_deref(),
            Some("node 1 got 0.61 of a core for each ready thread: the machine is busy")
        );
        assert_eq!(
            of(&[Some(0.8999)]).as_deref(),
            Some("node 0 got 0.89 of a core for each ready thread: the machine is busy")
        );
        assert_eq!(of(&[Some(0.9), Some(1.0)]), None);
        assert_eq!((of(&[None]), of(&[])), (None, None), "a kernel that does not count accuses nobody");
    }

    #[test]
    fn nodes_that_share_cores_by_choice_accuse_nobody_else() {
        let crowd = nodes(&[Some(0.5), Some(0.48)], true);
        let told = remark(&crowd).expect("less than enough");
        assert_eq!(told, "node 1 got 0.48 of a core for each ready thread: they share cores");
        assert_eq!(least_with_cores(&crowd), None);
        let mut own_threads = nodes(&[Some(0.5)], false);
        own_threads[0].others_share = Some(0.01);
        assert!(
            remark(&own_threads).is_some_and(|told| told.ends_with("they share cores")),
            "nobody else ran"
        );
        assert_eq!(least_with_cores(&own_threads), None);
        own_threads[0].others_share = Some(0.5);
        assert!(remark(&own_threads).is_some_and(|told| told.ends_with("the machine is busy")));
        let mut mixed = nodes(&[Some(0.5), Some(0.48)], false);
        mixed[1].shares_cores = true;
        assert_eq!(least_with_cores(&mixed), Some(0.5));
        assert!(
            remark(&mixed).is_some_and(|told| told.starts_with("node 0 got 0.50") && told.ends_with("busy"))
        );
    }
}
