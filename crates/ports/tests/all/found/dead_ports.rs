//! Rights to ports that have died, and messages on their way there.

use super::{runs, runs_with};
use crate::random::Op;

#[test]
fn a_port_that_died_is_known_again() {
    let ops = [
        Op::Deliver { packets: 1 },
        Op::Deliver { packets: 1 },
        Op::Deliver { packets: 1 },
        Op::Receive { node: 0, from: 0, waits: true },
        Op::Deliver { packets: 2 },
        Op::GiveUp { node: 200, name: 1, whole: false },
        Op::Send { node: 10, to: 229, rights: vec![(52, 43), (250, 103)], size: 0, waits: 4 },
        Op::Deliver { packets: 53 },
        Op::Receive { node: 18, from: 0, waits: true },
        Op::NoSenders { node: 0, port: 0 },
        Op::Send { node: 123, to: 33, rights: vec![], size: 114, waits: 20 },
        Op::Send { node: 18, to: 0, rights: vec![], size: 0, waits: 0 },
        Op::Receive { node: 129, from: 0, waits: false },
        Op::Receive { node: 0, from: 0, waits: false },
        Op::GiveUp { node: 6, name: 0, whole: false },
        Op::Send { node: 13, to: 29, rights: vec![(221, 0)], size: 0, waits: 0 },
        Op::Send { node: 3, to: 152, rights: vec![(10, 0)], size: 0, waits: 0 },
        Op::Allocate { node: 2 },
        Op::Receive { node: 185, from: 0, waits: true },
    ];
    runs(4, 6_308_576_214_997_345_390, &ops);
}

#[test]
fn rights_in_a_message_to_a_dead_port_are_gone() {
    let ops = [
        Op::NoSenders { node: 128, port: 0 },
        Op::Send { node: 0, to: 0, rights: vec![], size: 0, waits: 32 },
        Op::Receive { node: 0, from: 0, waits: false },
        Op::GiveUp { node: 179, name: 60, whole: false },
        Op::Deliver { packets: 5 },
        Op::Deliver { packets: 1 },
        Op::GiveUp { node: 105, name: 235, whole: false },
        Op::Allocate { node: 71 },
        Op::Receive { node: 0, from: 0, waits: false },
        Op::Allocate { node: 59 },
        Op::Send { node: 94, to: 2, rights: vec![], size: 0, waits: 20 },
        Op::GiveUp { node: 94, name: 165, whole: false },
        Op::NoSenders { node: 0, port: 0 },
        Op::Send { node: 57, to: 199, rights: vec![(3, 89)], size: 0, waits: 0 },
        Op::GiveUp { node: 222, name: 0, whole: false },
        Op::Allocate { node: 7 },
        Op::GiveUp { node: 254, name: 0, whole: false },
        Op::Allocate { node: 0 },
    ];
    runs(4, 6_593_724_063_905_820_048, &ops);
}

#[test]
fn a_right_may_come_after_word_that_its_port_is_dead() {
    let ops = [
        Op::NoSenders { node: 0, port: 0 },
        Op::Allocate { node: 165 },
        Op::GiveUp { node: 45, name: 52, whole: false },
        Op::Send { node: 88, to: 62, rights: vec![(8, 128)], size: 0, waits: 16 },
        Op::Receive { node: 63, from: 0, waits: true },
        Op::Receive { node: 137, from: 0, waits: true },
        Op::Send { node: 93, to: 73, rights: vec![(63, 0)], size: 84, waits: 0 },
        Op::GiveUp { node: 188, name: 42, whole: false },
        Op::Send { node: 133, to: 1, rights: vec![], size: 0, waits: 0 },
        Op::Receive { node: 29, from: 0, waits: true },
        Op::NoSenders { node: 64, port: 0 },
    ];
    runs(3, 3_447_464_242_812_973_891, &ops);
}

/// The right that a long message uses is not listed any more while its pieces come.
#[test]
fn who_sends_a_long_message_is_told_that_its_port_has_died() {
    let ops = [
        Op::Receive { node: 3, from: 0, waits: true },
        Op::Allocate { node: 82 },
        Op::Send { node: 4, to: 44, rights: vec![(3, 91)], size: 108, waits: 100 },
        Op::Send { node: 181, to: 0, rights: vec![], size: 0, waits: 204 },
        Op::Deliver { packets: 1 },
        Op::Allocate { node: 17 },
        Op::Allocate { node: 8 },
        Op::Send { node: 183, to: 32, rights: vec![], size: 218, waits: 0 },
        Op::Allocate { node: 0 },
        Op::Deliver { packets: 8 },
        Op::GiveUp { node: 139, name: 55, whole: false },
    ];
    runs(3, 13_186_809_922_503_905_545, &ops);
}

