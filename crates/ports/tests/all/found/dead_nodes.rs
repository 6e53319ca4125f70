//! Nodes that die, and what is lost with them.

use super::{runs, runs_with};
use crate::random::Op;

/// A right to the port was on its way: its counts from before the death still matter.
#[test]
fn rights_to_a_dead_port_are_released_once_each() {
    let ops = [
        Op::Send { node: 26, to: 125, rights: vec![], size: 82, waits: 0 },
        Op::GiveUp { node: 191, name: 5, whole: false },
        Op::Receive { node: 3, from: 0, waits: false },
        Op::Receive { node: 0, from: 0, waits: false },
        Op::Receive { node: 0, from: 0, waits: true },
        Op::Deliver { packets: 15 },
        Op::Deliver { packets: 1 },
        Op::GiveUp { node: 156, name: 191, whole: false },
        Op::GiveUp { node: 15, name: 77, whole: false },
        Op::Send { node: 15, to: 202, rights: vec![(253, 0)], size: 88, waits: 0 },
        Op::Send { node: 6, to: 0, rights: vec![], size: 0, waits: 0 },
        Op::Allocate { node: 0 },
        Op::Send { node: 68, to: 30, rights: vec![(111, 0)], size: 0, waits: 0 },
        Op::Receive { node: 163, from: 0, waits: true },
        Op::Deliver { packets: 107 },
        Op::Kill { node: 4 },
        Op::Receive { node: 208, from: 0, waits: false },
    ];
    runs(5, 4_867_591_433_699_580_531, &ops);
}

#[test]
fn a_port_does_not_follow_a_node_into_its_death() {
    let ops = [
        Op::Receive { node: 0, from: 0, waits: false },
        Op::Send { node: 0, to: 0, rights: vec![], size: 0, waits: 0 },
        Op::Allocate { node: 5 },
        Op::Send { node: 39, to: 6, rights: vec![(4, 0)], size: 0, waits: 140 },
        Op::Kill { node: 77 },
        Op::Send { node: 199, to: 2, rights: vec![(31, 152)], size: 0, waits: 0 },
        Op::Send { node: 35, to: 0, rights: vec![], size: 0, waits: 52 },
        Op::Allocate { node: 0 },
        Op::Deliver { packets: 4 },
        Op::Send { node: 115, to: 44, rights: vec![], size: 0, waits: 0 },
        Op::Kill { node: 63 },
        Op::Allocate { node: 0 },
        Op::Allocate { node: 0 },
        Op::Allocate { node: 0 },
    ];
    runs(5, 1_048_169_800_286_490_356, &ops);
}

#[test]
fn messages_of_a_dead_node_keep_their_order_when_the_port_moves() {
    let ops = [
        Op::Send { node: 170, to: 66, rights: vec![], size: 0, waits: 44 },
        Op::Receive { node: 0, from: 0, waits: false },
        Op::NoSenders { node: 0, port: 0 },
        Op::Send { node: 56, to: 0, rights: vec![(157, 0)], size: 0, waits: 0 },
        Op::NoSenders { node: 19, port: 0 },
        Op::Send { node: 86, to: 11, rights: vec![(101, 134)], size: 0, waits: 192 },
        Op::Deliver { packets: 56 },
        Op::Receive { node: 59, from: 0, waits: true },
        Op::Send { node: 179, to: 0, rights: vec![(106, 35)], size: 0, waits: 8 },
        Op::Deliver { packets: 0 },
        Op::Deliver { packets: 5 },
        Op::Allocate { node: 0 },
        Op::Allocate { node: 0 },
        Op::Allocate { node: 0 },
        Op::NoSenders { node: 84, port: 0 },
        Op::Deliver { packets: 1 },
        Op::Send { node: 238, to: 29, rights: vec![], size: 0, waits: 0 },
        Op::NoSenders { node: 12, port: 0 },
        Op::NoSenders { node: 36, port: 0 },
        Op::Allocate { node: 0 },
        Op::Allocate { node: 0 },
        Op::NoSenders { node: 4, port: 0 },
        Op::Allocate { node: 0 },
        Op::NoSenders { node: 4, port: 0 },
        Op::Kill { node: 118 },
        Op::Allocate { node: 0 },
        Op::Deliver { packets: 2 },
        Op::Allocate { node: 187 },
        Op::Allocate { node: 0 },
        Op::Allocate { node: 0 },
        Op::Send { node: 179, to: 0, rights: vec![(39, 146)], size: 0, waits: 0 },
    ];
    runs(4, 12_665_551_099_544_908_808, &ops);
}

