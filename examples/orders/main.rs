//! Orders: three worker nodes, a few hundred orders, and a node that dies mid-way.
//!
//! ```text
//! scripts/with-postgres cargo run --example orders
//! ```
//!
//! Each order is a workflow with activities, a durable timer, an external event, a sub-orchestration and retries.
//! The nodes share nothing but the database: each has its own provider, hence its own connections, and its own
//! runtime. When a third of the orders are done, one node is killed as a crash would kill it, with work in its
//! hands. The leases it held run out, and the other nodes take that work over. In the end the history of every
//! order is read back from the database: each must have completed, once, with the right output.
//!
//! Where to look:
//! - `order.rs`: the workflow itself, and its activities. Start here.
//! - `node.rs`: how a worker node is started, stopped and killed.
//! - `shop.rs`: a client that places orders, raises events and watches; here the node is killed.
//! - `outside.rs`: the bank, the warehouse and the carrier, and what was asked of them.
//! - `verify.rs`: reads back what happened, and prints the table at the end.
//! - `progress.rs`: the progress bar.

mod node;
mod order;
mod outside;
mod progress;
mod shop;
mod verify;

use std::error::Error;
use std::process::ExitCode;
use std::sync::Arc;

use duroxide::{Client, InstanceFilter};
use duroxide_postgres::PostgresProvider;
use tracing_subscriber::EnvFilter;

use crate::node::Node;
use crate::order::Order;
use crate::outside::Outside;
use crate::shop::Shop;
use crate::verify::Report;

type Result<T> = std::result::Result<T, Box<dyn Error + Send + Sync>>;

const HELP: &str = "\
Processes orders on three worker nodes, kills one of them mid-way, and checks
that every order still completes exactly once.

Usage: scripts/with-postgres cargo run --example orders -- [OPTION...]

  --orders N   how many orders (default: 300)
  --keep       leave the finished orders in the database, to look at them
  -h, --help   this text

Environment:
  DATABASE_URL  the database to use: postgres://user@host/database
                (scripts/with-postgres sets it); tables go into a schema of
                their own, orders_example
  RUST_LOG      what to log, e.g. duroxide_postgres=debug

Exit status: 0 if every order completed exactly once, 1 if not, 2 for a usage
error.";

const SCHEMA: &str = "orders_example";
const NODES: usize = 3;

struct Options {
    orders: usize,
    keep: bool,
}

fn main() -> ExitCode {
    let options = match parse(std::env::args().skip(1)) {
        Ok(Some(options)) => options,
        Ok(None) => {
            println!("{HELP}");
            return ExitCode::SUCCESS;
        }
        Err(problem) => {
            eprintln!("error: {problem}\n\n{HELP}");
            return ExitCode::from(2);
        }
    };
    match start(&options) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Nothing if help was asked for.
fn parse(mut arguments: impl Iterator<Item = String>) -> std::result::Result<Option<Options>, String> {
    let mut options = Options {
        orders: 300,
        keep: false,
    };
    while let Some(argument) = arguments.next() {
        match argument.as_str() {
            "-h" | "--help" => return Ok(None),
            "--keep" => options.keep = true,
            "--orders" => match arguments.next().and_then(|value| value.parse().ok()) {
                Some(orders) if orders > 0 => options.orders = orders,
                _ => return Err("--orders needs a number above 0".to_string()),
            },
            _ => return Err(format!("unknown argument {argument:?}")),
        }
    }
    Ok(Some(options))
}

#[tokio::main(flavor = "current_thread")]
async fn start(options: &Options) -> Result<bool> {
    // Installed before any runtime starts, which would otherwise log to stdout. Declined cards are part of the
    // story, so the framework's warnings about failed activities are not shown.
    tracing_subscriber::fmt()
        .with_env_filter(EnvFilter::try_from_default_env().unwrap_or_else(|_| "error,duroxide_postgres=warn".into()))
        .with_writer(std::io::stderr)
        .try_init()?;
    let url = std::env::var("DATABASE_URL").unwrap_or_default();
    if url.is_empty() {
        return Err("DATABASE_URL is not set; scripts/with-postgres sets it, see --help".into());
    }

    // The first to connect creates the schema; whoever comes later finds it in place.
    let provider = PostgresProvider::builder(&url)
        .schema(SCHEMA)
        .pool_size(4)
        .connect()
        .await?;
    let client = Client::new(Arc::new(provider.clone()));
    let report = process(options, &url, &client).await?;
    print!("{report}");
    if report.is_good() && !options.keep {
        clean_up(&client, &report).await?;
    }
    provider.close();
    Ok(report.is_good())
}

/// The whole story, from empty hands to the report.
async fn process(options: &Options, url: &str, client: &Client) -> Result<Report> {
    let orders = Order::new_run(options.orders);
    let (outside, charges) = Outside::new();
    let mut nodes = Vec::new();
    for number in 1..=NODES {
        nodes.push(Node::start(number, url, SCHEMA, &outside).await?);
    }

    let shop = Shop::new(client, &outside, &orders, &mut nodes);
    let day = tokio::select! {
        day = shop.open() => day?,
        // Goes on for as long as the shop is open.
        error = shop::confirm_payments(client, charges) => return Err(error),
    };
    for node in nodes {
        node.stop().await;
    }
    Report::new(client, orders, &outside, day).await
}

/// Deletes the orders of this run, with their sub-orchestrations. Repeated, because one call has a limit.
async fn clean_up(client: &Client, report: &Report) -> Result<()> {
    let filter = InstanceFilter {
        instance_ids: Some(report.instances()),
        ..InstanceFilter::default()
    };
    while client.delete_instance_bulk(filter.clone()).await?.instances_deleted > 0 {}
    Ok(())
}
