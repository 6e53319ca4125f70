//! What follows a call, in hand-written machine code.

use hiroba_patch::{Following, Function, Image, following};

const AT: u64 = 0x40_0000;

/// Returns what follows the call that ends `from` bytes behind the start, in a function of `length` bytes.
fn follows(code: &[u8], from: u64, length: u64) -> Following {
    let function = Function { code: AT..AT + length, has_landing_pads: false };
    following(&Image::new(vec![(AT, code)]), &function, AT + from)
}

/// `cmp eax, 2; je 16; cmp eax, 1; jne 16; inc dword ptr [rip + 4096]; 16:`, as at `-O2`.
const SWITCH: [u8; 16] =
    [0x83, 0xf8, 0x02, 0x74, 0x0b, 0x83, 0xf8, 0x01, 0x75, 0x06, 0xff, 0x05, 0x00, 0x10, 0x00, 0x00];

fn behind_switch(tail: &[u8]) -> Following {
    let code = [&SWITCH[..], tail].concat();
    follows(&code, 0, code.len() as u64)
}

#[test]
fn the_way_of_the_result_0_leads_to_the_end() {
    // pop rbx; ret
    assert_eq!(behind_switch(&[0x5b, 0xc3]), Following::Return);
    // add rsp, 64; mov [rsp], eax; vzeroupper; ret
    let tail = [0x48, 0x83, 0xc4, 0x40, 0x89, 0x04, 0x24, 0xc5, 0xf8, 0x77, 0xc3];
    assert_eq!(behind_switch(&tail), Following::Return);
}

#[test]
fn a_frame_keeps_the_result() {
    // push rbp; mov rbp, rsp; 4: mov ecx, eax; mov [rbp - 96], ecx; sub eax, 1; je 27; mov eax, [rbp - 96];
    // sub eax, 2; jne 27; ud2; nop; nop; nop; 27: mov rax, [rbp - 8]; mov esi, [rax]; leave; ret
    let code = [
        0x55, 0x48, 0x89, 0xe5, 0x89, 0xc1, 0x89, 0x4d, 0xa0, 0x83, 0xe8, 0x01, 0x74, 0x0d, 0x8b, 0x45, 0xa0,
        0x83, 0xe8, 0x02, 0x75, 0x05, 0x0f, 0x0b, 0x90, 0x90, 0x90, 0x48, 0x8b, 0x45, 0xf8, 0x8b, 0x30, 0xc9,
        0xc3,
    ];
    assert_eq!(follows(&code, 4, code.len() as u64), Following::Return);
    // Without `mov rbp, rsp` it may be no frame.
    let without = [&[0x55, 0x90, 0x90, 0x90], &code[4..]].concat();
    assert_eq!(follows(&without, 4, code.len() as u64), Following::Unknown);
}

#[test]
fn calls_lead_through_stubs() {
    // mov esi, ebx; call 32; nops; 32: endbr64; jmp [rip + 4054]
    let mut tail = vec![0x89, 0xde, 0xe8, 0x09, 0x00, 0x00, 0x00];
    tail.extend([0x90; 9]);
    tail.extend([0xf3, 0x0f, 0x1e, 0xfa, 0xff, 0x25, 0xd6, 0x0f, 0x00, 0x00]);
    let code = [&SWITCH[..], &tail].concat();
    assert_eq!(follows(&code, 0, 23), Following::CallThrough(AT + 0x1000));
    // jmp 32, as the function's last instruction
    let last = [&SWITCH[..], &[0xe9, 0x0b, 0x00, 0x00, 0x00], &[0x90; 11], &tail[16..]].concat();
    assert_eq!(follows(&last, 0, 21), Following::CallThrough(AT + 0x1000));
    // call [rip + 4096]
    assert_eq!(behind_switch(&[0xff, 0x15, 0x00, 0x10, 0x00, 0x00]), Following::CallThrough(AT + 0x1016));
    // call 32, where there is other code
    let direct = [&SWITCH[..], &[0xe8, 0x0b, 0x00, 0x00, 0x00], &[0xc3; 12]].concat();
    assert_eq!(follows(&direct, 0, 21), Following::Call(AT + 32));
}

#[test]
fn what_others_may_notice_is_not_passed() {
    for (what, tail) in [
        ("mov [rdi], eax", &[0x89, 0x07, 0xc3][..]),
        ("mov [rbp], eax", &[0x89, 0x45, 0x00, 0xc3]),
        ("mov ebx, [rdi]", &[0x8b, 0x1f, 0xc3]),
        ("lock add [rsp], eax", &[0xf0, 0x01, 0x04, 0x24, 0xc3]),
        ("cmp dword ptr [rsp], 0; je", &[0x83, 0x3c, 0x24, 0x00, 0x74, 0x00, 0xc3]),
        ("call rax", &[0xff, 0xd0]),
        ("jmp rax", &[0xff, 0xe0]),
        ("syscall", &[0x0f, 0x05, 0xc3]),
        ("a loop", &[0xeb, 0xfe]),
        ("what is no instruction", &[0x06]),
    ] {
        assert_eq!(behind_switch(tail), Following::Unknown, "{what}");
    }
}
