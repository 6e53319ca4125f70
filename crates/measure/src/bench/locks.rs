//! Locks: taken from a node that waits, handed over to a waiting node, contended, and uncontended.

use std::time::{Duration, Instant};

use hiroba_base::LockId;
use rustix::time::{ClockId, clock_gettime};

use super::node::{CLIENT, HOME, Home, Node, WARM_UP};
use super::raw::REQUEST_BYTES;
use super::samples::Taken;
use super::shared::{PAGE_BYTES, Region};

/// How long a node keeps the lock, so that the other has requested it before the release.
const HELD: Duration = Duration::from_micros(150);

/// Returns nanoseconds of a clock that all processes of this machine share.
fn now_ns() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

impl Node<'_> {
    pub fn locks(&mut self) {
        let runtime = self.runtime;
        let fabric = self.plan.fabric.name();
        let raw = self.raw_exchange(Home::Answering, REQUEST_BYTES, self.plan.times(4000));
        let lock = LockId(0);
        let mut nanos = Vec::new();
        runtime.barrier();
        for round in 0..self.plan.times(2000) + WARM_UP {
            let mine = if round % 2 == 0 { self.is_home() } else { self.is_client() };
            if mine {
                let began = Instant::now();
                runtime.lock(lock);
                nanos.push(began.elapsed().as_nanos() as f64);
                runtime.unlock(lock);
            }
            runtime.barrier();
        }
        let client = self.is_client();
        let taken = client.then(|| Taken::new(nanos.split_off(WARM_UP / 2), WARM_UP / 2));
        self.tell("lock, taken from its last holder", fabric, "that one waits", taken, raw.as_ref());

        let one_way = raw.as_ref().map(Taken::halved);
        let dirty = self.region(64 * PAGE_BYTES, HOME);
        for (pages, words) in [(0, "nothing written"), (1, "1 page dirty"), (64, "64 pages dirty")] {
            let taken = self.handed_over(lock, dirty, pages);
            let state = format!("to one who waits, {words}; raw: one way");
            self.tell("lock, handed over", fabric, &state, taken, one_way.as_ref());
        }

        let taken = Taken::each(self.plan.times(4000), WARM_UP, |_| {
            runtime.lock(lock);
            runtime.unlock(lock);
        });
        runtime.barrier();
        let state = format!("{} nodes at once", runtime.nodes());
        self.tell("lock and unlock", fabric, &state, Some(taken).filter(|_| client), raw.as_ref());

        let own = self.own_lock();
        let taken = self.while_home(Home::Waiting, |_| {
            Taken::each(20_000, WARM_UP, |_| {
                runtime.lock(own);
                runtime.unlock(own);
            })
        });
        self.tell("lock and unlock", "", "nobody else wants it", taken, None);
    }

    /// Measures from the client's release of the lock, with some pages of the home's written, until the home
    /// has it. Both request it again as soon as they have released it.
    fn handed_over(&self, lock: LockId, dirty: Region, pages: usize) -> Option<Taken> {
        let runtime = self.runtime;
        let rounds = self.plan.times(1000);
        // For each round: when the lock was acquired, and when it was released.
        let table = |home| Region::allocate(runtime, rounds * 16, hiroba_wire::Placement::On(home), None);
        let tables = [table(HOME), table(CLIENT)];
        runtime.barrier();
        if self.is_home() || self.is_client() {
            let mut times = Vec::with_capacity(rounds);
            for round in 0..rounds {
                runtime.lock(lock);
                let (acquired, began) = (now_ns(), Instant::now());
                while began.elapsed() < HELD {
                    std::hint::spin_loop();
                }
                (0..pages).for_each(|page| dirty.store(page * PAGE_BYTES, round as u64 + 1));
                let released = now_ns();
                runtime.unlock(lock);
                times.push((acquired, released));
            }
            let mine = tables[runtime.node().index()];
            for (round, (acquired, released)) in times.into_iter().enumerate() {
                mine.store(round * 16, acquired);
                mine.store(round * 16 + 8, released);
            }
        }
        runtime.barrier();
        let mut nanos = Vec::new();
        if self.is_client() {
            let rounds_of = |table: Region| -> Vec<(u64, u64)> {
                let row = |round: usize| (table.load(round * 16), table.load(round * 16 + 8));
                (0..rounds).map(row).collect()
            };
            let [home, client] = tables.map(rounds_of);
            nanos = hand_overs(&home, &client);
        }
        let warm_up = WARM_UP.min(nanos.len() / 2);
        let taken = Taken::new(nanos.split_off(warm_up), warm_up);
        runtime.barrier();
        // With too few cores, it may be that no node ever waited for the lock.
        Some(taken).filter(|taken| taken.len() > 0)
    }
}

/// Returns the nanoseconds from each release by the client until the home had the lock, if the home was next.
fn hand_overs(home: &[(u64, u64)], client: &[(u64, u64)]) -> Vec<f64> {
    let next_of_client = client.iter().skip(1).map(|(acquired, _)| *acquired).chain([u64::MAX]);
    let mut nanos = Vec::new();
    for ((_, released), again) in client.iter().zip(next_of_client) {
        let next = home.partition_point(|(acquired, _)| acquired < released);
        if let Some((acquired, _)) = home.get(next).filter(|(acquired, _)| *acquired < again) {
            nanos.push((acquired - released) as f64);
        }
    }
    nanos
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_went_from_one_to_the_other_counts() {
        let home = [(100, 200), (350, 400), (900, 950)];
        // Released at 300 and acquired at 350; acquired again at 460 by the client itself; released at 800
        // and acquired at 900.
        let client = [(250, 300), (410, 450), (460, 800)];
        assert_eq!(hand_overs(&home, &client), [50.0, 100.0]);
    }
}
