//! `instances`: which there are.

use std::time::SystemTime;

use serde_json::{Value, json};

use super::arguments::Instances;
use super::connection::{Connection, column};
use super::output::{Failure, Outcome, duration, table};
use super::shell::quoted;

/// Newest first. `next` in the JSON is what `--after` wants for the next page.
pub(super) async fn run(connection: &Connection, filter: &Instances) -> Result<Outcome, Failure> {
    connection.require_deployment().await?;
    let schema = connection.schema.quoted();
    let after = match &filter.after {
        Some(instance) => Some((instance.as_str(), created_at(connection, instance).await?)),
        None => None,
    };
    let limit = i64::from(filter.limit);
    let sql = format!(
        "select i.instance_id, i.orchestration_name, i.orchestration_version, i.status, i.execution_id, \
                i.parent_instance_id, \
                to_char(i.created_at at time zone 'utc', 'YYYY-MM-DD\"T\"HH24:MI:SS.MS\"Z\"') as created_at, \
                to_char(i.updated_at at time zone 'utc', 'YYYY-MM-DD\"T\"HH24:MI:SS.MS\"Z\"') as updated_at, \
                to_char(i.completed_at at time zone 'utc', 'YYYY-MM-DD\"T\"HH24:MI:SS.MS\"Z\"') as completed_at, \
                floor(extract(epoch from i.age) * 1000)::bigint as age_ms, \
                floor(extract(epoch from i.duration) * 1000)::bigint as duration_ms \
           from {schema}.instance_status as i \
          where ($1::text is null or i.status = $1) \
            and ($2::text is null or i.orchestration_name = $2) \
            and ($3::text is null or i.parent_instance_id = $3) \
            and ($4::bigint is null or i.created_at <= statement_timestamp() - $4 * interval '1 millisecond') \
            and ($5::bigint is null or i.created_at > statement_timestamp() - $5 * interval '1 millisecond') \
            and ($6::timestamptz is null or (i.created_at, i.instance_id) < ($6, $7)) \
          order by i.created_at desc, i.instance_id desc \
          limit $8"
    );
    let rows = connection
        .query(
            &sql,
            &[
                &filter.status.map(super::arguments::Status::name),
                &filter.name,
                &filter.parent,
                &filter.older_than,
                &filter.younger_than,
                &after.map(|(_, at)| at),
                &after.map(|(instance, _)| instance),
                &(limit + 1),
            ],
        )
        .await?;
    let more = rows.len() as i64 > limit;
    let mut list = Vec::new();
    let mut cells = Vec::new();
    for row in rows.iter().take(filter.limit as usize) {
        let age: i64 = column(row, "age_ms")?;
        let lasted: Option<i64> = column(row, "duration_ms")?;
        let text = |name| column::<Option<String>>(row, name);
        list.push(json!({
            "instance": text("instance_id")?,
            "orchestration": text("orchestration_name")?,
            "version": text("orchestration_version")?,
            "status": text("status")?,
            "execution": column::<i64>(row, "execution_id")?,
            "parent": text("parent_instance_id")?,
            "created_at": text("created_at")?,
            "updated_at": text("updated_at")?,
            "completed_at": text("completed_at")?,
            "age_ms": age,
            "duration_ms": lasted,
        }));
        cells.push(vec![
            text("instance_id")?.unwrap_or_default(),
            text("orchestration_name")?.unwrap_or_default(),
            text("status")?.unwrap_or_default(),
            column::<i64>(row, "execution_id")?.to_string(),
            duration(age),
            lasted.map_or("-".to_string(), duration),
            text("parent_instance_id")?.unwrap_or_else(|| "-".to_string()),
        ]);
    }
    let next = list
        .last()
        .filter(|_| more)
        .map_or(Value::Null, |last| last["instance"].clone());
    let headers = [
        "INSTANCE",
        "ORCHESTRATION",
        "STATUS",
        "EXECUTION",
        "AGE",
        "DURATION",
        "PARENT",
    ];
    let mut text = table(&headers, &cells);
    if let Some(next) = next.as_str() {
        let how = if next.contains(char::is_control) {
            "--after what --json calls \"next\"".to_string()
        } else {
            format!("--after={}", quoted(next))
        };
        text.push_str(&format!("\nThere are more: {how}\n"));
    }
    Ok(Outcome::new(text, json!({ "instances": list, "next": next })))
}

async fn created_at(connection: &Connection, instance: &str) -> Result<SystemTime, Failure> {
    let sql = format!(
        "select i.created_at from {}.instance_status as i where i.instance_id = $1",
        connection.schema.quoted()
    );
    match connection.query(&sql, &[&instance]).await?.first() {
        Some(row) => column(row, "created_at"),
        None => Err(Failure::new(format!(
            "--after names the last instance of the page before, but there is no instance {instance:?}"
        ))),
    }
}
