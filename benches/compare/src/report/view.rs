//! One workload's results, by point, candidate and metric.

use crate::candidates::Candidate;
use crate::record::{Measurement, Merged};
use crate::statistics::Spread;
use crate::workloads::{Better, Metric};

/// Columns of every table, in this order.
pub const COLUMNS: [Candidate; 5] = [
    Candidate::Pg,
    Candidate::PgOpt,
    Candidate::Sqlite,
    Candidate::Postgres,
    Candidate::Server,
];

pub struct View<'a> {
    measurements: Vec<&'a Measurement>,
}

impl<'a> View<'a> {
    pub fn new(merged: &'a Merged, workload: &'a str) -> Self {
        Self {
            measurements: merged.of(workload).collect(),
        }
    }

    pub fn is_empty(&self) -> bool {
        self.measurements.is_empty()
    }

    pub fn measurements(&self) -> &[&'a Measurement] {
        &self.measurements
    }

    /// Points in the order in which they were first measured, with their numbers.
    pub fn points(&self) -> Vec<(&'a str, f64)> {
        let mut points: Vec<(&str, f64)> = Vec::new();
        for measurement in &self.measurements {
            if points.iter().all(|(name, _)| *name != measurement.point) {
                points.push((&measurement.point, measurement.x));
            }
        }
        points
    }

    /// Candidates that took part, in the order of columns.
    pub fn candidates(&self) -> Vec<Candidate> {
        let took_part = |candidate: &Candidate| self.measurements.iter().any(|one| one.candidate == *candidate);
        COLUMNS.into_iter().filter(took_part).collect()
    }

    pub fn at(&self, point: &str, candidate: Candidate) -> impl Iterator<Item = &&'a Measurement> {
        self.measurements
            .iter()
            .filter(move |measurement| measurement.point == point && measurement.candidate == candidate)
    }

    pub fn spread(&self, point: &str, candidate: Candidate, key: &str) -> Option<Spread> {
        let values = self
            .at(point, candidate)
            .filter_map(|one| one.outcome.values.get(key).copied());
        Spread::of(values)
    }

    pub fn median(&self, point: &str, candidate: Candidate, key: &str) -> Option<f64> {
        self.spread(point, candidate, key).map(|spread| spread.median)
    }

    pub fn errors(&self, point: &str, candidate: Candidate) -> u64 {
        self.at(point, candidate).map(|one| one.outcome.errors).sum()
    }

    pub fn cut(&self, point: &str, candidate: Candidate) -> bool {
        self.at(point, candidate).any(|one| one.outcome.cut)
    }

    /// Ours divided by the better peer's.
    pub fn ratio(&self, point: &str, metric: &Metric) -> Option<f64> {
        let ours = self.median(point, Candidate::Postgres, metric.key)?;
        let peers = COLUMNS
            .into_iter()
            .filter(|candidate| candidate.is_peer())
            .filter_map(|candidate| self.median(point, candidate, metric.key));
        let better = match metric.better {
            Better::Higher => peers.reduce(f64::max),
            Better::Lower => peers.reduce(f64::min),
            Better::Neither => None,
        }?;
        (better > 0.0).then(|| ours / better)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::Line;
    use crate::record::tests::measurement;

    fn merged() -> Merged {
        let one = |point, candidate, rate| Line::Measurement(measurement("r", "turns", point, candidate, rate));
        Merged::new(vec![
            one("1 caller", Candidate::Postgres, 900.0),
            one("1 caller", Candidate::Pg, 300.0),
            one("1 caller", Candidate::PgOpt, 310.0),
            one("4 callers", Candidate::Postgres, 1500.0),
            one("1 caller", Candidate::Postgres, 930.0),
            one("1 caller", Candidate::Postgres, 990.0),
        ])
    }

    #[test]
    fn ratios_are_to_the_better_peer() {
        let merged = merged();
        let view = View::new(&merged, "turns");
        let rate = Metric::higher("rate", "turns/s");
        assert_eq!(view.ratio("1 caller", &rate), Some(3.0));
        assert_eq!(view.ratio("1 caller", &Metric::lower("rate", "ms")), Some(3.1));
        assert_eq!(view.ratio("1 caller", &Metric::neither("rate", "n")), None);
        assert_eq!(view.ratio("4 callers", &rate), None);
    }

    #[test]
    fn points_and_candidates_are_those_there_are() {
        let merged = merged();
        let view = View::new(&merged, "turns");
        assert_eq!(view.points(), [("1 caller", 1.0), ("4 callers", 1.0)]);
        assert_eq!(
            view.candidates(),
            [Candidate::Pg, Candidate::PgOpt, Candidate::Postgres]
        );
        assert!(View::new(&merged, "idle").is_empty());
    }
}
