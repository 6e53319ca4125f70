//! Tests of granules that several threads want, and of those that are saved ahead.

use std::thread;

use super::tests::{
    Disk, UNIT, changed, come_back, content, file_on, free_slots, leave, out_and_back, range, versions,
};
use super::*;

/// Fills a buffer with granules' contents.
fn contents(run: PageRange, room: &mut [u8]) -> bool {
    run.iter().zip(room.chunks_mut(UNIT)).for_each(|(granule, room)| content(granule, room));
    true
}

#[test]
fn what_is_coming_is_waited_for_and_other_granules_go_on() {
    let disk = Disk::default();
    let file = file_on(&disk, 100);
    leave(&file, range(0, 8), content).unwrap();
    disk.hold(0);
    let order = Mutex::new(Vec::new());
    let note = |what| order.lock().unwrap().push(what);
    thread::scope(|scope| {
        scope.spawn(|| {
            let came = file.hand_back(range(0, 2), |_, _| {
                note("placed");
                Ok(())
            });
            assert_eq!(came, Ok(2 * UNIT as u64));
        });
        disk.await_held();
        // Others come, leave and are forgotten meanwhile.
        assert_eq!(come_back(&file, range(4, 1)), Ok(UNIT as u64));
        assert_eq!(leave(&file, range(50, 3), content), Ok(3 * UNIT as u64));
        assert_eq!(leave(&file, range(4, 1), content), Ok(0));
        file.discard(range(51, 2));
        assert!(file.has_any_of(range(0, 1)), "it is out until it is there");
        scope.spawn(|| disk.let_go());
        // More than is coming is asked for: the rest is brought in, and then the first two are waited for.
        let asked = file.hand_back(range(0, 4), |run, _| {
            assert_eq!(run, range(2, 2));
            Ok(())
        });
        note("seen");
        assert_eq!(asked, Ok(2 * UNIT as u64));
    });
    assert_eq!(*order.lock().unwrap(), ["placed", "seen"]);
    assert_eq!(out_and_back(&file), (5, 4));
}

#[test]
fn what_cannot_be_read_is_asked_for_again_by_the_next() {
    let disk = Disk::default();
    let file = file_on(&disk, 100);
    leave(&file, range(0, 2), content).unwrap();
    disk.0.lock().unwrap().refuses_reads = Some(rustix::io::Errno::IO);
    disk.hold(0);
    thread::scope(|scope| {
        let first = scope.spawn(|| come_back(&file, range(0, 2)));
        disk.await_held();
        let second = scope.spawn(|| come_back(&file, range(0, 2)));
        disk.let_go();
        for thread in [first, second] {
            assert!(matches!(thread.join().unwrap(), Err(MemoryError::SwapRead { .. })));
        }
    });
    disk.0.lock().unwrap().refuses_reads = None;
    assert_eq!(come_back(&file, range(0, 2)), Ok(2 * UNIT as u64));
}

#[test]
fn what_is_forgotten_while_it_comes_is_gone_afterwards() {
    let disk = Disk::default();
    let file = file_on(&disk, 100);
    leave(&file, range(0, 2), content).unwrap();
    disk.hold(0);
    thread::scope(|scope| {
        let coming = scope.spawn(|| come_back(&file, range(0, 2)));
        disk.await_held();
        scope.spawn(|| disk.let_go());
        file.discard(range(0, 2));
        assert_eq!((out_and_back(&file), free_slots(&file)), ((0, 0), 2));
        assert_eq!(coming.join().unwrap(), Ok(2 * UNIT as u64));
    });
    assert_eq!((out_and_back(&file), free_slots(&file)), ((0, 0), 2));
}

#[test]
fn what_is_coming_is_left_out_of_what_others_bring_in() {
    let disk = Disk::default();
    let file = file_on(&disk, 100);
    leave(&file, range(0, 8), content).unwrap();
    disk.hold(4);
    thread::scope(|scope| {
        let coming = scope.spawn(|| come_back(&file, range(4, 1)));
        disk.await_held();
        scope.spawn(|| disk.let_go());
        let mut runs = Vec::new();
        let asked = file.hand_back(range(2, 4), |run, _| {
            runs.push(run);
            Ok(())
        });
        assert_eq!((asked, runs), (Ok(3 * UNIT as u64), vec![range(2, 2), range(5, 1)]));
        assert_eq!(coming.join().unwrap(), Ok(UNIT as u64));
    });
}

