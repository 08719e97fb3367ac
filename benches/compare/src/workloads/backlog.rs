//! Turns and activities beside work that nobody can take now.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Context as _, Result, bail};
use async_trait::async_trait;
use duroxide::providers::{Provider, SessionFetchConfig, TagFilter, WorkItem};
use semver::Version;
use tokio::time::timeout;

use super::calls::{ActivityLoop, TurnLoop, load_of, outcome_of};
use super::prepare::{self, LONG_LOCK, Turn};
use super::{Metric, Point, Workload};
use crate::candidates::Candidate;
use crate::cli::Scale;
use crate::context::Context;
use crate::items;
use crate::load::{self, Work};
use crate::record::Outcome;

const CALLERS: usize = 4;
const MANY_CALLERS: usize = 16;
const SESSIONS: usize = 50;
const TEMPLATE: &str = "template";

/// What lies around.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Pile {
    Nothing,
    /// The same, for many callers.
    NothingForMany,
    Timers(usize),
    /// On one locked instance.
    Messages(usize),
    /// Locked instances, with 20 messages each.
    Locked(usize),
    /// Instances with a message, pinned to a version of duroxide that this node cannot replay.
    Pinned(usize),
    /// Messages for instances that were never started, one each.
    NeverStarted(usize),
    /// For the activities loop.
    NoActivities,
    /// For the activities loop: half of them tagged, half of them in sessions of another worker.
    ForeignActivities(usize),
}

/// The points that the others are compared with.
pub const BASELINE: &str = "turns, nothing else";
pub const MANY: &str = "turns, nothing else, 16 callers";
pub const ACTIVITY_BASELINE: &str = "activities, nothing else";

fn piles(scale: &Scale) -> Vec<(String, Pile)> {
    let size = |full: usize| scale.pick(full, full / 1000);
    let piles = [
        (BASELINE, Pile::Nothing),
        (MANY, Pile::NothingForMany),
        ("turns, 50k future timers", Pile::Timers(size(50_000))),
        ("turns, 100k future timers", Pile::Timers(size(100_000))),
        (
            "turns, 20k messages on one locked instance",
            Pile::Messages(size(20_000)),
        ),
        (
            "turns, 500 locked instances with 20 messages each",
            Pile::Locked(scale.pick(500, 3)),
        ),
        (
            "turns, 50k ready instances of an incompatible version",
            Pile::Pinned(size(50_000)),
        ),
        (
            "turns, 1,000 messages for instances never started",
            Pile::NeverStarted(scale.pick(1000, 10)),
        ),
        (ACTIVITY_BASELINE, Pile::NoActivities),
        (
            "activities, 100k of foreign tags and sessions",
            Pile::ForeignActivities(size(100_000)),
        ),
    ];
    piles.map(|(name, pile)| (name.to_string(), pile)).to_vec()
}

fn in_a_day_ms() -> u64 {
    let day = Duration::from_secs(24 * 3600);
    let at = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default() + day;
    u64::try_from(at.as_millis()).unwrap_or(u64::MAX)
}

/// Another worker takes one activity of each session, and with it the session.
async fn claim_sessions(provider: &dyn Provider) -> Result<()> {
    let stranger = SessionFetchConfig {
        owner_id: "stranger".to_string(),
        lock_timeout: LONG_LOCK,
    };
    let mut claimed = HashSet::new();
    for _ in 0..SESSIONS * 20 {
        let fetch = provider.fetch_work_item(LONG_LOCK, Duration::ZERO, Some(&stranger), &TagFilter::DefaultOnly);
        let Some((WorkItem::ActivityExecute { session_id, .. }, ..)) = fetch.await? else {
            break;
        };
        claimed.extend(session_id);
        if claimed.len() == SESSIONS {
            break;
        }
    }
    if claimed.is_empty() {
        bail!("no session could be claimed");
    }
    Ok(())
}

