//! Which library of OpenMP the program was built for.

use std::sync::OnceLock;

/// Returns true if the program was built for LLVM's library: some types of the program's variables and some
/// defaults are different.
pub(crate) fn is_llvm() -> bool {
    static IS_LLVM: OnceLock<bool> = OnceLock::new();
    *IS_LLVM.get_or_init(|| std::env::var_os("HIROBA_OPENMP").is_some_and(|value| value == "llvm"))
}
