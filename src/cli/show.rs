//! `show` and `history`: everything about one instance.

use std::collections::{BTreeMap, HashMap};

use duroxide::providers::{InstanceInfo, Provider, ProviderAdmin};
use serde_json::{Value, json};

use super::connection::Connection;
use super::output::{Failure, Outcome, duration, table, visible};
use super::queued::begun;
use super::timeline::{Timeline, clipped};
use crate::PostgresProvider;

/// Of a larger tree, the rest is only counted.
const LARGEST_TREE: usize = 200;
/// Of more executions, the earlier ones are only counted.
const MOST_EXECUTIONS: usize = 20;

pub(super) async fn show(connection: &Connection, instance: &str) -> Result<Outcome, Failure> {
    let provider = connection.provider().await?;
    let info = begun(&provider, instance).await?;
    let custom_status = provider
        .get_custom_status(instance, 0)
        .await?
        .and_then(|(status, _)| status);
    let values: BTreeMap<String, String> = provider.get_kv_all_values(instance).await?.into_iter().collect();
    let history = Timeline::read(&provider, instance, info.current_execution_id).await?;

    let mut text = format!(
        "instance {instance:?}: {} {} {}\n  created {} ago, changed {} ago, execution {}\n",
        visible(&info.orchestration_name),
        visible(&info.orchestration_version),
        info.status,
        ago(connection, info.created_at).await?,
        ago(connection, info.updated_at).await?,
        info.current_execution_id
    );
    for (name, value) in [
        ("parent", &info.parent_instance_id),
        ("custom status", &custom_status),
        ("output", &info.output),
    ] {
        if let Some(value) = value {
            text.push_str(&format!("  {name}: {}\n", clipped(value)));
        }
    }
    let (executions_text, executions, total) = executions(&provider, instance).await?;
    text.push_str(&format!("\n{executions_text}"));
    let (tree_text, tree, tree_total) = tree(&provider, &info).await?;
    if tree.len() > 1 {
        text.push_str(&format!("\nTREE\n{tree_text}"));
    }
    if !values.is_empty() {
        let rows: Vec<Vec<String>> = values
            .iter()
            .map(|(key, value)| vec![key.clone(), clipped(value)])
            .collect();
        text.push_str(&format!("\n{}", table(&["KEY", "VALUE"], &rows)));
    }
    text.push_str(&format!(
        "\nHISTORY OF EXECUTION {}\n{}",
        info.current_execution_id,
        history.text()
    ));
    let json = json!({
        "instance": instance,
        "orchestration": info.orchestration_name,
        "version": info.orchestration_version,
        "status": info.status,
        "execution": info.current_execution_id,
        "parent": info.parent_instance_id,
        "created_at_ms": info.created_at,
        "updated_at_ms": info.updated_at,
        "output": info.output,
        "custom_status": custom_status,
        "executions": executions,
        "executions_total": total,
        "tree": tree,
        "tree_total": tree_total,
        "values": values,
        "history": history.json(),
    });
    Ok(Outcome::new(text, json).with_problem(history.problem(instance)))
}

pub(super) async fn history(
    connection: &Connection,
    instance: &str,
    execution: Option<u64>,
) -> Result<Outcome, Failure> {
    let provider = connection.provider().await?;
    let info = begun(&provider, instance).await?;
    let execution = execution.unwrap_or(info.current_execution_id);
    let known = provider.list_executions(instance).await?;
    if !known.contains(&execution) {
        let range = match (known.iter().min(), known.iter().max()) {
            (Some(first), Some(last)) if first < last => format!("{}, from {first} to {last}", known.len()),
            (Some(only), _) => only.to_string(),
            _ => "none".to_string(),
        };
        return Err(Failure::new(format!(
            "instance {instance:?} has no execution {execution}: it has {range}"
        )));
    }
    let history = Timeline::read(&provider, instance, execution).await?;
    Ok(Outcome::new(history.text(), Value::Array(history.json())).with_problem(history.problem(instance)))
}

/// The latest, and how many there are.
async fn executions(provider: &PostgresProvider, instance: &str) -> Result<(String, Vec<Value>, usize), Failure> {
    let mut rows = Vec::new();
    let mut list = Vec::new();
    let mut all = provider.list_executions(instance).await?;
    all.sort_unstable();
    let earlier = all.len().saturating_sub(MOST_EXECUTIONS);
    for &execution in &all[earlier..] {
        let info = provider.get_execution_info(instance, execution).await?;
        let lasted = info.completed_at.map(|end| end.saturating_sub(info.started_at));
        rows.push(vec![
            execution.to_string(),
            info.status.clone(),
            info.event_count.to_string(),
            lasted.map_or("-".to_string(), |ms| duration(ms as i64)),
            info.output.as_deref().map_or("-".to_string(), clipped),
        ]);
        list.push(json!({
            "execution": execution,
            "status": info.status,
            "events": info.event_count,
            "started_at_ms": info.started_at,
            "completed_at_ms": info.completed_at,
            "output": info.output,
        }));
    }
    let mut text = table(&["EXECUTION", "STATUS", "EVENTS", "DURATION", "OUTPUT"], &rows);
    if earlier > 0 {
        text.push_str(&format!("and {earlier} earlier\n"));
    }
    Ok((text, list, all.len()))
}

/// The instance and its descendants, parents before children, and how many there are.
async fn tree(provider: &PostgresProvider, root: &InstanceInfo) -> Result<(String, Vec<Value>, usize), Failure> {
    let all = provider.get_instance_tree(&root.instance_id).await?.all_ids;
    let mut list = Vec::new();
    let mut children: HashMap<String, Vec<(String, String)>> = HashMap::new();
    for id in all.iter().take(LARGEST_TREE) {
        // One may have been deleted meanwhile.
        let Ok(info) = provider.get_instance_info(id).await else {
            continue;
        };
        let label = label(&info);
        list.push(json!({ "instance": id, "parent": info.parent_instance_id, "status": info.status }));
        if let (Some(parent), true) = (info.parent_instance_id, *id != root.instance_id) {
            children.entry(parent).or_default().push((id.clone(), label));
        }
    }
    let mut text = String::new();
    let mut open = vec![(0, root.instance_id.clone(), label(root))];
    while let Some((depth, id, label)) = open.pop() {
        text.push_str(&format!("{:indent$}{label}\n", "", indent = depth * 2));
        let below = children.remove(&id).unwrap_or_default();
        open.extend(below.into_iter().rev().map(|(id, label)| (depth + 1, id, label)));
    }
    if all.len() > LARGEST_TREE {
        text.push_str(&format!("and {} more\n", all.len() - LARGEST_TREE));
    }
    Ok((text, list, all.len()))
}

fn label(info: &InstanceInfo) -> String {
    visible(&format!(
        "{}  {}  {}",
        info.instance_id, info.orchestration_name, info.status
    ))
}

/// How long ago that was, by the server's clock.
async fn ago(connection: &Connection, at_ms: u64) -> Result<String, Failure> {
    let sql = "select floor(extract(epoch from clock_timestamp()) * 1000)::bigint as now_ms";
    let rows = connection.query(sql, &[]).await?;
    let now: i64 = match rows.first() {
        Some(row) => super::connection::column(row, "now_ms")?,
        None => 0,
    };
    Ok(duration(now.saturating_sub_unsigned(at_ms)))
}