/// The port was dead, but the node that was asked had taken the message, and the rights with it.
#[test]
fn rights_in_a_request_to_a_dead_port_are_not_taken_back_too_early() {
    let ops = [
        Op::Send { node: 12, to: 66, rights: vec![], size: 50, waits: 68 },
        Op::Deliver { packets: 108 },
        Op::Send { node: 19, to: 202, rights: vec![(56, 14)], size: 170, waits: 76 },
        Op::Allocate { node: 71 },
        Op::Deliver { packets: 69 },
        Op::Send { node: 4, to: 7, rights: vec![], size: 0, waits: 164 },
        Op::Send { node: 109, to: 3, rights: vec![], size: 175, waits: 44 },
        Op::Deliver { packets: 114 },
        Op::Deliver { packets: 150 },
        Op::Deliver { packets: 1 },
        Op::Deliver { packets: 1 },
        Op::Send { node: 62, to: 53, rights: vec![], size: 82, waits: 44 },
        Op::Send { node: 4, to: 0, rights: vec![(67, 48), (71, 12), (20, 73)], size: 84, waits: 16 },
        Op::Deliver { packets: 114 },
        Op::Deliver { packets: 1 },
        Op::Deliver { packets: 97 },
        Op::Deliver { packets: 1 },
        Op::Receive { node: 41, from: 0, waits: false },
        Op::Send { node: 152, to: 0, rights: vec![(32, 150)], size: 124, waits: 100 },
        Op::Allocate { node: 28 },
        Op::Receive { node: 20, from: 29, waits: true },
        Op::Deliver { packets: 55 },
        Op::Send { node: 69, to: 0, rights: vec![(63, 2), (9, 216)], size: 84, waits: 8 },
        Op::Allocate { node: 125 },
        Op::Receive { node: 57, from: 104, waits: false },
        Op::Deliver { packets: 54 },
        Op::Receive { node: 102, from: 0, waits: false },
        Op::Deliver { packets: 2 },
        Op::Deliver { packets: 1 },
        Op::Deliver { packets: 1 },
        Op::Send { node: 129, to: 81, rights: vec![(116, 19)], size: 0, waits: 32 },
        Op::Deliver { packets: 8 },
        Op::Send { node: 22, to: 13, rights: vec![(32, 35)], size: 0, waits: 168 },
        Op::Send { node: 133, to: 14, rights: vec![], size: 0, waits: 4 },
        Op::Send { node: 27, to: 56, rights: vec![(52, 1)], size: 0, waits: 8 },
        Op::Receive { node: 62, from: 0, waits: false },
        Op::Deliver { packets: 73 },
        Op::Send { node: 14, to: 92, rights: vec![(86, 0)], size: 78, waits: 64 },
        Op::Receive { node: 238, from: 0, waits: false },
        Op::Allocate { node: 43 },
        Op::Receive { node: 60, from: 50, waits: false },
        Op::Deliver { packets: 132 },
        Op::Send { node: 22, to: 52, rights: vec![(47, 227)], size: 0, waits: 0 },
        Op::Deliver { packets: 9 },
        Op::Allocate { node: 152 },
        Op::Send { node: 123, to: 0, rights: vec![(1, 29)], size: 0, waits: 0 },
        Op::GiveUp { node: 28, name: 177, whole: false },
        Op::Receive { node: 0, from: 0, waits: false },
    ];
    runs_with(2, 4, 12225541997536597419, &ops);
}

#[test]
fn word_of_a_death_may_overtake_the_answer_of_the_node_that_was_asked() {
    let ops = [
        Op::NoSenders { node: 189, port: 0 },
        Op::Deliver { packets: 1 },
        Op::Send { node: 28, to: 119, rights: vec![], size: 0, waits: 64 },
        Op::Allocate { node: 161 },
        Op::Receive { node: 20, from: 0, waits: true },
        Op::Send { node: 4, to: 19, rights: vec![(10, 48), (26, 216)], size: 60, waits: 16 },
        Op::Allocate { node: 110 },
        Op::Allocate { node: 33 },
        Op::Receive { node: 13, from: 0, waits: true },
        Op::Deliver { packets: 9 },
        Op::Allocate { node: 142 },
        Op::Deliver { packets: 1 },
        Op::Send { node: 217, to: 17, rights: vec![(195, 7), (213, 167)], size: 72, waits: 72 },
        Op::Send { node: 69, to: 20, rights: vec![], size: 84, waits: 116 },
        Op::Receive { node: 4, from: 0, waits: false },
        Op::GiveUp { node: 61, name: 61, whole: false },
        Op::Receive { node: 44, from: 0, waits: true },
        Op::Deliver { packets: 164 },
        Op::GiveUp { node: 190, name: 67, whole: false },
        Op::Send { node: 104, to: 137, rights: vec![(0, 152), (19, 31)], size: 0, waits: 24 },
        Op::Deliver { packets: 5 },
        Op::Deliver { packets: 1 },
        Op::Receive { node: 87, from: 0, waits: false },
        Op::GiveUp { node: 51, name: 115, whole: false },
        Op::Send { node: 44, to: 19, rights: vec![], size: 0, waits: 88 },
        Op::Send { node: 250, to: 116, rights: vec![(2, 29)], size: 160, waits: 0 },
        Op::Send { node: 72, to: 224, rights: vec![(89, 0)], size: 0, waits: 228 },
        Op::Receive { node: 0, from: 0, waits: false },
        Op::NoSenders { node: 0, port: 0 },
    ];
    runs_with(2, 4, 10370293198994648628, &ops);
}

