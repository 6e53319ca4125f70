//! Order, room and memory, mostly of ports that move. No node dies.

use super::{runs, runs_with};
use crate::random::Op;

#[test]
fn a_message_follows_those_that_wait() {
    let ops = [
        Op::Send { node: 118, to: 233, rights: vec![], size: 54, waits: 16 },
        Op::GiveUp { node: 53, name: 0, whole: false },
        Op::Send { node: 2, to: 48, rights: vec![], size: 0, waits: 4 },
        Op::Send { node: 127, to: 68, rights: vec![], size: 0, waits: 0 },
        Op::Send { node: 8, to: 0, rights: vec![(103, 203)], size: 0, waits: 0 },
        Op::Allocate { node: 0 },
        Op::Allocate { node: 0 },
        Op::Allocate { node: 0 },
    ];
    runs(3, 0, &ops);
}

/// The message cannot be enqueued, and closes a circle nevertheless.
#[test]
fn a_port_waits_for_room_in_its_own_queue() {
    let ops = [
        Op::Send { node: 255, to: 216, rights: vec![], size: 0, waits: 64 },
        Op::Allocate { node: 109 },
        Op::Send { node: 3, to: 49, rights: vec![], size: 0, waits: 172 },
        Op::Send { node: 28, to: 84, rights: vec![(198, 0)], size: 0, waits: 32 },
        Op::NoSenders { node: 0, port: 0 },
        Op::NoSenders { node: 1, port: 0 },
        Op::Send { node: 97, to: 14, rights: vec![(14, 137)], size: 7, waits: 0 },
        Op::Deliver { packets: 3 },
        Op::Deliver { packets: 57 },
        Op::Receive { node: 54, from: 0, waits: false },
        Op::Receive { node: 15, from: 0, waits: false },
        Op::Send { node: 0, to: 0, rights: vec![], size: 0, waits: 0 },
        Op::Send { node: 68, to: 0, rights: vec![], size: 0, waits: 52 },
        Op::Send { node: 47, to: 0, rights: vec![], size: 42, waits: 0 },
        Op::Allocate { node: 4 },
        Op::Allocate { node: 31 },
        Op::Send { node: 21, to: 0, rights: vec![(83, 212)], size: 0, waits: 0 },
    ];
    runs(3, 373_143_611_164_137_207, &ops);
}

#[test]
fn who_relays_counts_as_a_sender_while_pieces_come() {
    let ops = [
        Op::NoSenders { node: 103, port: 0 },
        Op::Send { node: 36, to: 0, rights: vec![], size: 198, waits: 20 },
        Op::Send { node: 109, to: 0, rights: vec![(83, 200)], size: 0, waits: 0 },
        Op::NoSenders { node: 0, port: 0 },
        Op::Allocate { node: 0 },
        Op::Allocate { node: 0 },
        Op::Allocate { node: 0 },
    ];
    runs(2, 0, &ops);
}

#[test]
fn a_receive_ends_before_what_it_makes_room_for() {
    let ops = [
        Op::Send { node: 7, to: 2, rights: vec![], size: 84, waits: 0 },
        Op::Allocate { node: 66 },
        Op::Send { node: 76, to: 1, rights: vec![], size: 0, waits: 20 },
        Op::Send { node: 0, to: 0, rights: vec![], size: 0, waits: 32 },
        Op::Send { node: 4, to: 17, rights: vec![], size: 0, waits: 116 },
        Op::Send { node: 40, to: 157, rights: vec![(215, 146)], size: 0, waits: 0 },
        Op::Allocate { node: 63 },
        Op::NoSenders { node: 0, port: 0 },
        Op::Send { node: 167, to: 59, rights: vec![(39, 134)], size: 119, waits: 0 },
        Op::Deliver { packets: 128 },
        Op::Send { node: 41, to: 170, rights: vec![], size: 130, waits: 4 },
        Op::Deliver { packets: 189 },
        Op::Send { node: 91, to: 20, rights: vec![], size: 235, waits: 204 },
        Op::Deliver { packets: 126 },
        Op::Receive { node: 24, from: 0, waits: false },
        Op::Receive { node: 53, from: 49, waits: true },
        Op::Deliver { packets: 10 },
        Op::Deliver { packets: 20 },
        Op::Deliver { packets: 21 },
        Op::Send { node: 109, to: 24, rights: vec![(19, 176)], size: 0, waits: 146 },
    ];
    runs(5, 921_065_384_663_154_570, &ops);
}

