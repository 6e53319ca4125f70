//! Detects that a job can never end because all its threads wait for each other, and describes what each
//! waits for.
//!
//! Each node reports once a second while all its threads wait. Three facts together prove a deadlock:
//! 1. Every node has reported, and after the first reports were complete reported the same again. A report
//!    contains the number of waits that began or ended and of messages sent and received, so an equal report
//!    shows that nothing has happened in between. So there is a moment, at which the first reports were
//!    complete, when all nodes waited.
//! 2. At that moment as many messages had been received as sent: no message was in flight that could wake a
//!    thread.
//! 3. Every node is still part of the job: none is starting, leaving or gone.
//!
//! (The four-counter method of F. Mattern, "Algorithms for distributed termination detection", 1987.) A
//! second report proves something only if it was *sent* after the first ones were complete, which is not so
//! if it had been queued before. So it counts only if the node's channel has been seen empty in between.

use std::collections::BTreeMap;

use hiroba_wire::control::{ThreadWait, WaitReport};

use crate::quantities::counted;
use crate::symbols::Symboliser;

/// With more lines than this, threads are listed by groups that wait in the same place.
const LINES_MAX: usize = 16;

/// What is known about one node's waiting.
#[derive(Debug, Default)]
struct Watched {
    report: Option<WaitReport>,
    /// Whether its channel was seen empty after the first reports were complete.
    drained: bool,
    /// Whether it has reported the same again after that.
    confirmed: bool,
}

/// Collects the reports of a job's nodes.
#[derive(Debug)]
pub struct WaitWatch {
    nodes: Vec<Watched>,
    /// Whether every node's latest report has arrived.
    complete: bool,
    /// How many times the first reports have changed.
    round: u64,
}

impl WaitWatch {
    /// Watches a job of `nodes` nodes, none of which waits yet.
    pub fn new(nodes: usize) -> WaitWatch {
        WaitWatch { nodes: (0..nodes).map(|_| Watched::default()).collect(), complete: false, round: 0 }
    }

    /// Returns a number that changes when the first reports do. An answer that a channel is empty counts only
    /// if the question was asked in the same round.
    pub fn round(&self) -> u64 {
        self.round
    }

    /// Takes a node's report. Returns true if a deadlock is proved.
    pub fn report(&mut self, node: usize, report: WaitReport) -> bool {
        let Some(watched) = self.nodes.get_mut(node) else { return false };
        if watched.report.as_ref() == Some(&report) {
            watched.confirmed |= self.complete && watched.drained;
            return self.is_proved();
        }
        watched.report = Some(report);
        self.begin_anew();
        false
    }

    /// Notes that everything that a node had sent so far has been read.
    pub fn drained(&mut self, node: usize) {
        if self.complete
            && let Some(watched) = self.nodes.get_mut(node)
        {
            watched.drained = true;
        }
    }

    /// Takes the present reports as the first ones, if they are complete.
    fn begin_anew(&mut self) {
        self.round += 1;
        self.complete = self.nodes.iter().all(|watched| watched.report.is_some());
        for watched in &mut self.nodes {
            watched.drained = false;
            watched.confirmed = false;
        }
    }

    fn is_proved(&self) -> bool {
        let sum = |count: fn(&WaitReport) -> u64| {
            self.reports().map(|(_, report)| u128::from(count(report))).sum::<u128>()
        };
        self.complete
            && self.nodes.iter().all(|watched| watched.confirmed)
            && sum(|report| report.messages_sent) == sum(|report| report.messages_received)
    }

    fn reports(&self) -> impl Iterator<Item = (usize, &WaitReport)> {
        let reports = self.nodes.iter().map(|watched| watched.report.as_ref());
        reports.enumerate().filter_map(|(node, report)| Some((node, report?)))
    }

