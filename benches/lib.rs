//! The package of the benchmark `pure`: `cd benches && cargo bench`.