#[test]
fn what_a_port_that_comes_home_was_sent_before_comes_first() {
    let ops = [
        Op::Send { node: 213, to: 79, rights: vec![(190, 0)], size: 0, waits: 120 },
        Op::Send { node: 91, to: 139, rights: vec![(14, 43)], size: 144, waits: 104 },
        Op::Send { node: 20, to: 68, rights: vec![(56, 19), (174, 31)], size: 0, waits: 0 },
        Op::GiveUp { node: 143, name: 106, whole: false },
        Op::Deliver { packets: 0 },
        Op::Deliver { packets: 177 },
        Op::Send { node: 69, to: 163, rights: vec![(31, 173)], size: 74, waits: 48 },
        Op::Send { node: 254, to: 9, rights: vec![(91, 14)], size: 0, waits: 32 },
        Op::Receive { node: 179, from: 0, waits: false },
        Op::Send { node: 20, to: 72, rights: vec![(204, 14), (3, 30), (17, 125)], size: 192, waits: 4 },
        Op::Send { node: 5, to: 11, rights: vec![], size: 110, waits: 0 },
        Op::Deliver { packets: 17 },
        Op::Allocate { node: 8 },
        Op::Send { node: 11, to: 137, rights: vec![], size: 210, waits: 168 },
        Op::Deliver { packets: 16 },
        Op::Send { node: 86, to: 29, rights: vec![(51, 233)], size: 0, waits: 0 },
        Op::NoSenders { node: 0, port: 0 },
        Op::NoSenders { node: 0, port: 49 },
        Op::Receive { node: 0, from: 0, waits: false },
        Op::NoSenders { node: 0, port: 0 },
        Op::Send { node: 0, to: 0, rights: vec![(121, 0)], size: 0, waits: 0 },
        Op::Deliver { packets: 27 },
        Op::NoSenders { node: 0, port: 0 },
        Op::Send { node: 20, to: 0, rights: vec![], size: 0, waits: 16 },
        Op::Send { node: 48, to: 0, rights: vec![], size: 0, waits: 32 },
        Op::Send { node: 91, to: 184, rights: vec![(32, 5), (55, 188)], size: 0, waits: 0 },
        Op::NoSenders { node: 0, port: 0 },
        Op::NoSenders { node: 0, port: 0 },
        Op::Allocate { node: 0 },
        Op::Receive { node: 0, from: 0, waits: false },
        Op::Send { node: 199, to: 0, rights: vec![], size: 0, waits: 0 },
    ];
    runs(4, 8_643_630_840_942_270_608, &ops);
}

#[test]
fn what_is_permitted_goes_on_behind_what_waits() {
    let ops = [
        Op::Deliver { packets: 1 },
        Op::Receive { node: 0, from: 0, waits: true },
        Op::Deliver { packets: 2 },
        Op::Allocate { node: 15 },
        Op::Deliver { packets: 1 },
        Op::Send { node: 54, to: 115, rights: vec![(14, 199), (70, 91)], size: 0, waits: 52 },
        Op::Deliver { packets: 7 },
        Op::Deliver { packets: 1 },
        Op::Allocate { node: 71 },
        Op::Allocate { node: 135 },
        Op::Deliver { packets: 1 },
        Op::Receive { node: 0, from: 0, waits: false },
        Op::Allocate { node: 144 },
        Op::Send { node: 128, to: 182, rights: vec![(235, 29)], size: 60, waits: 104 },
        Op::Send { node: 72, to: 245, rights: vec![(10, 91)], size: 143, waits: 32 },
        Op::Send { node: 214, to: 19, rights: vec![(236, 103)], size: 84, waits: 16 },
        Op::Send { node: 152, to: 97, rights: vec![], size: 126, waits: 32 },
        Op::Deliver { packets: 18 },
        Op::Send { node: 76, to: 88, rights: vec![], size: 164, waits: 4 },
        Op::Send { node: 104, to: 0, rights: vec![(199, 14)], size: 0, waits: 0 },
        Op::Send { node: 44, to: 0, rights: vec![], size: 0, waits: 0 },
        Op::Receive { node: 43, from: 0, waits: false },
        Op::Send { node: 86, to: 189, rights: vec![(208, 191)], size: 227, waits: 0 },
        Op::Send { node: 212, to: 106, rights: vec![(104, 5)], size: 100, waits: 228 },
        Op::Deliver { packets: 14 },
        Op::Deliver { packets: 3 },
        Op::Receive { node: 3, from: 0, waits: true },
        Op::Deliver { packets: 110 },
        Op::Allocate { node: 223 },
        Op::Deliver { packets: 17 },
        Op::Send { node: 15, to: 89, rights: vec![], size: 0, waits: 0 },
        Op::Deliver { packets: 139 },
        Op::Receive { node: 28, from: 0, waits: false },
        Op::Send { node: 127, to: 0, rights: vec![(19, 160), (19, 131)], size: 0, waits: 0 },
        Op::NoSenders { node: 0, port: 0 },
        Op::Send { node: 223, to: 26, rights: vec![], size: 103, waits: 0 },
    ];
    runs_with(4, 5, 6_835_664_587_083_322_497, &ops);
}

