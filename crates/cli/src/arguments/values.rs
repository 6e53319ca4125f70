//! Values of flags: checks each one, and describes what is wrong with it in a sentence.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use hiroba_base::{MAX_NODES, PageSize};
use hiroba_node::{HomePolicy, Homes, Protocol};
use hiroba_wire::FabricKind;
use hiroba_wire::control::{FaultSourceChoice, InjectedFaults, WriteTrackingChoice};

use hiroba_launch::failure::Failure;

pub(super) fn check_protocol(given: &str) -> Result<Protocol, Failure> {
    let names = Protocol::ALL.map(Protocol::name);
    let name = check_choice("protocol", given.to_owned(), &names, &[])?;
    Ok(Protocol::named(&name).expect("a name that was checked"))
}

pub(super) fn check_home_migration(given: &str, protocol: Protocol) -> Result<String, Failure> {
    let names = HomePolicy::ALL.map(HomePolicy::name);
    let policy = check_choice("home-migration", given.to_owned(), &names, &[])?;
    if policy != HomePolicy::Fixed.name() && protocol.homes() != Homes::AsToldTo {
        let movable = Protocol::ALL.into_iter().filter(|protocol| protocol.homes() == Homes::AsToldTo);
        let movable: Vec<&str> = movable.map(Protocol::name).collect();
        return Err(Failure::new(format!(
            "--home-migration {policy} does not apply to --protocol {}; use --protocol {}, or leave --home-migration out",
            protocol.name(),
            movable.join(" or ")
        )));
    }
    Ok(policy)
}

/// Returns why no page can be evicted under these options.
pub(super) fn why_no_page_leaves(protocol: Protocol, races: bool, nodes_max: u16) -> Option<&'static str> {
    if nodes_max == 1 {
        return Some(
            "--memory-limit, --swap and --lend evict pages of other nodes, to a disk or to other nodes, and this job has one node; use -n 2 or more, or leave them out",
        );
    }
    if !protocol.gives_up_pages() {
        return Some(
            "--memory-limit, --swap and --lend have pages leave under --protocol hlrc or adaptive; leave them out, or the other protocol",
        );
    }
    races.then_some(
        "--races keeps every copy that it compares, so none can be evicted; leave out --memory-limit, --swap and --lend, or --races",
    )
}

/// The maximum number of program threads on a node.
pub(super) const THREADS_MAX: u16 = 256;

/// Returns one node for each usable core that its threads need, and at least two: a job of one node shows
/// nothing.
pub(super) fn default_nodes(threads_per_node: u16) -> u16 {
    let cores = std::thread::available_parallelism().map_or(1, |cores| cores.get());
    (cores / usize::from(threads_per_node)).clamp(2, usize::from(MAX_NODES)) as u16
}

pub(super) fn check_nodes(given: &str) -> Result<u16, Failure> {
    match given.parse::<u16>() {
        Ok(nodes) if (1..=MAX_NODES).contains(&nodes) => Ok(nodes),
        _ => Err(Failure::new(format!(
            "expected a number of nodes from 1 to {MAX_NODES} after -n, got '{given}'"
        ))),
    }
}

pub(super) fn check_threads(given: &str) -> Result<u16, Failure> {
    match given.parse::<u16>() {
        Ok(threads) if (1..=THREADS_MAX).contains(&threads) => Ok(threads),
        _ => Err(Failure::new(format!(
            "expected a number of threads per node from 1 to {THREADS_MAX} after -t, got '{given}'"
        ))),
    }
}

pub(super) fn check_debug(given: &str, nodes: u16) -> Result<u16, Failure> {
    match given.parse::<u16>() {
        Ok(node) if node < nodes => Ok(node),
        _ => Err(Failure::new(format!(
            "expected the number of a node from 0 to {} after --debug, got '{given}'",
            nodes - 1
        ))),
    }
}

pub(super) fn check_choice(
    what: &str,
    given: String,
    now: &[&str],
    later: &[&str],
) -> Result<String, Failure> {
    if now.contains(&given.as_str()) {
        return Ok(given);
    }
    let use_instead = now.join(" or ");
    Err(Failure::new(if later.contains(&given.as_str()) {
        format!("the {what} {given} is not available yet; use --{what} {use_instead}")
    } else {
        format!("there is no {what} '{given}'; use --{what} {use_instead}")
    }))
}

pub(super) fn check_fabric(given: String) -> Result<FabricKind, Failure> {
    let name = check_choice("fabric", given, &FabricKind::ALL.map(FabricKind::name), &["ucx"])?;
    Ok(FabricKind::named(&name).expect("a name that was checked"))
}

pub(super) fn check_switch(flag: &str, given: &str) -> Result<bool, Failure> {
    match given {
        "on" => Ok(true),
        "off" => Ok(false),
        other => Err(Failure::new(format!("expected on or off after {flag}, got '{other}'"))),
    }
}

/// The longest silence after which a node can be considered dead: a day.
pub(super) const DEAD_AFTER_MAX: Duration = Duration::from_secs(86_400);

