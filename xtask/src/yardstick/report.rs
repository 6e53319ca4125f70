//! The tables and the JSON of the measurements.

use serde_json::{Value, json};

use super::figures::{FormRuns, Program, Run, Spread, geometric_mean};

/// A node that got less of a core than this was disturbed.
const CORE_SHARE_MIN: f64 = 0.9;

/// Formats two tables: ratios, and the costs of the forms. Programs by columns are below the mean.
pub fn tables(programs: &[Program], markdown: bool) -> String {
    let mut text = table(&ratios(programs), 1, markdown);
    text +=
        "\nratio: seconds on threads over seconds on nodes, the median of the rounds (least-greatest)\n\n";
    text += &table(&traffic(programs), 2, markdown);
    text += "\nmedians; messages, MB and faults of all nodes in the whole run, \
             initialisation and checks included\n";
    let runs = || programs.iter().flat_map(|program| &program.forms).flat_map(|form| &form.runs);
    let disturbed = runs().filter(|run| run.core_share.is_some_and(|share| share < CORE_SHARE_MIN)).count();
    if disturbed > 0 {
        text += &format!(
            "\na busy machine: in {disturbed} of {} runs on nodes \
             a node got less than {CORE_SHARE_MIN} of a core\n",
            runs().count()
        );
    }
    text
}

/// Separates the programs that count for the mean from the others.
fn apart(programs: &[Program]) -> [Vec<&Program>; 2] {
    let (columns, others) = programs.iter().partition(|program| program.is_by_columns());
    [others, columns]
}

fn ratios(programs: &[Program]) -> Vec<Vec<String>> {
    let row = |program: &&Program| {
        let threads = Spread::of(program.threads.iter().map(|run| run.seconds));
        let mut row = vec![program.name.clone(), threads.map_or("-".into(), |s| format!("{:.3}", s.median))];
        row.extend(program.forms.iter().map(|form| match program.ratios(form) {
            Some(ratio) => format!("{} ({}-{})", short(ratio.median), short(ratio.min), short(ratio.max)),
            None => "-".into(),
        }));
        row
    };
    let [others, columns] = apart(programs);
    let forms = programs.first().map(|program| program.forms.as_slice()).unwrap_or_default();
    let names = forms.iter().map(|form| form.form.to_string());
    let mut rows = vec![["program", "threads s"].map(String::from).into_iter().chain(names).collect()];
    rows.extend(others.iter().map(row));
    if let Some(means) = means(&others) {
        let told = means.into_iter().map(|mean| mean.map_or("-".into(), short));
        rows.push(["geometric mean".into(), String::new()].into_iter().chain(told).collect());
    }
    rows.extend(columns.iter().map(row));
    rows
}

/// The geometric mean of each form's ratios, over the programs that have one.
fn means(programs: &[&Program]) -> Option<Vec<Option<f64>>> {
    let forms = programs.first()?.forms.len();
    let of = |form: usize| {
        let medians = programs.iter().filter_map(move |p| Some(p.ratios(&p.forms[form])?.median));
        geometric_mean(medians)
    };
    Some((0..forms).map(of).collect())
}

fn traffic(programs: &[Program]) -> Vec<Vec<String>> {
    let head = ["program", "form", "seconds", "init s", "messages", "MB", "faults"];
    let mut rows = vec![head.map(String::from).to_vec()];
    for (program, form) in apart(programs).iter().flatten().flat_map(|p| p.forms.iter().map(move |f| (p, f)))
    {
        let median = |of: fn(&Run) -> f64, digits: usize| {
            Spread::of(form.runs.iter().map(of)).map_or("-".into(), |s| format!("{:.digits$}", s.median))
        };
        rows.push(vec![
            program.name.clone(),
            form.form.to_string(),
            median(|run| run.seconds, 3),
            median(|run| run.init_seconds, 3),
            median(|run| run.messages as f64, 0),
            median(|run| run.bytes as f64 / 1e6, 1),
            median(|run| run.faults as f64, 0),
        ]);
    }
    rows
}

/// Formats a ratio with two decimals, or three if it is small.
pub fn short(ratio: f64) -> String {
    if ratio < 0.1 { format!("{ratio:.3}") } else { format!("{ratio:.2}") }
}