#[test]
fn what_was_saved_ahead_leaves_without_a_call_unless_it_has_changed() {
    let disk = Disk::default();
    let file = file_on(&disk, 100);
    let half = |run: PageRange, room: &mut [u8]| {
        contents(run, room);
        room[3 * UNIT..4 * UNIT].fill(0);
        true
    };
    assert_eq!(file.save_ahead(range(0, 8), half), Ok((7, 7 * UNIT as u64)));
    assert_eq!((out_and_back(&file), disk.0.lock().unwrap().calls), ((0, 7), 1));
    assert_eq!(file.save_ahead(range(0, 3), contents), Ok((0, 0)), "it is there");
    let some = |granule: PageId, room: &mut [u8]| match granule.0 {
        5 => changed(granule, room),
        _ => content(granule, room),
    };
    assert_eq!(leave(&file, range(0, 8), some), Ok(2 * UNIT as u64), "one was zeros, another has changed");
    let found = versions(&file, range(0, 8));
    let is_right = |(granule, is_changed): &(PageId, bool)| *is_changed == (granule.0 == 5);
    assert!(found.len() == 8 && found.iter().all(is_right), "{found:?}");
    // What is out, and what cannot be read, is not saved.
    leave(&file, range(0, 4), content).unwrap();
    assert_eq!(file.save_ahead(range(0, 4), |_, _| panic!("it is out")), Ok((0, 0)));
    assert_eq!(file.save_ahead(range(20, 4), |_, _| false), Ok((0, 0)));
}

#[test]
fn a_granule_that_is_being_saved_leaves_when_it_has_been() {
    let disk = Disk::default();
    let file = file_on(&disk, 100);
    disk.hold(0);
    thread::scope(|scope| {
        let saved = scope.spawn(|| file.save_ahead(range(0, 2), contents));
        disk.await_held();
        assert_eq!(file.save_ahead(range(0, 2), |_, _| panic!("another thread does it")), Ok((0, 0)));
        // It is in memory, and nobody who needs it there waits.
        assert_eq!(come_back(&file, range(0, 2)), Ok(0));
        scope.spawn(|| disk.let_go());
        assert_eq!(leave(&file, range(0, 2), changed), Ok(2 * UNIT as u64));
        assert_eq!(saved.join().unwrap(), Ok((2, 2 * UNIT as u64)));
    });
    assert_eq!((out_and_back(&file), disk.0.lock().unwrap().bytes.len()), ((2, 0), 2 * UNIT));
    assert!(versions(&file, range(0, 2)).iter().all(|(_, is_changed)| *is_changed), "the later version");
}

#[test]
fn what_is_saved_ahead_takes_no_place_from_others_and_loses_nothing() {
    let disk = Disk::default();
    let file = file_on(&disk, 6);
    leave(&file, range(0, 4), content).unwrap();
    come_back(&file, range(0, 4)).unwrap();
    let full = file.save_ahead(range(10, 3), contents);
    assert!(matches!(full, Err(MemoryError::SwapFull { .. })), "{full:?}");
    assert_eq!((out_and_back(&file), free_slots(&file)), ((0, 4), 2));
    disk.0.lock().unwrap().refuses = Some((4 * UNIT as u64, None));
    let refused = file.save_ahead(range(10, 1), contents);
    assert!(matches!(refused, Err(MemoryError::SwapWrite { .. })), "{refused:?}");
    assert_eq!((out_and_back(&file), free_slots(&file)), ((0, 4), 2));
    disk.0.lock().unwrap().refuses = None;
    assert_eq!(leave(&file, range(10, 2), content), Ok(2 * UNIT as u64));
    assert_eq!(leave(&file, range(0, 4), content), Ok(0));
}
