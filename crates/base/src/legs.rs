//! Where the time of one message goes, as stamps between the legs of its way.
//!
//! Single messages can be followed through two nodes (`timeline`, which `hiroba bench stages` uses). While no
//! message is followed, a stamp is a look at a flag.
//!
//! In a build with the feature `legs` each thread also keeps the time of its last stamp. A stamp ends a leg,
//! which has lasted since then. `hiroba bench legs` prints the means.

pub mod timeline;

/// A leg of the way from a fault, a barrier, a lock or a message to its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(usize)]
pub enum Leg {
    /// From the load or store to the fault handler: the kernel's way in.
    Trap,
    /// Before a message to a port: the search for what its receiver must know of, and its publication.
    Publish,
    /// From the handler or the call to the engine: lookup, accounting, signals, the core's lock.
    Enter,
    /// The engine's work on an event.
    Engine,
    /// Encoding a message, and putting it into the link's datagram or the ring.
    Queue,
    /// Sealing a datagram or record.
    Seal,
    /// The system call that sends, or the store that publishes a frame in a ring.
    Send,
    /// The link's timer.
    Timer,
    /// Polling without a result.
    Wait,
    /// The call that received a message.
    Receive,
    /// Opening the seal.
    Open,
    /// The link's work on a received message, and its copy.
    Link,
    /// Decoding a message.
    Decode,
    /// Copying bytes into frames and twins.
    Place,
    /// System calls that change access.
    Map,
    /// Other effects, and the way from one to the next.
    Host,
    /// From the answer to its thread's look at it.
    Wake,
    /// From the answer to the end of the call or of the handler.
    Leave,
    /// From the end of the handler to the next instruction of the program: the kernel's way out.
    Resume,
}

impl Leg {
    /// All legs, in the order of a fetch.
    pub const ALL: [Leg; 19] = [
        Leg::Trap,
        Leg::Publish,
        Leg::Enter,
        Leg::Engine,
        Leg::Queue,
        Leg::Seal,
        Leg::Send,
        Leg::Timer,
        Leg::Wait,
        Leg::Receive,
        Leg::Open,
        Leg::Link,
        Leg::Decode,
        Leg::Place,
        Leg::Map,
        Leg::Host,
        Leg::Wake,
        Leg::Leave,
        Leg::Resume,
    ];

    /// Returns its name in tables.
    pub fn name(self) -> &'static str {
        match self {
            Leg::Trap => "trap",
            Leg::Publish => "publish",
            Leg::Enter => "enter",
            Leg::Engine => "engine",
            Leg::Queue => "queue",
            Leg::Seal => "seal",
            Leg::Send => "send",
            Leg::Timer => "timer",
            Leg::Wait => "wait",
            Leg::Receive => "receive",
            Leg::Open => "open",
            Leg::Link => "link",
            Leg::Decode => "decode",
            Leg::Place => "place",
            Leg::Map => "map",
            Leg::Host => "host",
            Leg::Wake => "wake",
            Leg::Leave => "leave",
            Leg::Resume => "resume",
        }
    }
}

/// Ends a leg of the calling thread.
#[inline(always)]
pub fn end(leg: Leg) {
    if timeline::is_on() {
        timeline::note(leg);
    }
    #[cfg(feature = "legs")]
    stamped::end(leg);
}

/// Measures how long a resource is held for which other threads wait. Without the feature it compiles to
/// nothing.
#[cfg(not(feature = "legs"))]
#[derive(Debug)]
pub struct Hold;

#[cfg(not(feature = "legs"))]
impl Hold {
    /// Begins a hold, which ends when this is dropped.
    #[inline(always)]
    pub fn begin() -> Hold {
        Hold
    }
}

#[cfg(feature = "legs")]
pub use stamped::{Hold, HoldTimes, LegTimes, begin, go_on, operation, pause, take, take_holds};

