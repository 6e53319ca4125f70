//! Computes the build number: a hash over the sources on which the nodes of a job must agree. It
//! distinguishes builds of one version.

use std::path::{Path, PathBuf};
use std::{fs, io};

/// The rooms whose sources decide what nodes send to each other and how they interpret it.
const ROOMS: [&str; 7] = ["base", "wire", "protocol", "fabric", "memory", "trace", "node"];

fn main() -> io::Result<()> {
    let crates = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let mut files = Vec::new();
    for room in ROOMS {
        let sources = crates.join(room).join("src");
        println!("cargo:rerun-if-changed={}", sources.display());
        collect(&sources, &mut files)?;
    }
    files.sort();
    let mut sum = Fnv::new();
    for file in files {
        sum.add(file.strip_prefix(&crates).unwrap_or(&file).as_os_str().as_encoded_bytes());
        sum.add(&fs::read(&file)?);
    }
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rustc-env=HIROBA_BUILD={:016x}", sum.0);
    Ok(())
}

fn collect(directory: &Path, files: &mut Vec<PathBuf>) -> io::Result<()> {
    for entry in fs::read_dir(directory)? {
        let path = entry?.path();
        if path.is_dir() {
            collect(&path, files)?;
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            files.push(path);
        }
    }
    Ok(())
}

/// The 64-bit hash of Fowler, Noll and Vo (FNV-1a). Its value does not depend on machine or compiler.
struct Fnv(u64);

impl Fnv {
    fn new() -> Fnv {
        Fnv(0xcbf2_9ce4_8422_2325)
    }

    /// Adds bytes and their number, so that the boundary between two pieces changes the hash too.
    fn add(&mut self, bytes: &[u8]) {
        for byte in bytes.iter().chain(&(bytes.len() as u64).to_le_bytes()) {
            self.0 = (self.0 ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3);
        }
    }
}
