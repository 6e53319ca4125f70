//! Gives the library its name, by which the loader knows that a preloaded copy is the one that a program needs.

fn main() {
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libhiroba.so");
    println!("cargo:rerun-if-changed=build.rs");
}