    /// Describes what each thread waits for, in lines.
    pub fn describe(&self, symbols: &Symboliser) -> Vec<String> {
        let mut holders: BTreeMap<u32, (usize, u32)> = BTreeMap::new();
        for (node, report) in self.reports() {
            for (lock, thread) in &report.locks_held {
                holders.insert(*lock, (node, *thread));
            }
        }
        let several = self.nodes.len() > 1;
        let mut waits = Vec::new();
        for (node, report) in self.reports() {
            for wait in &report.threads {
                let who = thread_name(several, node, wait.thread);
                waits.push((who, describe_wait(wait, &holders, several, symbols)));
            }
        }
        if waits.len() <= LINES_MAX {
            return waits.into_iter().map(|(who, what)| format!("{who}: {what}")).collect();
        }
        let mut groups: Vec<(String, String, usize)> = Vec::new();
        let mut by_wait: BTreeMap<String, usize> = BTreeMap::new();
        for (who, what) in waits {
            match by_wait.get(&what) {
                Some(group) => groups[*group].2 += 1,
                None => {
                    by_wait.insert(what.clone(), groups.len());
                    groups.push((who, what, 0));
                }
            }
        }
        let hidden = groups.len().saturating_sub(LINES_MAX);
        groups.truncate(LINES_MAX);
        let mut lines: Vec<String> = groups
            .into_iter()
            .map(|(who, what, more)| match more {
                0 => format!("{who}: {what}"),
                1 => format!("{who} and 1 thread more: {what}"),
                _ => format!("{who} and {more} threads more: {what}"),
            })
            .collect();
        if hidden > 0 {
            let places = counted(&hidden.to_string(), "place", "places");
            lines.push(format!("and threads in {places} more"));
        }
        lines
    }
}

fn thread_name(several: bool, node: usize, thread: u32) -> String {
    if several { format!("node {node} thread {thread}") } else { format!("thread {thread}") }
}

