//! Gives the library its name.

fn main() {
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libhiroba_single.so");
    println!("cargo:rerun-if-changed=build.rs");
}
