//! What protocols cost on simulated clusters of 2 to 256 nodes.
//!
//! `cargo run --release -p hiroba-check --example scale -- [--markdown] [--nodes N]… [PROTOCOL…]`

use std::alloc::{GlobalAlloc, Layout, System};
use std::process::ExitCode;
use std::sync::atomic::{AtomicIsize, Ordering};

use hiroba_check::cluster::Failure;
use hiroba_check::engines::{by_name, trackings_of};
use hiroba_check::scale::{Operation, Traffic, cost, engines_that_know};
use hiroba_protocol::{Consistency, Protocol, WriteTracking};

/// The system's allocator, which counts the bytes in use.
struct Counting;

static IN_USE_BYTES: AtomicIsize = AtomicIsize::new(0);

// SAFETY: every call is passed to the system's allocator unchanged, and counting allocates nothing.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        IN_USE_BYTES.fetch_add(layout.size() as isize, Ordering::Relaxed);
        // SAFETY: the caller keeps `GlobalAlloc`'s contract, which is the system allocator's too.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        IN_USE_BYTES.fetch_add(layout.size() as isize, Ordering::Relaxed);
        // SAFETY: as for `alloc`.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        IN_USE_BYTES.fetch_sub(layout.size() as isize, Ordering::Relaxed);
        // SAFETY: the caller passes what `alloc` returned for this layout, which came from the system's
        // allocator.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Returns how many bytes the engines use per node: the difference in bytes in use when they are dropped.
fn held_bytes(engines: Vec<Consistency>) -> f64 {
    let (before, nodes) = (IN_USE_BYTES.load(Ordering::Relaxed), engines.len());
    drop(engines);
    (before - IN_USE_BYTES.load(Ordering::Relaxed)) as f64 / nodes as f64
}

/// The pages that engines know when their memory is counted.
const PAGES: u64 = 64;

/// Returns a table's cells, row by row, headings first.
fn table(protocol: Protocol, tracking: WriteTracking, sizes: &[u16]) -> Result<Vec<Vec<String>>, Failure> {
    let headings = sizes.iter().map(|nodes| format!("{nodes} nodes"));
    let title = format!("{}, writes {}", protocol.name(), format!("{tracking:?}").to_lowercase());
    let mut rows = vec![std::iter::once(title).chain(headings).collect::<Vec<String>>()];
    for operation in Operation::ALL {
        let mut row = vec![operation.name().to_owned()];
        for nodes in sizes {
            let Traffic { messages, bytes } = cost(protocol, tracking, operation, *nodes)?;
            row.push(format!("{} / {}", short(messages), short(bytes)));
        }
        rows.push(row);
    }
    let mut memory = [vec!["bytes kept a node".to_owned()], vec!["bytes kept a page and node".to_owned()]];
    for nodes in sizes {
        let none = held_bytes(engines_that_know(protocol, tracking, *nodes, 0)?);
        let all = held_bytes(engines_that_know(protocol, tracking, *nodes, PAGES)?);
        memory[0].push(short(none));
        memory[1].push(short((all - none) / PAGES as f64));
    }
    rows.extend(memory);
    Ok(rows)
}

fn short(number: f64) -> String {
    if number.fract().abs() < 0.05 || number >= 100.0 {
        format!("{number:.0}")
    } else {
        format!("{number:.1}")
    }
}

fn print(rows: &[Vec<String>], markdown: bool) {
    let widths: Vec<usize> = (0..rows[0].len())
        .map(|column| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0))
        .collect();
    for (number, row) in rows.iter().enumerate() {
        let cells = row.iter().zip(&widths).enumerate().map(|(column, (cell, width))| {
            if column == 0 { format!("{cell:<width$}") } else { format!("{cell:>width$}") }
        });
        let cells: Vec<String> = cells.collect();
        if markdown {
            println!("| {} |", cells.join(" | "));
        } else {
            println!("{}", cells.join("  "));
        }
        if markdown && number == 0 {
            println!("|{}", "---|".repeat(row.len()));
        }
    }
    println!();
}

fn main() -> ExitCode {
    let mut sizes = Vec::new();
    let (mut protocols, mut markdown) = (Vec::new(), false);
    let mut words = std::env::args().skip(1);
    while let Some(word) = words.next() {
        match word.as_str() {
            "--markdown" => markdown = true,
            "--nodes" => match words.next().and_then(|nodes| nodes.parse().ok()) {
                Some(nodes @ 2..) => sizes.push(nodes),
                _ => {
                    eprintln!("expected a number of nodes, 2 at least, after --nodes");
                    return ExitCode::from(2);
                }
            },
            name => match by_name(name) {
                Ok(protocol) => protocols.push(protocol),
                Err(sentence) => {
                    eprintln!("{sentence}");
                    return ExitCode::from(2);
                }
            },
        }
    }
    if sizes.is_empty() {
        sizes = (1..=8).map(|power| 1 << power).collect();
    }
    if protocols.is_empty() {
        protocols = Protocol::ALL.to_vec();
    }
    println!("messages / bytes an operation\n");
    for protocol in protocols {
        for tracking in trackings_of(protocol) {
            match table(protocol, *tracking, &sizes) {
                Ok(rows) => print(&rows, markdown),
                Err(failure) => {
                    eprintln!("{}: {failure}", protocol.name());
                    return ExitCode::FAILURE;
                }
            }
        }
    }
    ExitCode::SUCCESS
}
