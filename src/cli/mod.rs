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
mod schema;
mod show;
mod status;
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
        Command::Schema(_) | Command::Status | Command::Watch(_) | Command::Instances(_) | Command::Doctor(_) => {
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
        Command::Schema(SchemaCommand::Sql { from }) => schema::sql(&arguments.schema, *from),
        Command::Schema(SchemaCommand::Apply) => schema::apply(&Connection::open(arguments)?).await,
        Command::Schema(SchemaCommand::Verify) => schema::verify(&Connection::open(arguments)?).await,
        Command::Schema(SchemaCommand::Drop { yes }) => schema::drop(&Connection::open(arguments)?, *yes).await,
        Command::Schema(SchemaCommand::Version) => schema::version(&Connection::open(arguments)?).await,
        Command::Grant(grant) if grant.sql => grant::sql(&arguments.schema, grant),
        Command::Grant(grant) => grant::run(&Connection::open(arguments)?, grant).await,
        Command::Status => status::run(&Connection::open(arguments)?).await,
        Command::Watch(watch) => status::watch(&Connection::open(arguments)?, watch, arguments.json).await,
        Command::Instances(filter) => instances::run(&Connection::open(arguments)?, filter).await,
        Command::Show { instance } => show::show(&Connection::open(arguments)?, instance).await,
        Command::History { instance, execution } => {
            show::history(&Connection::open(arguments)?, instance, *execution).await
        }
        Command::Cancel { instance, reason } => act::cancel(&Connection::open(arguments)?, instance, reason).await,
        Command::Raise(raise) => act::raise(&Connection::open(arguments)?, raise).await,
        Command::Doctor(doctor) => doctor::run(&Connection::open(arguments)?, doctor).await,
        Command::Prune(prune) => prune::run(&Connection::open(arguments)?, prune).await,
        Command::Delete { instance, force } => act::delete(&Connection::open(arguments)?, instance, *force).await,
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
