//! Updates that other nodes execute, in machine code as gcc makes it.

use hiroba_patch::{Following, Function, Image, Places, Plan, SKIPPED_BYTES, State, Survey, Update};
use iced_x86::{Decoder, DecoderOptions, Instruction, Mnemonic};

const AT: u64 = 0x40_0000;
const ELSEWHERE: u64 = 0x5000_0000;
const FINISH: u64 = 0x5000_1000;

fn whole(code: &[u8]) -> Function {
    Function { code: AT..AT + code.len() as u64, has_landing_pads: false }
}

fn at_instruction(code: &[u8], offset: u64) -> Option<Update> {
    Update::by_instruction(&Image::new(vec![(AT, code)]), &whole(code), AT + offset)
}

fn decoded(bytes: &[u8], at: u64) -> Vec<Instruction> {
    Decoder::with_ip(64, bytes, at, DecoderOptions::NONE).into_iter().collect()
}

fn mnemonics(instructions: &[Instruction]) -> Vec<Mnemonic> {
    instructions.iter().map(Instruction::mnemonic).collect()
}

/// A state whose registers contain their numbers, in hundreds.
fn state() -> State {
    let mut state = State::NONE;
    state.general = std::array::from_fn(|number| 100 * number as u64);
    state.vector = std::array::from_fn(|number| [number as u64, 1000 + number as u64]);
    state.stack = std::array::from_fn(|number| 0x7000 + number as u64);
    state
}

/// `lock add [rbx], rcx; add rsp, 8; pop rbx; ret`
const ADD: [u8; 10] = [0xf0, 0x48, 0x01, 0x0b, 0x48, 0x83, 0xc4, 0x08, 0x5b, 0xc3];

/// `mov rdx, [rbx + 8]; lea rcx, [rbx + 8]; 8: movq xmm2, rdx; mov rax, rdx; addsd xmm2, xmm1; movq rsi,
/// xmm2; 25: lock cmpxchg [rcx], rsi; jne 34; 32: pop rbx; ret; 34: mov rdx, rax; jmp 8`
const ADD_REAL: [u8; 39] = [
    0x48, 0x8b, 0x53, 0x08, 0x48, 0x8d, 0x4b, 0x08, 0x66, 0x48, 0x0f, 0x6e, 0xd2, 0x48, 0x89, 0xd0, 0xf2,
    0x0f, 0x58, 0xd1, 0x66, 0x48, 0x0f, 0x7e, 0xd6, 0xf0, 0x48, 0x0f, 0xb1, 0x31, 0x75, 0x02, 0x5b, 0xc3,
    0x48, 0x89, 0xc2, 0xeb, 0xe1,
];

/// `mov rdx, [rbp + 24]; movsd xmm0, [rsp + 8]; addsd xmm0, [r12 + 8]; add [rdx], rbx; movsd [r12 + 8], xmm0;
/// 27: add rsp, 16; pop rbx; jmp 40; nops; 40: ret`
const SECTION: [u8; 41] = [
    0x48, 0x8b, 0x55, 0x18, 0xf2, 0x0f, 0x10, 0x44, 0x24, 0x08, 0xf2, 0x41, 0x0f, 0x58, 0x44, 0x24, 0x08,
    0x48, 0x01, 0x1a, 0xf2, 0x41, 0x0f, 0x11, 0x44, 0x24, 0x08, 0x48, 0x83, 0xc4, 0x10, 0x5b, 0xe9, 0x03,
    0x00, 0x00, 0x00, 0x90, 0x90, 0x90, 0xc3,
];

#[test]
fn an_instruction_before_the_end_is_an_update() {
    let update = at_instruction(&ADD, 0).expect("an update");
    assert_eq!((update.resume, update.function, update.following), (AT + 4, AT, Following::Return));
    assert_eq!(update.operands(&state(), |_| 0), [(300, 8)]);
    let mut words = vec![9];
    update.pack(&state(), &mut words);
    assert_eq!(words, [9, 100, 300], "rcx and rbx");
    let unpacked = update.unpack(&words[1..]).expect("as many words");
    assert_eq!((unpacked.general[1], unpacked.general[3], unpacked.general[2]), (100, 300, 0));
    assert_eq!(update.unpack(&words), None, "a word too many");
    assert_eq!(update.unpack(&[100]), None, "a word too few");
    let code = decoded(&update.encode(ELSEWHERE, FINISH).expect("code"), ELSEWHERE);
    assert_eq!(mnemonics(&code), [Mnemonic::Add, Mnemonic::Jmp]);
    assert_eq!(code[1].near_branch_target(), FINISH);
}

