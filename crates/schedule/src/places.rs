//! Places: sets of processors to which threads are bound, as `OMP_PLACES` names them.

use std::collections::BTreeSet;

/// A processor that threads may use, and what it is part of: processors with equal numbers share it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Processor {
    /// The system's number of it.
    pub number: u32,
    /// Its core.
    pub core: u64,
    /// The last level of its caches.
    pub cache: u64,
    /// Its memory.
    pub numa: u64,
    /// Its socket.
    pub socket: u64,
}

/// How threads are spread over places.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Binding {
    /// All where the first one is.
    Primary,
    /// Each at the place behind the one of the thread before.
    Close,
    /// As far from each other as possible.
    Spread,
}

impl Binding {
    /// The place of a thread of `threads`, among `places`.
    pub fn place(self, thread: usize, threads: usize, places: usize) -> usize {
        let (places, threads) = (places.max(1), threads.max(1));
        match self {
            Binding::Primary => 0,
            Binding::Close if threads <= places => thread % places,
            Binding::Close | Binding::Spread => thread % threads * places / threads,
        }
    }
}

/// More of them are a mistake.
const PLACES_MAX: usize = 4096;
const PROCESSORS_MAX: i64 = 8192;

const EXPECTED: &str = "threads, cores, ll_caches, numa_domains or sockets, perhaps with '(NUMBER)', or a list of \
                        places such as {0,1},{2:2} or {0:4}:8:4";
const TOO_MANY: &str = "at most 4096 places, of processors below 8192";
const NOT_ALLOWED: &str = "a processor that this node may use";

/// Returns the places that the text names, of processors that threads may use. An error says what was
/// expected.
pub fn places(text: &str, processors: &[Processor]) -> Result<Vec<Vec<u32>>, &'static str> {
    let text: String = text.chars().filter(|letter| !letter.is_whitespace()).collect();
    let lower = text.to_ascii_lowercase();
    let places = if lower.starts_with(['{', '!']) || lower.starts_with(|letter: char| letter.is_ascii_digit())
    {
        let mut parser = Parser { rest: &lower };
        let places = parser.places()?;
        if parser.rest.is_empty() { places } else { return Err(EXPECTED) }
    } else {
        by_name(&lower, processors)?
    };
    let allowed = |number: &u32| processors.iter().any(|processor| processor.number == *number);
    let places = places.into_iter().map(|place| place.into_iter().filter(allowed).collect::<Vec<u32>>());
    let places: Vec<Vec<u32>> = places.filter(|place| !place.is_empty()).collect();
    if places.is_empty() { Err(NOT_ALLOWED) } else { Ok(places) }
}

/// Numbers of processors of one place.
type Place = BTreeSet<u32>;

fn by_name(text: &str, processors: &[Processor]) -> Result<Vec<Place>, &'static str> {
    let (name, most) = match text.split_once('(') {
        None => (text, usize::MAX),
        Some((name, rest)) => {
            let number = rest.strip_suffix(')').and_then(|number| number.parse::<usize>().ok());
            (name, number.filter(|number| *number > 0).ok_or(EXPECTED)?)
        }
    };
    let part: fn(&Processor) -> u64 = match name {
        "threads" => |processor| u64::from(processor.number),
        "cores" => |processor| processor.core,
        "ll_caches" => |processor| processor.cache,
        "numa_domains" => |processor| processor.numa,
        "sockets" => |processor| processor.socket,
        _ => return Err(EXPECTED),
    };
    let mut places: Vec<(u64, Place)> = Vec::new();
    for processor in processors {
        match places.iter_mut().find(|(known, _)| *known == part(processor)) {
            Some((_, place)) => drop(place.insert(processor.number)),
            None => places.push((part(processor), Place::from([processor.number]))),
        }
    }
    Ok(places.into_iter().map(|(_, place)| place).take(most).collect())
}

/// What is left to read of a list of places.
struct Parser<'a> {
    rest: &'a str,
}

impl Parser<'_> {
    fn takes(&mut self, letter: char) -> bool {
        let rest = self.rest.strip_prefix(letter);
        self.rest = rest.unwrap_or(self.rest);
        rest.is_some()
    }

    fn number(&mut self) -> Result<i64, &'static str> {
        let sign = usize::from(self.rest.starts_with('-'));
        let digits = self.rest[sign..].bytes().take_while(u8::is_ascii_digit).count();
        let (number, rest) = self.rest.split_at(sign + digits);
        self.rest = rest;
        let number = number.parse::<i64>().map_err(|_| EXPECTED)?;
        if number.abs() <= PROCESSORS_MAX { Ok(number) } else { Err(TOO_MANY) }
    }

    /// `:COUNT[:STRIDE]`, by which what stands before is repeated; once where there is none.
    fn repeated(&mut self) -> Result<(i64, i64), &'static str> {
        if !self.takes(':') {
            return Ok((1, 1));
        }
        let count = self.number()?;
        let stride = if self.takes(':') { self.number()? } else { 1 };
        if count > 0 { Ok((count, stride)) } else { Err(EXPECTED) }
    }

    /// A list of places.
    fn places(&mut self) -> Result<Vec<Place>, &'static str> {
        let mut places: Vec<Place> = Vec::new();
        loop {
            let excluded = self.takes('!');
            let place = self.place()?;
            let (count, stride) = self.repeated()?;
            for turn in 0..count {
                let moved: Option<Place> =
                    place.iter().map(|number| shifted(*number, turn * stride)).collect();
                let moved = moved.ok_or(TOO_MANY)?;
                if excluded {
                    places.retain(|place| *place != moved);
                } else {
                    places.push(moved);
                }
            }
            if places.len() > PLACES_MAX {
                return Err(TOO_MANY);
            }
            if !self.takes(',') {
                return Ok(places);
            }
        }
    }

    /// `{…}`, or the number of one processor.
    fn place(&mut self) -> Result<Place, &'static str> {
        let mut place = Place::new();
        if !self.takes('{') {
            place.insert(self.processor()?);
            return Ok(place);
        }
        loop {
            if self.takes('!') {
                let number = self.number()?;
                place.retain(|known| i64::from(*known) != number);
            } else {
                let first = self.processor()?;
                let (count, stride) = self.repeated()?;
                for turn in 0..count {
                    place.insert(shifted(first, turn * stride).ok_or(TOO_MANY)?);
                }
            }
            if self.takes('}') {
                return Ok(place);
            }
            if !self.takes(',') {
                return Err(EXPECTED);
            }
        }
    }

    fn processor(&mut self) -> Result<u32, &'static str> {
        let number = self.number()?;
        shifted(0, number).ok_or(EXPECTED)
    }
}

fn shifted(number: u32, by: i64) -> Option<u32> {
    let shifted = i64::from(number) + by;
    u32::try_from(shifted).ok().filter(|_| shifted < PROCESSORS_MAX)
}
