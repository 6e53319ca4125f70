//! Tests landing pools: memory of a node that its peers put data into.

use std::net::SocketAddr;
use std::os::unix::fs::MetadataExt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;

use hiroba_base::NodeId;
use hiroba_fabric::{Fabric, FabricConfig, LandingPool, OneSided, ShmFabric, ShmFiles};
use hiroba_wire::control::JobKey;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::common;

const ONE: NodeId = NodeId(0);
const OTHER: NodeId = NodeId(1);

/// Only one test at a time opens fabrics, because one limits the address space.
static OPENING: Mutex<()> = Mutex::new(());

fn alone() -> MutexGuard<'static, ()> {
    OPENING.lock().unwrap_or_else(PoisonError::into_inner)
}

fn open(local: NodeId, files: &ShmFiles) -> ShmFabric {
    let addresses = vec![SocketAddr::from(([127, 0, 0, 1], 0)); 2];
    let config = FabricConfig { local, addresses, job: 1, key: JobKey::new(&[7; 32]), inject: None };
    ShmFabric::open(common::inherit(files), &config).unwrap()
}

fn one_sided(fabric: &ShmFabric) -> &dyn OneSided {
    fabric.one_sided().expect("its capabilities say so")
}

fn pool(fabric: &ShmFabric) -> Arc<dyn LandingPool> {
    one_sided(fabric).landing().expect("nothing limits the address space")
}

fn at(pool: &Arc<dyn LandingPool>, offset: u64, bytes: usize) -> Vec<u8> {
    let mut copy = b"before".to_vec();
    pool.append_to(offset as usize, bytes, &mut copy);
    copy.split_off(6)
}

#[test]
fn who_is_told_that_bytes_have_landed_sees_them() {
    const ROUNDS: u64 = 3_000;
    let _alone = alone();
    let files = common::shm_files(2);
    let (one, other) = (open(ONE, &files), open(OTHER, &files));
    let landing = pool(&one);
    let bytes_of = |round: u64| -> Vec<u8> {
        (0..round % 70_000 * 17 % 70_000).map(|at| (round.wrapping_mul(31) + at) as u8).collect()
    };
    thread::scope(|scope| {
        scope.spawn(|| {
            for round in 0..ROUNDS {
                assert!(one_sided(&other).land(ONE, round % 5 * 13, &bytes_of(round)));
                other.send(ONE, &[&round.to_le_bytes()]);
                // The same place is written again only after the answer.
                let mut answered = false;
                while !answered {
                    other.poll(None, &mut |_, _| answered = true).unwrap();
                }
            }
        });
        let mut next = 0;
        while next < ROUNDS {
            let mut take = |_: NodeId, bytes: &[u8]| {
                assert_eq!(bytes, next.to_le_bytes());
                let expected = bytes_of(next);
                assert!(at(&landing, next % 5 * 13, expected.len()) == expected, "round {next}");
                next += 1;
                one.send(OTHER, &[b"taken"]);
            };
            one.poll(None, &mut take).unwrap();
        }
    });
    let bytes: u64 = (0..ROUNDS).map(|round| bytes_of(round).len() as u64).sum();
    assert!(other.statistics().bytes_sent >= bytes, "what has landed was sent");
}

#[test]
fn only_what_lies_inside_lands() {
    let _alone = alone();
    let files = common::shm_files(2);
    let (one, other) = (open(ONE, &files), open(OTHER, &files));
    let (landing, end) = (pool(&one), pool(&one).bytes() as u64);
    let writer = one_sided(&other);
    for offset in [end, end - 3, end + 1, u64::MAX, u64::MAX - 2] {
        assert!(!writer.land(ONE, offset, b"four"), "{offset}");
        assert!(!writer.land_again(ONE, offset, 0, 4), "{offset}");
        assert!(!writer.land_again(ONE, 0, offset, 4), "{offset}");
    }
    assert!(!writer.land(OTHER, 0, b"four"), "a node does not send to itself");
    assert!(!writer.land(NodeId(2), 0, b"four") && !writer.land_again(NodeId(2), 0, 0, 4));
    assert_eq!((at(&landing, 0, 4), at(&landing, end - 4, 4)), (vec![0; 4], vec![0; 4]));
    assert!(writer.land(ONE, end - 4, b"four") && writer.land(ONE, end, b""));
    assert_eq!(at(&landing, end - 4, 4), b"four");
    // What has landed is put elsewhere, also after its fabric was closed.
    assert!(one_sided(&one).land_again(OTHER, 9, end - 4, 4));
    assert_eq!(at(&pool(&other), 9, 4), b"four");
    drop(one);
    assert_eq!(at(&landing, end - 4, 4), b"four");
    assert_ne!(landing.address(end as usize - 1), landing.address(0));
}

#[test]
fn a_pool_takes_memory_only_where_it_was_used() {
    let _alone = alone();
    let files = common::shm_files(2);
    let (one, other) = (open(ONE, &files), open(OTHER, &files));
    let taken =
        || std::fs::File::from(files.boards[0].try_clone().unwrap()).metadata().unwrap().blocks() * 512;
    let before = taken();
    for _ in 0..50 {
        assert!(one_sided(&other).land(ONE, 8 << 20, &[5; 100_000]));
    }
    assert!(taken() - before <= 128 << 10, "{} bytes", taken() - before);
    assert_eq!(at(&pool(&one), 8 << 20, 100_000), [5; 100_000]);
}

#[test]
fn a_limited_address_space_is_left_to_the_program() {
    let _alone = alone();
    let files = common::shm_files(2);
    let before = getrlimit(Resource::As);
    let (limited, ample) = (Rlimit { current: Some(1 << 46), ..before }, open(ONE, &files));
    setrlimit(Resource::As, limited).unwrap();
    let other = open(OTHER, &files);
    setrlimit(Resource::As, before).unwrap();
    assert!(one_sided(&other).landing().is_none() && !one_sided(&other).land(ONE, 0, b"four"));
    assert_eq!(at(&pool(&ample), 0, 4), [0; 4]);
    // All else works.
    other.send(ONE, &[b"four"]);
    let mut came = Vec::new();
    ample.poll_now(&mut |_, bytes| came.extend_from_slice(bytes)).unwrap();
    assert_eq!(came, b"four");
}
