//! `prune`: deletes what is old, batch by batch. Each batch is a transaction of its own, so whatever ends the command
//! early leaves what was done done, and the next run goes on.

mod signals;
mod work;

use std::collections::VecDeque;

use serde_json::json;
use tokio_postgres::Row;

use super::arguments::{Prune, PruneCommand};
use super::connection::{Connection, column};
use super::output::{Failure, Outcome};
use crate::call::Parameters;
use work::{Batch, Why, Work};

pub(super) async fn run(connection: &Connection, prune: &PruneCommand) -> Result<Outcome, Failure> {
    match prune {
        PruneCommand::Instances { older_than, batch } => {
            let Some(older_than) = older_than else {
                return Err(no_criterion("--older-than"));
            };
            connection.require_deployment().await?;
            instances(connection, *older_than, batch).await
        }
        PruneCommand::Executions {
            keep_last,
            older_than,
            batch,
        } => {
            if keep_last.is_none() && older_than.is_none() {
                return Err(no_criterion("--keep-last or --older-than"));
            }
            connection.require_deployment().await?;
            executions(connection, keep_last.map(i64::from), *older_than, batch).await
        }
    }
}

fn no_criterion(flags: &str) -> Failure {
    Failure::usage(format!("nothing was deleted: say what is old enough, with {flags}"))
}

/// Instances that ended, with all below them.
async fn instances(connection: &Connection, older_than: i64, batch: &Prune) -> Result<Outcome, Failure> {
    let schema = connection.schema.quoted();
    let before = before(connection, Some(older_than)).await?;
    let count = format!(
        "with recursive root as ( \
             select s.instance_id from {schema}.instance_status as s \
              where s.status in ('Completed', 'Failed') \
                and s.completed_at < to_timestamp($1::bigint / 1000.0::double precision) \
                and not exists (select from {schema}.instance_status as p where p.instance_id = s.parent_instance_id) \
         ), tree (root, instance_id) as ( \
             select r.instance_id, r.instance_id from root as r \
             union \
             select t.root, s.instance_id from tree as t \
               join {schema}.instance_status as s on s.parent_instance_id = t.instance_id \
         ), dead as ( \
             select t.root, count(*) as members from tree as t \
               join {schema}.instance_status as s on s.instance_id = t.instance_id \
              group by t.root having bool_and(s.status in ('Completed', 'Failed')) \
         ) \
         select coalesce(sum(d.members), 0)::bigint as instances from dead as d"
    );
    let mut work = Work::begin(connection, "instances", batch).await?;
    if batch.dry_run {
        let total = first(&work.count(&count, &[&before]).await?, "instances")?;
        work.finish();
        let text = format!("would delete {total} instances");
        return Ok(Outcome::new(text, json!({ "dry_run": true, "instances": total })));
    }
    let mut deleted = [0; 3];
    let stopped = instance_batches(&mut work, &count, before, &mut deleted).await.err();
    work.finish();
    let [instances, executions, events] = deleted;
    let text = format!("deleted {instances} instances, {executions} executions, {events} events");
    let json = json!({ "dry_run": false, "instances": instances, "executions": executions, "events": events });
    Ok(work.outcome(text, json, stopped))
}

