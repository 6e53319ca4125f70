//! Sites, stubs and loops of hand-written machine code.

use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

use hiroba_patch::{
    Function, Image, Kind, Loop, PlaceTable, Places, Plan, Survey, TableJump, functions, loop_around,
    table_jumps, whole_pages,
};
use iced_x86::{Decoder, DecoderOptions, Instruction, Mnemonic};

const AT: u64 = 0x40_0000;
const STUBS: u64 = 0x5000_0000;
const PLACES: Places = Places {
    table: 0x1111,
    ready: 0x5555,
    is_exclusive: true,
    fence: 0x2222,
    begin: 0x3333,
    end: 0x4444,
    put_off: 0,
    first_update: 0,
};

fn survey_of(code: &[u8], has_landing_pads: bool) -> (Survey, Plan) {
    let image = Image::new(vec![(AT, code)]);
    let range = AT..AT + code.len() as u64;
    let functions = [Function { code: range.clone(), has_landing_pads }];
    let survey = Survey::of(&image, &functions, &[range], false);
    let plan = Plan::of(&image, &survey, STUBS, &PLACES);
    (survey, plan)
}

/// The target of the jump of five bytes at an address.
fn jump_target(at: u64, bytes: &[u8]) -> u64 {
    assert_eq!(bytes[0], 0xe9, "{bytes:x?}");
    let offset = i32::from_le_bytes(bytes[1..5].try_into().expect("four bytes"));
    (at + 5).wrapping_add_signed(i64::from(offset))
}

#[test]
fn a_long_instruction_becomes_a_jump_and_its_stub_leads_back() {
    // lock add dword ptr [rdi + 8], 1; ret
    let (survey, plan) = survey_of(&[0xf0, 0x83, 0x47, 0x08, 0x01, 0xc3], false);
    assert_eq!((survey.sites.len(), survey.sites[0].kind, survey.outside), (1, Kind::Operation, 0));
    assert_eq!((plan.patches.len(), plan.traps.len(), plan.failed), (1, 0, 0));
    assert_eq!(jump_target(AT, &plan.patches[0].bytes), STUBS + 24, "behind the three pointers");
    let tail = plan.stubs.len() - 5;
    assert_eq!(jump_target(STUBS + tail as u64, &plan.stubs[tail..]), AT + 5);
    let copies = plan.stubs.windows(5).filter(|part| *part == [0xf0, 0x83, 0x47, 0x08, 0x01]).count();
    assert_eq!(copies, 2, "for memory of either kind");
}

/// The program's flags survive, and so do its registers: what a stub changes before the instruction it
/// restores.
#[test]
fn stubs_change_no_flag_before_the_instruction() {
    // lock add [rcx + 8 * rdx + 0x12345678], rdx; lock add dword ptr [rsp + 24], 1; mfence; ret
    let code = [
        0xf0, 0x48, 0x01, 0x94, 0xd1, 0x78, 0x56, 0x34, 0x12, 0xf0, 0x83, 0x44, 0x24, 0x18, 0x01, 0x0f, 0xae,
        0xf0, 0xc3,
    ];
    let image = Image::new(vec![(AT, &code)]);
    let range = AT..AT + code.len() as u64;
    let functions = [Function { code: range.clone(), has_landing_pads: false }];
    let survey = Survey::of(&image, &functions, &[range], false);
    for is_exclusive in [true, false] {
        let plan = Plan::of(&image, &survey, STUBS, &Places { is_exclusive, ..PLACES });
        assert_eq!((plan.patches.len(), plan.failed), (3, 0));
        let head = STUBS + 24;
        let decoder = Decoder::with_ip(64, &plan.stubs[24..], head, DecoderOptions::NONE);
        let all: Vec<Instruction> = decoder.into_iter().collect();
        let is_programs = |it: &Instruction| it.has_lock_prefix() || it.mnemonic() == Mnemonic::Mfence;
        assert_eq!(all.iter().filter(|it| is_programs(it)).count(), if is_exclusive { 6 } else { 4 });
        for instruction in &all {
            assert!(!instruction.is_invalid(), "{instruction:?}");
            assert!(is_programs(instruction) || instruction.rflags_modified() == 0, "{instruction:?}");
            let target = instruction.near_branch_target();
            let is_inside = (head..head + plan.stubs.len() as u64).contains(&target);
            assert!(
                !is_inside || all.iter().any(|it| it.ip() == target),
                "{instruction:?} leads to the middle"
            );
        }
    }
}