/// The message behind it contained the port whose queue used up the memory.
#[test]
fn a_node_needs_no_memory_for_its_own_messages_that_come_back() {
    let ops = [
        Op::Send { node: 218, to: 181, rights: vec![(52, 0), (60, 91)], size: 0, waits: 0 },
        Op::Send { node: 115, to: 29, rights: vec![(59, 31), (179, 55)], size: 0, waits: 44 },
        Op::Allocate { node: 0 },
        Op::Deliver { packets: 1 },
        Op::Send { node: 192, to: 105, rights: vec![], size: 84, waits: 4 },
        Op::Receive { node: 131, from: 0, waits: false },
        Op::Send { node: 91, to: 7, rights: vec![(0, 19)], size: 84, waits: 24 },
        Op::Allocate { node: 110 },
        Op::Receive { node: 54, from: 91, waits: false },
        Op::Receive { node: 0, from: 0, waits: false },
        Op::Allocate { node: 5 },
        Op::Send { node: 87, to: 0, rights: vec![], size: 0, waits: 116 },
        Op::Send { node: 109, to: 101, rights: vec![(0, 0)], size: 124, waits: 0 },
        Op::Send { node: 104, to: 56, rights: vec![], size: 84, waits: 68 },
        Op::Allocate { node: 9 },
        Op::Send { node: 252, to: 0, rights: vec![(10, 8), (9, 126)], size: 35, waits: 16 },
        Op::GiveUp { node: 9, name: 53, whole: false },
        Op::Deliver { packets: 10 },
        Op::Deliver { packets: 79 },
        Op::Allocate { node: 4 },
        Op::Allocate { node: 28 },
        Op::Deliver { packets: 51 },
        Op::Receive { node: 199, from: 0, waits: false },
        Op::Send { node: 3, to: 0, rights: vec![], size: 231, waits: 0 },
        Op::Send { node: 52, to: 0, rights: vec![(40, 200)], size: 1, waits: 164 },
        Op::Allocate { node: 72 },
        Op::NoSenders { node: 0, port: 0 },
        Op::Deliver { packets: 18 },
        Op::Receive { node: 211, from: 0, waits: false },
        Op::Deliver { packets: 4 },
        Op::Receive { node: 235, from: 0, waits: true },
        Op::Allocate { node: 94 },
        Op::Send { node: 6, to: 233, rights: vec![], size: 58, waits: 72 },
        Op::Deliver { packets: 3 },
        Op::Send { node: 143, to: 8, rights: vec![(31, 237)], size: 0, waits: 0 },
        Op::Send { node: 142, to: 29, rights: vec![], size: 175, waits: 0 },
    ];
    runs_with(2, 4, 2914094881133969836, &ops);
}

/// The message was in the queue of the port, went along with it, and came back after the port.
#[test]
fn what_was_sent_at_home_before_the_port_left_comes_first() {
    let ops = [
        Op::Deliver { packets: 1 },
        Op::Deliver { packets: 1 },
        Op::Deliver { packets: 1 },
        Op::Deliver { packets: 1 },
        Op::Send { node: 133, to: 1, rights: vec![(180, 0), (32, 115), (2, 143)], size: 187, waits: 28 },
        Op::Deliver { packets: 32 },
        Op::Receive { node: 68, from: 0, waits: true },
        Op::Send { node: 42, to: 20, rights: vec![], size: 84, waits: 8 },
        Op::Allocate { node: 180 },
        Op::Deliver { packets: 1 },
        Op::Receive { node: 41, from: 0, waits: true },
        Op::Deliver { packets: 28 },
        Op::Deliver { packets: 23 },
        Op::Send { node: 77, to: 11, rights: vec![], size: 0, waits: 32 },
        Op::Send { node: 29, to: 72, rights: vec![(54, 109), (151, 13)], size: 0, waits: 40 },
        Op::Send { node: 81, to: 20, rights: vec![], size: 0, waits: 20 },
        Op::Receive { node: 143, from: 0, waits: false },
        Op::Deliver { packets: 1 },
        Op::Send { node: 2, to: 73, rights: vec![(3, 200)], size: 19, waits: 0 },
        Op::Allocate { node: 1 },
        Op::Deliver { packets: 218 },
        Op::Receive { node: 165, from: 92, waits: false },
        Op::Allocate { node: 68 },
        Op::Send { node: 80, to: 151, rights: vec![], size: 146, waits: 4 },
        Op::GiveUp { node: 24, name: 91, whole: false },
        Op::Allocate { node: 9 },
        Op::GiveUp { node: 69, name: 3, whole: false },
        Op::Receive { node: 0, from: 0, waits: false },
        Op::Receive { node: 0, from: 0, waits: false },
        Op::Allocate { node: 17 },
        Op::Send { node: 0, to: 0, rights: vec![(205, 31), (100, 0)], size: 0, waits: 0 },
        Op::Send { node: 3, to: 52, rights: vec![(198, 142), (179, 0)], size: 86, waits: 0 },
        Op::Deliver { packets: 80 },
        Op::Deliver { packets: 22 },
        Op::Receive { node: 0, from: 0, waits: false },
        Op::Allocate { node: 0 },
        Op::Deliver { packets: 20 },
        Op::Receive { node: 53, from: 33, waits: false },
        Op::Send { node: 11, to: 8, rights: vec![], size: 0, waits: 0 },
    ];
    runs_with(2, 3, 17772942468807890670, &ops);
}

