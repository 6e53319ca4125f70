//! Runs in a fixed order, compared with kept text. Each is to be read beside the paper whose example it
//! follows.
//!
//! `HIROBA_GOLDEN=write cargo test --release -p hiroba-check --test all golden::` rewrites the texts; examine
//! the changes.
//! at what has changed.

use std::path::PathBuf;

use hiroba_check::golden::Turn::{Arrives, Begins, Lull, Rest, Whole};
use hiroba_check::golden::{Turn, trace};
use hiroba_check::program::script::*;
use hiroba_check::program::{Address, Instruction, Program};
use hiroba_protocol::{Protocol, WriteTracking};

// Page 0 is homed on node 0, page 1 on node 1.
const X: Address = Address::word(0, 0);
const X2: Address = Address::word(0, 1);

/// Compares the run with the text of this name, which begins with `about`.
fn golden(name: &str, protocol: Protocol, about: &[&str], scripts: &[&[Instruction]], turns: &[Turn]) {
    let program = Program::new(2, scripts.iter().map(|script| script.to_vec()));
    let told = trace(protocol, WriteTracking::Fault, &program, turns);
    let told = told.unwrap_or_else(|failure| panic!("{name}: {failure}"));
    let head: String = about.iter().map(|line| format!("# {line}\n")).collect();
    let text = format!("{head}\n{told}");
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join(format!("tests/golden/{name}.txt"));
    if std::env::var_os("HIROBA_GOLDEN").is_some_and(|asked| asked == "write") {
        std::fs::write(&path, &text).expect("the text can be written");
    }
    let kept = std::fs::read_to_string(&path).unwrap_or_default();
    if kept != text {
        let same = kept.lines().zip(text.lines()).take_while(|(kept, told)| kept == told);
        let line = same.count();
        panic!(
            "{name}: expected what {} keeps, got another run from line {} on; HIROBA_GOLDEN=write keeps it instead:\n{text}",
            path.display(),
            line + 1
        );
    }
}

/// A new protocol needs a golden trace.
#[test]
fn every_protocol_has_a_golden_trace() {
    let golden = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/golden");
    let files = std::fs::read_dir(golden).expect("the golden traces can be listed");
    let names: Vec<String> =
        files.map(|file| file.expect("a file").file_name().to_string_lossy().into_owned()).collect();
    for protocol in Protocol::ALL {
        let prefix = format!("{}_", protocol.name().replace('-', "_"));
        assert!(names.iter().any(|name| name.starts_with(&prefix)), "{}: none of {names:?}", protocol.name());
    }
}

const LI_HUDAK: &str =
    "Li, Hudak, Memory Coherence in Shared Virtual Memory Systems, ACM TOCS 7(4), 1989: the fixed";
const ZHOU: &str =
    "Zhou, Iftode, Li, Performance Evaluation of Two Home-Based Lazy Release Consistency Protocols,";

const KELEHER: &str = "Keleher, Cox, Zwaenepoel, Lazy Release Consistency for Software Distributed Shared Memory, ISCA 1992, and";

const MUNIN: &str = "Carter, Bennett, Zwaenepoel, Techniques for Reducing Consistency-Related Communication in Distributed Shared-Memory";

#[test]
fn sc_read_fault() {
    golden(
        "sc_read_fault",
        Protocol::Sc,
        &[
            LI_HUDAK,
            "distributed manager algorithm, read fault handler and read server. Page 0 is managed by node 0 and owned",
            "by node 2, which has written it; node 1 reads it. The manager passes the request on, the owner keeps the",
            "copyset. The second reader is the manager, which knows the owner.",
        ],
        &[&[load(X, 0)], &[load(X, 0)], &[store(X, 7)]],
        &[Whole(2), Whole(1), Whole(0)],
    );
}