#[test]
fn who_was_not_told_of_a_death_asks() {
    let ops = [
        Op::Receive { node: 0, from: 0, waits: true },
        Op::Send { node: 126, to: 17, rights: vec![(45, 0)], size: 144, waits: 32 },
        Op::NoSenders { node: 0, port: 0 },
        Op::Allocate { node: 67 },
        Op::Allocate { node: 9 },
        Op::Deliver { packets: 3 },
        Op::Allocate { node: 1 },
        Op::Send { node: 67, to: 121, rights: vec![], size: 0, waits: 136 },
        Op::Send { node: 36, to: 0, rights: vec![], size: 0, waits: 0 },
        Op::Send { node: 17, to: 7, rights: vec![(6, 1), (163, 0)], size: 144, waits: 0 },
        Op::Send { node: 46, to: 71, rights: vec![], size: 106, waits: 0 },
        Op::Send { node: 146, to: 12, rights: vec![], size: 114, waits: 0 },
        Op::Allocate { node: 47 },
        Op::Send { node: 118, to: 104, rights: vec![(156, 71)], size: 60, waits: 180 },
        Op::Deliver { packets: 145 },
        Op::Receive { node: 81, from: 0, waits: true },
        Op::Receive { node: 31, from: 0, waits: true },
        Op::Send { node: 225, to: 86, rights: vec![(35, 128)], size: 1, waits: 0 },
        Op::Deliver { packets: 16 },
        Op::Send { node: 48, to: 0, rights: vec![], size: 50, waits: 68 },
        Op::Allocate { node: 109 },
        Op::Deliver { packets: 242 },
        Op::GiveUp { node: 148, name: 73, whole: false },
        Op::Allocate { node: 0 },
        Op::Receive { node: 34, from: 0, waits: true },
        Op::Deliver { packets: 29 },
        Op::Deliver { packets: 119 },
        Op::Kill { node: 18 },
        Op::Allocate { node: 0 },
    ];
    runs(5, 2_403_473_303_363_753_410, &ops);
}

#[test]
fn word_from_before_a_port_was_here_is_not_believed() {
    let ops = [
        Op::Deliver { packets: 1 },
        Op::Send { node: 106, to: 145, rights: vec![(58, 90)], size: 0, waits: 68 },
        Op::Receive { node: 8, from: 0, waits: true },
        Op::Deliver { packets: 74 },
        Op::Send { node: 197, to: 146, rights: vec![(15, 29)], size: 106, waits: 44 },
        Op::Deliver { packets: 109 },
        Op::Receive { node: 35, from: 0, waits: true },
        Op::Send { node: 32, to: 215, rights: vec![(29, 0)], size: 84, waits: 4 },
        Op::Send { node: 127, to: 0, rights: vec![], size: 74, waits: 112 },
        Op::Send { node: 98, to: 128, rights: vec![(27, 6)], size: 58, waits: 88 },
        Op::Send { node: 13, to: 157, rights: vec![], size: 154, waits: 28 },
        Op::Send { node: 137, to: 0, rights: vec![(43, 134)], size: 0, waits: 0 },
        Op::Send { node: 26, to: 146, rights: vec![], size: 0, waits: 68 },
        Op::Receive { node: 5, from: 0, waits: true },
        Op::Send { node: 14, to: 27, rights: vec![], size: 0, waits: 128 },
        Op::GiveUp { node: 159, name: 225, whole: false },
        Op::GiveUp { node: 211, name: 100, whole: false },
        Op::Allocate { node: 1 },
        Op::Receive { node: 52, from: 0, waits: false },
        Op::Deliver { packets: 145 },
        Op::Kill { node: 214 },
        Op::Deliver { packets: 133 },
        Op::Receive { node: 10, from: 0, waits: true },
        Op::Deliver { packets: 162 },
        Op::Deliver { packets: 140 },
        Op::GiveUp { node: 255, name: 65, whole: false },
        Op::Kill { node: 130 },
        Op::Deliver { packets: 226 },
        Op::Deliver { packets: 34 },
        Op::Deliver { packets: 5 },
        Op::Deliver { packets: 218 },
        Op::NoSenders { node: 0, port: 0 },
    ];
    runs(5, 17_825_481_464_440_838_798, &ops);
}

