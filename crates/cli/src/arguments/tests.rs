use hiroba_base::PageSize;
use hiroba_wire::control::{FaultSourceChoice, InjectedFaults, WriteTrackingChoice};

use super::*;

fn parsed(line: &str) -> Result<Command, Failure> {
    parse(std::iter::once("hiroba").chain(line.split(' ')).map(OsString::from))
}

fn run(line: &str) -> RunOptions {
    match parsed(line) {
        Ok(Command::Run(options)) => *options,
        other => panic!("expected a run, got {other:?}"),
    }
}

#[test]
fn what_follows_the_program_is_the_programs() {
    let options = run("run -n 3 prog -n 5 --stats --no-such -- x");
    assert_eq!((options.nodes, options.reports.statistics_table), (3, false));
    assert_eq!(options.program, "prog");
    assert_eq!(options.arguments, ["-n", "5", "--stats", "--no-such", "--", "x"]);
    assert!(parsed("run --no-such prog").is_err(), "but what stands before it is Hiroba's");
    let options = run("run -n3 -- -odd-name -n 5");
    assert_eq!(options.program, "-odd-name");
    assert_eq!(options.arguments, ["-n", "5"]);
}

#[test]
fn stats_never_eats_the_program() {
    let options = run("run --stats --stats=json:a.json prog");
    assert!(options.reports.statistics_table);
    assert_eq!(options.reports.statistics_json, Some(PathBuf::from("a.json")));
    assert_eq!(options.program, "prog");
}

#[test]
fn a_run_without_flags_has_sensible_defaults() {
    let options = run("run prog");
    assert!(options.nodes >= 2);
    assert_eq!((options.coherence.protocol.as_str(), options.transport.fabric.name()), ("adaptive", "udp"));
    assert_eq!(options.coherence.page_size, PageSize::KIB_4);
    assert_eq!(options.threads_per_node, 1);
    assert_eq!(options.coherence.fault_source, FaultSourceChoice::Automatic);
    assert_eq!(options.coherence.write_tracking, WriteTrackingChoice::Automatic);
    assert_eq!((options.coherence.races, options.debug), (false, None));
    assert_eq!(options.transport.inject, None);
    for asked in ["--races", "--home-migration faults"] {
        assert_eq!(run(&format!("run {asked} prog")).coherence.protocol, "hlrc", "{asked}");
    }
}

#[test]
fn values_are_understood() {
    let options = run("run --inject loss=0.1,dup=0.25,seed=7 -x A=1=2 -x B= -x C --page-size 4096 prog");
    let faults = InjectedFaults { loss: 0.1, reorder: 0.0, duplicate: 0.25, seed: 7 };
    assert_eq!(options.transport.inject, Some(faults));
    assert_eq!(options.variables, [("A".into(), "1=2".into()), ("B".into(), "".into())]);
    let options = run("run -n 3 -t 4 --page-size 64K --write-tracking fault --races --debug 2 prog");
    assert_eq!((options.threads_per_node, options.coherence.page_size.bytes()), (4, 64 << 10));
    assert_eq!(options.coherence.write_tracking, WriteTrackingChoice::Fault);
    assert_eq!((options.coherence.races, options.debug), (true, Some(2)));
}

#[test]
fn more_threads_a_node_make_fewer_nodes() {
    assert_eq!(run("run -t 256 prog").nodes, 2);
    assert!(default_nodes(1) >= default_nodes(2));
}

#[test]
fn what_is_measured_is_known_and_in_order() {
    let bench = |line: &str| match parsed(line) {
        Ok(Command::Bench(options)) => options.groups,
        other => panic!("expected a measurement, got {other:?}"),
    };
    assert_eq!(bench("bench"), Group::ALL);
    assert_eq!(bench("bench lock all"), Group::ALL);
    assert_eq!(bench("bench diff --quick fault diff"), [Group::Fault, Group::Diff]);
    assert!(parsed("bench tea").is_err_and(|failure| failure.sentence.contains("barrier")));
}

#[test]
fn homes_move_only_where_they_can() {
    let run = |line: &str| match parsed(line) {
        Ok(Command::Run(options)) => Ok(options.coherence.home_migration),
        Ok(other) => panic!("{other:?}"),
        Err(failure) => Err(failure.sentence),
    };
    assert_eq!(run("run true").as_deref(), Ok("off"));
    assert_eq!(run("run --protocol erc-update --home-migration faults true").as_deref(), Ok("faults"));
    assert_eq!(run("run --home-migration modification true").as_deref(), Ok("modification"));
    assert_eq!(run("run --protocol aurc --home-migration modification true").as_deref(), Ok("modification"));
    for protocol in ["lrc", "sc", "adaptive"] {
        let refused = run(&format!("run --protocol {protocol} --home-migration faults true"));
        assert!(refused.is_err_and(|sentence| sentence.contains("erc-update") && sentence.contains("aurc")));
    }
    let unknown = run("run --protocol erc-update --home-migration often true");
    assert!(unknown.is_err_and(|sentence| sentence.contains("modification")));
}

#[test]
fn sizes_are_bytes_or_powers_of_two() {
    assert_eq!(parse_size("4096"), Some(4096));
    assert_eq!(parse_size("4k"), Some(4096));
    assert_eq!(parse_size("2M"), Some(2 << 20));
    for wrong in ["", "K", "4KB", "-4K", "99999999999T", "é"] {
        assert_eq!(parse_size(wrong), None, "{wrong}");
    }
}
