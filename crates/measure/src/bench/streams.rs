//! Remote memory read page by page, beside the same bytes moved without Hiroba: reads into fresh frames
//! beside a copy into fresh memory, which every runtime needs; reads into existing frames beside a raw
//! stream, encrypted as the fabric's messages are.

use std::time::Instant;

use hiroba_base::PageSize;

use super::backing::have_backed;
use super::node::{Home, Node, RAW_SEALED, report};
use super::shared::{PAGE_BYTES, Region};
use super::{Figures, Report, Row};

/// The bytes moved in one pass.
const BYTES: usize = 16 << 20;

/// The order of the pages, and the state of source and destination.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Order {
    /// Page after page.
    Sequential,
    /// Every other page.
    Strided,
    /// Page after page, once all were requested.
    Hinted,
    /// Page after page, in frames of earlier copies.
    Again,
}

impl Order {
    fn words(self) -> &'static str {
        match self {
            Order::Sequential => "in order, into fresh frames",
            Order::Strided => "every other page, into fresh frames",
            Order::Hinted => "in order, hinted by hiroba_prefetch, into fresh frames",
            Order::Again => "in order, into frames already there",
        }
    }
}

impl Node<'_> {
    pub fn streams(&mut self) {
        let passes = self.plan.times(8);
        let sealed = self.raw_stream(passes);
        let unsealed = self.unsealed(|node| node.raw_stream(passes));
        let fresh = self.copy_into_fresh_memory(passes);
        if unsealed.is_some() {
            let state = "16 MiB in large messages; raw: the same without a seal".to_owned();
            self.tell_rate(RAW_SEALED, state, passes, sealed, unsealed);
        }
        let small =
            [Order::Sequential, Order::Strided, Order::Hinted, Order::Again].map(|order| (4 << 10, order));
        let large = [(64 << 10, Order::Sequential), (2 << 20, Order::Sequential)];
        for (page_bytes, order) in small.into_iter().chain(large) {
            let ours = self.stream(passes, page_bytes, order);
            let words = if page_bytes < 1 << 20 {
                format!("{} KiB", page_bytes >> 10)
            } else {
                format!("{} MiB", page_bytes >> 20)
            };
            let raw = if order == Order::Again { sealed } else { fresh };
            let state = format!("16 MiB, pages of {words}, {}, home idle", order.words());
            self.tell_rate("remote memory read", state, passes, ours, raw);
        }
    }

    /// Streams bytes in large raw messages into the same memory each time: the comparison for pages that are
    /// read again.
    /// this.
    fn raw_stream(&mut self, passes: usize) -> Option<f64> {
        self.while_home(Home::Answering, |raw| gigabytes_per_second(passes, |_| raw.stream(BYTES)))
    }

    /// Copies bytes into new memory: the comparison for pages that are read for the first time.
    fn copy_into_fresh_memory(&mut self, passes: usize) -> Option<f64> {
        have_backed(BYTES);
        self.while_home(Home::Answering, |raw| gigabytes_per_second(passes, |_| raw.copy_fresh(BYTES)))
    }

    fn stream(&mut self, passes: usize, page_bytes: u64, order: Order) -> Option<f64> {
        let page = PageSize::new(page_bytes).ok();
        let step = if order == Order::Strided { 2 * PAGE_BYTES } else { PAGE_BYTES };
        let bytes = BYTES / PAGE_BYTES * step;
        // The home's frames, or the client's frames and twins.
        have_backed(if self.is_home() { bytes * passes } else { 2 * BYTES * passes });
        self.runtime.barrier();
        let regions: Vec<Region> = match order {
            Order::Again => vec![self.filled(bytes, page); passes],
            _ => (0..passes).map(|_| self.filled(bytes, page)).collect(),
        };
        let mut rates = Vec::with_capacity(passes);
        for (pass, region) in regions.into_iter().enumerate() {
            if order == Order::Again {
                self.read(region, step);
                self.runtime.barrier();
                if self.is_home() {
                    (0..bytes).step_by(PAGE_BYTES).for_each(|offset| region.store(offset, pass as u64 + 2));
                }
            }
            let runtime = self.runtime;
            rates.extend(self.while_home(Home::Waiting, |_| {
                let began = Instant::now();
                if order == Order::Hinted {
                    runtime.prefetch(&[(region.address(0), bytes)]).expect("the region is shared");
                }
                (0..bytes).step_by(step).for_each(|offset| _ = region.load(offset));
                BYTES as f64 / began.elapsed().as_nanos().max(1) as f64
            }));
        }
        self.is_client().then(|| median(rates))
    }

    fn read(&self, region: Region, step: usize) {
        if self.is_client() {
            (0..region.bytes()).step_by(step).for_each(|offset| _ = region.load(offset));
        }
    }

    fn tell_rate(&self, name: &str, state: String, passes: usize, ours: Option<f64>, raw: Option<f64>) {
        let Some(gb_per_s) = ours else { return };
        report(&Report::Row(Row {
            name: name.to_owned(),
            fabric: self.plan.fabric.name().to_owned(),
            state,
            figures: Figures::Bandwidth { gb_per_s, raw_gb_per_s: raw },
            ratio: raw.filter(|raw| *raw > 0.0).map(|raw| gb_per_s / raw),
            repetitions: passes,
            warm_up: 0,
            core_share: None,
            shares_cores: false,
        }));
    }
}

/// Returns the median over some passes of the bytes that each moves.
fn gigabytes_per_second(passes: usize, mut pass: impl FnMut(usize) -> usize) -> f64 {
    let rate = |number| {
        let began = Instant::now();
        let bytes = pass(number);
        bytes as f64 / began.elapsed().as_nanos().max(1) as f64
    };
    median((0..passes).map(rate).collect())
}

fn median(mut rates: Vec<f64>) -> f64 {
    rates.sort_by(f64::total_cmp);
    rates.get(rates.len() / 2).copied().unwrap_or(0.0)
}