#[test]
fn a_message_that_waits_is_not_skipped_with_lost_ones_behind_it() {
    let ops = [
        Op::Send { node: 17, to: 27, rights: vec![], size: 0, waits: 8 },
        Op::Send { node: 46, to: 28, rights: vec![], size: 0, waits: 4 },
        Op::Send { node: 201, to: 0, rights: vec![(60, 19)], size: 0, waits: 144 },
        Op::Receive { node: 87, from: 0, waits: true },
        Op::Send { node: 170, to: 251, rights: vec![], size: 0, waits: 52 },
        Op::Send { node: 53, to: 249, rights: vec![(17, 43), (228, 12)], size: 92, waits: 20 },
        Op::Deliver { packets: 128 },
        Op::Send { node: 35, to: 25, rights: vec![], size: 0, waits: 4 },
        Op::Receive { node: 130, from: 0, waits: false },
        Op::Send { node: 218, to: 61, rights: vec![(27, 32), (54, 91), (220, 126)], size: 54, waits: 96 },
        Op::Send { node: 8, to: 0, rights: vec![], size: 0, waits: 64 },
        Op::Receive { node: 24, from: 0, waits: false },
        Op::Send { node: 16, to: 1, rights: vec![], size: 51, waits: 0 },
        Op::Deliver { packets: 26 },
        Op::Receive { node: 255, from: 0, waits: true },
        Op::GiveUp { node: 238, name: 5, whole: false },
        Op::Send { node: 234, to: 125, rights: vec![(130, 49)], size: 84, waits: 88 },
        Op::Receive { node: 105, from: 0, waits: false },
        Op::Send { node: 14, to: 3, rights: vec![(145, 43), (83, 230)], size: 7, waits: 0 },
        Op::Deliver { packets: 162 },
        Op::Send { node: 154, to: 74, rights: vec![], size: 0, waits: 0 },
        Op::NoSenders { node: 0, port: 0 },
        Op::Deliver { packets: 231 },
        Op::Receive { node: 107, from: 0, waits: false },
        Op::Deliver { packets: 150 },
        Op::Deliver { packets: 64 },
        Op::Receive { node: 45, from: 0, waits: true },
        Op::Send { node: 113, to: 0, rights: vec![], size: 0, waits: 0 },
        Op::Deliver { packets: 181 },
        Op::Kill { node: 24 },
    ];
    runs_with(4, 5, 7_095_573_098_502_992_939, &ops);
}

