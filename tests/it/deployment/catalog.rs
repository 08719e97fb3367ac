//! What is deployed is what the files say.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use super::describe;
use crate::support::{TestSchema, create_extension, has_extension};

#[tokio::test]
async fn deployed_schema_is_the_committed_one() {
    let schema = TestSchema::new();
    schema.provider().await;
    let client = schema.client().await;
    let actual = describe(&client, &schema.name).await.join("\n") + "\n";
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("sql/deployed.txt");
    if std::env::var_os("UPDATE_DEPLOYED").is_some() {
        std::fs::write(&path, &actual).expect("sql/deployed.txt");
    }
    let committed = std::fs::read_to_string(&path).expect("sql/deployed.txt");
    assert!(
        actual == committed,
        "sql/deployed.txt is not what is deployed; see sql/README.md. Deployed:\n{actual}"
    );
}

#[tokio::test]
async fn files_and_catalog_agree() {
    let schema = TestSchema::new();
    schema.provider().await;
    let client = schema.client().await;
    let rows = client
        .query(
            "select p.proname::text, p.prosecdef, coalesce(p.proconfig, '{}'), p.proacl::text, \
                    p.prorettype::regtype::text \
               from pg_proc as p \
              where p.pronamespace = $1::text::regnamespace",
            &[&schema.name],
        )
        .await
        .expect("functions");
    let deployed: Vec<String> = rows.iter().map(|row| row.get(0)).collect();
    let unique: BTreeSet<String> = deployed.iter().cloned().collect();
    assert_eq!(unique.len(), deployed.len(), "an overload: {deployed:?}");
    assert_eq!(unique, function_files().into_iter().map(|(name, _)| name).collect());

    let called = called_functions();
    for row in &rows {
        let (name, definer, config): (String, bool, Vec<String>) = (row.get(0), row.get(1), row.get(2));
        let (acl, result): (Option<String>, String) = (row.get(3), row.get(4));
        let acl = acl.expect("PUBLIC was revoked");
        assert!(
            !acl.contains("{=") && !acl.contains(",="),
            "{name} is open to PUBLIC: {acl}"
        );
        assert_eq!(
            definer,
            called.contains(&name) || result == "trigger",
            "{name}: security definer only if processes call it, or whoever changes a table"
        );
        let pinned = config.contains(&format!("search_path={}, pg_temp", schema.name));
        assert!(pinned || !definer, "{name} does not pin its search_path: {config:?}");
    }
    for name in &called {
        assert!(unique.contains(name), "{name} is called but has no file");
    }
}

/// Files under `sql/`, by the name of their function.
fn function_files() -> Vec<(String, PathBuf)> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("sql");
    let mut files = Vec::new();
    for area in std::fs::read_dir(root)
        .expect("sql")
        .map(|entry| entry.expect("entry").path())
    {
        if area.is_dir() {
            for file in std::fs::read_dir(area)
                .expect("area")
                .map(|entry| entry.expect("entry").path())
            {
                let name = file.file_stem().expect("name").to_string_lossy().into_owned();
                let text = std::fs::read_to_string(&file).expect("text");
                if text.contains(&format!("create or replace view {name} as")) {
                    continue;
                }
                assert!(
                    text.contains(&format!("create or replace function {name}(")),
                    "{file:?} does not define {name}"
                );
                files.push((name, file));
            }
        }
    }
    files
}

/// The functions that are called from outside: every operation the Rust side names, and what autoscalers call.
fn called_functions() -> BTreeSet<String> {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut names = BTreeSet::from(["workers_wanted".to_string()]);
    let functions: BTreeSet<String> = function_files().into_iter().map(|(name, _)| name).collect();
    for entry in std::fs::read_dir(source).expect("src") {
        let path = entry.expect("entry").path();
        if path.extension().is_some_and(|extension| extension == "rs") {
            let text = std::fs::read_to_string(&path).expect("text");
            names.extend(
                functions
                    .iter()
                    .filter(|name| text.contains(&format!("\"{name}\"")))
                    .cloned(),
            );
        }
    }
    names
}

/// Static analysis of every PL/pgSQL function, warnings included.
#[tokio::test]
async fn plpgsql_check_finds_nothing() {
    let schema = TestSchema::new();
    schema.provider().await;
    let client = schema.client().await;
    if !has_extension(&client, "plpgsql_check").await {
        return;
    }
    create_extension(&client, "plpgsql_check").await;
    let rows = client
        .query(
            "select p.proname::text, c.lineno, c.level, c.message, c.detail \
               from pg_proc as p \
               join pg_language as l on l.oid = p.prolang and l.lanname = 'plpgsql' \
               left join pg_trigger as t on t.tgfoid = p.oid \
              cross join lateral public.plpgsql_check_function_tb(p.oid, coalesce(t.tgrelid, 0), fatal_errors => false, extra_warnings => true, \
                    performance_warnings => true, security_warnings => true, compatibility_warnings => true) as c \
              where p.pronamespace = $1::text::regnamespace",
            &[&schema.name],
        )
        .await
        .expect("plpgsql_check");
    let findings: Vec<String> = rows
        .iter()
        .map(|row| {
            let (function, level, message): (String, String, String) = (row.get(0), row.get(2), row.get(3));
            let (line, detail): (Option<i32>, Option<String>) = (row.get(1), row.get(4));
            format!(
                "{function}:{}: {level}: {message} {}",
                line.unwrap_or(0),
                detail.unwrap_or_default()
            )
        })
        .collect();
    assert!(findings.is_empty(), "{}", findings.join("\n"));
}

#[tokio::test]
async fn a_temporary_table_cannot_hijack_a_function() {
    let schema = TestSchema::new();
    schema.provider().await;
    let client = schema.client().await;
    client
        .batch_execute("create temporary table instances (instance_id text, parent_instance_id text)")
        .await
        .expect("temporary table");
    client
        .execute("insert into pg_temp.instances values ('forged', 'parent')", &[])
        .await
        .expect("forged row");
    let error = client
        .query(&format!("select \"{}\".get_parent_id('forged')", schema.name), &[])
        .await
        .expect_err("the real table has no such instance");
    assert_eq!(error.code().map(|code| code.code()), Some("DX003"));
}
