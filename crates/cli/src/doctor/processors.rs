//! Examines processors: how many there are, how deeply they sleep, and which threads run first.

use std::fs::OpenOptions;

use super::{Finding, kernel_file};
use hiroba_launch::failure::system_words;
use hiroba_launch::run::processors::LATENCY_FILE;

pub(super) fn examine() -> Vec<Finding> {
    vec![count(), idle_states(), latency_wish(), priority(), comparison(), governor()]
}

fn count() -> Finding {
    match std::thread::available_parallelism().map_or(1, |cores| cores.get()) {
        1 => Finding::lacking(
            "usable processors",
            "1",
            "nodes take turns: nothing runs faster than on one node, and every exchange costs changes of process",
            "run on a machine with more, or lift the restriction (taskset, the container's cpus)",
        ),
        several => Finding::good("usable processors", several.to_string()),
    }
}

fn idle_states() -> Finding {
    let driver = kernel_file("/sys/devices/system/cpu/cpuidle/current_driver");
    let deepest = (0..)
        .map_while(|state| kernel_file(&format!("/sys/devices/system/cpu/cpu0/cpuidle/state{state}/name")))
        .last();
    let found = match (driver.filter(|driver| driver != "none"), deepest) {
        (Some(driver), Some(deepest)) => format!("driver {driver}, deepest state {deepest}"),
        (Some(driver), None) => format!("driver {driver}"),
        _ => "not reported by this kernel".to_owned(),
    };
    Finding::good("idle states", found)
}

fn latency_wish() -> Finding {
    match OpenOptions::new().write(true).open(LATENCY_FILE) {
        Ok(_) => Finding::good("low latency", format!("jobs may use {LATENCY_FILE}")),
        Err(error) => Finding::lacking(
            "low latency",
            format!("{LATENCY_FILE}: {}", system_words(&error)),
            "waking a processor that sleeps costs up to ten times as much (5 against 50 us)",
            format!("run as root, or 'chmod a+w {LATENCY_FILE}'"),
        ),
    }
}

/// Tries real-time priority on a thread of its own, so that this one is unchanged.
fn priority() -> Finding {
    let allowed = std::thread::spawn(hiroba_node::may_run_first).join().unwrap_or(false);
    if allowed {
        return Finding::good("service thread", "may run before ordinary threads");
    }
    Finding::lacking(
        "service thread",
        "may not run before ordinary threads",
        "a node that computes now and then answers after milliseconds instead of microseconds",
        "run as root, give the launcher CAP_SYS_NICE, or set 'rtprio 1' for this user in /etc/security/limits.conf",
    )
}

fn comparison() -> Finding {
    let variant = hiroba_memory::compare::Variant::best();
    Finding::good("page comparison", format!("{variant:?}").to_lowercase())
}

fn governor() -> Finding {
    match kernel_file("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor") {
        Some(governor) if governor == "powersave" => Finding::lacking(
            "frequency governor",
            governor,
            "processors that wait often run slowly",
            "'cpupower frequency-set -g performance'",
        ),
        Some(governor) => Finding::good("frequency governor", governor),
        None => Finding::good("frequency governor", "none (a virtual machine, or fixed)"),
    }
}