async fn instance_batches(
    work: &mut Work,
    count: &str,
    before: Option<i64>,
    deleted: &mut [i64; 3],
) -> Result<(), Failure> {
    let schema = work.schema.clone();
    let total = first(&work.count(count, &[&before]).await?, "instances")?;
    work.expect(total);
    // Those that ended first go first, each status in the order of its index. Which of them can go is up to the function; one
    // that has to stay is passed by, not met again.
    let find = format!(
        "select e.instance_id, e.completed_at::text as completed_at, tree.members \
           from {schema}.execution_status as e \
           join {schema}.instance_status as s on s.instance_id = e.instance_id \
          cross join lateral ( \
                with recursive tree (instance_id) as ( \
                    select e.instance_id \
                    union \
                    select c.instance_id from tree as t \
                     cross join lateral (select x.instance_id from {schema}.instance_status as x \
                                          where x.parent_instance_id = t.instance_id offset 0) as c \
                ) \
                select count(*) as members from tree) as tree \
          where e.is_current \
            and e.status = $1 \
            and e.completed_at < to_timestamp($2::bigint / 1000.0::double precision) \
            and e.completed_at >= $3::text::timestamptz \
            and (e.completed_at, e.instance_id) > ($3::text::timestamptz, $4::text) \
            and not exists (select from {schema}.instance_status as p where p.instance_id = s.parent_instance_id) \
          order by e.completed_at, e.instance_id \
          limit $5"
    );
    let delete = format!("select * from {schema}.delete_instance_bulk($1, $2, $3)");
    // Fewer at a time while the one that somebody has locks on is looked for; behind it, more and more again.
    let (mut fewer, mut found) = (None, false);
    for status in ["Completed", "Failed"] {
        let mut last = ("-infinity".to_string(), String::new());
        loop {
            let size = work.size;
            let rows = work.find(&find, &[&status, &before, &last.0, &last.1, &size]).await?;
            let Some(row) = rows.last() else {
                break;
            };
            last = (column(row, "completed_at")?, column(row, "instance_id")?);
            let mut trees = rows
                .iter()
                .map(|row| Ok((column(row, "instance_id")?, column(row, "members")?)))
                .collect::<Result<VecDeque<(String, i64)>, Failure>>()?;
            if !found {
                // Whoever it was has gone.
                fewer = None;
            }
            while !trees.is_empty() {
                let roots = together(&trees, fewer.map_or(work.size, |fewer: i64| fewer.min(work.size)));
                let limit = roots.len() as i64;
                let half = || trees.iter().take(roots.len()).map(|(_, members)| members).sum::<i64>() / 2;
                match work.batch(&delete, &[&roots, &before, &limit], limit > 1).await? {
                    Batch::Done(row) => {
                        drop(trees.drain(..roots.len()));
                        if let Some(row) = row {
                            deleted[0] += column::<i64>(&row, "instances_deleted")?;
                            deleted[1] += column::<i64>(&row, "executions_deleted")?;
                            deleted[2] += column::<i64>(&row, "events_deleted")?;
                        }
                        work.done(deleted[0]);
                        found |= limit == 1;
                        if found {
                            fewer = fewer.map(|size| size * 2).filter(|&size| size < work.size);
                        }
                    }
                    Batch::NoRoom if limit > 1 => work.shrink(half()),
                    Batch::InTheWay if limit > 1 => (fewer, found) = (Some(half()), false),
                    // Nothing smaller can be tried; others shall not stay because of it.
                    Batch::NoRoom => match trees.pop_front() {
                        Some((root, members)) if members > 1 => work.pass_by(&root, Why::TooLarge { members })?,
                        _ => return Err(work.full()),
                    },
                    Batch::InTheWay => {
                        (fewer, found) = (Some(1), true);
                        if let Some((root, _)) = trees.pop_front() {
                            work.pass_by(&root, Why::Locked)?;
                        }
                    }
                }
            }
        }
    }
    Ok(())
}

/// The first trees, as many as have no more than `size` instances together, but always one: a tree goes as a whole.
fn together(trees: &VecDeque<(String, i64)>, size: i64) -> Vec<String> {
    let mut sum = 0;
    let mut fits = |members: i64| {
        let first = sum == 0;
        sum += members.max(1);
        first || sum <= size
    };
    let trees = trees.iter().take_while(|(_, members)| fits(*members));
    trees.map(|(root, _)| root.clone()).collect()
}

/// An instance, how many executions it has, and how many of them may go.
struct Candidate {
    instance: String,
    executions: i64,
    prunable: i64,
}

/// Executions that are not the current one of their instance.
async fn executions(
    connection: &Connection,
    keep_last: Option<i64>,
    older_than: Option<i64>,
    batch: &Prune,
) -> Result<Outcome, Failure> {
    let before = before(connection, older_than).await?;
    let mut work = Work::begin(connection, "executions", batch).await?;
    if batch.dry_run {
        let candidates = candidates(&mut work, keep_last, before).await?;
        work.finish();
        let total: i64 = candidates.iter().map(|candidate| candidate.prunable).sum();
        let text = format!("would delete {total} executions of {} instances", candidates.len());
        let json = json!({ "dry_run": true, "executions": total, "instances": candidates.len() });
        return Ok(Outcome::new(text, json));
    }
    let (mut executions, mut events) = (0, 0);
    let size = i64::from(batch.batch_size);
    let deleted = (&mut executions, &mut events);
    let stopped = execution_batches(&mut work, keep_last, before, size, deleted)
        .await
        .err();
    work.finish();
    let text = format!("deleted {executions} executions, {events} events");
    let json = json!({ "dry_run": false, "executions": executions, "events": events });
    Ok(work.outcome(text, json, stopped))
}

async fn execution_batches(
    work: &mut Work,
    keep_last: Option<i64>,
    before: Option<i64>,
    size: i64,
    (executions, events): (&mut i64, &mut i64),
) -> Result<(), Failure> {
    let candidates = candidates(work, keep_last, before).await?;
    work.expect(candidates.iter().map(|candidate| candidate.prunable).sum());
    let prune = format!("select * from {}.prune_executions($1, null, $2, $3, $4)", work.schema);
    let mut batches = VecDeque::from(batches(&candidates, keep_last, size));
    while let Some((mut instances, keep_last)) = batches.pop_front() {
        // A long one takes several batches.
        instances.retain(|instance| !work.was_passed_by(instance));
        if instances.is_empty() {
            continue;
        }
        let count = instances.len() as i64;
        let parameters: Parameters<'_> = &[&instances, &count, &keep_last, &before];
        match work.batch(&prune, parameters, count > 1).await? {
            Batch::Done(row) => {
                if let Some(row) = row {
                    *executions += column::<i64>(&row, "executions_deleted")?;
                    *events += column::<i64>(&row, "events_deleted")?;
                }
                work.done(*executions);
            }
            Batch::NoRoom | Batch::InTheWay if count > 1 => {
                let second = instances.split_off(instances.len() / 2);
                batches.push_front((second, keep_last));
                batches.push_front((instances, keep_last));
            }
            Batch::NoRoom => return Err(work.full()),
            Batch::InTheWay => work.pass_by(instances[0], Why::Locked)?,
        }
    }
    Ok(())
}

