//! What a silent process was doing: where each of its threads is, and how much processor time it got
//! meanwhile.
//!
//! Everything is read from `/proc` (proc_pid_task(5), proc_pid_syscall(5), proc_pid_stack(5)) on the
//! process's own machine. The report states what the kernel does not tell this user, since the report of a
//! hang that cannot be repeated is all that remains of it.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Read;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::{Duration, Instant};

use hiroba_base::CodeSite;

use crate::quantities::counted;
use crate::symbols::Symboliser;

/// The number of threads that are described; the others are counted.
const THREADS_MAX: usize = 16;
/// Bytes of a thread's stack that are searched for the calls it is in.
const STACK_BYTES: usize = 4096;
/// The maximum number of calls named, and of kernel frames.
const CALLS_MAX: usize = 5;
const KERNEL_FRAMES_MAX: usize = 4;
/// The maximum length that is read of a file of `/proc`, in bytes.
const FILE_BYTES_MAX: u64 = 4 << 20;

/// The processor time of a thread.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Share {
    /// Nanoseconds that it ran, and that it was ready and waited for a processor.
    ran: u64,
    waited: u64,
    /// Ticks in its own code, and in the kernel on its behalf.
    user_ticks: u64,
    kernel_ticks: u64,
}

/// The shares of all threads of a process at one time.
#[derive(Debug)]
pub struct Shares {
    at: Instant,
    by_thread: BTreeMap<i32, Share>,
}

impl Shares {
    /// Reads the current shares.
    pub fn of(pid: i32) -> Shares {
        let by_thread = threads(pid).into_iter().map(|tid| (tid, Task { pid, tid }.share())).collect();
        Shares { at: Instant::now(), by_thread }
    }
}

/// A thread.
#[derive(Clone, Copy)]
struct Task {
    pid: i32,
    tid: i32,
}

/// Where a thread is, according to `/proc/PID/task/TID/syscall`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Call {
    /// It has a processor, or waits for one.
    Running,
    /// It is in the system call of this number (-1: stopped elsewhere, for example in a fault), with its
    /// stack and the instruction that it returns to.
    In { number: i64, stack: u64, instruction: u64 },
}

fn threads(pid: i32) -> Vec<i32> {
    let entries = std::fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    let mut threads: Vec<i32> =
        entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect();
    threads.sort_unstable();
    threads
}

fn read(path: &str) -> Option<String> {
    let mut bytes = Vec::new();
    File::open(path).ok()?.take(FILE_BYTES_MAX).read_to_end(&mut bytes).ok()?;
    Some(String::from_utf8_lossy(&bytes).into_owned())
}

impl Task {
    fn file(self, name: &str) -> Option<String> {
        read(&format!("/proc/{}/task/{}/{name}", self.pid, self.tid))
    }

    fn share(self) -> Share {
        let schedstat = self.file("schedstat").unwrap_or_default();
        let mut times = schedstat.split_whitespace().map(|time| time.parse().unwrap_or(0));
        let (ran, waited) = (times.next().unwrap_or(0), times.next().unwrap_or(0));
        let (_, user_ticks, kernel_ticks) =
            self.file("stat").and_then(|stat| parse_stat(&stat)).unwrap_or_default();
        Share { ran, waited, user_ticks, kernel_ticks }
    }
}

/// Parses the state, and the ticks in the thread's code and in the kernel (fields 3, 14 and 15; the name
/// before them may contain any characters).
fn parse_stat(stat: &str) -> Option<(char, u64, u64)> {
    let fields: Vec<&str> = stat.rsplit_once(')')?.1.split_whitespace().collect();
    Some((fields.first()?.chars().next()?, fields.get(11)?.parse().ok()?, fields.get(12)?.parse().ok()?))
}

fn parse_call(text: &str) -> Option<Call> {
    let fields: Vec<&str> = text.split_whitespace().collect();
    if fields.first() == Some(&"running") {
        return Some(Call::Running);
    }
    let hexadecimal = |text: &&str| u64::from_str_radix(text.strip_prefix("0x")?, 16).ok();
    let number = fields.first()?.parse().ok()?;
    let [.., stack, instruction] = &fields[..] else { return None };
    Some(Call::In { number, stack: hexadecimal(stack)?, instruction: hexadecimal(instruction)? })
}