/// Formats a table whose first row is the head. The first `names` columns are flush left, the others right.
pub fn table(rows: &[Vec<String>], names: usize, markdown: bool) -> String {
    let width =
        |column: usize| rows.iter().filter_map(|row| row.get(column)).map(|cell| cell.chars().count()).max();
    let mut text = String::new();
    for (index, row) in rows.iter().enumerate() {
        let cells = row.iter().enumerate().map(|(column, cell)| match (column, width(column).unwrap_or(0)) {
            (column, width) if column < names => format!("{cell:<width$}"),
            (_, width) => format!("{cell:>width$}"),
        });
        let cells: Vec<String> = cells.collect();
        match markdown {
            true => text += &format!("| {} |\n", cells.join(" | ")),
            false => text += &format!("{}\n", cells.join("  ").trim_end()),
        }
        if markdown && index == 0 {
            let rules = (0..row.len()).map(|column| if column < names { "---" } else { "---:" });
            text += &format!("|{}|\n", rules.collect::<Vec<_>>().join("|"));
        }
    }
    text
}

/// Returns all figures, round by round, as JSON.
pub fn json(settings: &Value, programs: &[Program]) -> Value {
    let run = |run: &Run| {
        json!({
            "seconds": run.seconds, "init_seconds": run.init_seconds, "checksum": run.checksum,
            "messages": run.messages, "bytes": run.bytes, "faults": run.faults, "core_share": run.core_share,
        })
    };
    let thread_run = |run: &Run| {
        let Run { seconds, init_seconds, checksum, .. } = run;
        json!({"seconds": seconds, "init_seconds": init_seconds, "checksum": checksum})
    };
    let form = |program: &Program, form: &FormRuns| {
        let ratio = program.ratios(form).map(|r| json!({"median": r.median, "min": r.min, "max": r.max}));
        json!({
            "fabric": form.form.fabric, "protocol": form.form.protocol, "skipped": form.is_skipped,
            "ratio": ratio, "runs": form.runs.iter().map(run).collect::<Vec<_>>(),
        })
    };
    let told = programs.iter().map(|program| {
        json!({
            "program": program.name,
            "threads": program.threads.iter().map(thread_run).collect::<Vec<_>>(),
            "forms": program.forms.iter().map(|of| form(program, of)).collect::<Vec<_>>(),
        })
    });
    let [others, _] = apart(programs);
    json!({
        "settings": settings,
        "programs": told.collect::<Vec<_>>(),
        "geometric_means": means(&others),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::yardstick::figures::Form;

    fn measured() -> Vec<Program> {
        let forms = || {
            ["default", "sc"]
                .map(|protocol| Form { fabric: "udp".into(), protocol: protocol.into() })
                .to_vec()
        };
        let run = |seconds, bytes| Run { seconds, bytes, messages: 10, faults: 4, ..Run::default() };
        let mut sor = Program::new("sor", forms());
        sor.threads = vec![run(1.0, 0)];
        sor.forms[0].runs = vec![run(2.0, 1_500_000)];
        sor.forms[1].is_skipped = true;
        let mut columns = Program::new("sor-columns", forms());
        columns.threads = vec![run(1.0, 0)];
        columns.forms[0].runs = vec![run(20.0, 0)];
        columns.forms[1].runs = vec![Run { core_share: Some(0.5), ..run(100.0, 0) }];
        vec![columns, sor]
    }

    #[test]
    fn programs_by_columns_stand_below_the_mean() {
        let text = tables(&measured(), false);
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(
            lines[..4],
            [
                "program         threads s          udp default               udp sc",
                "sor                 1.000     0.50 (0.50-0.50)                    -",
                "geometric mean                            0.50                    -",
                "sor-columns         1.000  0.050 (0.050-0.050)  0.010 (0.010-0.010)",
            ]
        );
        for line in [
            "program      form         seconds  init s  messages   MB  faults",
            "sor          udp default    2.000   0.000        10  1.5       4",
            "sor          udp sc             -       -         -    -       -",
        ] {
            assert!(lines.contains(&line), "{text}");
        }
        assert!(text.contains("in 1 of 3 runs on nodes a node got less than 0.9 of a core"), "{text}");
    }

    #[test]
    fn markdown_has_a_rule_below_the_head() {
        let text = tables(&measured(), true);
        let lines: Vec<&str> = text.lines().collect();
        assert!(lines[0].starts_with("| program "), "{text}");
        assert_eq!(lines[1], "|---|---:|---:|---:|");
    }

    #[test]
    fn the_json_has_every_run() {
        let told = json(&json!({"nodes": 2}), &measured());
        assert_eq!(told["settings"]["nodes"], 2);
        assert_eq!(told["programs"][1]["forms"][0]["runs"][0]["bytes"], 1_500_000);
        assert_eq!(told["programs"][1]["forms"][0]["ratio"]["median"], 0.5);
        assert_eq!(told["programs"][1]["forms"][1]["skipped"], true);
        assert_eq!(told["geometric_means"], json!([0.5, null]));
    }
}
