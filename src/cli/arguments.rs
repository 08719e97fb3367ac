//! The command line.

use clap::{Args, Parser, Subcommand, ValueEnum};

const AFTER_HELP: &str = "\
Exit codes: 0 done; 1 refused, failed, or found something wrong; 2 bad usage; 3 the server cannot be reached;
130 a prune that was interrupted. Data goes to stdout, messages and progress to stderr.
An instance id that begins with a hyphen goes behind two of them: duroxide-postgres show -- -id";

/// Looks after a duroxide-postgres schema: deploys and verifies it, grants, watches, and acts on instances.
// Not Debug: the URL may have a password in it.
#[derive(Parser)]
#[command(name = "duroxide-postgres", version, after_help = AFTER_HELP, propagate_version = true)]
pub(super) struct Arguments {
    /// The server: postgres://user@host/database, or key=value pairs.
    ///
    /// Others on the machine can read a command line: leave the password out, or use the variable. PGPASSFILE and the other PG*
    /// variables count as for psql.
    #[arg(
        long,
        short,
        global = true,
        env = "DATABASE_URL",
        hide_env_values = true,
        value_name = "URL"
    )]
    pub(super) database_url: Option<String>,

    /// The schema. Default: what the environment variable DUROXIDE_SCHEMA says, or duroxide.
    #[arg(long, short, global = true, default_value_t = default_schema())]
    pub(super) schema: String,

    /// Prints data as JSON.
    #[arg(long, global = true)]
    pub(super) json: bool,

    #[command(subcommand)]
    pub(super) command: Command,
}

/// A variable that is empty is as good as none.
fn default_schema() -> String {
    std::env::var("DUROXIDE_SCHEMA")
        .ok()
        .filter(|name| !name.is_empty())
        .unwrap_or_else(|| "duroxide".to_string())
}

#[derive(Debug, Subcommand)]
pub(super) enum Command {
    /// Deploys, verifies and drops the schema.
    #[command(subcommand)]
    Schema(SchemaCommand),

    /// Gives a role what it needs for its work. Without --payloads, a dashboard loses the views that show them.
    ///
    /// Nothing else is taken away: revoke what the role has beyond that.
    Grant(Grant),

    /// Shows queues, leases, instances, the next timers and the throughput of the last minute.
    Status(Workers),

    /// Shows the status again and again. Ends with Ctrl-C.
    Watch(Watch),

    /// Lists instances, the newest first.
    ///
    /// Every page reads all instances that fit: where there are millions, filter by --parent, or use a large --limit.
    Instances(Instances),

    /// Shows one instance: executions, tree, values, custom status, and what happened in it.
    Show {
        /// Its id.
        instance: String,
    },

    /// Shows the history of one execution; with --json, all of each event.
    History {
        /// Its id.
        instance: String,

        /// Which execution. Default: the current one.
        #[arg(long)]
        execution: Option<u64>,
    },

    /// Asks an instance to stop. Those below it are asked too.
    Cancel {
        /// Its id.
        instance: String,

        /// What its history will say.
        #[arg(long, allow_hyphen_values = true, default_value = "cancelled by an operator")]
        reason: String,
    },

    /// Raises an event for an instance that waits for it.
    Raise(Raise),

    /// Deletes an instance and all below it.
    Delete {
        /// Its id.
        instance: String,

        /// Deletes it even while it runs.
        #[arg(long)]
        force: bool,
    },

    /// Deletes what is old, batch by batch. Can be interrupted, and run again to go on.
    #[command(subcommand)]
    Prune(PruneCommand),

    /// Looks for trouble: server, settings, clock, pooler, privileges, indexes, vacuum, connections, schema.
    ///
    /// Each finding comes with the command that fixes it. Exits with 1 if there are errors. Finds nothing on a healthy server.
    Doctor(Doctor),
}

#[derive(Debug, Args)]
pub(super) struct Doctor {
    /// From when on a transaction that stays open is trouble: 500ms, 30s, 5m.
    #[arg(long, default_value = "5m", value_parser = duration, allow_hyphen_values = true, value_name = "TIME")]
    pub(super) old_transaction: i64,

