//! `schema`: deploying, verifying, dropping.

use std::io::{self, BufRead, IsTerminal};
use std::time::Duration;

use indicatif::ProgressBar;
use serde_json::json;
use tokio_postgres::Client;

use super::connection::{Connection, Place, column};
use super::output::{Failure, Outcome, ask, say, visible};
use crate::deploy::{self, Applied, Deployment, Kept, RELEASE, Standing};
use crate::error::ErrorKind;
use crate::limited;
use crate::schema_name::SchemaName;

pub(super) fn sql(schema: &str, from: i32) -> Result<Outcome, Failure> {
    let schema = SchemaName::new(schema)?;
    let sql = deploy::script(&schema, from)?;
    let json = json!({ "schema": schema.as_str(), "release": RELEASE, "from": from, "sql": sql });
    Ok(Outcome::script(sql, json))
}

pub(super) async fn apply(connection: &Connection) -> Result<Outcome, Failure> {
    let name = connection.schema.as_str();
    let progress = ProgressBar::new_spinner().with_message(format!("deploying release {RELEASE} to schema {name:?}"));
    progress.enable_steady_tick(Duration::from_millis(100));
    let mut session = connection.session().await?;
    let applied = deploy::apply_and_tell(&mut session, &connection.schema, true, &tell(&progress)).await;
    progress.finish_and_clear();
    let applied = match applied {
        // The error says what is needed: nobody owns it yet.
        Err(error)
            if error.kind() == ErrorKind::Privilege && matches!(connection.place().await, Ok(Place::Missing)) =>
        {
            return Err(Failure::new(error.to_string()));
        }
        applied => applied?,
    };
    let Deployment { release, migration, .. } = deployed(&session, connection).await?;
    let text = match applied {
        Applied::Deployed => format!("schema {name:?}: release {RELEASE} is deployed, migration {migration}"),
        Applied::Unchanged => {
            format!(
                "schema {name:?}: release {RELEASE} was deployed already, migration {migration}; nothing was changed"
            )
        }
        Applied::Newer => {
            format!("schema {name:?} was deployed by release {release}, which is later than {RELEASE}: left alone")
        }
    };
    let json = json!({
        "schema": name,
        "applied": applied == Applied::Deployed,
        "release": release,
        "migration": migration,
    });
    Ok(Outcome::new(text, json))
}

/// What is deployed now. Read where it was deployed: there may be no second connection to be had.
async fn deployed(session: &Client, connection: &Connection) -> Result<Deployment, Failure> {
    let sql = format!("select * from {}.get_deployment()", connection.schema.quoted());
    let rows = limited::query(session, &sql, &[]).await.map_err(deploy::database)?;
    match rows.first() {
        Some(row) => Ok(deploy::decode(row).map_err(deploy::database)?),
        None => Err(connection.not_deployed().await?),
    }
}

/// Says on stderr what is waited for.
fn tell(progress: &ProgressBar) -> impl Fn(&str) + Sync + '_ {
    |what| {
        progress.suspend(|| say(what));
    }
}

pub(super) async fn verify(connection: &Connection) -> Result<Outcome, Failure> {
    let name = connection.schema.as_str();
    let Some(found) = connection.find_deployment().await? else {
        return Err(connection.not_deployed().await?);
    };
    let standing = deploy::standing(&found, &connection.schema)?;
    let drift = {
        let mut client = connection.client().await?;
        deploy::find_drift(&mut client, &connection.schema).await?
    };
    let grants = connection.grant_problems().await?;
    let mut grants: Vec<String> = grants.iter().map(ToString::to_string).collect();
    // A later release serves this one, and looks different.
    let newer = standing == Standing::Newer;
    let open = drift.open_to_public();
    if !open.is_empty() && !newer {
        grants.push(format!(
            "PUBLIC has EXECUTE on {}: {} schema apply",
            open.join(", "),
            connection.command()
        ));
    }
    let outdated = standing == Standing::Outdated;
    let ok = newer || (drift.is_empty() && grants.is_empty() && !outdated);

    let mut text = format!(
        "schema {name:?}: release {}, migration {}\n",
        found.release, found.migration
    );
    for (what, names) in [
        ("missing", &drift.missing),
        ("extra", &drift.extra),
        ("changed", &drift.changed_names()),
    ] {
        for name in names {
            text.push_str(&format!("  {what}: {}\n", visible(name)));
        }
    }
    for problem in &grants {
        text.push_str(&format!("  grants: {}\n", visible(problem)));
    }
    if let Some(why) = drift.views_unknown() {
        text.push_str(&format!("  not compared: what the views say, for {why}\n"));
    }
    let views_compared = drift.views_unknown().is_none();
    if outdated {
        text.push_str(&format!(
            "  outdated: deployed by another release than {RELEASE}, or another build of it\n"
        ));
    } else if drift.is_empty() && grants.is_empty() {
        let but = if views_compared { "" } else { ", the views aside" };
        text.push_str(&format!("  as this release deploys it{but}\n"));
    } else if newer {
        text.push_str(&format!(
            "  deployed by a later release than {RELEASE}, which serves this one\n"
        ));
    }
    let json = json!({
        "schema": name,
        "ok": ok,
        "standing": standing_name(standing),
        "release": found.release,
        "migration": found.migration,
        "missing": drift.missing,
        "extra": drift.extra,
        "changed": drift.changed_names(),
        "views_compared": views_compared,
        "grants": grants,
    });
    let problem = (!ok).then(|| {
        Failure::new(format!(
            "schema {name:?} is not as release {RELEASE} deploys it. \
             Functions, views and what PUBLIC may do with them are put right by: {0} schema apply; what roles lack or have too \
             much, by what their lines say. What else to do says: {0} doctor",
            connection.command()
        ))
    });
    Ok(Outcome::new(text, json).with_problem(problem))
}