#[test]
fn who_gets_a_port_that_it_has_asked_about_mourns() {
    let ops = [
        Op::Receive { node: 0, from: 0, waits: true },
        Op::Allocate { node: 157 },
        Op::Deliver { packets: 98 },
        Op::Send { node: 198, to: 151, rights: vec![(196, 187), (70, 133)], size: 0, waits: 20 },
        Op::Allocate { node: 5 },
        Op::Send { node: 237, to: 57, rights: vec![(7, 125), (42, 31), (14, 104)], size: 214, waits: 40 },
        Op::Send { node: 127, to: 127, rights: vec![(20, 29), (181, 7)], size: 0, waits: 72 },
        Op::Deliver { packets: 165 },
        Op::GiveUp { node: 8, name: 182, whole: false },
        Op::Deliver { packets: 73 },
        Op::Receive { node: 105, from: 6, waits: true },
        Op::Send { node: 234, to: 145, rights: vec![], size: 154, waits: 4 },
        Op::Send { node: 0, to: 1, rights: vec![(38, 85), (41, 128), (19, 48)], size: 186, waits: 16 },
        Op::Receive { node: 16, from: 0, waits: true },
        Op::GiveUp { node: 111, name: 113, whole: false },
        Op::Deliver { packets: 85 },
        Op::Deliver { packets: 21 },
        Op::Deliver { packets: 250 },
        Op::Deliver { packets: 131 },
        Op::Deliver { packets: 226 },
        Op::Send { node: 89, to: 83, rights: vec![(169, 66), (125, 14)], size: 0, waits: 44 },
        Op::Deliver { packets: 60 },
        Op::Deliver { packets: 1 },
        Op::Deliver { packets: 1 },
        Op::Receive { node: 234, from: 0, waits: false },
        Op::Receive { node: 17, from: 103, waits: true },
        Op::Send { node: 4, to: 0, rights: vec![(0, 30), (4, 0)], size: 0, waits: 0 },
        Op::Receive { node: 40, from: 0, waits: true },
        Op::Deliver { packets: 7 },
        Op::Deliver { packets: 1 },
        Op::Receive { node: 24, from: 0, waits: false },
        Op::Send { node: 106, to: 0, rights: vec![], size: 84, waits: 0 },
        Op::Deliver { packets: 5 },
        Op::Receive { node: 74, from: 0, waits: false },
        Op::Kill { node: 5 },
        Op::Deliver { packets: 25 },
        Op::Deliver { packets: 76 },
        Op::Deliver { packets: 28 },
        Op::Kill { node: 68 },
        Op::Deliver { packets: 121 },
        Op::Send { node: 179, to: 166, rights: vec![(134, 157)], size: 0, waits: 0 },
        Op::Allocate { node: 0 },
    ];
    runs_with(4, 5, 387_993_559_686_736_569, &ops);
}

/// The node that died had been asked for the first of its messages. The port left for this node before the
/// node where it was could be told that the message was lost.
#[test]
fn who_gets_a_port_counts_without_its_own_messages_that_were_lost() {
    let ops = [
        Op::Allocate { node: 54 },
        Op::Deliver { packets: 1 },
        Op::Receive { node: 154, from: 0, waits: false },
        Op::Send { node: 39, to: 27, rights: vec![(31, 20), (152, 11), (100, 255)], size: 151, waits: 32 },
        Op::Send { node: 24, to: 82, rights: vec![(236, 5), (2, 50)], size: 122, waits: 40 },
        Op::Receive { node: 12, from: 0, waits: true },
        Op::Send { node: 239, to: 127, rights: vec![], size: 178, waits: 52 },
        Op::Allocate { node: 105 },
        Op::Send { node: 36, to: 55, rights: vec![(76, 0), (0, 0), (4, 221)], size: 91, waits: 0 },
        Op::Deliver { packets: 156 },
        Op::Deliver { packets: 156 },
        Op::Send { node: 234, to: 0, rights: vec![(146, 152), (133, 31), (16, 128)], size: 110, waits: 0 },
        Op::Send { node: 40, to: 106, rights: vec![], size: 0, waits: 4 },
        Op::Send { node: 88, to: 89, rights: vec![(108, 49), (15, 14), (65, 83)], size: 108, waits: 16 },
        Op::Send { node: 147, to: 88, rights: vec![(131, 0)], size: 0, waits: 244 },
        Op::Receive { node: 72, from: 0, waits: true },
        Op::Deliver { packets: 208 },
        Op::NoSenders { node: 0, port: 0 },
        Op::Allocate { node: 29 },
        Op::Deliver { packets: 252 },
        Op::Send { node: 0, to: 0, rights: vec![(6, 0), (0, 0)], size: 0, waits: 0 },
        Op::Send { node: 237, to: 80, rights: vec![], size: 0, waits: 20 },
        Op::Send { node: 132, to: 0, rights: vec![(69, 7)], size: 0, waits: 16 },
        Op::Deliver { packets: 67 },
        Op::Receive { node: 75, from: 138, waits: false },
        Op::Send { node: 138, to: 133, rights: vec![(9, 0)], size: 0, waits: 0 },
        Op::Deliver { packets: 49 },
        Op::Kill { node: 106 },
        Op::Allocate { node: 0 },
        Op::Send { node: 43, to: 0, rights: vec![(63, 0)], size: 0, waits: 96 },
        Op::GiveUp { node: 0, name: 109, whole: false },
        Op::Deliver { packets: 55 },
        Op::Allocate { node: 0 },
        Op::Deliver { packets: 26 },
        Op::Send { node: 110, to: 66, rights: vec![], size: 0, waits: 0 },
        Op::Deliver { packets: 5 },
        Op::Receive { node: 3, from: 0, waits: false },
    ];
    runs_with(4, 5, 9_058_979_161_727_936_175, &ops);
}

