//! Places as `OMP_PLACES` names them, and threads that are bound to them.

use hiroba_schedule::{Binding, Processor, places};
use proptest::prelude::*;

/// Two sockets of two cores with two threads each, numbered as Linux does: the cores first.
fn machine() -> Vec<Processor> {
    let processor = |number: u32| {
        let (core, socket) = (u64::from(number % 4), u64::from(number % 4 / 2));
        Processor { number, core, cache: socket, numa: 0, socket }
    };
    (0..8).map(processor).collect()
}

#[test]
fn places_have_names() {
    let of = |text: &str| places(text, &machine()).expect(text);
    assert_eq!(of("threads"), (0..8).map(|number| vec![number]).collect::<Vec<_>>());
    assert_eq!(of("cores"), [[0, 4], [1, 5], [2, 6], [3, 7]]);
    assert_eq!(of(" Cores ( 3 ) "), [[0, 4], [1, 5], [2, 6]]);
    assert_eq!(of("sockets"), [[0, 1, 4, 5], [2, 3, 6, 7]]);
    assert_eq!(of("ll_caches(1)"), [[0, 1, 4, 5]]);
    assert_eq!(of("numa_domains"), [[0, 1, 2, 3, 4, 5, 6, 7]]);
}

/// The examples of OpenMP's specification are three ways to write the same four places.
#[test]
fn places_are_listed() {
    let of = |text: &str| places(text, &machine()).expect(text);
    let pairs = vec![vec![0, 1], vec![2, 3], vec![4, 5], vec![6, 7]];
    assert_eq!(of("{0,1},{2,3},{4,5},{6,7}"), pairs);
    assert_eq!(of("{0:2},{2:2},{4:2},{6:2}"), pairs);
    assert_eq!(of("{0:2}:4:2"), pairs);
    assert_eq!(of("{6:2}:4:-2"), pairs.into_iter().rev().collect::<Vec<_>>());
    assert_eq!(of("{0:3:2}"), [[0, 2, 4]]);
    assert_eq!(of("{0:4,!2}"), [[0, 1, 3]]);
    assert_eq!(of("{0}:4,!{2}"), [[0], [1], [3]]);
    assert_eq!(of("3,1"), [[3], [1]]);
}

/// Nodes of one machine have different processors, and the same environment.
#[test]
fn only_processors_of_the_node_count() {
    let of = |text: &str| places(text, &machine()[2..4]);
    assert_eq!(of("{0},{1},{2},{3}").unwrap(), [[2], [3]]);
    assert_eq!(of("sockets").unwrap(), [[2, 3]]);
    assert!(of("{0:2}").unwrap_err().contains("may use"));
}

#[test]
fn malformed_places_have_a_reason() {
    for text in [
        "", "core", "cores(", "cores(0)", "cores(x)", "{", "{}", "{0", "{0},", "{0}{1}", "{0:}", "{0:0}",
        "{0}:", "{0}:0", "{-1}", "{0,}", "!", "{a}", "{0:2:}", "0-3",
    ] {
        assert!(places(text, &machine()).unwrap_err().contains("threads, cores"), "{text}");
    }
    for text in ["{0}:99999", "{9000}", "{0:8192:8192}", "{0}:2:-1", "{0}:4000:1,{0}:4000:1"] {
        assert!(places(text, &machine()).unwrap_err().contains("at most"), "{text}");
    }
}

proptest! {
    #[test]
    fn no_text_does_harm(text in "[{}!,:0-9a-z() -]{0,20}") {
        if let Ok(places) = places(&text, &machine()) {
            prop_assert!(places.iter().all(|place| !place.is_empty() && place.iter().all(|number| *number < 8)));
        }
    }

    #[test]
    fn threads_have_places_as_even_as_possible(threads in 1usize..40, count in 1usize..20) {
        for binding in [Binding::Close, Binding::Spread] {
            let mut at = vec![0usize; count];
            (0..threads).for_each(|thread| at[binding.place(thread, threads, count)] += 1);
            prop_assert!(at.iter().max().unwrap() - at.iter().min().unwrap() <= 1, "{at:?}");
        }
    }
}

#[test]
fn threads_are_close_or_spread() {
    let all = |binding: Binding| (0..4).map(|thread| binding.place(thread, 4, 8)).collect::<Vec<_>>();
    assert_eq!(all(Binding::Primary), [0, 0, 0, 0]);
    assert_eq!(all(Binding::Close), [0, 1, 2, 3]);
    assert_eq!(all(Binding::Spread), [0, 2, 4, 6]);
}