#[test]
fn a_table_of_places_knows_the_last_ones() {
    let table = PlaceTable::new();
    let entry = |address: u64| {
        let bytes: &[AtomicU32; 1 << 16] = table.entries();
        u64::from(!bytes[(address >> 8) as usize & 0xffff].load(Relaxed)) == address >> 24
    };
    let start = 0x1234_5678_9f80;
    assert!(!entry(start) && !entry(0x40_0000), "an empty table knows no place, however low");
    table.note(start..start + 0x200);
    assert!([0, 0x80, 0x1ff].iter().all(|offset| entry(start + offset)));
    assert!(!entry(start - 0x100) && !entry(start + 0x280));
    let other = start + (3 << 24);
    table.note(other..other + 1);
    assert!(entry(other) && !entry(start) && entry(start + 0x100), "it displaces one");
}

#[test]
fn a_short_instruction_takes_its_successors_along() {
    // xchg [rdi], eax; mov ecx, eax; xor eax, eax; ret
    let code = [0x87, 0x07, 0x89, 0xc1, 0x31, 0xc0, 0xc3];
    let (_, plan) = survey_of(&code, false);
    assert_eq!((plan.patches[0].bytes.len(), plan.traps.len()), (6, 0));
    assert!(plan.stubs.windows(4).any(|part| part == [0x89, 0xc1, 0x31, 0xc0]), "the successors moved");
    // Where an exception may continue in the middle it is a trap.
    let (_, plan) = survey_of(&code, true);
    assert_eq!(plan.patches[0].bytes, [0x0f, 0x0b]);
    assert_eq!(plan.traps, [(AT, STUBS + 24)]);
}

#[test]
fn what_a_jump_enters_is_not_moved() {
    // again: xchg [rdi], eax; test eax, eax; jne again + 2; ret
    let (_, plan) = survey_of(&[0x87, 0x07, 0x85, 0xc0, 0x75, 0xfc, 0xc3], false);
    assert_eq!(plan.traps.len(), 1, "the test is the target of a jump");
    // A jump behind the prefix itself: jmp +1; lock inc dword ptr [rdi]; ret
    let (survey, plan) = survey_of(&[0xeb, 0x01, 0xf0, 0xff, 0x07, 0xc3], false);
    assert_eq!((survey.entered, plan.patches.len()), (1, 0));
    // A function with a table of jumps: lock inc dword ptr [rdi]; nop; nop; jmp rax
    let (_, plan) = survey_of(&[0xf0, 0xff, 0x07, 0x90, 0x90, 0xff, 0xe0], false);
    assert_eq!(plan.traps.len(), 1);
}

#[test]
fn fences_and_statics_are_told_apart() {
    // mfence; lock or dword ptr [rsp], 0; lock or dword ptr [rsp], 1; lock inc dword ptr [rip + 1]; ret
    let code = [
        0x0f, 0xae, 0xf0, 0xf0, 0x83, 0x0c, 0x24, 0x00, 0xf0, 0x83, 0x0c, 0x24, 0x01, 0xf0, 0xff, 0x05, 1, 0,
        0, 0, 0xc3,
    ];
    let (survey, _) = survey_of(&code, false);
    let kinds: Vec<Kind> = survey.sites.iter().map(|site| site.kind).collect();
    assert_eq!(kinds, [Kind::Fence, Kind::Fence, Kind::Operation]);
    assert_eq!(survey.on_statics, 1);
    assert!(survey.fixed.iter().eq([&(AT + 21..AT + 25)]), "{:x?}", survey.fixed);
}

/// Also where the code cannot be read to its end, or belongs to no known function.
#[test]
fn the_places_of_statics_are_known() {
    // lock inc qword ptr [rip + 0x100]; ret; a byte that is no instruction; xchg [0x1234560], eax; ret;
    // lock inc dword ptr fs:[0x10]; lock inc dword ptr [8 * rax + 0x1234568]
    let code = [
        0xf0, 0x48, 0xff, 0x05, 0, 1, 0, 0, 0xc3, 0x06, 0x87, 0x04, 0x25, 0x60, 0x45, 0x23, 0x01, 0xc3, 0x64,
        0xf0, 0xff, 0x04, 0x25, 0x10, 0, 0, 0, 0xf0, 0xff, 0x04, 0xc5, 0x68, 0x45, 0x23, 0x01,
    ];
    let image = Image::new(vec![(AT, &code)]);
    let whole = AT..AT + code.len() as u64;
    for end in [9, code.len() as u64] {
        let function = Function { code: AT..AT + end, has_landing_pads: false };
        let mut survey = Survey::of(&image, &[function], std::slice::from_ref(&whole), false);
        survey.fixed.sort_by_key(|place| place.start);
        assert_eq!(survey.fixed, [AT + 0x108..AT + 0x110, 0x123_4560..0x123_4564], "{end}");
        assert_eq!(survey.outside, u32::from(end == 9) as usize, "{end}");
    }
}

#[test]
fn instructions_outside_functions_are_counted() {
    let code = [0xc3, 0xf0, 0xff, 0x07, 0xc3];
    let image = Image::new(vec![(AT, &code)]);
    let known = Function { code: AT..AT + 1, has_landing_pads: false };
    let whole = AT..AT + 5;
    let survey = Survey::of(&image, &[known], std::slice::from_ref(&whole), false);
    assert_eq!((survey.sites.len(), survey.outside), (0, 1));
}

