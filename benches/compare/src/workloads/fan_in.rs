//! Completions from many workers into one instance.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use async_trait::async_trait;
use duroxide::providers::{Provider, TagFilter, WorkItem};
use tokio::task::JoinSet;
use tokio::time::timeout;

use super::prepare::{self, LONG_LOCK};
use super::{Metric, Point, Workload};
use crate::cli::Scale;
use crate::context::Context;
use crate::items;
use crate::load::Errors;
use crate::record::Outcome;

const CALLERS: usize = 16;

pub struct FanIn;

/// Leases `count` activities, `CALLERS` at a time.
async fn lease(provider: &Arc<dyn Provider>, count: usize) -> Result<Vec<Vec<(WorkItem, String)>>> {
    let mut callers = JoinSet::new();
    for caller in 0..CALLERS {
        let provider = provider.clone();
        callers.spawn(async move {
            let session = items::runtime_session(caller);
            let mut leased = Vec::new();
            let mut empty = 0;
            while leased.len() < count.div_ceil(CALLERS) && empty < 10 {
                let fetch =
                    provider.fetch_work_item(LONG_LOCK, Duration::ZERO, Some(&session), &TagFilter::DefaultOnly);
                match fetch.await {
                    Ok(Some((item, token, _))) => leased.push((item, token)),
                    Ok(None) => empty += 1,
                    // SQLite is locked now and then; the runtime would try again, too.
                    Err(error) if error.is_retryable() => tokio::time::sleep(Duration::from_millis(5)).await,
                    Err(error) => return Err(error.into()),
                }
            }
            Ok::<_, anyhow::Error>(leased)
        });
    }
    let mut all = Vec::new();
    while let Some(finished) = callers.join_next().await {
        all.push(finished.context("a caller ended early")??);
    }
    Ok(all)
}

#[async_trait]
impl Workload for FanIn {
    fn title(&self) -> &'static str {
        "Fan-in"
    }

    fn about(&self) -> &'static str {
        "4,000 activities of one instance are enqueued and leased beforehand; then 16 callers do nothing but ack them, so that \
         all completions go to that instance."
    }

    fn points(&self, _scale: &Scale) -> Vec<Point> {
        vec![Point::new("16 callers", CALLERS as f64)]
    }

    fn metrics(&self) -> &'static [Metric] {
        const { &[Metric::higher("rate", "completions/s")] }
    }

    fn most_repetitions(&self) -> u32 {
        2
    }

    async fn measure(&self, context: &Context<'_>, _point: &Point) -> Result<Outcome> {
        let count = context.scale.pick(4000, 64);
        let provider = context.open().await?;
        let preparation = async {
            prepare::start(&*provider, "target", prepare::Turn::first("target")).await?;
            prepare::carry(&provider, count, |_, number| {
                items::activity("target", number as u64 + 10)
            })
            .await?;
            lease(&provider, count).await
        };
        let leased = timeout(context.scale.limit, preparation)
            .await
            .context("preparation took too long")??;
        prepare::settle(context).await?;

        let (errors, acked) = (Arc::new(Errors::default()), Arc::new(AtomicU64::new(0)));
        let mut callers = JoinSet::new();
        let clock = Instant::now();
        for own in leased {
            let (provider, errors, acked) = (provider.clone(), errors.clone(), acked.clone());
            callers.spawn(async move {
                for (item, token) in own {
                    match provider.ack_work_item(&token, items::completion_of(item)).await {
                        Ok(()) => {
                            acked.fetch_add(1, Ordering::Relaxed);
                        }
                        Err(error) => errors.add(&error.to_string()),
                    }
                }
            });
        }
        let finished = timeout(context.scale.limit, async {
            while callers.join_next().await.is_some() {}
        })
        .await;
        let took = clock.elapsed();
        callers.shutdown().await;

        let mut outcome = Outcome {
            errors: errors.count(),
            error: errors.first(),
            cut: finished.is_err(),
            ..Outcome::default()
        };
        outcome.set("rate", acked.load(Ordering::Relaxed) as f64 / took.as_secs_f64());
        Ok(outcome)
    }
}
