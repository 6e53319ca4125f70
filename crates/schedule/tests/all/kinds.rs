//! How the environment names schedules.

use hiroba_schedule::{Given, Kind, parse};

fn given(kind: Kind, chunk: u32, evaluated: u32, skipped: u32) -> Result<Given, &'static str> {
    Ok(Given { kind: Some(kind), chunk, is_monotonic: false, evaluated, skipped })
}

#[test]
fn schedules_are_parsed() {
    assert_eq!(parse("static"), given(Kind::Static, 0, 0, 0));
    assert_eq!(parse("Static , 7"), given(Kind::Static, 7, 0, 0));
    let monotonic = given(Kind::Dynamic, 1, 0, 0).map(|given| Given { is_monotonic: true, ..given });
    assert_eq!(parse("monotonic:dynamic"), monotonic);
    assert_eq!(parse("nonmonotonic:dynamic"), given(Kind::Dynamic, 1, 0, 0));
    assert_eq!(parse("guided,0"), given(Kind::Guided, 1, 0, 0));
    assert_eq!(parse("auto"), Ok(Given::default()));
    assert_eq!(parse("FACTORING"), given(Kind::Factoring, 1, 0, 0));
    assert_eq!(parse("awf,4"), given(Kind::WeightedFactoring, 4, 0, 0));
    assert_eq!(parse("profiled"), given(Kind::Profiled, 0, 0, 0));
    assert_eq!(parse("profiled,0,5"), given(Kind::Profiled, 0, 5, 0));
    assert_eq!(parse("profiled, 16, 5, 3"), given(Kind::Profiled, 16, 5, 3));
}

#[test]
fn malformed_schedules_have_a_reason() {
    let reasons = [
        ("profile", "static, dynamic, guided, auto, factoring, awf or profiled"),
        ("", "static, dynamic"),
        ("always:static", "monotonic or nonmonotonic"),
        ("dynamic,", "a number of iterations"),
        ("dynamic,x", "a number of iterations"),
        ("static,-1", "a number of iterations"),
        ("guided,1,2", "one number at most"),
        ("profiled,1,2,3,4", "three numbers at most"),
        ("profiled,1,,3", "a number of iterations"),
        ("profiled,2147483648", "a number of iterations"),
    ];
    for (text, reason) in reasons {
        let refused = parse(text).expect_err(text);
        assert!(refused.contains(reason), "{text}: {refused}");
    }
}
