//! Ports and rights as in the GNU Mach manual, call by call, on one node and between two.

use core::time::Duration;

use hiroba_base::Instant;
use hiroba_ports::{
    Call, Config, Disposition, Message, Name, Notification, Outcome, Patience, PortError, RightKind,
    RightToSend, Status, notification, right,
};

use crate::simulator::{Cluster, bytes_message, copy_send, send};

fn cluster(nodes: u16) -> Cluster {
    Cluster::new(nodes, Config { queue_limit: 3, ..Config::default() }, 3)
}

fn status(cluster: &mut Cluster, node: u16, name: Name) -> Status {
    cluster.engines[usize::from(node)].status(name).unwrap_or_default()
}

fn once_to(name: Name) -> Option<RightToSend> {
    Some(right(name, Disposition::MakeSendOnce))
}

fn receive(from: Name) -> Call {
    Call::Receive { from, bytes_max: None, patience: Patience::None }
}

/// Returns sender and receiver on one node, then on two.
fn places() -> [(Cluster, u16, Name, Name); 2] {
    let mut local = cluster(1);
    let port = local.name(0, Call::AllocatePort);
    local
        .now(0, Call::InsertRight { name: port, from: right(port, Disposition::MakeSend) })
        .expect("a send right");
    let mut remote = cluster(2);
    let (far, names) = remote.share(1, &[0]);
    [(local, 0, port, port), (remote, 1, far, names[0])]
}

#[test]
fn names_that_denote_nothing_are_refused_everywhere() {
    let mut cluster = cluster(1);
    let port = cluster.name(0, Call::AllocatePort);
    cluster.now(0, Call::Destroy(port)).expect("it is there");
    for name in [port, Name::NULL, Name::from_bits(u64::MAX), Name::from_bits(port.to_bits() + 1)] {
        let calls = [
            Call::Deallocate(name),
            Call::Destroy(name),
            Call::ModifyReferences { name, delta: 1 },
            Call::InsertRight { name, from: right(name, Disposition::MakeSend) },
            Call::ExtractRight(right(name, Disposition::MakeSend)),
            Call::MoveMember { member: name, into: None },
            Call::SetQueueLimit { name, limit: 1 },
            Call::RequestNotification { name, of: Notification::DeadName, notify: None },
            send(name, Message::default(), Patience::None),
            receive(name),
            Call::Status(name),
        ];
        for call in calls {
            assert_eq!(cluster.now(0, call.clone()), Err(PortError::InvalidName), "{call:?}");
        }
    }
}

#[test]
fn a_message_must_describe_itself_rightly() {
    let (mut cluster, _, _, name) = places().into_iter().next().expect("one node");
    let mut message = bytes_message(b"abc");
    message.types[0].count = 4;
    assert_eq!(cluster.now(0, send(name, message, Patience::None)), Err(PortError::InvalidMessage));
    let long = Message { regions: vec![vec![0; 300 << 20].into()], ..Message::default() };
    let refused = cluster.now(0, send(name, long, Patience::None));
    assert!(matches!(refused, Err(PortError::MessageTooLarge { .. })));
    let rights = vec![right(name, Disposition::MoveSend), right(name, Disposition::MoveSend)];
    let twice = Message { rights, ..Message::default() };
    assert_eq!(cluster.now(0, send(name, twice, Patience::None)), Err(PortError::InvalidRight));
    assert_eq!(status(&mut cluster, 0, name).send, 1, "nothing was taken");
}

#[test]
fn user_references_count_up_and_down() {
    let mut cluster = cluster(1);
    let port = cluster.name(0, Call::AllocatePort);
    for _ in 0..3 {
        let from = right(port, Disposition::MakeSend);
        cluster.now(0, Call::InsertRight { name: port, from }).expect("room for references");
    }
    assert_eq!((status(&mut cluster, 0, port).send, status(&mut cluster, 0, port).make_send), (3, 3));
    cluster.now(0, Call::ModifyReferences { name: port, delta: -2 }).expect("there are three");
    assert_eq!(
        cluster.now(0, Call::ModifyReferences { name: port, delta: -2 }),
        Err(PortError::InvalidValue)
    );
    let over = Call::ModifyReferences { name: port, delta: i32::MAX };
    assert_eq!(cluster.now(0, over), Err(PortError::ReferencesOverflow));
    let extracted = cluster.name(0, Call::ExtractRight(right(port, Disposition::MakeSendOnce)));
    assert!(status(&mut cluster, 0, extracted).send_once);
    assert_ne!(extracted, port);
    let other = cluster.name(0, Call::AllocatePort);
    let crossed = Call::InsertRight { name: other, from: right(port, Disposition::MakeSend) };
    assert_eq!(cluster.now(0, crossed), Err(PortError::NameExists));
}

