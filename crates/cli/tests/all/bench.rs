//! `hiroba bench`: its rows and their JSON. Speed is not asserted, only that something was measured.

use serde_json::Value;

use crate::support::{call, eventually, finish, hiroba, mark, processes_marked, shell, start};

fn rows(arguments: &[&str]) -> Vec<Value> {
    let directory = tempfile::tempdir().unwrap();
    let json = directory.path().join("rows.json");
    let mut line = vec!["bench", "--quick", "--json", json.to_str().unwrap()];
    line.extend(arguments);
    let called = call(&line);
    assert_eq!(called.status, 0, "{called:?}");
    assert!(called.stderr.lines().all(|line| line.starts_with("hiroba: measuring: ")), "{called:?}");
    let wide = called.stdout.lines().find(|line| line.chars().count() > 80);
    assert_eq!(wide, None, "{called:?}");
    assert!(called.stdout.starts_with("hiroba bench: "), "{called:?}");
    let rows: Value = serde_json::from_str(&std::fs::read_to_string(&json).unwrap()).unwrap();
    for row in rows.as_array().unwrap() {
        assert!(called.stdout.contains(row["name"].as_str().unwrap()), "{row} is not in the table");
    }
    rows.as_array().unwrap().clone()
}

#[test]
fn rows_have_the_contracts_fields() {
    let rows = rows(&["barrier", "atomic", "fault"]);
    assert!(rows.len() >= 8, "{rows:?}");
    for row in &rows {
        let number = |key: &str| row[key].as_f64();
        assert!(row["name"].is_string() && row["fabric"].is_string() && row["state"].is_string(), "{row}");
        assert!(number("p50_us").is_some_and(|us| us > 0.0), "{row}");
        assert!(number("p99_us") >= number("p50_us"), "{row}");
        assert!(number("repetitions").is_some_and(|times| times >= 10.0), "{row}");
        let related = row["raw_us"].is_null() == row["ratio"].is_null();
        assert!(related, "a ratio needs two numbers: {row}");
        if row["fabric"] == "udp" {
            assert!(number("raw_us").is_some_and(|us| us > 0.0), "what travels is compared: {row}");
        }
    }
    let named = |name: &str| rows.iter().filter(|row| row["name"] == name).count();
    assert_eq!((named("barrier"), named("fetch and add"), named("read fault, page fetched")), (2, 2, 3));
    let seal = rows.iter().find(|row| row["name"] == "raw exchange, sealed as the fabric does").unwrap();
    let fetch =
        rows.iter().find(|row| row["state"].as_str().unwrap().contains("fresh frame, home idle")).unwrap();
    assert_eq!(seal["p50_us"], fetch["raw_us"], "a fetch is held against the exchange sealed alike");
}

#[test]
fn other_fabrics_have_rows_of_their_own() {
    for row in rows(&["--fabric", "tcp", "-n", "3", "fault", "lock", "stream"]) {
        let number = |key: &str| row[key].as_f64();
        if row["fabric"] != "" {
            assert_eq!(row["fabric"], "tcp", "{row}");
            assert!(number("ratio").is_some_and(|ratio| ratio > 0.0), "{row}");
        }
        if row.get("p50_us").is_some() && row["fabric"] != "" {
            assert!(number("raw_p99_us") >= number("raw_us") && number("ratio_p99").is_some(), "{row}");
        }
    }
}

#[test]
fn rows_come_as_they_are_measured() {
    let called = finish(start(&mut shell("$H bench --quick barrier atomic 2>&1")));
    assert_eq!(called.status, 0, "{called:?}");
    let order = [
        "hiroba bench: 2 nodes on ",
        "hiroba: measuring: barrier\n",
        "p50",
        "  2 nodes, nothing written ",
        "hiroba: measuring: atomic\n",
        "  at another node ",
    ];
    let found: Vec<_> = order.iter().map(|part| called.stdout.find(part)).collect();
    assert!(found.iter().all(Option::is_some) && found.is_sorted(), "{found:?}\n{}", called.stdout);
}

#[test]
fn markdown_has_a_table_for_each_kind_of_figure() {
    let called = call(&["bench", "--quick", "--markdown", "--fabric", "shm", "barrier", "stream"]);
    assert_eq!(called.status, 0, "{called:?}");
    let heading = called.stdout.lines().next().unwrap();
    for part in ["cores, Linux ", "2 nodes over shm, fault source ", ", write tracking "] {
        assert!(heading.contains(part), "{heading}");
    }
    let heads: Vec<&str> = called.stdout.lines().filter(|line| line.starts_with("| what |")).collect();
    assert_eq!(heads.len(), 2, "{called:?}");
    assert!(heads[0].contains("| p50 µs |") && heads[1].contains("| GB/s |"), "{heads:?}");
    for table in called.stdout.split("\n\n").filter(|part| part.starts_with('|')) {
        let columns: Vec<usize> = table.lines().map(|line| line.matches('|').count()).collect();
        assert!(columns.iter().all(|count| *count == columns[0]), "{table}");
    }
}

#[test]
fn a_c_program_measures_what_the_nodes_do() {
    let rows = rows(&["program"]);
    let named = |word: &str| rows.iter().filter(|row| row["name"].as_str().unwrap().contains(word)).count();
    assert_eq!((named("barrier"), named("page fetched"), named("lock")), (1, 1, 1), "{rows:?}");
    assert!(rows.iter().all(|row| row["p50_us"].as_f64().is_some_and(|us| us > 0.0)), "{rows:?}");
    assert!(rows.iter().all(|row| row["repetitions"] == 500 && row["core_share"].is_f64()), "{rows:?}");
}