#[cfg(feature = "legs")]
mod stamped {
    use std::cell::Cell;
    use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::Relaxed};
    use std::time::Instant;

    use super::Leg;

    static IS_ON: AtomicBool = AtomicBool::new(false);
    static LEGS: [Times; Leg::ALL.len()] = [const { Times::new() }; Leg::ALL.len()];
    static HOLDS: Times = Times::new();

    /// A longer leg was interrupted, and is left out.
    const INTERRUPTED_NS: u64 = 30_000;
    /// The width of a bucket of the histogram.
    const BUCKET_NS: u64 = 10;
    const BUCKETS: usize = (INTERRUPTED_NS / BUCKET_NS) as usize;
    /// One stamp in this many is left out: the longest ones, most of which the kernel interrupted.
    const LONGEST_OF: u64 = 100;

    /// The durations of the stamps of one leg.
    struct Times {
        ns: AtomicU64,
        stamps: AtomicU64,
        buckets: [AtomicU32; BUCKETS],
    }

    impl Times {
        const fn new() -> Times {
            let buckets = [const { AtomicU32::new(0) }; BUCKETS];
            Times { ns: AtomicU64::new(0), stamps: AtomicU64::new(0), buckets }
        }

        fn clear(&self) {
            self.ns.store(0, Relaxed);
            self.stamps.store(0, Relaxed);
            self.buckets.iter().for_each(|bucket| bucket.store(0, Relaxed));
        }

        fn note(&self, ns: u64) {
            if ns < INTERRUPTED_NS {
                self.ns.fetch_add(ns, Relaxed);
                self.stamps.fetch_add(1, Relaxed);
                self.buckets[(ns / BUCKET_NS) as usize].fetch_add(1, Relaxed);
            }
        }

        fn p99_ns(&self, stamps: u64) -> f64 {
            let mut longer = stamps / LONGEST_OF;
            for (index, bucket) in self.buckets.iter().enumerate().rev() {
                let here = u64::from(bucket.load(Relaxed));
                if here > longer {
                    return (index as f64 + 0.5) * BUCKET_NS as f64;
                }
                longer -= here;
            }
            0.0
        }

        /// Returns the stamps and the mean of all but the longest, in nanoseconds, or `None` if there were no
        /// stamps.
        fn summary(&self) -> Option<(u64, f64)> {
            let (mut ns, stamps) = (self.ns.load(Relaxed) as f64, self.stamps.load(Relaxed));
            let mut longest = stamps / LONGEST_OF;
            let counted = stamps - longest;
            for (index, bucket) in self.buckets.iter().enumerate().rev() {
                let left_out = longest.min(u64::from(bucket.load(Relaxed)));
                ns -= left_out as f64 * (index as f64 + 0.5) * BUCKET_NS as f64;
                longest -= left_out;
            }
            (counted > 0).then(|| (stamps, ns.max(0.0) / counted as f64))
        }
    }

    thread_local! {
        static LAST: Cell<Option<Instant>> = const { Cell::new(None) };
    }

    /// The measurement of a leg.
    #[derive(Clone, Copy, Debug, PartialEq)]
    pub struct LegTimes {
        /// The leg.
        pub leg: Leg,
        /// How many stamps ended it.
        pub stamps: u64,
        /// The mean of all but the longest hundredth, in nanoseconds, less the cost of a stamp.
        pub mean_ns: f64,
    }

    /// Begins to take stamps.
    pub fn begin() {
        LEGS.iter().for_each(Times::clear);
        HOLDS.clear();
        IS_ON.store(true, Relaxed);
    }

    /// Pauses stamping until [`go_on`], for code that does not belong to an operation.
    pub fn pause() {
        IS_ON.store(false, Relaxed);
    }

    /// Resumes stamping after [`pause`].
    pub fn go_on() {
        IS_ON.store(true, Relaxed);
    }

    /// Begins an operation of the calling thread: the time before it belongs to no leg.
    pub fn operation() {
        LAST.set(Some(Instant::now()));
    }

    /// Ends a leg of the calling thread, which gets the time since its last stamp.
    pub fn end(leg: Leg) {
        if IS_ON.load(Relaxed) {
            stamp(&LEGS[leg as usize]);
        }
    }

    fn stamp(times: &Times) {
        let now = Instant::now();
        if let Some(last) = LAST.replace(Some(now)) {
            times.note((now - last).as_nanos() as u64);
        }
        // The cost of the stamp itself belongs to no leg.
        LAST.set(Some(Instant::now()));
    }

    /// Ends stamping. Returns the measurement of each leg that had stamps.
    pub fn take() -> Vec<LegTimes> {
        IS_ON.store(false, Relaxed);
        let own_ns = own_cost_ns();
        let legs = Leg::ALL.iter().zip(&LEGS);
        let times = legs.filter_map(|(leg, times)| {
            let (stamps, mean_ns) = times.summary()?;
            Some(LegTimes { leg: *leg, stamps, mean_ns: (mean_ns - own_ns).max(0.0) })
        });
        times.collect()
    }

    /// Measures how long a resource is held for which other threads wait.
    #[derive(Debug)]
    pub struct Hold(Option<Instant>);

    impl Hold {
        /// Begins a hold, which ends when this is dropped.
        pub fn begin() -> Hold {
            Hold(IS_ON.load(Relaxed).then(Instant::now))
        }
    }

    impl Drop for Hold {
        fn drop(&mut self) {
            if let Some(since) = self.0 {
                HOLDS.note(since.elapsed().as_nanos() as u64);
            }
        }
    }

    /// The measurement of all holds.
    #[derive(Clone, Copy, Debug, PartialEq)]
    pub struct HoldTimes {
        /// How many there were.
        pub holds: u64,
        /// The mean of all but the longest hundredth, in nanoseconds.
        pub mean_ns: f64,
        /// The 99th percentile, in nanoseconds.
        pub p99_ns: f64,
    }

    /// Returns the measurement of holds since [`begin`], or `None` if there were none.
    pub fn take_holds() -> Option<HoldTimes> {
        let (holds, mean_ns) = HOLDS.summary()?;
        Some(HoldTimes { holds, mean_ns, p99_ns: HOLDS.p99_ns(holds) })
    }

    /// Returns how long an empty leg seems to last: a reading of the clock, in nanoseconds.
    fn own_cost_ns() -> f64 {
        const STAMPS: usize = 10_000;
        static NOTHING: Times = Times::new();
        NOTHING.clear();
        operation();
        (0..STAMPS).for_each(|_| stamp(&NOTHING));
        NOTHING.summary().map_or(0.0, |(_, ns)| ns)
    }

    #[cfg(test)]
    mod tests {
        use super::*;

        #[test]
        fn the_longest_stamps_are_left_out() {
            let times = Times::new();
            assert_eq!(times.summary(), None);
            for number in 0..200 {
                times.note(if number % 100 == 7 { 20_005 } else { 105 });
            }
            assert_eq!(times.summary(), Some((200, 105.0)));
            assert_eq!(times.p99_ns(200), 105.0);
        }

        #[test]
        fn paused_stamps_do_not_count() {
            begin();
            operation();
            end(Leg::Seal);
            pause();
            end(Leg::Seal);
            go_on();
            end(Leg::Open);
            let taken: Vec<(Leg, u64)> = take().iter().map(|times| (times.leg, times.stamps)).collect();
            assert_eq!(taken, [(Leg::Seal, 1), (Leg::Open, 1)]);
        }
    }
}
