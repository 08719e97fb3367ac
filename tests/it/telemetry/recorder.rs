//! Keeps every metric of a thread.

use std::collections::{BTreeMap, BTreeSet};
use std::future::Future;
use std::sync::{Arc, Mutex, MutexGuard};

use metrics::{
    Counter, CounterFn, Gauge, GaugeFn, Histogram, HistogramFn, Key, KeyName, Metadata, Recorder, SharedString, Unit,
};

const PREFIX: &str = "duroxide_postgres_";

/// Name and labels.
type Series = (String, BTreeMap<String, String>);

#[derive(Clone, Default)]
pub struct Recorded {
    /// Every value that was added, set or recorded.
    values: Arc<Mutex<BTreeMap<Series, Vec<f64>>>>,
    /// By name, the kind.
    described: Arc<Mutex<BTreeMap<String, &'static str>>>,
}

impl Recorded {
    /// Runs a test on this thread alone, with all its metrics recorded; then `check`, when everything it used is gone.
    pub fn run<F: Future<Output = ()>>(test: impl FnOnce(Self) -> F, check: impl FnOnce(&Self)) {
        let recorded = Self::default();
        metrics::with_local_recorder(&recorded, || {
            super::run(test(recorded.clone()));
            check(&recorded);
        });
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<Series, Vec<f64>>> {
        self.values.lock().expect("values")
    }

    /// What was recorded under this name, without its prefix, with these labels among others.
    pub fn values(&self, name: &str, labels: &[(&str, &str)]) -> Vec<f64> {
        let values = self.lock();
        let fits = values.iter().filter(|((series, has), _)| {
            series.strip_prefix(PREFIX) == Some(name)
                && labels
                    .iter()
                    .all(|(label, value)| has.get(*label).is_some_and(|has| has == value))
        });
        fits.flat_map(|(_, values)| values.clone()).collect()
    }

    /// The sum of it.
    pub fn sum(&self, name: &str, labels: &[(&str, &str)]) -> f64 {
        self.values(name, labels).iter().sum()
    }

    /// By name, the labels that were used.
    pub fn labels(&self) -> BTreeMap<String, BTreeSet<String>> {
        let mut labels = BTreeMap::<_, BTreeSet<_>>::new();
        for (name, has) in self.lock().keys().filter(|(name, _)| name.starts_with(PREFIX)) {
            labels.entry(name.clone()).or_default().extend(has.keys().cloned());
        }
        labels
    }

    /// Names of this kind that were described.
    pub fn described(&self, kind: &str) -> BTreeSet<String> {
        let described = self.described.lock().expect("described");
        let names = described
            .iter()
            .filter(|(name, of)| name.starts_with(PREFIX) && **of == kind);
        names.map(|(name, _)| name.clone()).collect()
    }

    fn series(&self, key: &Key) -> Arc<Recording> {
        let labels = key
            .labels()
            .map(|label| (label.key().to_string(), label.value().to_string()));
        Arc::new(Recording {
            recorded: self.clone(),
            series: (key.name().to_string(), labels.collect()),
        })
    }

    fn describe(&self, kind: &'static str, key: &KeyName) {
        let mut described = self.described.lock().expect("described");
        described.insert(key.as_str().to_string(), kind);
    }
}

impl Recorder for Recorded {
    fn describe_counter(&self, key: KeyName, _: Option<Unit>, _: SharedString) {
        self.describe("counter", &key);
    }

    fn describe_gauge(&self, key: KeyName, _: Option<Unit>, _: SharedString) {
        self.describe("gauge", &key);
    }

    fn describe_histogram(&self, key: KeyName, _: Option<Unit>, _: SharedString) {
        self.describe("histogram", &key);
    }

    fn register_counter(&self, key: &Key, _: &Metadata<'_>) -> Counter {
        Counter::from_arc(self.series(key))
    }

    fn register_gauge(&self, key: &Key, _: &Metadata<'_>) -> Gauge {
        Gauge::from_arc(self.series(key))
    }

    fn register_histogram(&self, key: &Key, _: &Metadata<'_>) -> Histogram {
        Histogram::from_arc(self.series(key))
    }
}

struct Recording {
    recorded: Recorded,
    series: Series,
}

impl Recording {
    fn add(&self, value: f64) {
        self.recorded.lock().entry(self.series.clone()).or_default().push(value);
    }
}

impl CounterFn for Recording {
    fn increment(&self, value: u64) {
        self.add(value as f64);
    }

    fn absolute(&self, _: u64) {
        unreachable!("counters only grow, by increments");
    }
}

impl GaugeFn for Recording {
    fn increment(&self, value: f64) {
        self.add(value);
    }

    fn decrement(&self, value: f64) {
        self.add(-value);
    }

    fn set(&self, _: f64) {
        unreachable!("several providers share a gauge: none may set it");
    }
}

impl HistogramFn for Recording {
    fn record(&self, value: f64) {
        self.add(value);
    }
}