fn state_in_words(state: char) -> &'static str {
    match state {
        'R' => "runs, or waits for a processor",
        'S' => "sleeps",
        'D' => "sleeps without being interruptible",
        'T' => "is stopped",
        't' => "is stopped by a debugger",
        'Z' | 'X' => "has ended",
        _ => "is in an unknown state",
    }
}

fn call_in_words(number: i64) -> String {
    let name = match number {
        -1 => return "in no system call".to_owned(),
        libc::SYS_futex => "futex",
        libc::SYS_ppoll => "ppoll",
        libc::SYS_epoll_pwait => "epoll_pwait",
        libc::SYS_read => "read",
        libc::SYS_write => "write",
        libc::SYS_sendto => "sendto",
        libc::SYS_sendmsg => "sendmsg",
        libc::SYS_recvfrom => "recvfrom",
        libc::SYS_recvmsg => "recvmsg",
        libc::SYS_recvmmsg => "recvmmsg",
        libc::SYS_ioctl => "ioctl",
        libc::SYS_clock_nanosleep => "clock_nanosleep",
        libc::SYS_wait4 => "wait4",
        other => return format!("in system call {other}"),
    };
    format!("in {name}")
}

/// A piece of a module's code in a process.
#[derive(Debug, PartialEq, Eq)]
struct Mapping {
    start: u64,
    end: u64,
    executable: bool,
    /// What to subtract from an address to get one in the module's own terms.
    bias: u64,
    module: String,
}

/// Parses the modules of `/proc/PID/maps`. A module's first piece is where its first segment lies; `is_fixed`
/// tells whether it was linked for that address.
fn parse_maps(maps: &str, is_fixed: impl Fn(&str) -> bool) -> Vec<Mapping> {
    let mut mappings: Vec<Mapping> = Vec::new();
    for line in maps.lines() {
        let mut fields = line.split_whitespace();
        let (Some(range), Some(rights)) = (fields.next(), fields.next()) else { continue };
        let Some(module) = line.find('/').map(|at| &line[at..]) else { continue };
        let parsed = range.split_once('-').and_then(|(start, end)| {
            Some((u64::from_str_radix(start, 16).ok()?, u64::from_str_radix(end, 16).ok()?))
        });
        let Some((start, end)) = parsed else { continue };
        let bias = match mappings.last().filter(|last| last.module == module) {
            Some(last) => last.bias,
            None if is_fixed(module) => 0,
            None => start,
        };
        let executable = rights.contains('x');
        mappings.push(Mapping { start, end, executable, bias, module: module.to_owned() });
    }
    mappings
}

/// Returns true if an executable was linked for fixed addresses (`ET_EXEC` of elf(5)).
fn is_linked_for_fixed_addresses(module: &str) -> bool {
    let path = Path::new(module);
    let mut header = [0u8; 18];
    let is_file = path.metadata().is_ok_and(|metadata| metadata.is_file());
    is_file
        && File::open(path).and_then(|file| file.read_exact_at(&mut header, 0)).is_ok()
        && header.starts_with(b"\x7fELF")
        && u16::from_ne_bytes([header[16], header[17]]) == 2
}

/// What is known of a process's code.
struct Code<'a> {
    mappings: Vec<Mapping>,
    memory: Option<File>,
    symbols: &'a Symboliser,
}