/// The node that the port had left had been asked for memory, no more, when it died.
#[test]
fn a_long_message_is_sent_elsewhere_if_only_its_request_was_lost() {
    let ops = [
        Op::Allocate { node: 0 },
        Op::NoSenders { node: 0, port: 0 },
        Op::Send { node: 51, to: 107, rights: vec![(59, 233)], size: 44, waits: 0 },
        Op::Deliver { packets: 30 },
        Op::Kill { node: 59 },
        Op::Send { node: 20, to: 29, rights: vec![], size: 66, waits: 0 },
    ];
    runs(4, 0, &ops);
}

/// The dead node had relayed a message, and not told its origin. The message then waited at a living node for
/// the port, which had moved on. Its origin took it for lost, so a later one came first.
#[test]
fn a_message_comes_in_order_after_a_death() {
    let ops = [
        Op::Send { node: 52, to: 15, rights: vec![], size: 175, waits: 48 },
        Op::Allocate { node: 85 },
        Op::Send { node: 141, to: 199, rights: vec![(13, 137)], size: 22, waits: 132 },
        Op::Deliver { packets: 158 },
        Op::GiveUp { node: 22, name: 70, whole: false },
        Op::Send { node: 115, to: 93, rights: vec![], size: 0, waits: 28 },
        Op::GiveUp { node: 1, name: 27, whole: false },
        Op::Deliver { packets: 80 },
        Op::Receive { node: 19, from: 0, waits: false },
        Op::Allocate { node: 71 },
        Op::Receive { node: 43, from: 0, waits: true },
        Op::Deliver { packets: 67 },
        Op::Deliver { packets: 252 },
        Op::Receive { node: 194, from: 0, waits: false },
        Op::Deliver { packets: 152 },
        Op::Kill { node: 193 },
        Op::Send { node: 90, to: 20, rights: vec![(229, 137)], size: 0, waits: 0 },
        Op::Send { node: 92, to: 24, rights: vec![], size: 46, waits: 0 },
        Op::Allocate { node: 0 },
        Op::Allocate { node: 0 },
        Op::Deliver { packets: 1 },
    ];
    runs_with(4, 4, 2_750_604_722_239_302_995, &ops);
}

/// Two nodes died one after the other. A port had moved from the first to a living node, and from there to
/// the second. The report of the first move was taken for one of the second death, and the sender and the
/// former node referred to each other for ever.
#[test]
fn a_report_of_an_earlier_death_says_nothing_of_the_next_one() {
    let ops = [
        Op::Send { node: 69, to: 23, rights: vec![], size: 84, waits: 88 },
        Op::Send { node: 144, to: 93, rights: vec![(29, 29)], size: 54, waits: 88 },
        Op::Deliver { packets: 17 },
        Op::Send { node: 48, to: 20, rights: vec![(255, 7)], size: 122, waits: 248 },
        Op::Send { node: 87, to: 91, rights: vec![(156, 74)], size: 0, waits: 0 },
        Op::Receive { node: 105, from: 0, waits: false },
        Op::Send { node: 234, to: 44, rights: vec![(8, 134), (4, 74)], size: 0, waits: 68 },
        Op::Deliver { packets: 4 },
        Op::Deliver { packets: 166 },
        Op::Allocate { node: 29 },
        Op::Receive { node: 34, from: 0, waits: false },
        Op::Allocate { node: 4 },
        Op::Deliver { packets: 2 },
        Op::Receive { node: 12, from: 0, waits: true },
        Op::Allocate { node: 125 },
        Op::Send { node: 169, to: 87, rights: vec![(19, 91)], size: 0, waits: 172 },
        Op::Deliver { packets: 2 },
        Op::Send { node: 86, to: 28, rights: vec![(235, 167)], size: 0, waits: 0 },
        Op::Deliver { packets: 124 },
        Op::Send { node: 34, to: 1, rights: vec![], size: 0, waits: 0 },
        Op::Send { node: 221, to: 56, rights: vec![(118, 203)], size: 62, waits: 0 },
        Op::Allocate { node: 73 },
        Op::Send { node: 201, to: 0, rights: vec![(12, 140)], size: 42, waits: 0 },
        Op::Send { node: 19, to: 0, rights: vec![], size: 0, waits: 0 },
        Op::Allocate { node: 0 },
        Op::Allocate { node: 0 },
        Op::Deliver { packets: 241 },
        Op::Allocate { node: 0 },
        Op::Kill { node: 130 },
        Op::Deliver { packets: 168 },
        Op::Deliver { packets: 78 },
        Op::Deliver { packets: 114 },
        Op::Deliver { packets: 107 },
        Op::Kill { node: 44 },
        Op::Send { node: 243, to: 44, rights: vec![], size: 0, waits: 0 },
    ];
    runs_with(2, 4, 15_340_661_620_009_462_415, &ops);
}

