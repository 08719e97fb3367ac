//! Bringing a store into the state that a measurement needs.
//!
//! Mostly through the trait, in as few calls as it allows. Where many instances have to exist, one is made through the
//! trait and its rows are copied by SQL, whatever tables a candidate has: the result is what the trait would have left.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use duroxide::Event;
use duroxide::providers::{ExecutionMetadata, OrchestrationItem, Provider, WorkItem};
use tokio::task::JoinSet;

use crate::context::Context;
use crate::items;

/// A lease that outlasts every measurement.
pub const LONG_LOCK: Duration = Duration::from_secs(3600);
/// Items that one ack carries.
const CHUNK: usize = 1000;
const CONCURRENCY: usize = 8;

/// What a turn writes.
#[derive(Default)]
pub struct Turn {
    pub events: Vec<Event>,
    pub worker_items: Vec<WorkItem>,
    pub orchestrator_items: Vec<WorkItem>,
    pub metadata: ExecutionMetadata,
}

impl Turn {
    /// The first turn of `instance`, as the runtime would write it.
    pub fn first(instance: &str) -> Self {
        Self {
            events: items::first_events(instance),
            metadata: items::first_metadata(),
            ..Self::default()
        }
    }
}

/// Fetches the next turn, with a lease of `lock`. Something has to be ready.
pub async fn fetch(provider: &dyn Provider, lock: Duration) -> Result<(OrchestrationItem, String)> {
    let filter = items::runtime_filter();
    for _ in 0..100 {
        let fetched = provider.fetch_orchestration_item(lock, Duration::ZERO, Some(&filter));
        if let Some((item, token, _)) = fetched.await? {
            return Ok((item, token));
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    bail!("nothing to fetch although something is ready")
}

pub async fn ack(provider: &dyn Provider, token: &str, turn: Turn) -> Result<()> {
    provider
        .ack_orchestration_item(
            token,
            1,
            turn.events,
            turn.worker_items,
            turn.orchestrator_items,
            turn.metadata,
            vec![],
        )
        .await?;
    Ok(())
}

/// Starts `instance` and runs its first turn. Nothing else may be ready.
pub async fn start(provider: &dyn Provider, instance: &str, turn: Turn) -> Result<()> {
    provider.enqueue_for_orchestrator(items::start(instance), None).await?;
    let (item, token) = fetch(provider, items::LOCK).await?;
    if item.instance != instance {
        bail!("fetched {} where only {instance} was ready", item.instance);
    }
    ack(provider, &token, turn).await
}

/// Enqueues many messages, several at a time.
pub async fn enqueue_all(
    provider: &Arc<dyn Provider>,
    count: usize,
    message: impl Fn(usize) -> WorkItem + Send + Sync + 'static,
) -> Result<()> {
    let (message, next) = (Arc::new(message), Arc::new(AtomicUsize::new(0)));
    let mut callers = JoinSet::new();
    for _ in 0..CONCURRENCY {
        let (provider, message, next) = (provider.clone(), message.clone(), next.clone());
        callers.spawn(async move {
            loop {
                let index = next.fetch_add(1, Ordering::Relaxed);
                if index >= count {
                    return Ok::<_, anyhow::Error>(());
                }
                provider.enqueue_for_orchestrator(message(index), None).await?;
            }
        });
    }
    while let Some(finished) = callers.join_next().await {
        finished.context("an enqueuer ended early")??;
    }
    Ok(())
}

/// Enqueues `count` items in the acks of instances that exist for nothing else. Nothing else may be ready.
///
/// `item` gets the instance whose ack carries it, and the number of the item.
pub async fn carry(provider: &Arc<dyn Provider>, count: usize, item: impl Fn(&str, usize) -> WorkItem) -> Result<()> {
    let carriers = count.div_ceil(CHUNK);
    enqueue_all(provider, carriers, |index| items::start(&format!("carrier-{index}"))).await?;
    // All are leased before the first is acked: what they carry may itself be ready to fetch.
    let mut leased = Vec::new();
    for _ in 0..carriers {
        leased.push(fetch(&**provider, LONG_LOCK).await?);
    }
    for (carrier, (fetched, token)) in leased.into_iter().enumerate() {
        let mut turn = Turn::first(&fetched.instance);
        for number in carrier * CHUNK..count.min((carrier + 1) * CHUNK) {
            let item = item(&fetched.instance, number);
            match item {
                WorkItem::ActivityExecute { .. } => turn.worker_items.push(item),
                _ => turn.orchestrator_items.push(item),
            }
        }
        ack(&**provider, &token, turn).await?;
    }
    Ok(())
}

/// Copies all rows of the instance `template` until there are `count` such instances, named `template-1` and so on.
///
/// Keys that the server assigns are assigned anew; the instance's name is replaced wherever it occurs.
pub async fn copy_instance(context: &Context<'_>, template: &str, count: usize) -> Result<()> {
    if !context.candidate().uses_server() {
        bail!("only possible on PostgreSQL");
    }
    let copies = count.saturating_sub(1);
    let schema = context.store.place();
    let client = context.server.client();
    let columns = client
        .query(
            "select c.relname, a.attname, format_type(a.atttypid, a.atttypmod),
                    a.atttypid in ('text'::regtype, 'varchar'::regtype, 'json'::regtype, 'jsonb'::regtype)
             from pg_class c
             join pg_namespace n on n.oid = c.relnamespace
             join pg_attribute a on a.attrelid = c.oid and a.attnum > 0 and not a.attisdropped
             left join pg_attrdef d on d.adrelid = c.oid and d.adnum = a.attnum
             where n.nspname = $1 and c.relkind = 'r' and a.attidentity = '' and a.attgenerated = ''
               and coalesce(pg_get_expr(d.adbin, d.adrelid), '') not like 'nextval(%'
             order by c.relname, a.attnum",
            &[&schema],
        )
        .await?;
    let mut tables: Vec<(String, Vec<String>, Vec<String>)> = Vec::new();
    for row in &columns {
        let (table, column, kind, is_text): (String, String, String, bool) =
            (row.get(0), row.get(1), row.get(2), row.get(3));
        if tables.last().is_none_or(|(last, ..)| *last != table) {
            tables.push((table, Vec::new(), Vec::new()));
        }
        let (_, names, values) = tables.last_mut().context("there is a table")?;
        let name = format!("\"{column}\"");
        values.push(if is_text {
            format!("replace(t.{name}::text, '{template}', '{template}-' || copy)::{kind}")
        } else {
            format!("t.{name}")
        });
        names.push(name);
    }
    for (table, names, values) in tables {
        client
            .batch_execute(&format!(
                "insert into \"{schema}\".\"{table}\" ({}) select {}
                 from (select * from \"{schema}\".\"{table}\" r where r::text like '%{template}%') t,
                      generate_series(1, {copies}) copy",
                names.join(", "),
                values.join(", "),
            ))
            .await
            .with_context(|| format!("cannot copy rows of {table}"))?;
    }
    Ok(())
}

/// As after a while of operation: statistics are there, and nothing is left to write.
pub async fn settle(context: &Context<'_>) -> Result<()> {
    if context.candidate().uses_server() {
        for (table, _) in context.server.table_sizes(context.store.place()).await? {
            let table = format!("\"{}\".\"{table}\"", context.store.place());
            context.server.execute(&format!("vacuum (analyze) {table}")).await?;
        }
        context.server.checkpoint().await;
    }
    Ok(())
}
