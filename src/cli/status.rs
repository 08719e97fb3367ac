//! `status` and `watch`: how the whole schema is doing.

use std::io::{self, IsTerminal};
use std::time::Duration;

use serde_json::{Value, json};

use super::arguments::{Watch, Workers};
use super::connection::{Connection, column};
use super::output::{Failure, Outcome, Shown, duration, print, table};

/// How much of what can be long is shown.
const LONGEST_LIST: i64 = 10;

pub(super) async fn run(connection: &Connection, workers: &Workers) -> Result<Outcome, Failure> {
    connection.require_deployment().await?;
    let status = Status::read(connection, workers).await?;
    Ok(Outcome::new(status.text(connection.schema.as_str()), status.json))
}

/// Until it is interrupted, or for as many times as were asked for. As JSON: an object a line.
pub(super) async fn watch(connection: &Connection, watch: &Watch, json: bool) -> Result<Outcome, Failure> {
    connection.require_deployment().await?;
    let mut interval = tokio::time::interval(Duration::from_millis(watch.every.unsigned_abs()));
    interval.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    let mut left = watch.times;
    let on_terminal = io::stdout().is_terminal();
    let mut is_first = true;
    while left != Some(0) {
        interval.tick().await;
        let status = Status::read(connection, &watch.workers).await?;
        let text = || status.text(connection.schema.as_str());
        let shown = match (json, on_terminal) {
            (true, _) => Shown::json(&format!("{}\n", status.json)),
            (false, true) => Shown::text(&text()).in_place(std::mem::take(&mut is_first)),
            (false, false) => Shown::text(&format!("{}\n", text())),
        };
        if !print(&shown)? {
            break;
        }
        left = left.map(|left| left - 1);
    }
    Ok(Outcome::printed())
}

struct Status {
    json: Value,
}

impl Status {
    async fn read(connection: &Connection, workers: &Workers) -> Result<Self, Failure> {
        let schema = connection.schema.quoted();
        // One statement a view, one snapshot for all: numbers that belong together.
        let sql = format!(
            "select json_build_object( \
                 'at', to_char(statement_timestamp() at time zone 'utc', 'YYYY-MM-DD\"T\"HH24:MI:SS.MS\"Z\"'), \
                 'workers_wanted', {schema}.workers_wanted($1, $2), \
                 'worker', json_build_object('turns', $1, 'activities', $2), \
                 'instances', (select json_object_agg(lower(c.status), c.instances) from {schema}.instance_counts as c), \
                 'queues', (select json_agg(json_build_object( \
                         'queue', q.queue, 'ready', q.ready, 'scheduled', q.scheduled, 'leased', q.leased, \
                         'oldest_ready_ms', floor(extract(epoch from q.latency) * 1000), \
                         'next_in_ms', floor(extract(epoch from q.next_at - statement_timestamp()) * 1000), \
                         'retried', q.retried, 'max_attempts', q.max_attempts) order by q.queue) \
                     from {schema}.queue_health as q), \
                 'leases', (select json_agg(json_build_object( \
                         'kind', k.kind, \
                         'held', (select count(*) from {schema}.lease_status as l \
                                   where l.kind = k.kind and not l.is_expired), \
                         'expired', (select count(*) from {schema}.lease_status as l \
                                      where l.kind = k.kind and l.is_expired))) \
                     from (values ('orchestration'), ('activity'), ('session')) as k (kind)), \
                 'next_timers', (select coalesce(json_agg(json_build_object( \
                         'instance', t.instance_id, 'in_ms', floor(extract(epoch from t.due_in) * 1000))), '[]') \
                     from (select s.instance_id, s.due_in from {schema}.scheduled_messages as s \
                            order by s.due_at, s.instance_id limit {LONGEST_LIST}) as t), \
                 'throughput', (select coalesce(json_agg(json_build_object( \
                         'orchestration', t.orchestration_name, 'running', t.running, \
                         'completed_last_minute', t.completed_last_minute, 'failed_last_minute', t.failed_last_minute, \
                         'ended_last_minute', t.ended_last_minute, 'ended_last_hour', t.ended_last_hour, \
                         'failed_last_hour', t.failed_last_hour, \
                         'average_ms', floor(extract(epoch from t.average_duration) * 1000))), '[]') \
                     from (select * from {schema}.orchestration_throughput as o \
                            order by o.ended_last_minute desc, o.ended_last_hour desc, o.running desc, o.orchestration_name \
                            limit {LONGEST_LIST}) as t))::text as status"
        );
        let rows = connection.query(&sql, &[&workers.turns, &workers.activities]).await?;
        let Some(row) = rows.first() else {
            return Err(Failure::new("the server returned no status"));
        };
        let mut json: Value = serde_json::from_str(column(row, "status")?)
            .map_err(|error| Failure::new(format!("the status cannot be read: {error}")))?;
        json["schema"] = json!(connection.schema.as_str());
        Ok(Self { json })
    }

