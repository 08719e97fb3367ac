//! Medians, percentiles and spread.

/// A middle value and the range around it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Spread {
    pub median: f64,
    pub min: f64,
    pub max: f64,
    /// How many values there were.
    pub count: usize,
}

impl Spread {
    /// `None` without values. Values that are not finite do not count.
    pub fn of(values: impl IntoIterator<Item = f64>) -> Option<Self> {
        let mut sorted: Vec<f64> = values.into_iter().filter(|value| value.is_finite()).collect();
        sorted.sort_by(f64::total_cmp);
        Some(Self {
            median: median_of_sorted(&sorted)?,
            min: *sorted.first()?,
            max: *sorted.last()?,
            count: sorted.len(),
        })
    }
}

/// The middle value, or the mean of the two in the middle.
pub fn median(values: &[f64]) -> Option<f64> {
    Spread::of(values.iter().copied()).map(|spread| spread.median)
}

fn median_of_sorted(sorted: &[f64]) -> Option<f64> {
    let middle = sorted.len() / 2;
    if sorted.len() % 2 == 1 {
        return sorted.get(middle).copied();
    }
    Some((sorted.get(middle.checked_sub(1)?)? + sorted.get(middle)?) / 2.0)
}

/// The smallest value that at least `percent` of all values do not exceed (nearest rank), so that a p99 is always a
/// value that was measured. Reorders `values`.
pub fn percentile(values: &mut [u32], percent: f64) -> Option<u32> {
    if values.is_empty() {
        return None;
    }
    let rank = (percent / 100.0 * values.len() as f64).ceil() as usize;
    let index = rank.clamp(1, values.len()) - 1;
    Some(*values.select_nth_unstable(index).1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn median_of_odd_even_and_no_values() {
        assert_eq!(median(&[3.0, 1.0, 2.0]), Some(2.0));
        assert_eq!(median(&[4.0, 1.0, 2.0, 3.0]), Some(2.5));
        assert_eq!(median(&[7.0]), Some(7.0));
        assert_eq!(median(&[]), None);
    }

    #[test]
    fn spread_ignores_what_is_not_a_number() {
        let spread = Spread::of([f64::NAN, 2.0, f64::INFINITY, 4.0, 9.0]).expect("three values");
        assert_eq!(
            spread,
            Spread {
                median: 4.0,
                min: 2.0,
                max: 9.0,
                count: 3
            }
        );
        assert_eq!(Spread::of([f64::NAN]), None);
    }

    #[test]
    fn percentiles_are_nearest_rank() {
        let mut values: Vec<u32> = (1..=100).rev().collect();
        assert_eq!(percentile(&mut values, 50.0), Some(50));
        assert_eq!(percentile(&mut values, 99.0), Some(99));
        assert_eq!(percentile(&mut values, 100.0), Some(100));
        assert_eq!(percentile(&mut values, 0.0), Some(1));
        assert_eq!(percentile(&mut [5, 1, 3], 99.0), Some(5));
        assert_eq!(percentile(&mut [5, 1, 3], 50.0), Some(3));
        assert_eq!(percentile(&mut [], 50.0), None);
    }
}