#[test]
fn statics_and_barriers_are_found() {
    // lock add [rip + 4096], rdx; call 16; nops; 16: jmp [rip + 4096]
    let code = [
        0xf0, 0x48, 0x01, 0x15, 0x00, 0x10, 0x00, 0x00, 0xe8, 0x03, 0x00, 0x00, 0x00, 0x90, 0x90, 0x90, 0xff,
        0x25, 0x00, 0x10, 0x00, 0x00,
    ];
    let function = Function { code: AT..AT + 16, has_landing_pads: false };
    let image = Image::new(vec![(AT, &code)]);
    let update = Update::by_instruction(&image, &function, AT).expect("an update");
    assert_eq!(update.following, Following::CallThrough(AT + 22 + 0x1000));
    assert_eq!(update.operands(&state(), |_| 0), [(AT + 8 + 0x1000, 8)]);
    let moved = update.encode(ELSEWHERE, FINISH).expect("code");
    assert_eq!(decoded(&moved, ELSEWHERE)[0].ip_rel_memory_address(), AT + 8 + 0x1000);
}

#[test]
fn a_loop_is_executed_from_its_middle() {
    let update = at_instruction(&ADD_REAL, 25).expect("an update");
    assert_eq!((update.resume, update.following), (AT + 32, Following::Return));
    assert_eq!(update.operands(&state(), |_| 0), [(100, 8)]);
    let code = decoded(&update.encode(ELSEWHERE, FINISH).expect("code"), ELSEWHERE);
    let expected = [
        Mnemonic::Cmpxchg,
        Mnemonic::Jne,
        Mnemonic::Jmp,
        Mnemonic::Mov,
        Mnemonic::Movq,
        Mnemonic::Mov,
        Mnemonic::Addsd,
        Mnemonic::Movq,
        Mnemonic::Jmp,
    ];
    assert_eq!(mnemonics(&code), expected);
    assert_eq!(code[1].near_branch_target(), code[3].ip());
    assert_eq!(code[2].near_branch_target(), FINISH);
    assert_eq!(code[8].near_branch_target(), ELSEWHERE);
}

#[test]
fn code_between_two_calls_is_an_update() {
    let image = Image::new(vec![(AT, &SECTION[..])]);
    let function = Function { code: AT..AT + 40, has_landing_pads: false };
    let is_end = |following| following == Following::Call(AT + 40);
    let update = Update::behind_call(&image, &function, AT, &is_end).expect("an update");
    assert_eq!((update.resume, update.following), (AT + 27, Following::Return));
    assert_eq!(update.stack_words(), 2);
    let load = |address: u64| if address == 500 + 24 { 0x1234 } else { 0 };
    let places = update.operands(&state(), load);
    assert_eq!(places, [(524, 8), (1208, 8), (0x1234, 8), (1208, 8)]);
    assert!(Update::behind_call(&image, &function, AT, &|_| false).is_none(), "another call");
    let code = decoded(&update.encode(ELSEWHERE, FINISH).expect("code"), ELSEWHERE);
    assert_eq!(code.last().expect("a jump").near_branch_target(), FINISH);
    assert_eq!(code.len(), 6);
}

