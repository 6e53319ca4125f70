//! Gives the library the name and the versions under which executables ask for it.

fn main() {
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libgomp.so.1");
    let directory = std::env::var("CARGO_MANIFEST_DIR").unwrap_or_default();
    println!("cargo:rustc-cdylib-link-arg=-Wl,--version-script={directory}/versions.map");
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rerun-if-changed=versions.map");
}
