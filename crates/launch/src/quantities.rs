//! Formats quantities for people: three or four digits and a unit.

/// Formats seconds in at most seven characters, to a millisecond where that is significant.
pub fn seconds(value: f64) -> String {
    if value >= 1e6 {
        return scaled(value, 1000.0, &["", "k", "M", "G", "T"]);
    }
    let decimals = match value.abs() {
        small if small < 100.0 => 3,
        middle if middle < 10_000.0 => 1,
        _ => 0,
    };
    format!("{value:.decimals$}")
}

/// Formats a time in at most eight characters: 1.23 µs, 45.6 ms, 7 s, 2.5 h.
pub fn duration(value_s: f64) -> String {
    match value_s {
        nothing if nothing <= 0.0 => "0 s".to_owned(),
        short if short < 999.5e-6 => scaled(short * 1e6, f64::INFINITY, &[" µs"]),
        middle if middle < 999.5e-3 => scaled(middle * 1e3, f64::INFINITY, &[" ms"]),
        long if long < 9999.5 => scaled(long, f64::INFINITY, &[" s"]),
        _ => scaled(value_s / 3600.0, 1000.0, &[" h", " kh", " Mh", " Gh"]),
    }
}

/// Formats a count in at most six characters: 9999, 12.3k, 4.56M.
pub fn thousands(value: u64) -> String {
    if value < 10_000 {
        value.to_string()
    } else {
        scaled(value as f64, 1000.0, &["", "k", "M", "G", "T", "P", "E"])
    }
}

/// Formats a number of things with the right plural: "1 copy", "2 copies".
pub fn counted(number: &str, one: &str, many: &str) -> String {
    format!("{number} {}", if number == "1" { one } else { many })
}

/// Formats bytes in at most eight characters: 512 B, 1.5 KiB, 23.4 MiB.
pub fn bytes(value: u64) -> String {
    if value < 1024 {
        return format!("{value} B");
    }
    let units = [" B", " KiB", " MiB", " GiB", " TiB", " PiB", " EiB"];
    scaled(value as f64, 1024.0, &units)
}

/// Formats a value with three significant digits and a unit.
fn scaled(mut value: f64, step: f64, units: &[&str]) -> String {
    let mut unit = 0;
    // A value that would be shown as 1000 takes the next unit.
    while value >= 999.5 && unit + 1 < units.len() {
        value /= step;
        unit += 1;
    }
    let decimals = match value {
        small if small < 9.995 => 2,
        middle if middle < 99.95 => 1,
        _ => 0,
    };
    let digits = format!("{value:.decimals$}");
    let digits =
        if digits.contains('.') { digits.trim_end_matches('0').trim_end_matches('.') } else { &digits };
    format!("{digits}{}", units[unit])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_short() {
        assert_eq!(thousands(9999), "9999");
        assert_eq!(thousands(12_345), "12.3k");
        assert_eq!(thousands(999_999), "1M");
        assert_eq!(counted("1", "copy", "copies"), "1 copy");
        assert_eq!(counted("0", "copy", "copies"), "0 copies");
        assert_eq!(bytes(4096), "4 KiB");
        assert_eq!(bytes(1000), "1000 B");
        assert_eq!(bytes(1_048_575), "1 MiB");
        assert_eq!(duration(12.34e-6), "12.3 µs");
        assert_eq!(duration(0.9996), "1 s");
        assert_eq!(duration(0.674), "674 ms");
        assert_eq!(duration(1234.5), "1234 s");
        assert_eq!(duration(36_000.0), "10 h");
        assert_eq!(duration(0.0), "0 s");
        assert_eq!(seconds(1.23456), "1.235");
        assert_eq!(seconds(123.456), "123.5");
    }
}
