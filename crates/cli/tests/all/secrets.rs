//! Keys lie in pages of their own, outside core files, and nowhere else in the processes of a job.

use std::collections::HashSet;
use std::fs::{self, File};
use std::os::unix::fs::FileExt;

use crate::support::{
    compiled, eventually, finish, first_line, hiroba, mark, marked, processes_marked, send, start,
};

/// The size of a piece of pages for keys, in bytes.
const VAULT_BYTES: usize = 64 << 10;
const SLOT_BYTES: usize = 32;
/// The length that is searched for: keys of directions are no longer, and the beginning of the job's key
/// suffices.
const KEY_BYTES: usize = 16;

/// A mapping of a process.
struct Mapping {
    start: u64,
    bytes: usize,
    flags: String,
    is_resident: bool,
}

/// Returns the mappings of a process, with their flags (proc_pid_smaps(5)).
fn mappings(pid: i32) -> Vec<Mapping> {
    let text = fs::read_to_string(format!("/proc/{pid}/smaps")).unwrap_or_default();
    let mut found: Vec<Mapping> = Vec::new();
    for line in text.lines() {
        let words: Vec<&str> = line.split_whitespace().collect();
        let bound = |text: &str| u64::from_str_radix(text, 16).ok();
        let range = words[0].split_once('-').and_then(|(start, end)| Some((bound(start)?, bound(end)?)));
        match (range, found.last_mut()) {
            (Some((start, end)), _) => {
                let bytes = (end - start) as usize;
                found.push(Mapping { start, bytes, flags: String::new(), is_resident: false });
            }
            (None, Some(mapping)) if words[0] == "Rss:" => mapping.is_resident = words[1] != "0",
            (None, Some(mapping)) if words[0] == "VmFlags:" => mapping.flags = words[1..].join(" "),
            _ => {}
        }
    }
    found
}

impl Mapping {
    fn has(&self, flag: &str) -> bool {
        self.flags.split(' ').any(|word| word == flag)
    }

    /// Returns true if it is kept out of core files and of forked children.
    fn is_vault(&self) -> bool {
        self.has("dd") && self.has("wf") && self.bytes.is_multiple_of(VAULT_BYTES)
    }

    fn read(&self, pid: i32) -> Vec<u8> {
        let mut bytes = vec![0; self.bytes];
        let memory = File::open(format!("/proc/{pid}/mem")).expect("a process of ours");
        // Unreadable memory (the kernel's own pages) is not in a core file either.
        let _ = memory.read_exact_at(&mut bytes, self.start);
        bytes
    }
}

type Keys = HashSet<[u8; KEY_BYTES]>;

/// Returns the keys in a process.
fn keys_of(pid: i32) -> Keys {
    let vaults = mappings(pid).into_iter().filter(Mapping::is_vault);
    let slots = vaults.flat_map(|vault| {
        let bytes = vault.read(pid);
        bytes.chunks(SLOT_BYTES).map(|slot| *slot.first_chunk().unwrap()).collect::<Vec<_>>()
    });
    slots.filter(|key| *key != [0; KEY_BYTES]).collect()
}

/// Returns where keys occur in what a core file of a process would contain.
fn copies_in(pid: i32, keys: &Keys) -> Vec<String> {
    let shown = mappings(pid)
        .into_iter()
        .filter(|mapping| mapping.is_resident && mapping.has("rd") && !mapping.has("dd"));
    let mut copies = Vec::new();
    for mapping in shown {
        let bytes = mapping.read(pid);
        let at = bytes.windows(KEY_BYTES).enumerate().filter(|(_, part)| keys.contains(*part));
        copies.extend(at.map(|(at, _)| format!("process {pid}, {:#x}", mapping.start + at as u64)));
    }
    copies
}

#[test]
fn keys_are_nowhere_but_in_their_pages() {
    let (_directory, program) = compiled("meet.c");
    for fabric in ["udp", "tcp"] {
        let mark = mark(&format!("keys-{fabric}"));
        let mut command = hiroba(&["run", "-n", "2", "--fabric", fabric, "--"]);
        let mut child = start(command.arg(&program).arg("600").env("HIROBA_TEST_MARK", &mark));
        assert_eq!(first_line(&mut child), "met");
        let processes: Vec<(Keys, i32, String)> =
            marked(&mark).into_iter().map(|(pid, line)| (keys_of(pid), pid, line)).collect();
        // The launcher does not need the key any more once all nodes have it.
        let holders = processes.iter().filter(|(keys, ..)| !keys.is_empty());
        let holders: Vec<&str> = holders.map(|(_, _, line)| line.as_str()).collect();
        assert_eq!(holders.len(), 2, "the nodes have keys, and only they: {holders:?}");
        assert!(holders.iter().all(|line| !line.contains("hiroba run")), "{holders:?}");
        let all: Keys = processes.iter().flat_map(|(keys, ..)| keys).copied().collect();
        for (_, pid, line) in &processes {
            assert_eq!(copies_in(*pid, &all), [""; 0], "{fabric}: {line}");
        }
        send(&child, libc::SIGTERM);
        finish(child);
        eventually("all processes are gone", || processes_marked(&mark) == 0);
    }
}