    /// How many processes are to run at once, web servers that start orchestrations included.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=100_000), value_name = "N")]
    pub(super) nodes: u32,

    /// How many connections each of them takes, beside the one that listens: its pool_size.
    #[arg(long, default_value_t = 16, value_parser = clap::value_parser!(u32).range(1..=100_000), value_name = "N")]
    pub(super) pool_size: u32,
}

#[derive(Debug, Subcommand)]
pub(super) enum PruneCommand {
    /// Deletes instances that completed or failed, with all below them; none that runs, or has one below it that does.
    Instances {
        /// Those that ended at least this long ago: 30s, 15m, 12h, 7d.
        #[arg(long, value_parser = duration, allow_hyphen_values = true, value_name = "TIME")]
        older_than: Option<i64>,

        #[command(flatten)]
        batch: Prune,
    },

    /// Deletes old executions of instances that continued as new; never the current one.
    Executions {
        /// Keeps this many of the latest executions of each instance.
        #[arg(long, value_name = "N")]
        keep_last: Option<u32>,

        /// Only those that ended at least this long ago.
        #[arg(long, value_parser = duration, allow_hyphen_values = true, value_name = "TIME")]
        older_than: Option<i64>,

        #[command(flatten)]
        batch: Prune,
    },
}

#[derive(Debug, Args)]
pub(super) struct Prune {
    /// How many instances, or executions, a transaction deletes at most; an instance goes with all below it.
    #[arg(long, default_value_t = 500, value_parser = clap::value_parser!(u32).range(1..=100_000), value_name = "N")]
    pub(super) batch_size: u32,

    /// Says how many there are, and deletes nothing.
    #[arg(long)]
    pub(super) dry_run: bool,
}

#[derive(Debug, Subcommand)]
pub(super) enum SchemaCommand {
    /// Prints the whole deployment as one SQL script for psql. Needs no server.
    ///
    /// The script can run any number of times, does all or nothing, and ends in the very state that `schema apply` ends in.
    Sql {
        /// Leaves out the migrations up to this one: for a schema that has them.
        #[arg(long, value_name = "MIGRATION", default_value_t = 0)]
        from: i32,
    },

    /// Deploys or upgrades the schema, in one transaction, and repairs functions, views and permissions.
    ///
    /// Tables that were changed by hand are left alone. So is a schema that a later release deployed.
    Apply,

    /// Compares the schema with what this release deploys: tables, indexes, functions, views, grants.
    ///
    /// Changes nothing. Exits with 1, naming the differences, if there are any.
    Verify,

    /// Drops everything that was deployed, with all instances. Asks first.
    ///
    /// The schema itself goes too, unless something else is in it, it belongs to another role, or it is `public`.
    Drop {
        /// Does not ask.
        #[arg(long)]
        yes: bool,
    },

    /// Says which release is deployed, and how that relates to this one.
    Version,
}

#[derive(Debug, Args)]
pub(super) struct Grant {
    /// The role. It must exist.
    pub(super) role: String,

    /// What the role is for.
    #[arg(long = "for", value_enum, default_value_t = Purpose::Runtime, value_name = "PURPOSE")]
    pub(super) purpose: Purpose,

    /// Lets a dashboard see payloads too: histories, outputs, values, custom statuses.
    #[arg(long)]
    pub(super) payloads: bool,

    /// Prints the SQL and grants nothing. Needs no server.
    #[arg(long)]
    pub(super) sql: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum Purpose {
    /// Runs orchestrations and activities: EXECUTE on functions, no table, no deleting.
    Runtime,
    /// Deletes instances and prunes executions.
    Cleanup,
    /// Reads the views, and none that shows payloads.
    Dashboard,
}

/// How much a worker does at once, for how many are wanted. Defaults are those of duroxide.
#[derive(Debug, Clone, Copy, Args)]
pub(super) struct Workers {
    /// How many turns a worker runs at once: its orchestration_concurrency.
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(i32).range(1..=1_000_000), value_name = "N")]
    pub(super) turns: i32,

    /// How many activities a worker runs at once: its worker_concurrency.
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(i32).range(1..=1_000_000), value_name = "N")]
    pub(super) activities: i32,
}

