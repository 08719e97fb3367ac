//! Plans made while there was next to nothing, and kept while the tables grow.

use tokio_postgres::Client;

use super::rows::{INSTANCES, TABLES, busy_year};
use super::{Explained, hot_functions};
use crate::support::{TestSchema, eventually, in_own_database};

/// How few rows there are, and whether the server knows.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Few {
    /// It has not counted them yet.
    New,
    /// There have never been more.
    Always,
    /// There were many before, and the indexes still have the pages.
    Left,
}

/// Queues are nearly empty whenever the server happens to count their rows: plans made then must do when they are full.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn plans_of_nearly_empty_tables_do_no_harm_when_they_have_grown() {
    // What another test's transaction may still see would stay until that ends.
    in_own_database(|url| async move {
        for few in [Few::New, Few::Always, Few::Left] {
            let faults = faults_of_growth(&url, few).await;
            assert!(faults.is_empty(), "{few:?}: {}", faults.join("\n"));
        }
    })
    .await;
}

async fn faults_of_growth(url: &str, few: Few) -> Vec<String> {
    let schema = TestSchema::on(url.to_string());
    schema.provider().await;
    let setup = schema.client().await;
    for table in TABLES {
        let still = format!("alter table {table} set (autovacuum_enabled = off)");
        setup.batch_execute(&still).await.expect("settings");
    }
    let most = if few == Few::Left { 5000 } else { 2 };
    setup.batch_execute(&busy_year(1, most)).await.expect("rows");
    for table in TABLES {
        let stays = match table {
            "worker_queue" | "orchestrator_queue" | "sessions" => "false",
            _ => "instance_id in ('idle-1', 'idle-2')",
        };
        let delete = format!("delete from {table} where not {stays}");
        setup.batch_execute(&delete).await.expect("few are left");
    }
    setup.batch_execute(INSTANCES).await.expect("instances");
    if few != Few::New {
        // A session that has deleted rows does not report those as dead at once.
        let another = schema.client().await;
        for table in TABLES {
            count_rows(&another, table).await;
        }
    }
    let explained = Explained::new(&schema).await;
    let mut faults = hot_functions(&explained, 0).await;
    setup.batch_execute(&busy_year(3, 20_000)).await.expect("a busy year");
    faults.extend(hot_functions(&explained, 1).await);
    faults
}

/// Has the server count the rows of a table, and forget those that were deleted.
async fn count_rows(client: &Client, table: &str) {
    let vacuum = format!("vacuum (truncate off, analyze) {table}");
    let left =
        format!("select n_dead_tup from pg_stat_user_tables where relid = '{table}'::regclass and n_dead_tup > 0");
    eventually("what was deleted is gone", || async {
        client.batch_execute(&vacuum).await.expect("vacuum");
        (client.query_opt(&left, &[]).await)
            .expect("dead rows")
            .is_none()
            .then_some(())
    })
    .await;
}
