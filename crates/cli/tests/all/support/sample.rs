//! Samples of long matrices: by default a test takes part of its jobs, chosen such that every program,
//! protocol and fabric is among them. `HIROBA_MATRIX=all` takes all jobs.

use std::collections::BTreeSet;

/// Returns true if everything is wanted.
pub fn all() -> bool {
    std::env::var("HIROBA_MATRIX").is_ok_and(|asked| asked == "all")
}

/// Returns one of every `share` ways to run a program, by turns: `share` programs with consecutive numbers
/// together take all of them.
pub fn one_of_every<T: Clone>(share: usize, number: usize, ways: &[T]) -> Vec<T> {
    let chosen = |index: usize| all() || (index + number + index / share).is_multiple_of(share);
    ways.iter().enumerate().filter(|(index, _)| chosen(*index)).map(|(_, way)| way.clone()).collect()
}

/// Which programs and protocols have met which properties of ways, so that the next way adds most.
#[derive(Default)]
pub struct Pairs {
    met: BTreeSet<(String, String)>,
    taken: Vec<usize>,
}

impl Pairs {
    /// Takes the way that has most properties which the subjects have not met, of several the one that was
    /// taken least. `ways` are the properties of each.
    pub fn take(&mut self, subjects: &[&str], ways: &[Vec<String>]) -> usize {
        let pairs = |way: usize| -> BTreeSet<(String, String)> {
            let with =
                |property: &String| subjects.iter().map(|one| (one.to_string(), property.clone())).collect();
            ways[way].iter().flat_map(|property| -> Vec<_> { with(property) }).collect()
        };
        let new = |way: usize| pairs(way).difference(&self.met).count();
        let times = |way: usize| self.taken.iter().filter(|taken| **taken == way).count();
        let best = (0..ways.len()).max_by_key(|way| (new(*way), usize::MAX - times(*way), ways.len() - way));
        let best = best.expect("there is a way");
        self.met.extend(pairs(best));
        self.taken.push(best);
        best
    }

    /// Returns true if a subject has met a property.
    pub fn have_met(&self, subject: &str, property: &str) -> bool {
        self.met.contains(&(subject.to_owned(), property.to_owned()))
    }
}