#[test]
fn sc_write_fault() {
    golden(
        "sc_write_fault",
        Protocol::Sc,
        &[
            LI_HUDAK,
            "distributed manager algorithm, write fault handler and write server. Page 0 is managed and owned by node 0;",
            "nodes 1 and 2 have copies. Node 1 writes: the owner hands the page and the copyset over, and node 1 lets the",
            "copies go before it writes. It has the content already. Node 2 reads again what node 1 wrote.",
        ],
        &[&[store(X, 1)], &[load(X, 0), store(X, 2)], &[load(X, 0), load(X, 1)]],
        &[Whole(0), Whole(1), Whole(2), Whole(1), Whole(2)],
    );
}

#[test]
fn sc_chain_of_writers() {
    golden(
        "sc_chain_of_writers",
        Protocol::Sc,
        &[
            LI_HUDAK,
            "distributed manager algorithm, with concurrent write faults. Nodes 1 and 2 ask for page 0 before either has it:",
            "the manager knows only who asked last, so that node 1, which is still waiting, is told to hand the page to",
            "node 2. It does so when its own thread has used it.",
        ],
        &[&[store(X, 1)], &[store(X, 2)], &[store(X2, 3)]],
        &[Whole(0), Begins(1), Begins(2), Rest],
    );
}

#[test]
fn hlrc_lock_chain() {
    golden(
        "hlrc_lock_chain",
        Protocol::Hlrc,
        &[
            ZHOU,
            "OSDI 1996, its section on protocols: acquire, write, release on one node, then acquire, read on another; the",
            "page's home is a third. At the release the diff goes home, at the acquire the write notice comes with the",
            "lock, and the fault that follows fetches the whole page, which the home sends when it holds interval 1:1.",
        ],
        &[&[], &[lock(2), store(X, 7), unlock(2)], &[load(X, 0), lock(2), load(X, 1), unlock(2)]],
        &[Whole(2), Whole(1), Whole(1), Whole(1), Whole(2), Whole(2), Whole(2)],
    );
}

#[test]
fn hlrc_diff_on_its_way() {
    golden(
        "hlrc_diff_on_its_way",
        Protocol::Hlrc,
        &[
            ZHOU,
            "OSDI 1996, its section on protocols: a request that reaches the home before the diff that it needs. The lock",
            "goes from node 1 to node 2, and node 2's request names interval 1:1; the home answers when that is there.",
        ],
        &[&[store(X2, 1)], &[lock(1), store(X, 7), unlock(1)], &[lock(1), load(X, 1), unlock(1)]],
        &[
            Whole(0),
            Whole(1),
            Begins(2),
            Whole(1),
            Begins(1),
            Arrives(1, 2),
            Begins(2),
            Arrives(2, 0),
            Arrives(1, 0),
            Rest,
            Whole(2),
        ],
    );
}

#[test]
fn hlrc_two_writers_meet() {
    golden(
        "hlrc_two_writers_meet",
        Protocol::Hlrc,
        &[
            ZHOU,
            "OSDI 1996, its section on protocols: two writers of one page, which is falsely shared. Both keep a twin, both",
            "diffs go home, and the barrier brings each the other's write notice.",
        ],
        &[&[barrier()], &[store(X, 1), barrier(), load(X2, 0)], &[store(X2, 2), barrier(), load(X, 0)]],
        &[Whole(1), Whole(2), Whole(1), Whole(2), Whole(0), Whole(1), Whole(2)],
    );
}

#[test]
fn lrc_lock_chain() {
    golden(
        "lrc_lock_chain",
        Protocol::Lrc,
        &[
            KELEHER,
            "Keleher, Dwarkadas, Cox, Zwaenepoel, TreadMarks, USENIX Winter 1994, on lazy diff creation: a lock goes from",
            "node 1 to node 2, which both write the page, and on to node 0, which reads it. A release sends nothing. A fault asks the",
            "writers that notices name, each for its own diffs, which are made only then, and applies them in the order of",
            "their versions: 1:1 before 2:1, whose version holds it.",
        ],
        &[
            &[load(X, 0), lock(2), load(X, 1), load(X2, 2), unlock(2)],
            &[lock(2), store(X, 7), unlock(2)],
            &[lock(2), store(X2, 8), unlock(2)],
        ],
        &[
            Whole(0),
            Whole(1),
            Whole(1),
            Whole(1),
            Whole(2),
            Whole(2),
            Whole(2),
            Whole(0),
            Whole(0),
            Whole(0),
            Whole(0),
        ],
    );
}

