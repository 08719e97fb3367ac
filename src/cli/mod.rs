//! The command `duroxide-postgres`: what a DBA does with a schema.
//!
//! Part of the library, so that it can use what applications have no business with. Each command is a module that
//! returns what it found as an `Outcome`, text and JSON; this module prints it.

mod act;
mod arguments;
mod connection;
mod doctor;
mod grant;
mod instances;
mod output;
mod prune;
mod queued;
mod schema;
mod show;
mod status;
mod table_lock;
mod timeline;

use std::process::ExitCode;

use clap::Parser;

use arguments::{Arguments, Command, SchemaCommand};
use connection::Connection;
use output::{Failure, Outcome, print, say};

use crate::shell;

/// Runs the command this process was started as.
#[must_use]
pub fn main() -> ExitCode {
    // Prints help and usage errors itself, and exits with 0 or 2.
    let arguments = Arguments::parse();
    let runtime = match tokio::runtime::Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => return fail(&Failure::new(format!("cannot start: {error}"))),
    };
    match runtime.block_on(run(&arguments)) {
        Ok(outcome) => finish(&arguments, outcome),
        Err(failure) => fail(&failure.with_hint(|| who_may(&arguments))),
    }
}

/// Which roles may do it.
fn who_may(arguments: &Arguments) -> String {
    let purpose = match &arguments.command {
        Command::Schema(SchemaCommand::Apply | SchemaCommand::Drop { .. }) | Command::Grant(_) => {
            return format!(
                "Only the owner of schema {:?} may do that, and of what is in it: `duroxide-postgres doctor` says where owners differ",
                arguments.schema
            );
        }
        Command::Schema(_) | Command::Status(_) | Command::Watch(_) | Command::Instances(_) | Command::Doctor(_) => {
            " --for dashboard"
        }
        Command::Delete { .. } | Command::Prune(_) => " --for cleanup",
        Command::Show { .. } | Command::History { .. } | Command::Cancel { .. } | Command::Raise(_) => "",
    };
    format!(
        "Use a role that may, or ask the owner for: duroxide-postgres --schema {} grant{purpose} ROLE",
        shell::quoted(&arguments.schema)
    )
}

async fn run(arguments: &Arguments) -> Result<Outcome, Failure> {
    match &arguments.command {
        Command::Schema(SchemaCommand::Sql { from }) => return schema::sql(&arguments.schema, *from),
        Command::Grant(grant) if grant.sql => return grant::sql(&arguments.schema, grant),
        _ => {}
    }
    let connection = Connection::open(arguments)?;
    match act_on(&connection, arguments).await {
        Err(failure) => Err(connection.blame(failure).await),
        done => done,
    }
}

async fn act_on(connection: &Connection, arguments: &Arguments) -> Result<Outcome, Failure> {
    match &arguments.command {
        Command::Schema(SchemaCommand::Sql { from }) => schema::sql(&arguments.schema, *from),
        Command::Schema(SchemaCommand::Apply) => schema::apply(connection).await,
        Command::Schema(SchemaCommand::Verify) => schema::verify(connection).await,
        Command::Schema(SchemaCommand::Drop { yes }) => schema::drop(connection, *yes).await,
        Command::Schema(SchemaCommand::Version) => schema::version(connection).await,
        Command::Grant(grant) => grant::run(connection, grant).await,
        Command::Status(workers) => status::run(connection, workers).await,
        Command::Watch(watch) => status::watch(connection, watch, arguments.json).await,
        Command::Instances(filter) => instances::run(connection, filter).await,
        Command::Show { instance } => show::show(connection, instance).await,
        Command::History { instance, execution } => show::history(connection, instance, *execution).await,
        Command::Cancel { instance, reason } => act::cancel(connection, instance, reason).await,
        Command::Raise(raise) => act::raise(connection, raise).await,
        Command::Doctor(doctor) => doctor::run(connection, doctor).await,
        Command::Prune(prune) => prune::run(connection, prune).await,
        Command::Delete { instance, force } => act::delete(connection, instance, *force).await,
    }
}

fn finish(arguments: &Arguments, outcome: Outcome) -> ExitCode {
    if let Err(error) = print(&outcome.shown(arguments.json)) {
        return fail(&error);
    }
    match outcome.problem {
        Some(problem) => fail(&problem.with_hint(|| who_may(arguments))),
        None => ExitCode::SUCCESS,
    }
}

fn fail(failure: &Failure) -> ExitCode {
    say(&format!("error: {failure}"));
    ExitCode::from(failure.code)
}