#[test]
fn a_full_queue_blocks_refuses_times_out_and_notifies() {
    for (mut cluster, owner, port, name) in places() {
        for number in 0..3u8 {
            cluster.now(0, send(name, bytes_message(&[number]), Patience::None)).expect("there is room");
        }
        cluster.settle();
        assert_eq!(
            cluster.now(0, send(name, bytes_message(b"no"), Patience::None)),
            Err(PortError::SendTimedOut)
        );
        let deadline = cluster.now + Duration::from_millis(5);
        let late = cluster.call(0, send(name, bytes_message(b"late"), Patience::Until(deadline)));
        let notify_port = cluster.name(0, Call::AllocatePort);
        let insisting = Call::Send {
            to: copy_send(name),
            message: bytes_message(&[3]),
            patience: Patience::None,
            notify: once_to(notify_port),
        };
        cluster.settle();
        assert_eq!(cluster.results.remove(&late), Some(Err(PortError::SendTimedOut)));
        assert_eq!(cluster.now(0, insisting.clone()), Ok(Outcome::WillNotify));
        assert_eq!(cluster.now(0, insisting), Err(PortError::NotifyInProgress));
        let waiting = cluster.call(0, send(name, bytes_message(&[4]), Patience::Endless));
        cluster.settle();
        assert!(!cluster.results.contains_key(&waiting));
        for number in 0..5u8 {
            assert_eq!(
                cluster.receive(owner, port).inline,
                [number],
                "nothing is lost, and the order is kept"
            );
            cluster.settle();
        }
        assert_eq!(cluster.results.remove(&waiting), Some(Ok(Outcome::Done)));
        let told = cluster.receive(0, notify_port);
        assert_eq!(
            (told.id, told.inline),
            (notification::MESSAGE_ACCEPTED, name.to_bits().to_le_bytes().to_vec())
        );
    }
}

#[test]
fn a_message_that_is_too_long_for_the_receiver_stays() {
    for (mut cluster, owner, port, name) in places() {
        cluster.now(0, send(name, bytes_message(b"twelve bytes"), Patience::None)).expect("there is room");
        cluster.settle();
        let small = Call::Receive { from: port, bytes_max: Some(11), patience: Patience::None };
        assert_eq!(cluster.now(owner, small), Err(PortError::ReceiveTooLarge { needed_bytes: 12 }));
        assert_eq!(cluster.receive(owner, port).inline, b"twelve bytes");
        assert_eq!(cluster.now(owner, receive(port)), Err(PortError::ReceiveTimedOut));
        let deadline = cluster.now + Duration::from_millis(1);
        let waiting = Call::Receive { from: port, bytes_max: None, patience: Patience::Until(deadline) };
        let late = cluster.call(owner, waiting);
        cluster.settle();
        assert_eq!(cluster.results.remove(&late), Some(Err(PortError::ReceiveTimedOut)));
        assert!(cluster.now >= Instant::from_nanos(1_000_000));
    }
}

#[test]
fn a_set_is_received_from_as_one_and_no_member_starves() {
    let mut cluster = cluster(1);
    let set = cluster.name(0, Call::AllocateSet);
    let ports: Vec<_> = (0..3).map(|_| cluster.name(0, Call::AllocatePort)).collect();
    for port in &ports {
        cluster.now(0, Call::MoveMember { member: *port, into: Some(set) }).expect("both are there");
        cluster
            .now(0, Call::InsertRight { name: *port, from: right(*port, Disposition::MakeSend) })
            .expect("a right");
        for _ in 0..2 {
            cluster.now(0, send(*port, Message::default(), Patience::None)).expect("there is room");
        }
    }
    assert_eq!(
        cluster.now(0, receive(ports[0])),
        Err(PortError::InvalidRight),
        "a member is received from by its set"
    );
    let order: Vec<_> = (0..6).map(|_| cluster.receive(0, set).port).collect();
    assert_eq!(
        order[..3].iter().collect::<std::collections::BTreeSet<_>>().len(),
        3,
        "each in turn: {order:?}"
    );
    let waiting = cluster.call(0, Call::Receive { from: set, bytes_max: None, patience: Patience::Endless });
    cluster.now(0, Call::Destroy(set)).expect("it is there");
    assert_eq!(cluster.results.remove(&waiting), Some(Err(PortError::ReceiveRightGone)));
    assert_eq!(
        cluster.now(0, receive(ports[0])),
        Err(PortError::ReceiveTimedOut),
        "members outlive their set"
    );
}