impl Code<'_> {
    fn name(&self, address: u64) -> Option<String> {
        let holds =
            |mapping: &&Mapping| mapping.executable && (mapping.start..mapping.end).contains(&address);
        let mapping = self.mappings.iter().find(holds)?;
        let site = CodeSite { module: mapping.module.clone(), offset: address.wrapping_sub(mapping.bias) };
        Some(self.symbols.name(&site))
    }

    /// Returns the instruction, and the return addresses on the stack: the calls that the thread is in, and
    /// perhaps some that it has left.
    fn calls(&self, stack: u64, instruction: u64) -> Vec<String> {
        let mut names: Vec<String> = self.name(instruction).into_iter().collect();
        let mut bytes = vec![0; STACK_BYTES];
        // A shorter stack is read to its end.
        let memory = self.memory.as_ref();
        let got = memory.and_then(|memory| memory.read_at(&mut bytes, stack).ok()).unwrap_or(0);
        for word in bytes[..got].chunks_exact(8) {
            let word = u64::from_ne_bytes(word.try_into().expect("chunks of eight bytes"));
            // A return address is behind its call.
            if let Some(name) = word.checked_sub(1).and_then(|address| self.name(address))
                && names.last() != Some(&name)
            {
                names.push(name);
            }
            if names.len() >= CALLS_MAX {
                break;
            }
        }
        names
    }
}

fn milliseconds(nanoseconds: u64) -> String {
    format!("{:.1} ms", nanoseconds as f64 / 1e6)
}

/// Describes what a thread does, in a line.
fn describe(task: Task, before: Option<Share>, code: &Code<'_>) -> Option<String> {
    let (state, ..) = parse_stat(&task.file("stat")?)?;
    let name = task.file("comm").unwrap_or_default();
    let mut line =
        format!("thread {} ({}) {}", task.tid, name.trim_end().escape_debug(), state_in_words(state));
    let mut calls = Vec::new();
    match task.file("syscall").as_deref().and_then(parse_call) {
        Some(Call::Running) | None if state == 'R' => {}
        Some(Call::Running) => {}
        Some(Call::In { number, stack, instruction }) => {
            line.push_str(&format!(", {}", call_in_words(number)));
            calls = code.calls(stack, instruction);
        }
        None => line.push_str(", in a call that the kernel hides from this user"),
    }
    let frames: Vec<String> = task.file("stack").as_deref().map(kernel_frames).unwrap_or_default();
    let channel = task.file("wchan").filter(|channel| !matches!(channel.trim(), "" | "0"));
    match (frames.is_empty(), channel) {
        (false, _) => line.push_str(&format!(" (kernel: {})", frames.join(" < "))),
        (true, Some(channel)) => line.push_str(&format!(" (kernel: {})", channel.trim().escape_debug())),
        (true, None) => {}
    }
    if !calls.is_empty() {
        line.push_str(&format!(" at {}", calls.join(" < ")));
    }
    let share = task.share();
    let past = before.unwrap_or_default();
    let ran = milliseconds(share.ran.saturating_sub(past.ran));
    let waited = milliseconds(share.waited.saturating_sub(past.waited));
    let when = if before.is_some() { "meanwhile" } else { "since it began" };
    let ticks = (
        share.user_ticks - past.user_ticks.min(share.user_ticks),
        share.kernel_ticks - past.kernel_ticks.min(share.kernel_ticks),
    );
    line.push_str(&format!(
        "; {when} it ran {ran} (ticks: {} user, {} kernel) and waited {waited} for a processor",
        ticks.0, ticks.1
    ));
    Some(line)
}

/// Returns the functions of `/proc/PID/task/TID/stack`, the innermost first.
fn kernel_frames(stack: &str) -> Vec<String> {
    let function = |line: &str| {
        let name = line.split_whitespace().nth(1)?;
        Some(name.split('+').next().unwrap_or(name).to_owned())
    };
    stack.lines().filter_map(function).take(KERNEL_FRAMES_MAX).collect()
}

/// Describes what the threads of a process do, a line for each, and how much processor time they got since
/// `before`.
pub fn gather(pid: i32, before: Option<&Shares>) -> Vec<String> {
    let all = threads(pid);
    if all.is_empty() {
        return vec![format!("/proc has no information on process {pid}")];
    }
    let symbols = Symboliser::default();
    let maps = read(&format!("/proc/{pid}/maps")).unwrap_or_default();
    let code = Code {
        mappings: parse_maps(&maps, is_linked_for_fixed_addresses),
        memory: File::open(format!("/proc/{pid}/mem")).ok(),
        symbols: &symbols,
    };
    let since = |tid: &i32| before.and_then(|before| before.by_thread.get(tid)).copied();
    let mut lines = vec![in_all(pid, &all, before)];
    let told = all.iter().take(THREADS_MAX);
    lines.extend(told.filter_map(|tid| describe(Task { pid, tid: *tid }, since(tid), &code)));
    if all.len() > THREADS_MAX {
        let more = (all.len() - THREADS_MAX).to_string();
        lines.push(format!("and {} more", counted(&more, "thread", "threads")));
    }
    lines
}