#[derive(Debug, Args)]
pub(super) struct Watch {
    /// How often, for example 5s or 1m. Each time reads the queues and the index of executions whole: not every second
    /// where there are many.
    #[arg(long, default_value = "10s", value_parser = interval, allow_hyphen_values = true, value_name = "TIME")]
    pub(super) every: i64,

    /// How many times. Default: until it is interrupted.
    #[arg(long, value_name = "N")]
    pub(super) times: Option<u64>,

    #[command(flatten)]
    pub(super) workers: Workers,
}

#[derive(Debug, Args)]
pub(super) struct Instances {
    /// Only those with this status.
    #[arg(long, value_enum)]
    pub(super) status: Option<Status>,

    /// Only those of this orchestration.
    #[arg(long, allow_hyphen_values = true)]
    pub(super) name: Option<String>,

    /// Only the children of this instance.
    #[arg(long, allow_hyphen_values = true, value_name = "INSTANCE")]
    pub(super) parent: Option<String>,

    /// Only those created at least this long ago: 30s, 15m, 12h, 7d.
    #[arg(long, value_parser = duration, allow_hyphen_values = true, value_name = "TIME")]
    pub(super) older_than: Option<i64>,

    /// Only those created less long ago than this.
    #[arg(long, value_parser = duration, allow_hyphen_values = true, value_name = "TIME")]
    pub(super) younger_than: Option<i64>,

    /// How many at most.
    #[arg(long, default_value_t = 50, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub(super) limit: u32,

    /// Goes on after this instance, the last one of the page before.
    #[arg(long, allow_hyphen_values = true, value_name = "INSTANCE")]
    pub(super) after: Option<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum Status {
    Running,
    Completed,
    Failed,
    /// Between two executions.
    ContinuedAsNew,
}

impl Status {
    /// As it is stored.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Running => "Running",
            Self::Completed => "Completed",
            Self::Failed => "Failed",
            Self::ContinuedAsNew => "ContinuedAsNew",
        }
    }
}

#[derive(Debug, Args)]
pub(super) struct Raise {
    /// Its id.
    pub(super) instance: String,

    /// The name of the event.
    pub(super) event: String,

    /// What comes with it. Code that waits for a typed event expects JSON.
    #[arg(default_value = "null", allow_negative_numbers = true)]
    pub(super) data: String,

    /// Puts it into the queue of that name instead, where it waits until it is taken.
    #[arg(long)]
    pub(super) queue: bool,
}

/// A number and its unit, in milliseconds.
fn duration(text: &str) -> Result<i64, String> {
    if text.starts_with('-') {
        return Err("a time cannot be negative: 500ms, 30s, 15m, 12h, 7d".to_string());
    }
    let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let unit: i64 = match unit {
        "ms" => 1,
        "s" => 1000,
        "m" => 60_000,
        "h" => 3_600_000,
        "d" => 86_400_000,
        _ => return Err("a number with its unit is expected: 500ms, 30s, 15m, 12h, 7d".to_string()),
    };
    let number: i64 = number.parse().map_err(|_| "the number cannot be read".to_string())?;
    // A thousand years: what the server can still subtract from now.
    number
        .checked_mul(unit)
        .filter(|&ms| ms <= 1000 * 365 * 86_400_000)
        .ok_or_else(|| "that is too long".to_string())
}

/// Often enough, and no burden to the server.
fn interval(text: &str) -> Result<i64, String> {
    duration(text).and_then(|ms| {
        if ms < 100 {
            Err("at least 100ms".to_string())
        } else {
            Ok(ms)
        }
    })
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_command_line_makes_sense() {
        Arguments::command().debug_assert();
    }

    #[test]
    fn durations_have_units() {
        assert_eq!(duration("250ms"), Ok(250));
        assert_eq!(duration("7d"), Ok(604_800_000));
        for text in ["", "7", "d", "-1s", "1 h", "1w", "99999999999999999999s", "9999999999d"] {
            assert!(duration(text).is_err(), "{text:?}");
        }
    }
}
