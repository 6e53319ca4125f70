//! Executables of OpenMP: which library they were built for, and what is provided of it.

use std::io;

use super::small_library::{Contents, SmallLibrary};
use crate::failure::Failure;
use crate::run::options::RunOptions;

/// How names of OpenMP's and OpenACC's functions begin, and of what both libraries have beside them.
pub(super) const PREFIXES: [&str; 10] =
    ["GOMP_", "GOACC_", "omp_", "acc_", "__kmpc_", "__kmp_", "kmp_", "kmpc_", "ompc_", "__tgt_"];
/// How names of functions begin that create tasks.
pub(super) const TASKS: [&str; 4] =
    ["GOMP_task", "__kmpc_omp_task", "__kmpc_omp_target_task", "__kmpc_taskloop"];

/// How the name of GNU's library begins.
pub(super) const OF_GNU: &str = "libgomp.so";
/// How names of LLVM's library begin, and of Intel's, which is the same.
const OF_LLVM: [&str; 2] = ["libomp.so", "libiomp5.so"];
/// The versions that programs ask LLVM's library for.
const VERSIONS: [&str; 15] = [
    "VERSION",
    "OMP_1.0",
    "OMP_2.0",
    "OMP_3.0",
    "OMP_3.1",
    "OMP_4.0",
    "OMP_4.5",
    "OMP_5.0",
    "GOMP_1.0",
    "GOMP_2.0",
    "GOMP_3.0",
    "GOMP_4.0",
    "GOMP_4.5",
    "GOMP_5.0",
    "GOMP_5.0.1",
];

/// A library that a program was built for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Library {
    Gnu,
    Llvm,
}

impl Library {
    /// The name by which the library that stands in for it knows it.
    pub(super) fn name(self) -> &'static str {
        match self {
            Library::Gnu => "gnu",
            Library::Llvm => "llvm",
        }
    }
}

/// Returns true for names of LLVM's library.
pub(super) fn is_of_llvm(name: &str) -> bool {
    OF_LLVM.iter().any(|prefix| name.starts_with(prefix))
}

/// Makes an empty library of such a name, so that the loader looks for no other. The functions are in the one
/// that stands in for GNU's.
pub(super) fn named(name: &str) -> io::Result<SmallLibrary> {
    SmallLibrary::make(&Contents { name, versions: &VERSIONS, thread_local: None })
}

/// Refuses more threads than the job has. With several machines their number is not known here.
pub(super) fn check_threads(options: &RunOptions) -> Result<(), Failure> {
    const VARIABLE: &str = "OMP_NUM_THREADS";
    let given = options.variables.iter().rev().find(|(name, _)| name == VARIABLE);
    let text = given.map(|(_, value)| value.clone()).or_else(|| std::env::var_os(VARIABLE));
    let text = text.unwrap_or_default().to_string_lossy().into_owned();
    let (nodes, threads) = (options.nodes, options.threads_per_node);
    let places = u32::from(nodes) * u32::from(threads);
    let asked = text.split(',').next().and_then(|first| first.trim().parse::<u32>().ok());
    match asked {
        Some(asked) if asked > places && options.hosts.is_none() => Err(Failure::new(format!(
            "OMP_NUM_THREADS: expected at most {places} threads, which are {nodes} nodes with {threads} each, got \
             {asked}; use more nodes (-n) or threads (-t)"
        ))),
        _ => Ok(()),
    }
}

/// Says which functions are not provided, the first of them by name.
pub(super) fn sentence_of_missing(missing: &[&str]) -> String {
    const SHOWN: usize = 5;
    let names = missing[..missing.len().min(SHOWN)].join(", ");
    let more = match missing.len().saturating_sub(SHOWN) {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    format!("it calls {names}{more}, which is not provided")
}