impl Pile {
    async fn prepare(self, context: &Context<'_>, provider: &Arc<dyn Provider>) -> Result<()> {
        match self {
            Self::Nothing | Self::NothingForMany | Self::NoActivities => Ok(()),
            Self::Timers(count) => {
                let mut turn = Turn::first(TEMPLATE);
                turn.orchestrator_items.push(items::timer(TEMPLATE, 2, in_a_day_ms()));
                prepare::start(&**provider, TEMPLATE, turn).await?;
                prepare::copy_instance(context, TEMPLATE, count).await
            }
            Self::Messages(count) => {
                provider.enqueue_for_orchestrator(items::start("locked"), None).await?;
                prepare::fetch(&**provider, LONG_LOCK).await?;
                prepare::carry(provider, count, |_, _| items::external_event("locked")).await
            }
            Self::Locked(count) => {
                prepare::enqueue_all(provider, count, |index| items::start(&format!("locked-{index}"))).await?;
                for _ in 0..count {
                    prepare::fetch(&**provider, LONG_LOCK).await?;
                }
                prepare::carry(provider, count * 20, |_, number| {
                    items::external_event(&format!("locked-{}", number / 20))
                })
                .await
            }
            Self::Pinned(count) => {
                let future = Version::new(99, 0, 0);
                let mut turn = Turn::first(TEMPLATE);
                for event in &mut turn.events {
                    event.duroxide_version = future.to_string();
                }
                turn.metadata.pinned_duroxide_version = Some(future);
                prepare::start(&**provider, TEMPLATE, turn).await?;
                provider
                    .enqueue_for_orchestrator(items::external_event(TEMPLATE), None)
                    .await?;
                prepare::copy_instance(context, TEMPLATE, count).await
            }
            Self::NeverStarted(count) => {
                prepare::enqueue_all(provider, count, |index| {
                    items::external_event(&format!("never-{index}"))
                })
                .await
            }
            Self::ForeignActivities(count) => {
                prepare::carry(provider, count, |carrier, number| {
                    let session = format!("session-{}", number % SESSIONS);
                    // Tags for the first half: the sessions have to be found behind them.
                    if number < count / 2 {
                        items::routed_activity(carrier, number as u64 + 10, Some("foreign"), None)
                    } else {
                        items::routed_activity(carrier, number as u64 + 10, None, Some(&session))
                    }
                })
                .await?;
                claim_sessions(&**provider).await
            }
        }
    }
}

pub struct Backlog;

#[async_trait]
impl Workload for Backlog {
    fn title(&self) -> &'static str {
        "Backlogs"
    }

    fn about(&self) -> &'static str {
        "The loops of *Turns* and *Activities* with 4 callers, on a store in which something lies around that cannot be taken \
         now. Work is enqueued through a provider of its own, as by another process, so that every fetch has to look for it. What counts is each candidate's own rate with and without it. Stores are prepared through the trait; where many \
         instances have to exist, one is made through the trait and its rows are copied by SQL. Preparation is limited to a \
         minute, and followed by VACUUM (ANALYZE) and a checkpoint. Of the activities that do not match, half have another \
         tag, and half belong to 50 sessions of another worker."
    }

    fn points(&self, scale: &Scale) -> Vec<Point> {
        let piles = piles(scale).into_iter().enumerate();
        piles.map(|(index, (name, _))| Point::new(name, index as f64)).collect()
    }

    fn metrics(&self) -> &'static [Metric] {
        const {
            &[
                Metric::higher("rate", "rate/s"),
                Metric::lower("fetch_p50_ms", "fetch p50, ms"),
                Metric::lower("fetch_p99_ms", "fetch p99, ms"),
            ]
        }
    }

    fn baseline(&self, point: &str) -> Option<&'static str> {
        Some(if point.starts_with("activities") {
            ACTIVITY_BASELINE
        } else {
            BASELINE
        })
    }

    fn takes_part(&self, candidate: Candidate, _scale: &Scale) -> bool {
        !matches!(candidate, Candidate::Server | Candidate::Sqlite)
    }

    /// The peers take long to prepare.
    fn repetitions(&self, candidate: Candidate, asked: u32) -> u32 {
        if candidate.is_ours() { asked } else { 1 }
    }

    async fn measure(&self, context: &Context<'_>, point: &Point) -> Result<Outcome> {
        let piles = piles(context.scale);
        let (_, pile) = piles.get(point.count()).context("no such backlog")?;
        let provider = context.open().await?;
        timeout(context.scale.limit, pile.prepare(context, &provider))
            .await
            .context("preparation took too long")?
            .context("preparation")?;
        prepare::settle(context).await?;

        let enqueuer = context.open().await?;
        let work: Arc<dyn Work> = match pile {
            Pile::NoActivities | Pile::ForeignActivities(_) => Arc::new(ActivityLoop { provider, enqueuer }),
            _ => TurnLoop::enqueued_by(enqueuer, provider, "all"),
        };
        let callers = match pile {
            Pile::NothingForMany => MANY_CALLERS,
            _ => CALLERS,
        };
        let load = load_of(context.scale, callers, context.scale.window(0.3));
        Ok(outcome_of(&mut load::run(load, work, None).await))
    }
}