async fn candidates(work: &mut Work, keep_last: Option<i64>, before: Option<i64>) -> Result<Vec<Candidate>, Failure> {
    let sql = format!(
        "select e.instance_id, max(e.executions) as executions, count(*) as prunable \
           from (select s.*, \
                        count(*) over (partition by s.instance_id) as executions, \
                        row_number() over (partition by s.instance_id order by s.execution_id desc) as position \
                   from {}.execution_status as s) as e \
          where not e.is_current \
            and e.status <> 'Running' \
            and ($1::bigint is null or e.position > greatest($1, 1)) \
            and ($2::bigint is null or e.completed_at < to_timestamp($2 / 1000.0::double precision)) \
          group by e.instance_id \
          order by e.instance_id",
        work.schema
    );
    let rows = work.count(&sql, &[&keep_last, &before]).await?;
    rows.iter()
        .map(|row| {
            Ok(Candidate {
                instance: column(row, "instance_id")?,
                executions: column(row, "executions")?,
                prunable: column(row, "prunable")?,
            })
        })
        .collect()
}

/// Which instances to prune together, and how many executions each keeps: no batch takes more than `size` executions.
/// One with more is pruned in steps, by keeping fewer and fewer.
fn batches(candidates: &[Candidate], keep_last: Option<i64>, size: i64) -> Vec<(Vec<&str>, Option<i64>)> {
    let mut batches = Vec::new();
    let (mut group, mut sum) = (Vec::new(), 0);
    for candidate in candidates {
        if candidate.prunable > size {
            let least = keep_last.unwrap_or(1).max(1);
            let mut keep = candidate.executions - size;
            while keep > least {
                batches.push((vec![candidate.instance.as_str()], Some(keep)));
                keep -= size;
            }
            batches.push((vec![candidate.instance.as_str()], keep_last));
            continue;
        }
        if sum + candidate.prunable > size {
            batches.push((std::mem::take(&mut group), keep_last));
            sum = 0;
        }
        group.push(candidate.instance.as_str());
        sum += candidate.prunable;
    }
    if !group.is_empty() {
        batches.push((group, keep_last));
    }
    batches
}

/// A time that long ago, by the server's clock: fixed once, so that the command comes to an end.
async fn before(connection: &Connection, older_than: Option<i64>) -> Result<Option<i64>, Failure> {
    let Some(older_than) = older_than else {
        return Ok(None);
    };
    let sql = "select floor(extract(epoch from clock_timestamp()) * 1000)::bigint as now_ms";
    let now: i64 = first(&connection.query(sql, &[]).await?, "now_ms")?;
    Ok(Some(now - older_than))
}

fn first(rows: &[Row], name: &str) -> Result<i64, Failure> {
    rows.first().map_or(Ok(0), |row| column(row, name))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn candidate(instance: &str, executions: i64, prunable: i64) -> Candidate {
        Candidate {
            instance: instance.to_string(),
            executions,
            prunable,
        }
    }

    #[test]
    fn trees_go_together_as_long_as_they_fit_and_a_big_one_alone() {
        let mut trees: VecDeque<(String, i64)> = [("a", 3), ("b", 2), ("c", 1), ("d", 9), ("e", 0), ("f", 4)]
            .map(|(root, members)| (root.to_string(), members))
            .into();
        let mut batches = Vec::new();
        while !trees.is_empty() {
            let roots = together(&trees, 5);
            trees.drain(..roots.len());
            batches.push(roots.concat());
        }
        assert_eq!(batches, ["ab", "c", "d", "ef"]);
    }

    #[test]
    fn no_batch_takes_too_many() {
        let candidates = [
            candidate("a", 4, 3),
            candidate("b", 5, 4),
            candidate("c", 25, 23),
            candidate("d", 9, 8),
            candidate("e", 3, 2),
        ];
        let expected = [(vec!["a", "b"], Some(2)), (vec!["d", "e"], Some(2))];
        let batches = batches(&candidates, Some(2), 10);
        let (steps, groups): (Vec<_>, Vec<_>) = batches.into_iter().partition(|(group, _)| group == &["c"]);
        assert_eq!(groups, expected);
        let kept: Vec<_> = steps.iter().map(|(_, keep)| *keep).collect();
        assert_eq!(kept, [Some(15), Some(5), Some(2)]);
    }
}