/// The port had died before the right came, and the node gave the right up before it had reported it.
#[test]
fn a_node_whose_right_has_come_and_gone_is_told_of_the_death() {
    let ops = [
        Op::GiveUp { node: 125, name: 201, whole: false },
        Op::Send { node: 3, to: 22, rights: vec![(72, 20), (190, 6)], size: 87, waits: 0 },
        Op::Send { node: 43, to: 0, rights: vec![], size: 0, waits: 0 },
        Op::Send { node: 182, to: 79, rights: vec![(3, 200)], size: 0, waits: 24 },
        Op::Send { node: 41, to: 71, rights: vec![], size: 0, waits: 20 },
        Op::Deliver { packets: 13 },
        Op::Allocate { node: 188 },
        Op::Send { node: 34, to: 0, rights: vec![], size: 166, waits: 0 },
        Op::Deliver { packets: 52 },
        Op::Deliver { packets: 107 },
        Op::Send { node: 101, to: 0, rights: vec![(43, 179)], size: 83, waits: 0 },
        Op::Deliver { packets: 104 },
        Op::Deliver { packets: 68 },
        Op::GiveUp { node: 160, name: 25, whole: false },
        Op::Allocate { node: 0 },
    ];
    runs_with(2, 4, 728_966_919_928_124_399, &ops);
}

/// The right was counted among those in messages, and not taken off when its name became a dead name. The
/// server of a call was not told that the reply port has died.
#[test]
fn rights_to_dead_ports_leave_nothing_behind() {
    let ops = [
        Op::Send { node: 0, to: 0, rights: vec![(0, 0)], size: 0, waits: 0 },
        Op::Deliver { packets: 23 },
        Op::GiveUp { node: 0, name: 0, whole: true },
        Op::Deliver { packets: 23 },
    ];
    runs(3, 0, &ops);
}

/// A node told another one the port's place, where the port had died. The other one asked there, where a late
/// right had made the port known again at its former place.
#[test]
fn who_was_told_of_a_place_is_told_of_the_death_there() {
    let ops = [
        Op::Receive { node: 16, from: 0, waits: true },
        Op::Slow { from: 4, to: 225 },
        Op::Allocate { node: 143 },
        Op::Send { node: 65, to: 3, rights: vec![(170, 179)], size: 34, waits: 8 },
        Op::Receive { node: 228, from: 104, waits: true },
        Op::Send { node: 47, to: 43, rights: vec![(33, 91)], size: 0, waits: 16 },
        Op::Send { node: 4, to: 123, rights: vec![(0, 36), (132, 47), (133, 0)], size: 104, waits: 120 },
        Op::GiveUp { node: 238, name: 155, whole: false },
        Op::Send { node: 18, to: 126, rights: vec![], size: 0, waits: 40 },
        Op::Allocate { node: 14 },
        Op::Deliver { packets: 55 },
        Op::Receive { node: 87, from: 0, waits: false },
        Op::Send { node: 62, to: 1, rights: vec![], size: 0, waits: 0 },
        Op::Deliver { packets: 121 },
        Op::Receive { node: 24, from: 61, waits: false },
        Op::Deliver { packets: 19 },
        Op::Receive { node: 224, from: 19, waits: false },
        Op::Send { node: 44, to: 226, rights: vec![], size: 0, waits: 0 },
        Op::Send { node: 39, to: 186, rights: vec![], size: 0, waits: 4 },
        Op::Allocate { node: 131 },
        Op::Allocate { node: 201 },
        Op::GiveUp { node: 34, name: 12, whole: true },
        Op::Send { node: 213, to: 156, rights: vec![(5, 0)], size: 0, waits: 0 },
        Op::GiveUp { node: 32, name: 0, whole: false },
        Op::Send { node: 1, to: 59, rights: vec![(35, 0)], size: 124, waits: 0 },
        Op::Allocate { node: 0 },
    ];
    runs_with(4, 5, 8_723_768_535_541_318_480, &ops);
}