#[test]
fn without_a_compiler_the_c_program_is_left_out() {
    let called =
        finish(start(hiroba(&["bench", "--quick", "program"]).env("HIROBA_CC", "/no/such/compiler")));
    assert_eq!(called.status, 0, "{called:?}");
    assert!(called.stdout.contains("no C program was measured"), "{called:?}");
    let called = call(&["bench", "--quick", "--without-seal", "program"]);
    assert!(
        called.status == 0 && called.stdout.contains("messages of programs are always encrypted"),
        "{called:?}"
    );
}

#[test]
fn any_number_of_nodes_takes_part() {
    let rows = rows(&["-n", "4", "lock", "barrier"]);
    assert!(rows.iter().any(|row| row["state"] == "4 nodes, nothing written"), "{rows:?}");
}

#[test]
fn one_node_and_the_comparison_of_pages_need_no_job_of_several() {
    let rows = rows(&["compute", "diff"]);
    let (compared, alone): (Vec<_>, Vec<_>) =
        rows.iter().partition(|row| row["ratio"].as_f64().is_some_and(|ratio| ratio > 0.0));
    assert_eq!(compared.len(), 4, "{rows:?}");
    // The way of a diff has no plain counterpart: five patterns, each in two parts and as a whole.
    assert_eq!(alone.len(), 15, "{rows:?}");
    assert!(alone.iter().all(|row| row["p50_us"].as_f64().is_some_and(|us| us > 0.0)), "{rows:?}");
}

#[test]
fn bandwidths_are_rows_of_their_own_kind() {
    for row in rows(&["stream"]) {
        let rate = |key: &str| row[key].as_f64().unwrap_or_default();
        assert!(rate("gb_per_s") > 0.0 && rate("raw_gb_per_s") > 0.0 && rate("ratio") > 0.0, "{row}");
        assert!(row.get("p50_us").is_none(), "{row}");
    }
}

#[test]
fn the_stages_of_a_message_add_up_to_its_time() {
    for fabric in ["shm", "udp", "tcp"] {
        let rows = rows(&["--fabric", fabric, "stages"]);
        let mean = |state: &str| {
            let row = rows.iter().find(|row| row["state"] == state).unwrap_or_else(|| panic!("no {state}"));
            assert!(row["repetitions"].as_u64().is_some_and(|messages| messages >= 100), "{row}");
            row["mean_us"].as_f64().expect("a number")
        };
        let whole = mean("whole, from call to return");
        let is_stage = |row: &&Value| !matches!(row["state"].as_str(), Some(state) if state.starts_with("whole") || state.starts_with("half"));
        let stages: Vec<f64> =
            rows.iter().filter(is_stage).map(|row| row["mean_us"].as_f64().expect("a number")).collect();
        assert!(stages.len() >= 10 && stages.iter().all(|us| *us >= 0.0), "{rows:?}");
        let sum: f64 = stages.iter().sum();
        assert!((sum - whole).abs() < 1e-6 * whole, "{sum} is not {whole}: {rows:?}");
        for stage in ["sender: publish", "sender: engine", "sender: queue", "under way"] {
            mean(stage);
        }
        for stage in
            ["receiver: link", "receiver: engine", "receiver: wake", "receiver: leave", "time stamps"]
        {
            mean(stage);
        }
        let is_sealed = rows.iter().any(|row| row["state"] == "sender: seal");
        assert_eq!(is_sealed, fabric != "shm", "{rows:?}");
        mean("half a round trip without time stamps");
    }
}

#[test]
fn a_measurement_that_is_killed_takes_its_job_with_it() {
    let mark = mark("bench-killed");
    let mut child = start(hiroba(&["bench", "lock"]).env("HIROBA_TEST_MARK", &mark));
    eventually("its job runs", || processes_marked(&mark) >= 1 + 2 + 2);
    child.kill().unwrap();
    finish(child);
    eventually("all processes are gone", || processes_marked(&mark) == 0);
}

#[test]
fn a_node_of_a_measurement_wants_its_plan() {
    call(&["bench-node", "tea"]).says(125, "expected the plan of a measurement, got 'tea'");
}

#[test]
fn what_the_seal_costs_is_measured_without_it() {
    for fabric in ["udp", "tcp"] {
        let rows = rows(&["--without-seal", "--fabric", fabric, "barrier", "stream"]);
        for row in &rows {
            assert!(row["state"].as_str().unwrap().ends_with(", without seal"), "{row}");
            assert!(row["ratio"].as_f64().is_some_and(|ratio| ratio > 0.0), "{row}");
        }
        assert!(rows.len() >= 8, "{rows:?}");
    }
    call(&["bench", "--without-seal", "--fabric", "shm"]).says(125, "nothing is encrypted over shm");
}

#[test]
fn no_program_runs_without_seals() {
    call(&["run", "--without-seal", "true"]).says(125, "--without-seal");
    let directory = tempfile::tempdir().unwrap();
    let trace = directory.path().join("ran");
    let plan = r#""plan":{"groups":["barrier"],"quick":true,"fabric":"udp","setting":""}"#;
    let job = |arguments: &str| format!(r#"{{"arguments":[{arguments}],{plan}}}"#);
    // Whatever program is named, the nodes are the command itself.
    let named = job(&format!(r#""-n","2","--","touch","{}""#, trace.display()));
    let called = call(&["bench-job", &named]);
    assert_eq!(called.status, 0, "{called:?}");
    assert!(called.stdout.contains("barrier") && !trace.exists(), "{called:?}");
    for elsewhere in [r#""--hosts","/dev/null""#, r#""-x","LD_PRELOAD=x.so""#] {
        call(&["bench-job", &job(elsewhere)]).says(125, "runs only Hiroba's own code");
    }
    call(&["bench-job", "tea"]).says(125, "expected the plan of a measurement, got 'tea'");
}