/// Other code needs its result, or may notice when it is executed.
#[test]
fn what_is_used_is_no_update() {
    for (what, code) in [
        ("lock add [rbx], rcx; je; ret", &[0xf0, 0x48, 0x01, 0x0b, 0x74, 0x00, 0xc3][..]),
        ("lock dec qword ptr [rbx]; sete al; ret", &[0xf0, 0x48, 0xff, 0x0b, 0x0f, 0x94, 0xc0, 0xc3]),
        ("lock xadd [rbx], rcx; ret", &[0xf0, 0x48, 0x0f, 0xc1, 0x0b, 0xc3]),
        ("lock add [rbx], rcx; mov [rdi], rcx; ret", &[0xf0, 0x48, 0x01, 0x0b, 0x48, 0x89, 0x0f, 0xc3]),
        ("lock add [rbx], rcx; jmp rax", &[0xf0, 0x48, 0x01, 0x0b, 0xff, 0xe0]),
        ("lock add [rsp + 8], rcx; ret", &[0xf0, 0x48, 0x01, 0x4c, 0x24, 0x08, 0xc3]),
        ("lock add fs:[rbx], rcx; ret", &[0x64, 0xf0, 0x48, 0x01, 0x0b, 0xc3]),
        ("lock cmpxchg [rcx], rsi; ret", &[0xf0, 0x48, 0x0f, 0xb1, 0x31, 0xc3]),
        ("mfence; ret", &[0x0f, 0xae, 0xf0, 0xc3]),
        ("a cut instruction", &[0xf0, 0x48, 0x01]),
    ] {
        assert!(at_instruction(code, 0).is_none(), "{what}");
    }
    // The loop, with `mov [rsp], rax` before its end.
    let mut code = ADD_REAL.to_vec();
    code.splice(32..34, [0x48, 0x89, 0x04, 0x24, 0xc3]);
    code[31] += 3;
    let jump = code.len() - 1;
    code[jump] -= 3;
    assert!(at_instruction(&code, 25).is_none(), "a register of the loop");
    // `mov rdx, [rdi]` in it.
    let mut code = ADD_REAL.to_vec();
    code[34..37].copy_from_slice(&[0x48, 0x8b, 0x17]);
    assert!(at_instruction(&code, 25).is_none(), "another variable");
    // `lea rcx, [rcx]` in it.
    code[34..37].copy_from_slice(&[0x48, 0x8d, 0x09]);
    assert!(at_instruction(&code, 25).is_none(), "a place that changes");
    for cut in 0..ADD_REAL.len() {
        let _ = at_instruction(&ADD_REAL[..cut], 25); // ends, and does not panic
    }
}

#[test]
fn stubs_leave_updates_out() {
    let places = Places {
        table: 0x1111,
        ready: 0x5555,
        is_exclusive: false,
        fence: 0x2222,
        begin: 0x3333,
        end: 0x4444,
        put_off: 0x6666,
        first_update: 7,
    };
    for (code, offset, resume) in [(&ADD[..], 0, None), (&ADD_REAL[..], 25, Some(AT + 32))] {
        let image = Image::new(vec![(AT, code)]);
        let range = AT..AT + code.len() as u64;
        let survey = Survey::of(&image, &[whole(code)], &[range], true);
        let plan = Plan::of(&image, &survey, ELSEWHERE, &places);
        assert_eq!((plan.updates.as_slice(), plan.failed), (&[AT + offset][..], 0));
        let stub = decoded(&plan.stubs[24..], ELSEWHERE + 24);
        let calls = |instruction: &&Instruction| {
            instruction.mnemonic() == Mnemonic::Call && instruction.ip_rel_memory_address() == ELSEWHERE + 16
        };
        let call = stub.iter().find(calls).expect("a call of the third function");
        let skipped = stub.iter().find(|next| next.ip() == call.next_ip() + SKIPPED_BYTES as u64);
        let at = skipped.expect("an instruction there");
        assert_eq!((at.mnemonic(), at.memory_displacement64()), (Mnemonic::Lea, 136));
        let jump = stub.iter().find(|next| next.ip() == at.next_ip()).expect("a jump");
        let target = jump.near_branch_target();
        match resume {
            Some(resume) => assert_eq!(target, resume),
            None => {
                let next = stub.iter().find(|next| next.ip() == target).expect("an instruction of the stub");
                assert_eq!(next.mnemonic(), Mnemonic::Add, "the one behind the operation");
                assert!(!next.has_lock_prefix());
            }
        }
        let pushes = stub.iter().filter(|next| next.mnemonic() == Mnemonic::Push);
        assert_eq!(pushes.map(|push| push.immediate(0)).next(), Some(7));
        let plain = Plan::of(&image, &survey, ELSEWHERE, &Places { put_off: 0, ..places });
        assert!(plain.updates.is_empty());
    }
}