fn describe_wait(
    wait: &ThreadWait,
    holders: &BTreeMap<u32, (usize, u32)>,
    several: bool,
    symbols: &Symboliser,
) -> String {
    let mut text = wait.call.clone();
    if let Some(site) = &wait.site {
        text.push_str(" at ");
        text.push_str(&symbols.name(site));
    }
    if let Some(lock) = wait.lock {
        match holders.get(&lock) {
            Some((node, thread)) => {
                text.push_str(", held by ");
                text.push_str(&thread_name(several, *node, *thread));
            }
            None => text.push_str(", not held"),
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(generation: u64, sent: u64, received: u64) -> WaitReport {
        let wait = ThreadWait { thread: 0, call: "hiroba_barrier()".to_owned(), lock: None, site: None };
        WaitReport {
            generation,
            messages_sent: sent,
            messages_received: received,
            threads: vec![wait],
            locks_held: Vec::new(),
        }
    }

    /// Reports alone: the channel is empty after the report.
    fn tell(watch: &mut WaitWatch, node: usize, report: WaitReport) -> bool {
        let proved = watch.report(node, report);
        watch.drained(node);
        proved
    }

    #[test]
    fn two_equal_rounds_prove_it() {
        let mut watch = WaitWatch::new(2);
        assert!(!tell(&mut watch, 0, report(5, 3, 2)));
        assert!(!tell(&mut watch, 1, report(9, 2, 3)));
        assert!(!tell(&mut watch, 0, report(5, 3, 2)), "sent perhaps before the first ones were complete");
        assert!(!tell(&mut watch, 1, report(9, 2, 3)));
        assert!(tell(&mut watch, 0, report(5, 3, 2)));
    }

    #[test]
    fn one_node_alone_can_wait_for_itself() {
        let mut watch = WaitWatch::new(1);
        assert!(!tell(&mut watch, 0, report(1, 0, 0)));
        assert!(tell(&mut watch, 0, report(1, 0, 0)));
    }

    #[test]
    fn a_node_that_computes_keeps_everybody_waiting_in_good_order() {
        let mut watch = WaitWatch::new(3);
        for _ in 0..100 {
            assert!(!tell(&mut watch, 0, report(1, 1, 1)));
            assert!(!tell(&mut watch, 2, report(1, 1, 1)));
        }
    }

    #[test]
    fn a_message_on_its_way_may_wake_somebody() {
        let mut watch = WaitWatch::new(2);
        for _ in 0..100 {
            assert!(!tell(&mut watch, 0, report(1, 7, 5)));
            assert!(!tell(&mut watch, 1, report(1, 5, 6)));
        }
        // The message has arrived and changed nothing.
        assert!(!tell(&mut watch, 1, report(1, 5, 7)));
        assert!(!tell(&mut watch, 0, report(1, 7, 5)));
        assert!(!tell(&mut watch, 1, report(1, 5, 7)));
        assert!(tell(&mut watch, 0, report(1, 7, 5)));
    }

    #[test]
    fn whoever_has_moved_in_between_is_asked_again() {
        let mut watch = WaitWatch::new(2);
        for generation in 0..100 {
            assert!(!tell(&mut watch, 0, report(1, 1, 1)));
            assert!(!tell(&mut watch, 1, report(generation, 1, 1)));
        }
        // Slow progress between reports shows only in the counts.
        for sent in 0..100 {
            assert!(!tell(&mut watch, 0, report(1, sent, 1)));
            assert!(!tell(&mut watch, 1, report(1, 1, sent)));
        }
    }

    #[test]
    fn reports_that_waited_in_a_channel_prove_nothing() {
        // The launcher was stopped. Node 0 has waited, has reported so three times, and was then woken by a
        // message of node 1, which it answered; node 1 has waited since. The sums are equal although node 0
        // computes.
        let mut watch = WaitWatch::new(2);
        assert!(!watch.report(1, report(1, 4, 4)), "from before the stop");
        watch.drained(1);
        for _ in 0..3 {
            assert!(!watch.report(0, report(1, 5, 5)));
        }
        watch.drained(0);
        for _ in 0..3 {
            assert!(!watch.report(1, report(2, 6, 6)));
        }
        watch.drained(1);
        assert!(!watch.report(1, report(2, 6, 6)), "node 0 has said nothing since");
        watch.drained(1);
        // Even if the next report of node 0 was sent in time to be read after those.
        assert!(!watch.report(0, report(1, 5, 5)));
    }

    #[test]
    fn a_report_about_no_node_is_ignored() {
        assert!(!WaitWatch::new(1).report(1, report(1, 0, 0)));
        assert!(!WaitWatch::new(0).report(0, report(1, 0, 0)));
    }

    fn lock_wait(thread: u32, lock: u32) -> ThreadWait {
        ThreadWait { thread, call: format!("hiroba_lock({lock})"), lock: Some(lock), site: None }
    }

    #[test]
    fn a_line_says_who_waits_for_what_and_who_has_it() {
        let mut watch = WaitWatch::new(2);
        let with = |threads, locks_held| WaitReport { threads, locks_held, ..report(1, 0, 0) };
        watch.report(0, with(vec![lock_wait(1, 3)], vec![(2, 1)]));
        watch.report(1, with(vec![lock_wait(0, 2), lock_wait(4, 9)], vec![(3, 0)]));
        assert_eq!(
            watch.describe(&Symboliser::default()),
            [
                "node 0 thread 1: hiroba_lock(3), held by node 1 thread 0",
                "node 1 thread 0: hiroba_lock(2), held by node 0 thread 1",
                "node 1 thread 4: hiroba_lock(9), not held",
            ]
        );
    }

    #[test]
    fn many_threads_are_told_in_groups() {
        let mut watch = WaitWatch::new(1000);
        for node in 0..1000 {
            let mut waits = report(1, 0, 0);
            if node == 700 {
                waits.threads = vec![lock_wait(0, 1)];
            }
            watch.report(node, waits);
        }
        assert_eq!(
            watch.describe(&Symboliser::default()),
            [
                "node 0 thread 0 and 998 threads more: hiroba_barrier()",
                "node 700 thread 0: hiroba_lock(1), not held"
            ]
        );
        let mut watch = WaitWatch::new(1);
        let threads = (0..100).map(|thread| lock_wait(thread, thread)).collect();
        watch.report(0, WaitReport { threads, ..report(1, 0, 0) });
        let lines = watch.describe(&Symboliser::default());
        assert_eq!(
            (lines.len(), lines[LINES_MAX].as_str()),
            (LINES_MAX + 1, "and threads in 84 places more")
        );
        let mut watch = WaitWatch::new(1);
        let threads = (0..LINES_MAX as u32 + 1).map(|thread| lock_wait(thread, thread)).collect();
        watch.report(0, WaitReport { threads, ..report(1, 0, 0) });
        assert_eq!(watch.describe(&Symboliser::default())[LINES_MAX], "and threads in 1 place more");
    }
}
