//! Views of an older release, and what others built upon them.

use crate::process::{Finished, cli, psql};
use crate::support::TestSchema;

type Way<'a> = &'a dyn Fn(&TestSchema) -> Option<Finished>;

fn apply(schema: &TestSchema) -> Option<Finished> {
    Some(cli(schema, &["schema", "apply"]))
}

fn script(schema: &TestSchema) -> Option<Finished> {
    psql(&schema.url, &cli(schema, &["schema", "sql"]).ok().out)
}

async fn older(schema: &TestSchema, columns: &str) {
    schema.provider().await;
    let name = &schema.name;
    let sql = format!(
        "create role {name}; drop view instance_counts; create view instance_counts as select {columns} from executions; \
         grant select on instance_counts to {name}; \
         update deployment set release = '0.0.9', functions_digest = 'older'"
    );
    schema.client().await.batch_execute(&sql).await.expect(&sql);
}

/// Columns come at the end: what others built upon the view, and grants on columns, stay.
#[tokio::test]
async fn a_view_gets_columns_where_it_is() {
    for deploy in [&apply as Way<'_>, &script] {
        let schema = TestSchema::new();
        older(&schema, "'Running' as status").await;
        let (client, name) = (schema.client().await, &schema.name);
        let theirs = format!(
            "create view pg_temp.theirs as select status from instance_counts; \
             revoke select on instance_counts from {name}; grant select (status) on instance_counts to {name}"
        );
        client.batch_execute(&theirs).await.expect("theirs");
        let Some(done) = deploy(&schema) else { return };
        done.ok();
        let sql = format!(
            "select (select count(*) from pg_temp.theirs) + (select count(instances) from instance_counts) = 6 \
                    and has_column_privilege('{name}', 'instance_counts', 'status', 'select') \
                    and not has_table_privilege('{name}', 'instance_counts', 'select')"
        );
        assert!(client.query_one(&sql, &[]).await.expect("views").get::<_, bool>(0));
    }
}

/// One that PostgreSQL cannot replace is dropped and comes back with its grants.
#[tokio::test]
async fn a_view_with_other_columns_is_created_again() {
    for deploy in [&apply as Way<'_>, &script] {
        for columns in [
            "1 as mine",
            "1::bigint as instances, 'Running' as status",
            "1 as status",
        ] {
            let schema = TestSchema::new();
            older(&schema, columns).await;
            let (client, name) = (schema.client().await, &schema.name);
            let theirs = "create view pg_temp.theirs as select * from instance_counts";
            client.batch_execute(theirs).await.expect("theirs");
            let Some(refused) = deploy(&schema) else { return };
            let code = refused.code;
            assert!(code == 1 || code == 3, "{code}");
            refused.fails(code, &["instance_counts", "theirs depends on view instance_counts"]);
            client.batch_execute("drop view pg_temp.theirs").await.expect("drop");
            deploy(&schema).expect("as before").ok();
            let sql = format!(
                "select count(instances) = 3 and has_table_privilege('{name}', 'instance_counts', 'select') from instance_counts"
            );
            assert!(client.query_one(&sql, &[]).await.expect("views").get::<_, bool>(0));
        }
    }
}