#[test]
fn lrc_two_writers_meet() {
    golden(
        "lrc_two_writers_meet",
        Protocol::Lrc,
        &[
            KELEHER,
            "Keleher, Dwarkadas, Cox, Zwaenepoel, TreadMarks, USENIX Winter 1994: two writers of one page, which is falsely",
            "shared. The barrier brings each the other's write notice, and each then asks the other for its diff.",
        ],
        &[&[barrier()], &[store(X, 1), barrier(), load(X2, 0)], &[store(X2, 2), barrier(), load(X, 0)]],
        &[Whole(1), Whole(2), Whole(1), Whole(2), Whole(0), Whole(1), Whole(2)],
    );
}

/// A writer, and a reader with a copy; the page's home is a third node.
fn eager_release(name: &str, protocol: Protocol, about: &[&str]) {
    golden(
        name,
        protocol,
        about,
        &[&[], &[lock(2), store(X, 7), unlock(2)], &[load(X, 0), lock(2), load(X, 1), unlock(2)]],
        &[Whole(2), Whole(1), Whole(1), Whole(1), Whole(2), Whole(2), Whole(2)],
    );
}

#[test]
fn erc_invalidate_release() {
    eager_release(
        "erc_invalidate_release",
        Protocol::ErcInvalidate,
        &[
            MUNIN,
            "Systems, ACM TOCS 13(3), 1995, and SCASH (Harada and others, 1999), on releases: the diff goes to the page's home, which",
            "knows who has copies. The release ends when the reader's copy is given up; the lock then says nothing of pages.",
        ],
    );
}

#[test]
fn erc_update_release() {
    eager_release(
        "erc_update_release",
        Protocol::ErcUpdate,
        &[
            MUNIN,
            "Systems, ACM TOCS 13(3), 1995, on releases and the delayed update queue: the home passes the diff on to the reader, whose",
            "copy stays good, and the release ends when the reader has it. The load behind the lock does not fault.",
        ],
    );
}

#[test]
fn adaptive_home_follows_its_writer() {
    let writes = |value| [store(X, value), barrier()];
    golden(
        "adaptive_home_follows_its_writer",
        Protocol::Adaptive,
        &[
            "Harada and others, SCASH, 1999, on homes that move by amount of modification; Amza, Cox, Dwarkadas, Zwaenepoel, Software DSM",
            "Protocols that Adapt between Single Writer and Multiple Writer, HPCA 1997. Node 1 alone writes page 0, which is homed on node 0:",
            "at first it keeps a twin and sends diffs; then the home proposes the page with its arrival, everybody hears of the move with",
            "the departure, and node 1, whose copy is complete, writes on without twin and diff.",
        ],
        &[
            &[barrier(), barrier(), barrier(), barrier()],
            &[writes(1), writes(2), writes(3), writes(4)].concat(),
            &[barrier(), barrier(), barrier(), barrier()],
        ],
        &[1, 1, 0, 2].repeat(4).into_iter().map(Whole).collect::<Vec<_>>(),
    );
}

#[test]
fn aurc_updates_leave_in_lulls() {
    golden(
        "aurc_updates_leave_in_lulls",
        Protocol::Aurc,
        &[
            "Iftode, Dubnicki, Felten, Li, Improving Release-Consistent Shared Virtual Memory using Automatic Update, HPCA 1996: updates go to the",
            "home while the writer computes. Node 1 writes two words of page 0, and has nothing to do in between: what it has written so",
            "far leaves. The release sends what is new since then, and its notice and version as ever; node 2 finds both words.",
        ],
        &[
            &[],
            &[lock(2), store(X, 7), store(X2, 8), unlock(2)],
            &[lock(2), load(X, 0), load(X2, 1), unlock(2)],
        ],
        &[Whole(1), Whole(1), Lull(1), Lull(1), Whole(1), Whole(1), Whole(2), Whole(2), Whole(2), Whole(2)],
    );
}
