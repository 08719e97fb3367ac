//! Concurrent callers that repeat one piece of work for a while.

use std::collections::BTreeMap;
use std::future::Future;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use duroxide::providers::ProviderError;
use tokio::task::JoinSet;
use tokio::time::{sleep, sleep_until, timeout};

use crate::process::{CpuTimes, ServerProcesses};
use crate::statistics::percentile;

/// How many callers, and for how long.
#[derive(Debug, Clone, Copy)]
pub struct Load {
    pub callers: usize,
    /// Pools fill and plans settle before anything counts.
    pub warm_up: Duration,
    pub window: Duration,
    /// How long calls may go on after the window before they are aborted.
    pub grace: Duration,
}

/// What each caller does over and over.
#[async_trait]
pub trait Work: Send + Sync + 'static {
    /// One round. Reports through `recorder`, errors included, and gives up once that says so.
    async fn once(&self, caller: usize, round: u64, recorder: &Recorder);
}

/// Errors of a candidate: how many, and what the first one said.
#[derive(Debug, Default)]
pub struct Errors {
    count: AtomicU64,
    first: Mutex<Option<String>>,
}

impl Errors {
    pub fn add(&self, message: &str) {
        self.count.fetch_add(1, Ordering::Relaxed);
        lock(&self.first).get_or_insert_with(|| message.to_string());
    }

    pub fn count(&self) -> u64 {
        self.count.load(Ordering::Relaxed)
    }

