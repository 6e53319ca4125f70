//! The schedules, and how the environment names them.

/// How chunks are given out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Kind {
    /// Every thread computes its part by itself.
    #[default]
    Static,
    /// A thread that is done takes the next chunk.
    Dynamic,
    /// The same with chunks that shrink towards the loop's end.
    Guided,
    /// The same with chunks that halve from round to round.
    Factoring,
    /// The same with chunks in proportion to the threads' speeds.
    WeightedFactoring,
    /// Threads measure their speeds, and get parts in proportion to them.
    Profiled,
}

impl Kind {
    const ALL: [Kind; 6] =
        [Kind::Static, Kind::Dynamic, Kind::Guided, Kind::Factoring, Kind::WeightedFactoring, Kind::Profiled];

    pub(crate) fn number(self) -> u64 {
        self as u64
    }

    pub(crate) fn from_number(number: u64) -> Kind {
        Kind::ALL.get(number as usize).copied().unwrap_or_default()
    }

    /// Returns true if a loop keeps its threads' speeds from one execution to the next.
    pub fn is_weighted(self) -> bool {
        matches!(self, Kind::WeightedFactoring | Kind::Profiled)
    }
}

/// A schedule as a user gives it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Given {
    /// How chunks are given out; `None` for `auto`.
    pub kind: Option<Kind>,
    /// The length of chunks, 0 where none was given.
    pub chunk: u32,
    /// Threads never go back in a loop.
    pub is_monotonic: bool,
    /// How many iterations each thread times (`profiled`), 0 where no number was given.
    pub evaluated: u32,
    /// How many iterations each thread runs before.
    pub skipped: u32,
}

const EXPECTED: &str = "static, dynamic, guided, auto, factoring, awf or profiled, perhaps with ',CHUNK' \
                        (profiled: ',CHUNK,EVAL_SIZE,EVAL_SKIP')";

/// Parses the value of `OMP_SCHEDULE`. An error says what was expected.
pub fn parse(text: &str) -> Result<Given, &'static str> {
    let lower = text.to_ascii_lowercase();
    let plain = match lower.split_once(':') {
        Some((modifier, rest)) if matches!(modifier.trim(), "monotonic" | "nonmonotonic") => rest,
        Some(_) => return Err("monotonic or nonmonotonic before the colon"),
        None => lower.as_str(),
    };
    let mut parts = plain.split(',').map(str::trim);
    let (kind, numbers) = match parts.next().unwrap_or_default() {
        "static" => (Some(Kind::Static), 1),
        "dynamic" => (Some(Kind::Dynamic), 1),
        "guided" => (Some(Kind::Guided), 1),
        "auto" => (None, 1),
        "factoring" => (Some(Kind::Factoring), 1),
        "awf" => (Some(Kind::WeightedFactoring), 1),
        "profiled" => (Some(Kind::Profiled), 3),
        _ => return Err(EXPECTED),
    };
    let is_monotonic = lower.trim_start().starts_with("monotonic");
    let mut given = Given { kind, is_monotonic, ..Given::default() };
    let places = [&mut given.chunk, &mut given.evaluated, &mut given.skipped];
    for (place, part) in places.into_iter().take(numbers).zip(&mut parts) {
        // As the numbers of the program's own types: an int.
        let number = part.parse::<i32>().ok().and_then(|number| u32::try_from(number).ok());
        *place = number.ok_or("a number of iterations after each comma")?;
    }
    if parts.next().is_some() {
        return Err(if numbers == 1 { "one number at most" } else { "three numbers at most" });
    }
    if matches!(kind, Some(Kind::Dynamic | Kind::Guided | Kind::Factoring | Kind::WeightedFactoring)) {
        given.chunk = given.chunk.max(1);
    }
    Ok(given)
}