/// Describes what the process got as a whole, and how busy the machine is.
fn in_all(pid: i32, threads: &[i32], before: Option<&Shares>) -> String {
    let mut sum = Share::default();
    for tid in threads {
        let share = Task { pid, tid: *tid }.share();
        let past = before.and_then(|before| before.by_thread.get(tid)).copied().unwrap_or_default();
        sum.ran += share.ran.saturating_sub(past.ran);
        sum.waited += share.waited.saturating_sub(past.waited);
    }
    let span = before.map_or_else(
        || "since they began".to_owned(),
        |before| format!("in the last {:.1} s", Duration::as_secs_f64(&before.at.elapsed())),
    );
    let load = read("/proc/loadavg").unwrap_or_default();
    let load = load.split_whitespace().next().unwrap_or("unknown").to_owned();
    let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    format!(
        "{span} its threads ran {} in all and waited {} for a processor; load {load} on {cores} processor{}",
        milliseconds(sum.ran),
        milliseconds(sum.waited),
        if cores == 1 { "" } else { "s" },
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_of_the_kernel_are_understood() {
        let stat = "7 (a) b) S 1 2 3 4 5 6 7 8 9 10 11 12 13 14";
        assert_eq!(parse_stat(stat), Some(('S', 11, 12)));
        assert_eq!(parse_stat("7 (a"), None);
        assert_eq!(parse_call("running\n"), Some(Call::Running));
        let call = "202 0x1 0x80 0x2 0x0 0x0 0x0 0x7ffc10 0x7f0012\n";
        assert_eq!(parse_call(call), Some(Call::In { number: 202, stack: 0x7ffc10, instruction: 0x7f0012 }));
        assert_eq!(
            parse_call("-1 0x7ffc10 0x5501"),
            Some(Call::In { number: -1, stack: 0x7ffc10, instruction: 0x5501 })
        );
        for nonsense in ["", "x", "202", "202 1 2"] {
            assert_eq!(parse_call(nonsense), None, "{nonsense}");
        }
        let stack = "[<0>] futex_wait_queue+0x60/0x90\n[<0>] __futex_wait+0x14f/0x1b0\n";
        assert_eq!(kernel_frames(stack), ["futex_wait_queue", "__futex_wait"]);
    }

    #[test]
    fn addresses_are_counted_as_their_modules_do() {
        let maps = "\
55550000-55551000 r--p 00000000 08:01 5 /bin/a b
55551000-55552000 r-xp 00001000 08:01 5 /bin/a b
7f000000-7f001000 rw-p 00000000 00:00 0
00400000-00401000 r-xp 00000000 08:01 6 /bin/fixed
nonsense
";
        let mappings = parse_maps(maps, |module| module == "/bin/fixed");
        let told: Vec<(u64, bool, u64)> =
            mappings.iter().map(|mapping| (mapping.start, mapping.executable, mapping.bias)).collect();
        assert_eq!(
            told,
            [(0x5555_0000, false, 0x5555_0000), (0x5555_1000, true, 0x5555_0000), (0x40_0000, true, 0)]
        );
        assert_eq!(mappings[0].module, "/bin/a b");
    }

    #[test]
    fn a_process_that_is_gone_is_told_so() {
        assert_eq!(gather(i32::MAX, None), [format!("/proc has no information on process {}", i32::MAX)]);
    }

    #[test]
    fn each_thread_has_its_line() {
        let pid = std::process::id() as i32;
        let before = Shares::of(pid);
        let lines = gather(pid, Some(&before));
        assert!(lines[0].starts_with("in the last ") && lines[0].contains("load "), "{lines:?}");
        assert!(lines.len() > 1 && lines.len() <= THREADS_MAX + 2, "{lines:?}");
        assert!(lines[1].contains("meanwhile it ran "), "{lines:?}");
    }
}