    pub fn first(&self) -> Option<String> {
        lock(&self.first).clone()
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

struct Shared {
    opens: Instant,
    closes: Instant,
    total: AtomicU64,
    /// Completed rounds, by second of the window.
    seconds: Vec<AtomicU64>,
    errors: Errors,
}

/// One caller's notebook. Kept outside of its task, so that it survives if that is aborted.
pub struct Recorder {
    shared: Arc<Shared>,
    samples: Mutex<BTreeMap<&'static str, Vec<u32>>>,
    counts: Mutex<BTreeMap<&'static str, u64>>,
}

impl Recorder {
    fn in_window(&self, at: Instant) -> bool {
        at >= self.shared.opens && at < self.shared.closes
    }

    /// Whether to go on.
    pub fn running(&self) -> bool {
        Instant::now() < self.shared.closes
    }

    /// Awaits a call and notes how long it took. `None` after an error, which is noted as well.
    pub async fn call<T>(
        &self,
        name: &'static str,
        future: impl Future<Output = Result<T, ProviderError>>,
    ) -> Option<T> {
        let (result, took) = self.time(future).await;
        if result.is_some() {
            self.sample(name, took);
        }
        result
    }

    /// The same for a fetch: those that find nothing are counted, not mixed with the others.
    pub async fn fetch<T>(&self, future: impl Future<Output = Result<Option<T>, ProviderError>>) -> Option<T> {
        let (result, took) = self.time(future).await;
        match result? {
            Some(item) => {
                self.sample("fetch", took);
                Some(item)
            }
            None => {
                if self.in_window(Instant::now()) {
                    *lock(&self.counts).entry("empty").or_default() += 1;
                }
                tokio::task::yield_now().await;
                None
            }
        }
    }

    async fn time<T>(&self, future: impl Future<Output = Result<T, ProviderError>>) -> (Option<T>, Duration) {
        let clock = Instant::now();
        match future.await {
            Ok(value) => (Some(value), clock.elapsed()),
            Err(error) => {
                self.shared.errors.add(&error.to_string());
                // Whoever fails at once must not keep a processor busy with failing.
                sleep(Duration::from_millis(1)).await;
                (None, clock.elapsed())
            }
        }
    }

    /// Notes an error that is not one of a provider's call.
    pub fn fail(&self, message: &str) {
        self.shared.errors.add(message);
    }

    fn sample(&self, name: &'static str, took: Duration) {
        if self.in_window(Instant::now()) {
            let microseconds = u32::try_from(took.as_micros()).unwrap_or(u32::MAX);
            lock(&self.samples).entry(name).or_default().push(microseconds);
        }
    }

    /// One round is complete.
    pub fn done(&self) {
        self.shared.total.fetch_add(1, Ordering::Relaxed);
        let now = Instant::now();
        if self.in_window(now) {
            let second = now.duration_since(self.shared.opens).as_secs() as usize;
            if let Some(count) = self.shared.seconds.get(second) {
                count.fetch_add(1, Ordering::Relaxed);
            }
        }
    }
}

/// What came of a [`Load`].
pub struct LoadResult {
    /// Rounds completed from the first moment to the last, warm-up included.
    pub total: u64,
    /// Rounds completed inside the window, by second. The last second may be a fraction.
    pub seconds: Vec<u64>,
    pub window: Duration,
    samples: BTreeMap<&'static str, Vec<u32>>,
    counts: BTreeMap<&'static str, u64>,
    pub errors: u64,
    pub error: Option<String>,
    /// Some calls did not return and were aborted.
    pub cut: bool,
    client_cpu_ms: Option<f64>,
    server_cpu_ms: Option<f64>,
}

impl LoadResult {
    /// Rounds completed inside the window.
    pub fn rounds(&self) -> u64 {
        self.seconds.iter().sum()
    }

    pub fn rate(&self) -> f64 {
        self.rounds() as f64 / self.window.as_secs_f64()
    }

    /// Of a call, in milliseconds.
    pub fn percentile_ms(&mut self, call: &str, percent: f64) -> Option<f64> {
        let samples = self.samples.get_mut(call)?;
        percentile(samples, percent).map(|microseconds| f64::from(microseconds) / 1000.0)
    }

    fn per_round(&self, amount: Option<f64>) -> Option<f64> {
        let rounds = self.rounds();
        amount.filter(|_| rounds > 0).map(|amount| amount / rounds as f64)
    }

    pub fn empty_fetches_per_round(&self) -> Option<f64> {
        self.per_round(Some(self.counts.get("empty").copied().unwrap_or(0) as f64))
    }

    pub fn client_cpu_ms_per_round(&self) -> Option<f64> {
        self.per_round(self.client_cpu_ms)
    }

    pub fn server_cpu_ms_per_round(&self) -> Option<f64> {
        self.per_round(self.server_cpu_ms)
    }
}

/// Runs `work` with all callers at once.
pub async fn run(load: Load, work: Arc<dyn Work>, server: Option<ServerProcesses>) -> LoadResult {
    let opens = Instant::now() + load.warm_up;
    let closes = opens + load.window;
    let shared = Arc::new(Shared {
        opens,
        closes,
        total: AtomicU64::new(0),
        seconds: (0..load.window.as_secs_f64().ceil() as usize)
            .map(|_| AtomicU64::new(0))
            .collect(),
        errors: Errors::default(),
    });
    let mut callers = JoinSet::new();
    let recorders: Vec<Arc<Recorder>> = (0..load.callers)
        .map(|caller| {
            let recorder = Arc::new(Recorder {
                shared: shared.clone(),
                samples: Mutex::default(),
                counts: Mutex::default(),
            });
            let (work, own) = (work.clone(), recorder.clone());
            callers.spawn(async move {
                let mut round = 0;
                while own.running() {
                    work.once(caller, round, &own).await;
                    round += 1;
                }
            });
            recorder
        })
        .collect();

    sleep_until(opens.into()).await;
    let before = CpuTimes::now(server);
    sleep_until(closes.into()).await;
    let after = CpuTimes::now(server);
    let finished = timeout(load.grace, async { while callers.join_next().await.is_some() {} }).await;
    callers.shutdown().await;

    let mut samples: BTreeMap<&'static str, Vec<u32>> = BTreeMap::new();
    let mut counts: BTreeMap<&'static str, u64> = BTreeMap::new();
    for recorder in recorders {
        for (name, values) in lock(&recorder.samples).iter() {
            samples.entry(name).or_default().extend(values);
        }
        for (name, count) in lock(&recorder.counts).iter() {
            *counts.entry(name).or_default() += count;
        }
    }
    LoadResult {
        total: shared.total.load(Ordering::Relaxed),
        seconds: shared
            .seconds
            .iter()
            .map(|count| count.load(Ordering::Relaxed))
            .collect(),
        window: load.window,
        samples,
        counts,
        errors: shared.errors.count(),
        error: shared.errors.first(),
        cut: finished.is_err(),
        client_cpu_ms: after.client_ms_since(&before),
        server_cpu_ms: after.server_ms_since(&before),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Sometimes;

    #[async_trait]
    impl Work for Sometimes {
        async fn once(&self, caller: usize, round: u64, recorder: &Recorder) {
            if caller == 1 {
                // Never returns: has to be cut.
                std::future::pending::<()>().await;
            }
            sleep(Duration::from_millis(1)).await;
            if round.is_multiple_of(2) {
                recorder
                    .call("call", async { Err::<(), _>(ProviderError::permanent("call", "no")) })
                    .await;
                return;
            }
            recorder.fetch(async { Ok(None::<()>) }).await;
            recorder.call("call", async { Ok(()) }).await;
            recorder.done();
        }
    }

    #[tokio::test]
    async fn counts_rounds_errors_and_empty_fetches_and_cuts_what_hangs() {
        let load = Load {
            callers: 2,
            warm_up: Duration::from_millis(20),
            window: Duration::from_millis(200),
            grace: Duration::from_millis(20),
        };
        let mut result = run(load, Arc::new(Sometimes), None).await;
        assert!(result.cut);
        assert!(result.rounds() > 0);
        assert!(result.total >= result.rounds());
        assert!(result.errors > 0);
        assert!(result.error.as_deref().is_some_and(|error| error.contains("no")));
        assert_eq!(result.empty_fetches_per_round().map(f64::round), Some(1.0));
        assert!(result.percentile_ms("call", 50.0).is_some());
        assert!(result.percentile_ms("other", 50.0).is_none());
    }
}
