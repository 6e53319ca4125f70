//! Tells builds of one version apart: a number over the sources of all that must agree between the nodes of a job.

use std::path::{Path, PathBuf};
use std::{fs, io};

/// The rooms whose sources decide what nodes say to each other and how they take it.
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

/// The 64-bit hash of Fowler, Noll and Vo (FNV-1a): the same wherever and with whatever compiler it is computed.
struct Fnv(u64);

impl Fnv {
    fn new() -> Fnv {
        Fnv(0xcbf2_9ce4_8422_2325)
    }

    /// Adds bytes and their number, so that where one piece ends and the next begins counts too.
    fn add(&mut self, bytes: &[u8]) {
        for byte in bytes.iter().chain(&(bytes.len() as u64).to_le_bytes()) {
            self.0 = (self.0 ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3);
        }
    }
}
