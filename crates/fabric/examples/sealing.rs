//! Measures the cost of sealing: nanoseconds per message, sealed and opened.
//!
//! `cargo run --release -p hiroba-fabric --example sealing`

use std::hint::black_box;
use std::time::Instant;

use hiroba_fabric::seal::DirectionKey;
use hiroba_wire::control::JobKey;

/// Repetitions per measurement; the median of several measurements is printed.
const ROUNDS: u64 = 20_000;
const MEASUREMENTS: usize = 9;

fn main() {
    let key = DirectionKey::derive(&JobKey::new(&[1; 32]), &[b"sealing"]);
    for bytes in [64, 4096, 32 << 10, 64 << 10] {
        let mut message = vec![7; bytes];
        let mut count = 0;
        let seal = nanoseconds(|| {
            count += 1;
            black_box(key.seal(count, black_box(&mut message), 8));
        });
        let tag = key.seal(0, &mut message, 8);
        let sealed = message.clone();
        let open = nanoseconds(|| {
            message.copy_from_slice(&sealed);
            key.open(0, black_box(&mut message), 8, &tag).expect("what was sealed");
        });
        let mut room = vec![0; bytes];
        let seal_into = nanoseconds(|| {
            count += 1;
            black_box(key.seal_into(count, &[0; 8], black_box(&message), &mut room));
        });
        println!(
            "{bytes:>6} B: seal {seal:.0} ns, into another place {seal_into:.0} ns, open (and a copy) {open:.0} ns"
        );
    }
}

fn nanoseconds(mut work: impl FnMut()) -> f64 {
    let mut medians: Vec<f64> = (0..MEASUREMENTS)
        .map(|_| {
            let start = Instant::now();
            (0..ROUNDS).for_each(|_| work());
            start.elapsed().as_nanos() as f64 / ROUNDS as f64
        })
        .collect();
    medians.sort_by(f64::total_cmp);
    medians[MEASUREMENTS / 2]
}