/// The message had come back to its origin, by the node that died, and waited there for the port.
#[test]
fn a_message_that_has_come_back_to_its_origin_is_not_lost_with_the_dead_node() {
    let ops = [
        Op::Send { node: 9, to: 11, rights: vec![(3, 152)], size: 132, waits: 0 },
        Op::Send { node: 77, to: 36, rights: vec![], size: 70, waits: 0 },
        Op::Slow { from: 63, to: 107 },
        Op::Allocate { node: 0 },
        Op::Deliver { packets: 232 },
        Op::Deliver { packets: 152 },
        Op::Send { node: 106, to: 104, rights: vec![], size: 250, waits: 120 },
        Op::Receive { node: 68, from: 0, waits: false },
        Op::Send { node: 235, to: 84, rights: vec![], size: 252, waits: 32 },
        Op::Allocate { node: 0 },
        Op::Send { node: 77, to: 19, rights: vec![(24, 137)], size: 1, waits: 32 },
        Op::Send { node: 0, to: 36, rights: vec![], size: 0, waits: 20 },
        Op::Allocate { node: 220 },
        Op::Send { node: 4, to: 50, rights: vec![(59, 131)], size: 0, waits: 0 },
        Op::Allocate { node: 0 },
        Op::Allocate { node: 0 },
        Op::Allocate { node: 0 },
        Op::Send { node: 8, to: 12, rights: vec![], size: 0, waits: 0 },
        Op::Deliver { packets: 3 },
        Op::Deliver { packets: 1 },
        Op::Kill { node: 45 },
        Op::Deliver { packets: 88 },
    ];
    runs_with(2, 3, 2_198_336_268_026_407_835, &ops);
}

