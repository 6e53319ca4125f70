//! Compares replacement policies by the pages that programs bring in with little memory.
//!
//! Each program runs once with memory enough, for its peak. Then it runs with a third of that under each
//! policy, with a disk for the rest. Pages that are read from the disk and pages that are fetched from their
//! homes count alike. The table has multiples of the least, which is not that of a policy that knows the
//! future: no run tells that.

use std::path::Path;

use clap::ValueEnum;
use serde_json::Value;

use super::Bench;

/// The programs that are run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum Programs {
    /// Those of apps/plain.
    Plain,
    /// Those of apps/ that are fitted to pages.
    Fitted,
}

impl Programs {
    /// Returns the directory of the sources, and the programs with their arguments. Programs of which a third
    /// of the peak is less than the least limit are left out.
    fn all(self) -> (&'static str, &'static [(&'static str, &'static str)]) {
        match self {
            Programs::Plain => (
                "apps/plain",
                &[
                    ("jacobi", ""),
                    ("sor", ""),
                    ("fft", ""),
                    ("lu-rows", ""),
                    ("radix", ""),
                    ("cg", ""),
                    ("mg", ""),
                ],
            ),
            Programs::Fitted => (
                "apps",
                &[
                    ("mandelbrot", "-n 2048"),
                    ("jacobi", "-n 1024"),
                    ("matmul", "-n 1024"),
                    ("mixed", ""),
                    ("fft3d", ""),
                    ("is", "-c W"),
                    ("fft", ""),
                    ("lu", ""),
                    ("ocean", ""),
                ],
            ),
        }
    }
}

const POLICIES: [&str; 6] = ["fifo", "clock", "lru-scan", "lirs", "s3-fifo", "sieve"];

/// The part of its peak that a program may use.
const PART: u64 = 3;

/// The least limit that a node may have.
const LIMIT_BYTES_MIN: u64 = 1 << 20;

/// Runs all, and prints the table.
pub(super) fn compare(bench: &Bench, source: &Path, programs: Programs) -> Result<(), String> {
    let (directory, programs) = programs.all();
    let mut means = [0.0; POLICIES.len()];
    println!("| program | {} |\n|---|{}", POLICIES.join(" | "), "---:|".repeat(POLICIES.len()));
    for (name, arguments) in programs {
        let program = bench.compile(&source.join(format!("{directory}/{name}.c")), name)?;
        let enough = bench.account(&["--memory-limit", "none"], &program, arguments)?;
        let limit = (largest(&enough, "resident_bytes_max") / PART).max(LIMIT_BYTES_MIN).to_string();
        let mut counts = Vec::new();
        for policy in POLICIES {
            let little = ["--memory-limit", &limit, "--swap", &bench.disk, "--replacement", policy];
            let count = pages_in(&bench.account(&little, &program, arguments)?);
            eprintln!("{name}, {policy}: {count} pages came in");
            counts.push(count);
        }
        let ratios = multiples(&counts);
        means.iter_mut().zip(&ratios).for_each(|(mean, ratio)| *mean += ratio.ln() / programs.len() as f64);
        println!("| `{name}` | {} |", cells(&ratios));
    }
    println!("| mean | {} |", cells(&means.map(f64::exp)));
    Ok(())
}

fn cells(ratios: &[f64]) -> String {
    ratios.iter().map(|ratio| format!("{ratio:.2}")).collect::<Vec<_>>().join(" | ")
}

/// Returns the counts as multiples of the least.
fn multiples(counts: &[u64]) -> Vec<f64> {
    let least = counts.iter().copied().min().unwrap_or(0).max(1) as f64;
    counts.iter().map(|count| (*count).max(1) as f64 / least).collect()
}

fn largest(account: &Value, counter: &str) -> u64 {
    let nodes = account["per_node"].as_array().into_iter().flatten();
    nodes.filter_map(|node| node[counter].as_u64()).max().unwrap_or(0)
}

fn pages_in(account: &Value) -> u64 {
    let counters = ["pages_fetched", "pages_prefetched", "swap_ins"];
    counters.iter().filter_map(|counter| account["total"][*counter].as_u64()).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_of_all_ways_count_and_the_least_is_one() {
        let account = serde_json::json!({
            "total": { "pages_fetched": 1, "pages_prefetched": 20, "swap_ins": 300, "evictions": 4000 },
            "per_node": [{ "resident_bytes_max": 5 }, { "resident_bytes_max": 7 }],
        });
        assert_eq!((pages_in(&account), largest(&account, "resident_bytes_max")), (321, 7));
        assert_eq!(multiples(&[30, 20, 0]), [30.0, 20.0, 1.0]);
        assert_eq!(multiples(&[30, 20, 60]), [1.5, 1.0, 3.0]);
    }
}