pub(super) async fn version(connection: &Connection) -> Result<Outcome, Failure> {
    let name = connection.schema.as_str();
    let found = connection.deployment().await?;
    let Deployment {
        migration,
        release,
        serves_from,
        functions_digest,
    } = &found;
    let (standing, problem) = match deploy::standing(&found, &connection.schema) {
        Ok(standing) => (standing_name(standing), None),
        Err(error) => ("unsupported", Some(Failure::from(error))),
    };
    let text = format!(
        "schema {name:?}: release {release} ({standing}), migration {migration}, functions {functions_digest}\n\
         serves processes from release {serves_from} on; this is {RELEASE}"
    );
    let json = json!({
        "schema": name,
        "standing": standing,
        "release": release,
        "serves_from": serves_from,
        "migration": migration,
        "functions_digest": functions_digest,
        "this_release": RELEASE,
    });
    Ok(Outcome::new(text, json).with_problem(problem))
}

fn standing_name(standing: Standing) -> &'static str {
    match standing {
        Standing::Current => "current",
        Standing::Outdated => "outdated",
        Standing::Newer => "newer",
    }
}

pub(super) async fn drop(connection: &Connection, yes: bool) -> Result<Outcome, Failure> {
    let name = connection.schema.as_str();
    let Some(found) = connection.find_deployment().await? else {
        let nothing = match connection.place().await? {
            Place::Missing => format!("there is no schema {name:?} in this database"),
            Place::Empty => format!("schema {name:?} is empty"),
            _ => return Err(connection.not_deployed().await?),
        };
        return Err(Failure::new(format!(
            "nothing to drop: {nothing}. Name another one with --schema"
        )));
    };
    let newer = || format!("nothing was dropped, for this is release {RELEASE}: ");
    let standing =
        deploy::standing(&found, &connection.schema).map_err(|error| Failure::from(error).preceded_by(&newer()))?;
    if standing == Standing::Newer {
        // It may have brought tables and functions that this one does not know.
        return Err(Failure::new(format!(
            "{}schema {name:?} was deployed by release {}. Use that one",
            newer(),
            found.release
        )));
    }
    if !yes {
        confirm(connection).await?;
    }
    let mut session = connection.session().await?;
    let progress = ProgressBar::hidden();
    let removal = deploy::remove(&mut session, &connection.schema, &tell(&progress)).await?;
    let (rest, reason) = match removal.kept {
        None => ("and the schema", None),
        Some(Kept::InUse) => ("but not the schema: something else is in it", Some("in_use")),
        Some(Kept::Public) => (
            "but not the schema: every database has one of that name",
            Some("public"),
        ),
        Some(Kept::NotOwned) => (
            "but not the schema: it belongs to another role than this one",
            Some("not_owned"),
        ),
    };
    let text = format!("schema {name:?}: dropped {} objects, {rest}", removal.objects);
    let json = json!({
        "schema": name,
        "objects": removal.objects,
        "schema_dropped": removal.kept.is_none(),
        "schema_kept": reason,
    });
    Ok(Outcome::new(text, json))
}

/// Asks for the schema's name.
async fn confirm(connection: &Connection) -> Result<(), Failure> {
    let name = connection.schema.as_str();
    let counts = format!(
        "select status, instances from {}.instance_counts",
        connection.schema.quoted()
    );
    let counted = match connection.query(&counts, &[]).await {
        Ok(rows) => {
            let mut total = 0;
            let mut running = 0;
            for row in &rows {
                let count: i64 = column(row, "instances")?;
                total += count;
                if column::<&str>(row, "status")? == "Running" {
                    running = count;
                }
            }
            format!("{total} instances, {running} of them running")
        }
        // What was damaged has to go, too.
        Err(error) => format!("an unknown number of instances ({error})"),
    };
    ask(&format!(
        "This drops schema {name:?} with {counted}.\nType the schema's name to go on: "
    ));
    let mut answer = String::new();
    let read = io::stdin().lock().read_line(&mut answer);
    if !io::stdin().is_terminal() {
        say("");
    }
    if read.is_ok() && answer.trim() == name {
        return Ok(());
    }
    Err(Failure::new(
        "nothing was dropped: that is not the schema's name. To drop it without being asked, use --yes",
    ))
}
