//! Connects with a password that does not last: a token of a cloud's identity service, or whatever a command prints.
//!
//! ```text
//! export DATABASE_URL='postgres://app@db.example/app?sslmode=verify-full&sslrootcert=system'
//! cargo run --example tokens -- aws eu-central-1                        # Amazon RDS and Aurora, by IAM
//! cargo run --example tokens -- entra                                   # Azure, by Microsoft Entra ID
//! cargo run --example tokens -- command vault kv get -field=password secret/app
//! ```
//!
//! The provider asks for every new connection. A token is good for many, so [`Tokens`] keeps it for a while, and
//! asks for another one at once when the server refuses it. The cloud's own command line tools know where credentials
//! come from: a profile, a role of the machine, a federated identity. An application that has the cloud's SDK
//! calls that instead, in [`Source::ask`].

use std::collections::HashMap;
use std::error::Error;
use std::process::{ExitCode, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use duroxide_postgres::{PasswordRequest, PostgresProvider};
use tokio::process::Command;
use tokio::sync::Mutex;

type Result<T> = std::result::Result<T, Box<dyn Error + Send + Sync>>;

const USAGE: &str = "\
Connects to DATABASE_URL with a token for a password.

Usage: cargo run --example tokens -- aws REGION
       cargo run --example tokens -- entra
       cargo run --example tokens -- command PROGRAM [ARG...]
";

/// Who issues the tokens.
enum Source {
    AwsIam { region: String },
    Entra,
    Command { program: String, arguments: Vec<String> },
}

impl Source {
    fn parse(mut arguments: impl Iterator<Item = String>) -> Option<Self> {
        match arguments.next()?.as_str() {
            "aws" => Some(Self::AwsIam {
                region: arguments.next()?,
            }),
            "entra" => Some(Self::Entra),
            "command" => Some(Self::Command {
                program: arguments.next()?,
                arguments: arguments.collect(),
            }),
            _ => None,
        }
    }

    /// How long to keep a token: well below what it is good for.
    fn keep(&self) -> Duration {
        match self {
            // Good for 15 minutes.
            Self::AwsIam { .. } => Duration::from_secs(10 * 60),
            // Good for an hour at least, but what `az` has at hand may be older.
            Self::Entra => Duration::from_secs(4 * 60),
            Self::Command { .. } => Duration::from_secs(60),
        }
    }

    async fn ask(&self, request: &PasswordRequest) -> Result<String> {
        let mut command = match self {
            // A token is for one host, port and user: the ones that are connected to, also with several hosts.
            Self::AwsIam { region } => {
                let mut command = Command::new("aws");
                command
                    .args(["rds", "generate-db-auth-token", "--region", region])
                    .args(["--hostname", &request.host, "--username", &request.user])
                    .args(["--port", &request.port.to_string()]);
                command
            }
            Self::Entra => {
                let mut command = Command::new("az");
                command
                    .args(["account", "get-access-token", "--resource-type", "oss-rdbms"])
                    .args(["--query", "accessToken", "--output", "tsv"]);
                command
            }
            Self::Command { program, arguments } => {
                let mut command = Command::new(program);
                command.args(arguments);
                command
            }
        };
        let output = command
            .stdin(Stdio::null())
            .kill_on_drop(true)
            .output()
            .await
            .map_err(|error| format!("{:?}: {error}", command.as_std().get_program()))?;
        if !output.status.success() {
            // What it wrote to its standard output may be a token.
            return Err(format!("{}: {}", output.status, String::from_utf8_lossy(&output.stderr).trim()).into());
        }
        Ok(String::from_utf8(output.stdout)?.trim_end().to_string())
    }
}

/// Tokens by host and user, and when they were issued.
type Kept = HashMap<(String, u16, String), (String, Instant)>;

struct Tokens {
    source: Source,
    kept: Mutex<Kept>,
}

impl Tokens {
    async fn password(&self, request: PasswordRequest) -> Result<String> {
        let key = (request.host.clone(), request.port, request.user.clone());
        // Locked while the source is asked, so that it is asked once when many connections begin.
        let mut kept = self.kept.lock().await;
        match kept.get(&key) {
            Some((token, issued)) if !request.refused && issued.elapsed() < self.source.keep() => Ok(token.clone()),
            _ => {
                let token = self.source.ask(&request).await?;
                kept.insert(key, (token.clone(), Instant::now()));
                Ok(token)
            }
        }
    }
}

#[tokio::main]
async fn main() -> ExitCode {
    let (Some(source), Ok(url)) = (Source::parse(std::env::args().skip(1)), std::env::var("DATABASE_URL")) else {
        eprint!("{USAGE}");
        return ExitCode::from(2);
    };
    match connect(source, &url).await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

async fn connect(source: Source, url: &str) -> Result<()> {
    let tokens = Arc::new(Tokens {
        source,
        kept: Mutex::default(),
    });
    let provider = PostgresProvider::builder(url)
        .password(move |request| {
            let tokens = Arc::clone(&tokens);
            async move { tokens.password(request).await }
        })
        .schema("tokens_example")
        .connect()
        .await?;
    provider.health_check().await?;
    println!("connected, schema {} is there", provider.schema());
    provider.close();
    Ok(())
}
