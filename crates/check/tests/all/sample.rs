//! Samples of seeds: a test that explores the right engines takes a quarter of its seeds, or all of them with
//! `HIROBA_MATRIX=all`. Planted bugs are looked for with all seeds.

/// Returns true if everything is wanted.
pub fn all() -> bool {
    std::env::var("HIROBA_MATRIX").is_ok_and(|asked| asked == "all")
}

/// Returns how many of `count` seeds are explored.
pub fn of(count: u64) -> u64 {
    if all() { count } else { count.div_ceil(4) }
}

/// Returns true if `seed` is beyond the sample of `count` seeds, and every outcome was reached. An outcome
/// that the sample does not reach is looked for with all seeds.
pub fn suffices(seed: u64, count: u64, reached: &[bool]) -> bool {
    seed >= of(count) && reached.iter().all(|reached| *reached)
}