    fn text(&self, schema: &str) -> String {
        let json = &self.json;
        let instances = &json["instances"];
        let mut text = format!(
            "schema {schema:?}, {}\n\ninstances: {} running, {} completed, {} failed; workers wanted: {}, each with {} turns and {} \
             activities at once\n\n",
            json["at"].as_str().unwrap_or_default(),
            instances["running"],
            instances["completed"],
            instances["failed"],
            json["workers_wanted"],
            json["worker"]["turns"],
            json["worker"]["activities"]
        );
        text.push_str(&rows(
            &json["queues"],
            &[
                ("QUEUE", &|row| plain(&row["queue"])),
                ("READY", &|row| plain(&row["ready"])),
                ("OLDEST", &|row| time(&row["oldest_ready_ms"])),
                ("LEASED", &|row| plain(&row["leased"])),
                ("SCHEDULED", &|row| plain(&row["scheduled"])),
                ("NEXT IN", &|row| time(&row["next_in_ms"])),
                ("RETRIED", &|row| plain(&row["retried"])),
                ("MOST ATTEMPTS", &|row| plain(&row["max_attempts"])),
            ],
        ));
        text.push('\n');
        text.push_str(&rows(
            &json["leases"],
            &[
                ("LEASES", &|row| plain(&row["kind"])),
                ("HELD", &|row| plain(&row["held"])),
                ("EXPIRED", &|row| plain(&row["expired"])),
            ],
        ));
        if json["next_timers"] != json!([]) {
            text.push('\n');
            text.push_str(&rows(
                &json["next_timers"],
                &[
                    ("NEXT TIMERS", &|row| plain(&row["instance"])),
                    ("IN", &|row| time(&row["in_ms"])),
                ],
            ));
        }
        if json["throughput"] != json!([]) {
            text.push('\n');
            text.push_str(&rows(
                &json["throughput"],
                &[
                    ("ORCHESTRATION", &|row| plain(&row["orchestration"])),
                    ("RUNNING", &|row| plain(&row["running"])),
                    ("ENDED/MIN", &|row| plain(&row["ended_last_minute"])),
                    ("FAILED/MIN", &|row| plain(&row["failed_last_minute"])),
                    ("ENDED/H", &|row| plain(&row["ended_last_hour"])),
                    ("FAILED/H", &|row| plain(&row["failed_last_hour"])),
                    ("AVERAGE", &|row| time(&row["average_ms"])),
                ],
            ));
        }
        text
    }
}

type Column<'a> = (&'a str, &'a dyn Fn(&Value) -> String);

fn rows(list: &Value, columns: &[Column<'_>]) -> String {
    let headers: Vec<&str> = columns.iter().map(|(header, _)| *header).collect();
    let cells = |row: &Value| columns.iter().map(|(_, cell)| cell(row)).collect();
    let list: Vec<Vec<String>> = list.as_array().into_iter().flatten().map(cells).collect();
    table(&headers, &list)
}

fn plain(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Null => "-".to_string(),
        other => other.to_string(),
    }
}

fn time(value: &Value) -> String {
    value.as_i64().map_or_else(|| plain(value), duration)
}