pub(super) fn check_dead_after(given: &str) -> Result<Duration, Failure> {
    let seconds = given.parse::<f64>().ok().and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
    // Shorter times would declare a busy node dead.
    let good = |silence: &Duration| {
        silence.is_zero() || (Duration::from_millis(100)..=DEAD_AFTER_MAX).contains(silence)
    };
    seconds.filter(good).ok_or_else(|| {
        Failure::new(format!(
            "expected seconds from 0.1 to {}, or 0 for never, after --dead-after, got '{given}'",
            DEAD_AFTER_MAX.as_secs()
        ))
    })
}

pub(super) fn check_fault_source(given: Option<&str>) -> Result<FaultSourceChoice, Failure> {
    match given {
        None => Ok(FaultSourceChoice::Automatic),
        Some("event") => Ok(FaultSourceChoice::Event),
        Some("sigbus") => Ok(FaultSourceChoice::Sigbus),
        Some("sigsegv") => Ok(FaultSourceChoice::Sigsegv),
        Some(other) => Err(Failure::new(format!(
            "there is no fault source '{other}'; use --fault-source event, sigbus or sigsegv, or leave it out"
        ))),
    }
}

pub(super) fn check_write_tracking(given: Option<&str>) -> Result<WriteTrackingChoice, Failure> {
    match given {
        None => Ok(WriteTrackingChoice::Automatic),
        Some("async") => Ok(WriteTrackingChoice::Async),
        Some("fault") => Ok(WriteTrackingChoice::Fault),
        Some(other) => Err(Failure::new(format!(
            "there is no write tracking '{other}'; use --write-tracking async or fault, or leave it out"
        ))),
    }
}

pub(super) fn check_page_size(given: &str) -> Result<PageSize, Failure> {
    let bytes = parse_size(given).ok_or_else(|| {
        Failure::new(format!("expected a size such as 4096 or 4K after --page-size, got '{given}'"))
    })?;
    PageSize::new(bytes).map_err(|error| Failure::new(error.to_string()))
}

/// Parses a number of bytes, or of K, M, G or T (powers of two).
pub(super) fn parse_size(given: &str) -> Option<u64> {
    let shift = match given.chars().last()?.to_ascii_uppercase() {
        'K' => 10,
        'M' => 20,
        'G' => 30,
        'T' => 40,
        _ => return given.parse().ok(),
    };
    given[..given.len() - 1].parse::<u64>().ok()?.checked_mul(1 << shift)
}

pub(super) fn check_statistics(given: Vec<OsString>) -> Result<(bool, Option<PathBuf>), Failure> {
    use std::os::unix::ffi::{OsStrExt, OsStringExt};
    let mut table = false;
    let mut json = None;
    for value in given {
        match value.as_bytes() {
            b"" => table = true,
            [b'j', b's', b'o', b'n', b':', file @ ..] if !file.is_empty() => {
                json = Some(PathBuf::from(OsString::from_vec(file.to_vec())));
            }
            _ => {
                let got = value.to_string_lossy();
                return Err(Failure::new(format!(
                    "expected --stats or --stats=json:FILE, got '--stats={got}'"
                )));
            }
        }
    }
    Ok((table, json))
}

pub(super) fn check_variables(given: Vec<OsString>) -> Result<Vec<(OsString, OsString)>, Failure> {
    use std::os::unix::ffi::{OsStrExt, OsStringExt};
    let mut variables = Vec::new();
    for text in given {
        let bytes = text.as_bytes();
        let name_bytes = bytes.iter().position(|byte| *byte == b'=').unwrap_or(bytes.len());
        if name_bytes == 0 {
            let got = text.to_string_lossy();
            return Err(Failure::new(format!("expected VAR or VAR=VALUE after -x, got '{got}'")));
        }
        let name = OsString::from_vec(bytes[..name_bytes].to_vec());
        if name_bytes < bytes.len() {
            variables.push((name, OsString::from_vec(bytes[name_bytes + 1..].to_vec())));
        } else if let Some(value) = std::env::var_os(&name) {
            // Nodes of this machine inherit the variable anyway; those of other machines do not.
            variables.push((name, value));
        }
    }
    Ok(variables)
}

pub(super) fn check_inject(given: &str) -> Result<InjectedFaults, Failure> {
    let wrong = |part: &str| {
        Failure::new(format!(
            "expected loss=P,reorder=P,dup=P,seed=N (P from 0 to below 1) after --inject, got '{part}'"
        ))
    };
    let mut faults = InjectedFaults::default();
    for part in given.split(',') {
        let (name, value) = part.split_once('=').ok_or_else(|| wrong(part))?;
        if name == "seed" {
            faults.seed = value.parse().map_err(|_| wrong(part))?;
            continue;
        }
        // A network that loses every datagram cannot carry a job.
        let probability =
            value.parse::<f64>().ok().filter(|p| (0.0..1.0).contains(p)).ok_or_else(|| wrong(part))?;
        match name {
            "loss" => faults.loss = probability,
            "reorder" => faults.reorder = probability,
            "dup" => faults.duplicate = probability,
            _ => return Err(wrong(part)),
        }
    }
    Ok(faults)
}
