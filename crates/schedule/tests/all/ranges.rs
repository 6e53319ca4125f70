//! The iterations of loops: what a plain loop of the same bounds does.

use hiroba_schedule::Range;
use proptest::prelude::*;

fn values(range: Range) -> Vec<u64> {
    (0..range.count).map(|iteration| range.at(iteration)).collect()
}

proptest! {
    #[test]
    fn signed_loops_have_the_values_of_plain_ones(
        start in -200i64..200, end in -200i64..200, step in (-20i64..20).prop_filter("a step", |step| *step != 0),
        shift in prop::sample::select(vec![0, i64::MAX - 300, i64::MIN + 300]),
    ) {
        let (start, end) = (start + shift, end + shift);
        let mut expected = Vec::new();
        let mut value = i128::from(start);
        while if step > 0 { value < i128::from(end) } else { value > i128::from(end) } {
            expected.push(value as u64);
            value += i128::from(step);
        }
        prop_assert_eq!(values(Range::signed(start, end, step)), expected.clone());
        let last = i128::from(end) - i128::from(step.signum());
        prop_assert_eq!(values(Range::inclusive(start.into(), last, step.into())), expected);
    }

    #[test]
    fn unsigned_loops_have_the_values_of_plain_ones(
        start in 0u64..400, end in 0u64..400, step in 1u64..20, up: bool,
        shift in prop::sample::select(vec![0, u64::MAX - 450]),
    ) {
        let (start, end) = (start + shift, end + shift);
        let step = if up { step } else { step.wrapping_neg() };
        let mut expected = Vec::new();
        let mut value = i128::from(start);
        while if up { value < i128::from(end) } else { value > i128::from(end) } {
            expected.push(value as u64);
            value += i128::from(step as i64);
        }
        prop_assert_eq!(values(Range::unsigned(up, start, end, step)), expected);
    }
}

#[test]
fn the_longest_loops_are_counted() {
    assert_eq!(Range::signed(i64::MIN, i64::MAX, 1).count, u64::MAX);
    assert_eq!(Range::unsigned(true, 0, u64::MAX, 1).count, u64::MAX);
    assert_eq!(Range::unsigned(false, u64::MAX, 0, u64::MAX).count, u64::MAX);
    assert_eq!(Range::inclusive(0, 9, 0).count, 0);
}