#[test]
fn a_dead_port_is_told_of_and_its_messages_give_up_their_rights() {
    for (mut cluster, owner, port, name) in places() {
        let ear = cluster.name(0, Call::AllocatePort);
        let of = Notification::DeadName;
        cluster.now(0, Call::RequestNotification { name, of, notify: once_to(ear) }).expect("a send right");
        let reply = cluster.name(0, Call::AllocatePort);
        let message = Message { reply: once_to(reply), ..Message::default() };
        cluster.now(0, send(name, message, Patience::None)).expect("there is room");
        cluster.settle();
        cluster.now(owner, Call::Destroy(port)).expect("it is there");
        cluster.settle();
        assert_eq!(
            cluster.receive(0, reply).id,
            notification::SEND_ONCE,
            "the message was destroyed with its port"
        );
        if owner != 0 {
            let told = cluster.receive(0, ear);
            assert_eq!(
                (told.id, told.inline),
                (notification::DEAD_NAME, name.to_bits().to_le_bytes().to_vec())
            );
            assert_eq!(status(&mut cluster, 0, name).dead, 2, "the notification brings a reference");
            let refused = cluster.now(0, send(name, Message::default(), Patience::None));
            assert_eq!(refused, Err(PortError::DeadDestination));
        }
        cluster.check_at_rest().expect("nothing is left over");
    }
}

#[test]
fn no_senders_is_told_once_and_when_no_holder_is_left() {
    let mut cluster = cluster(3);
    let (port, names) = cluster.share(0, &[1, 2]);
    let ear = cluster.name(0, Call::AllocatePort);
    let of = Notification::NoSenders { sync: 0 };
    cluster
        .now(0, Call::RequestNotification { name: port, of, notify: once_to(ear) })
        .expect("a receive right");
    cluster.now(1, Call::Deallocate(names[0])).expect("it is there");
    cluster.settle();
    assert_eq!(cluster.now(0, receive(ear)), Err(PortError::ReceiveTimedOut));
    let third = cluster.pass(2, names[1], Disposition::MoveSend, 1);
    assert_eq!(cluster.now(0, receive(ear)), Err(PortError::ReceiveTimedOut), "the right is with node 1 now");
    cluster.now(1, Call::Deallocate(third)).expect("it is there");
    cluster.settle();
    let told = cluster.receive(0, ear);
    assert_eq!((told.id, told.inline), (notification::NO_SENDERS, 2u64.to_le_bytes().to_vec()));
    cluster.settle();
    assert_eq!(cluster.now(0, receive(ear)), Err(PortError::ReceiveTimedOut), "once");
    let of = Notification::NoSenders { sync: 3 };
    cluster
        .now(0, Call::RequestNotification { name: port, of, notify: once_to(ear) })
        .expect("a receive right");
    assert_eq!(
        cluster.now(0, receive(ear)),
        Err(PortError::ReceiveTimedOut),
        "two were made, three are waited for"
    );
    let last = cluster.pass(0, port, Disposition::MakeSend, 1);
    cluster.now(1, Call::Deallocate(last)).expect("it is there");
    cluster.settle();
    assert_eq!(cluster.receive(0, ear).inline, 3u64.to_le_bytes());
}

#[test]
fn a_destroyed_receive_right_goes_back_to_who_asked() {
    let mut cluster = cluster(2);
    let (port, names) = cluster.share(0, &[1]);
    let ear = cluster.name(1, Call::AllocatePort);
    let once = cluster.pass(1, ear, Disposition::MakeSendOnce, 0);
    let notify = Some(right(once, Disposition::MoveSendOnce));
    let of = Notification::PortDestroyed;
    cluster.now(0, Call::RequestNotification { name: port, of, notify }).expect("a receive right");
    cluster.now(0, Call::Destroy(port)).expect("it is there");
    cluster.settle();
    let told = cluster.receive(1, ear);
    assert_eq!((told.id, told.rights[0].kind), (notification::PORT_DESTROYED, RightKind::Receive));
    assert_eq!(told.rights[0].name, names[0], "receive and send rights of one port have one name");
    cluster.now(1, send(names[0], bytes_message(b"alive"), Patience::None)).expect("the port lives on");
    cluster.settle();
    assert_eq!(cluster.receive(1, names[0]).inline, b"alive");
    cluster.check_at_rest().expect("nothing is left over");
}

