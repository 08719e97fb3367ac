//! duroxide-postgres beside the other storage providers of duroxide: `scripts/compare --help`.

mod candidates;
mod cli;
mod context;
mod items;
mod load;
mod lock_waits;
mod machine;
mod process;
mod record;
mod report;
mod run;
mod server;
mod statistics;
mod watched;
mod workloads;

use std::process::ExitCode;

use anyhow::Result;
use clap::Parser;
use tracing_subscriber::EnvFilter;

use crate::candidates::{PEER_POOL_VARIABLE, POOL_SIZE};
use crate::cli::{Cli, Command};

fn main() -> ExitCode {
    // The workload `prune` starts this program as the command, in a process of its own.
    if std::env::args_os()
        .next()
        .is_some_and(|name| name == workloads::prune::PROGRAM)
    {
        return duroxide_postgres::cli::main();
    }
    // SAFETY: nothing else runs yet that could read or write the environment.
    unsafe { std::env::set_var(PEER_POOL_VARIABLE, POOL_SIZE.to_string()) };
    // Before a runtime of the framework installs one that logs every orchestration.
    let quiet = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new("off"));
    tracing_subscriber::fmt()
        .with_env_filter(quiet)
        .with_writer(std::io::stderr)
        .init();
    match start(&Cli::parse()) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("compare: {error:#}");
            ExitCode::from(2)
        }
    }
}

#[tokio::main]
async fn start(cli: &Cli) -> Result<bool> {
    match &cli.command {
        None => run::run(&cli.run).await,
        Some(Command::Report(args)) => {
            eprintln!("the report is {}", report::render(&args.out)?.display());
            Ok(true)
        }
        Some(Command::MemoryOf(args)) => {
            let outcome = workloads::memory::measure_here(args).await?;
            println!("{}", serde_json::to_string(&outcome)?);
            Ok(true)
        }
    }
}
