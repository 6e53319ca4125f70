//! Sets the library's soname, by which the loader recognises a preloaded copy as the one that a program
//! needs.

fn main() {
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libhiroba.so");
    println!("cargo:rerun-if-changed=build.rs");
}