#[test]
fn a_receive_right_moves_with_its_queue_and_its_senders_follow() {
    let mut cluster = cluster(3);
    let (port, names) = cluster.share(0, &[1, 2]);
    for number in 0..3u8 {
        cluster.now(1, send(names[0], bytes_message(&[number]), Patience::None)).expect("there is room");
    }
    let moved = cluster.pass(0, port, Disposition::MoveReceive, 2);
    assert_eq!(moved, names[1]);
    assert_eq!(cluster.now(0, receive(port)), Err(PortError::InvalidName));
    for number in 0..3u8 {
        assert_eq!(cluster.receive(2, moved).inline, [number]);
        cluster.settle();
        cluster.now(1, send(names[0], bytes_message(&[number + 3]), Patience::None)).expect("there is room");
        cluster.settle();
    }
    for number in 3..6u8 {
        assert_eq!(cluster.receive(2, moved).inline, [number]);
    }
    cluster.settle();
    cluster.check_at_rest().expect("nothing is left over");
}

#[test]
fn a_receive_right_in_a_message_to_itself_dies() {
    for (mut cluster, owner, port, name) in places() {
        let to =
            if owner == 0 { right(name, Disposition::MoveSend) } else { right(port, Disposition::MakeSend) };
        let message = Message { rights: vec![right(port, Disposition::MoveReceive)], ..Message::default() };
        let call = Call::Send { to, message, patience: Patience::None, notify: None };
        let sender = owner;
        assert_eq!(cluster.now(sender, call), Ok(Outcome::Done));
        cluster.settle();
        assert_eq!(cluster.now(sender, Call::Status(port)), Err(PortError::InvalidName));
        cluster.check_at_rest().expect("nothing is left over");
    }
}

#[test]
fn an_unused_send_once_right_tells_its_port() {
    for nodes in [1, 2] {
        let mut cluster = cluster(nodes);
        let port = cluster.name(0, Call::AllocatePort);
        let once = cluster.pass(0, port, Disposition::MakeSendOnce, nodes - 1);
        cluster.now(nodes - 1, Call::Deallocate(once)).expect("it is there");
        cluster.settle();
        assert_eq!(cluster.receive(0, port).id, notification::SEND_ONCE);
        assert_eq!(cluster.now(nodes - 1, Call::Deallocate(once)), Err(PortError::InvalidName));
    }
}

#[test]
fn the_name_service_tells_who_waits_and_forgets_what_died() {
    let mut cluster = cluster(2);
    let service = cluster.name(1, Call::NameService);
    let reply_port = cluster.name(1, Call::AllocatePort);
    let mut message = bytes_message(b"later");
    message.id = hiroba_ports::service::LOOK_UP_WAITING;
    let patience = Patience::Endless;
    let waiting = Call::Rpc { to: copy_send(service), message, reply_port, bytes_max: None, patience };
    let waiting = cluster.call(1, waiting);
    cluster.settle();
    assert!(!cluster.results.contains_key(&waiting));
    let port = cluster.name(0, Call::AllocatePort);
    cluster.register(0, port, b"later");
    cluster.settle();
    let Some(Ok(Outcome::Received(answer))) = cluster.results.remove(&waiting) else { panic!("no answer") };
    assert_eq!(answer.rights[0].kind, RightKind::Send);
    cluster.now(0, Call::Destroy(port)).expect("it is there");
    cluster.settle();
    let mut message = bytes_message(b"later");
    message.id = hiroba_ports::service::LOOK_UP;
    let asking = Call::Rpc { to: copy_send(service), message, reply_port, bytes_max: None, patience };
    let asking = cluster.call(1, asking);
    cluster.settle();
    let Some(Ok(Outcome::Received(answer))) = cluster.results.remove(&asking) else { panic!("no answer") };
    assert_eq!(answer.inline, hiroba_ports::service::UNKNOWN.to_le_bytes());
}