#[test]
fn functions_are_read_from_the_tables_for_exceptions() {
    // A header with one entry; a common part with augmentation "zR"; a description of 4 bytes of code.
    let mut image = vec![1, 0x1b, 3, 0x3b];
    let (common, description, code) = (0x20u32, 0x38u32, 0x60u32);
    image.extend(0u32.to_le_bytes());
    image.extend(1u32.to_le_bytes());
    image.extend(code.to_le_bytes());
    image.extend(description.to_le_bytes());
    image.resize(common as usize, 0);
    image.extend([0x14, 0, 0, 0, 0, 0, 0, 0, 1, b'z', b'R', 0]);
    image.resize(description as usize, 0);
    image.extend(0x14u32.to_le_bytes());
    image.extend((description + 4 - common).to_le_bytes());
    image.extend((code - description - 8).to_le_bytes());
    image.extend(4u32.to_le_bytes());
    image.resize(0x80, 0x90);
    let image_at = |bytes: &[u8]| functions(&Image::new(vec![(AT, bytes)]), AT);
    let start = AT + u64::from(code);
    assert_eq!(image_at(&image), [Function { code: start..start + 4, has_landing_pads: false }]);
    for cut in 0..image.len() {
        image_at(&image[..cut]); // ends, and does not panic
    }
    image[1] = 0;
    assert!(image_at(&image).is_empty(), "another form is left out");
}

#[test]
fn jumps_through_a_table_are_found() {
    // push [rip + 2]; jmp [rip + 0x2000]; nops; 16: endbr64; jmp [rip + 0x1ff6]; nops; 32: bnd jmp
    // [rip + 0x100]
    let code = [
        0xff, 0x35, 2, 0, 0, 0, 0xff, 0x25, 0x00, 0x20, 0, 0, 0x90, 0x90, 0x90, 0x90, 0xf3, 0x0f, 0x1e, 0xfa,
        0xff, 0x25, 0xf6, 0x1f, 0, 0, 0x90, 0x90, 0x90, 0x90, 0x90, 0x90, 0xf2, 0xff, 0x25, 0x00, 0x01, 0, 0,
    ];
    let image = Image::new(vec![(AT, &code)]);
    let table = AT + 0x2010..AT + 0x2020;
    let jumps = table_jumps(&image, AT..AT + code.len() as u64, &table);
    let expected = TableJump { distance_at: AT + 22, next: AT + 26, word: AT + 26 + 0x1ff6 };
    assert_eq!(jumps, [expected], "neither the one before the table nor the one elsewhere");
    assert!(table_jumps(&image, AT..AT + 100, &table).is_empty(), "a section that is not there");
}

#[test]
fn waiting_loops_are_told_from_working_ones() {
    let around = |code: &[u8], at: u64| loop_around(&Image::new(vec![(AT, code)]), AT + at);
    // mov eax, [rdi]; test eax, eax; je back
    let waits = [0x8b, 0x07, 0x85, 0xc0, 0x74, 0xfa, 0xc3];
    assert_eq!(around(&waits, 0), Loop::Waits(AT));
    assert_eq!(around(&waits, 4), Loop::Waits(AT));
    assert_eq!(around(&waits, 6), Loop::Unknown, "behind the loop");
    // add eax, [rdi]; add rdi, 4; cmp rdi, rsi; jne back
    let sums = [0x03, 0x07, 0x48, 0x83, 0xc7, 0x04, 0x48, 0x39, 0xf7, 0x75, 0xf5, 0xc3];
    assert_eq!(around(&sums, 2), Loop::Works);
    // mov [rdi], eax; mov eax, [rsi]; jmp back
    assert_eq!(around(&[0x89, 0x07, 0x8b, 0x06, 0xeb, 0xfa], 2), Loop::Works);
    // call; jmp back
    assert_eq!(around(&[0xe8, 0, 0, 0, 0, 0xeb, 0xf9], 0), Loop::Unknown);
}

#[test]
fn whole_pages_inside_variables_are_found() {
    let data = [0x1000..0x10_0000, 0x20_0000..0x28_0000];
    let variables = vec![0x21_0010..0x24_0000, 0x2010..0x5_0008, 0x5_0008..0x8_0ff8, 0x27_0000..0x29_0000];
    // Twice on one page; on the last bytes of a page and the first ones of the next; elsewhere.
    let named = [0x6_0ff0..0x6_0ff8, 0x6_0000..0x6_0004, 0x3ffc..0x4004, 0x100..0x104];
    let expected = [0x5000..0x6_0000, 0x6_1000..0x8_0000, 0x21_1000..0x24_0000, 0x27_0000..0x28_0000];
    assert_eq!(whole_pages(&data, variables, &named), expected);
}