/// A message of node 3 was lost with node 0. The next node of the port passed over it. It then relayed the
/// messages before and behind it to the port's third node, which waited for the lost one.
pub fn a_loss_between_relayed_messages() -> Vec<Op> {
    vec![
        Op::GiveUp { node: 235, name: 22, whole: false },
        Op::Deliver { packets: 3 },
        Op::Receive { node: 0, from: 0, waits: true },
        Op::Send { node: 69, to: 254, rights: vec![], size: 0, waits: 4 },
        Op::GiveUp { node: 145, name: 34, whole: false },
        Op::Deliver { packets: 32 },
        Op::Receive { node: 19, from: 0, waits: true },
        Op::GiveUp { node: 233, name: 14, whole: false },
        Op::Allocate { node: 132 },
        Op::Deliver { packets: 6 },
        Op::Receive { node: 0, from: 0, waits: false },
        Op::Send { node: 194, to: 199, rights: vec![(134, 0)], size: 0, waits: 32 },
        Op::Send { node: 113, to: 92, rights: vec![(19, 30), (59, 30), (249, 115)], size: 111, waits: 104 },
        Op::Receive { node: 74, from: 0, waits: true },
        Op::Receive { node: 136, from: 0, waits: true },
        Op::GiveUp { node: 179, name: 213, whole: false },
        Op::DeadName { node: 22, name: 59, notify: 0 },
        Op::Deliver { packets: 2 },
        Op::Deliver { packets: 71 },
        Op::Allocate { node: 200 },
        Op::Deliver { packets: 1 },
        Op::Deliver { packets: 1 },
        Op::Send { node: 215, to: 20, rights: vec![(12, 173)], size: 68, waits: 36 },
        Op::Send { node: 4, to: 43, rights: vec![], size: 0, waits: 0 },
        Op::Allocate { node: 64 },
        Op::Send { node: 55, to: 0, rights: vec![], size: 0, waits: 8 },
        Op::Allocate { node: 132 },
        Op::Send { node: 2, to: 83, rights: vec![], size: 0, waits: 0 },
        Op::NoSenders { node: 0, port: 0 },
        Op::Allocate { node: 7 },
        Op::Receive { node: 0, from: 0, waits: false },
        Op::NoSenders { node: 0, port: 0 },
        Op::Allocate { node: 96 },
        Op::Deliver { packets: 124 },
        Op::Send { node: 27, to: 215, rights: vec![], size: 0, waits: 0 },
        Op::Deliver { packets: 11 },
        Op::Deliver { packets: 108 },
        Op::Kill { node: 170 },
        Op::Send { node: 126, to: 10, rights: vec![(0, 1), (36, 43)], size: 0, waits: 88 },
        Op::Send { node: 153, to: 93, rights: vec![], size: 60, waits: 40 },
        Op::NoSenders { node: 0, port: 0 },
        Op::Send { node: 71, to: 64, rights: vec![(193, 146)], size: 0, waits: 0 },
        Op::Allocate { node: 0 },
        Op::Send { node: 128, to: 45, rights: vec![], size: 78, waits: 0 },
        Op::Allocate { node: 0 },
    ]
}

/// The seed of that program.
pub const LOSS_SEED: u64 = 11_201_458_597_020_777_134;

#[test]
fn a_port_that_moves_on_does_not_wait_for_what_was_lost_before() {
    runs_with(2, 5, LOSS_SEED, &a_loss_between_relayed_messages());
}

/// A message of node 1 was lost when that node died, because the port had come to it. The message behind that
/// one, which another node relayed, waited for it, and node 1 could not say that it was lost.
pub fn a_loss_of_a_dead_origin() -> Vec<Op> {
    vec![
        Op::Allocate { node: 140 },
        Op::Send { node: 82, to: 2, rights: vec![(140, 30)], size: 0, waits: 8 },
        Op::GiveUp { node: 45, name: 64, whole: false },
        Op::Send { node: 130, to: 2, rights: vec![], size: 50, waits: 168 },
        Op::Receive { node: 150, from: 0, waits: true },
        Op::PortDestroyed { node: 144, port: 0, notify: 0 },
        Op::Deliver { packets: 13 },
        Op::Send { node: 189, to: 61, rights: vec![(45, 131)], size: 82, waits: 0 },
        Op::Send { node: 88, to: 2, rights: vec![(2, 0)], size: 60, waits: 68 },
        Op::Send { node: 109, to: 0, rights: vec![(7, 188)], size: 3, waits: 0 },
        Op::Send { node: 0, to: 7, rights: vec![], size: 0, waits: 0 },
        Op::Allocate { node: 0 },
        Op::GiveUp { node: 0, name: 0, whole: false },
        Op::Deliver { packets: 248 },
        Op::Send { node: 20, to: 72, rights: vec![(0, 0)], size: 0, waits: 8 },
        Op::Deliver { packets: 4 },
        Op::Allocate { node: 11 },
        Op::Allocate { node: 0 },
        Op::Deliver { packets: 116 },
        Op::Allocate { node: 0 },
        Op::Allocate { node: 0 },
        Op::Deliver { packets: 207 },
        Op::Deliver { packets: 141 },
        Op::Kill { node: 91 },
    ]
}

/// The seed of that program.
pub const DEAD_ORIGIN_SEED: u64 = 5_352_321_696_315_300_650;

#[test]
fn messages_that_a_dead_node_lost_itself_are_not_waited_for() {
    runs_with(4, 3, DEAD_ORIGIN_SEED, &a_loss_of_a_dead_origin());
}