/// The right by which the port returns was granted with the port, and counted as under way for ever. So the
/// port that it is for could not leave.
#[test]
fn a_port_that_watches_another_one_can_leave() {
    let ops = [
        Op::Allocate { node: 44 },
        Op::PortDestroyed { node: 74, port: 84, notify: 71 },
        Op::Send { node: 20, to: 0, rights: vec![(234, 128)], size: 0, waits: 96 },
        Op::Deliver { packets: 2 },
        Op::Send { node: 62, to: 0, rights: vec![(223, 161)], size: 0, waits: 0 },
    ];
    runs_with(2, 2, 1_154_554_667_610_300_465, &ops);
}

/// The port had moved twice. The node where it was made knew the first move alone, and was asked again for
/// each answer that knew less than the asking node.
#[test]
fn two_nodes_do_not_answer_each_other_for_ever() {
    let ops = [
        Op::Send { node: 54, to: 84, rights: vec![], size: 0, waits: 4 },
        Op::Allocate { node: 68 },
        Op::Slow { from: 213, to: 57 },
        Op::GiveUp { node: 213, name: 7, whole: false },
        Op::Send { node: 107, to: 3, rights: vec![(76, 0), (107, 0)], size: 0, waits: 4 },
        Op::Send { node: 58, to: 87, rights: vec![(238, 146)], size: 0, waits: 0 },
        Op::Receive { node: 41, from: 0, waits: true },
        Op::Send { node: 5, to: 72, rights: vec![(70, 191)], size: 1, waits: 0 },
        Op::GiveUp { node: 15, name: 1, whole: false },
        Op::Deliver { packets: 0 },
        Op::Send { node: 239, to: 178, rights: vec![(106, 0)], size: 50, waits: 0 },
        Op::GiveUp { node: 157, name: 238, whole: false },
    ];
    runs_with(4, 5, 389_294_005_500_825_649, &ops);
}

/// A port's long message waited for memory, which the messages of another port used up. The receive right of
/// that one was in a message behind it, which needed no memory.
#[test]
fn what_needs_no_memory_passes_what_waits_for_it() {
    let ops = [
        Op::Send { node: 43, to: 54, rights: vec![(4, 133)], size: 0, waits: 72 },
        Op::Send { node: 3, to: 74, rights: vec![], size: 0, waits: 204 },
        Op::Send { node: 110, to: 229, rights: vec![(50, 92), (158, 216)], size: 0, waits: 28 },
        Op::Send { node: 3, to: 0, rights: vec![(5, 103), (44, 72), (223, 146)], size: 84, waits: 24 },
        Op::Send { node: 62, to: 110, rights: vec![], size: 231, waits: 72 },
        Op::Send { node: 71, to: 0, rights: vec![], size: 243, waits: 0 },
        Op::Deliver { packets: 21 },
        Op::Deliver { packets: 128 },
        Op::Send { node: 32, to: 92, rights: vec![(32, 128)], size: 31, waits: 0 },
        Op::Send { node: 33, to: 135, rights: vec![], size: 219, waits: 0 },
        Op::Receive { node: 54, from: 0, waits: false },
        Op::Send { node: 102, to: 3, rights: vec![], size: 0, waits: 52 },
        Op::Allocate { node: 106 },
        Op::Send { node: 30, to: 7, rights: vec![(60, 215), (147, 0)], size: 0, waits: 68 },
        Op::Receive { node: 158, from: 24, waits: false },
        Op::Allocate { node: 186 },
        Op::Ask { node: 110, what: 0, name: 0, port: 0 },
        Op::Allocate { node: 6 },
        Op::Send { node: 218, to: 73, rights: vec![(29, 134)], size: 0, waits: 0 },
    ];
    runs_with(2, 4, 432_207_945_564_609_141, &ops);
}
