//! Running the command and looking at what it said.

use std::io::{Read, Write};
use std::process::{Child, Command, Output, Stdio};

use serde_json::Value;
use tokio_postgres::Config;
use tokio_postgres::config::Host;

use crate::support::{TestSchema, connect, database_url};

/// What a process printed, and its exit code.
pub struct Finished {
    pub code: i32,
    pub out: String,
    pub err: String,
}

impl Finished {
    pub fn from(output: Output) -> Self {
        Self {
            code: output.status.code().unwrap_or(-1),
            out: String::from_utf8(output.stdout).expect("UTF-8"),
            err: String::from_utf8(output.stderr).expect("UTF-8"),
        }
    }

    /// It succeeded, and had nothing to complain about.
    #[track_caller]
    pub fn ok(self) -> Self {
        assert_eq!(self.code, 0, "stdout: {}\nstderr: {}", self.out, self.err);
        assert_eq!(self.err, "");
        self
    }

    #[track_caller]
    pub fn json(self) -> Value {
        serde_json::from_str(&self.out).unwrap_or_else(|error| panic!("{error}: {}\nstderr: {}", self.out, self.err))
    }

    /// It failed with this code and said all of this on stderr.
    #[track_caller]
    pub fn fails(self, code: i32, says: &[&str]) -> Self {
        assert_eq!(self.code, code, "stdout: {}\nstderr: {}", self.out, self.err);
        for text in says {
            assert!(self.err.contains(text), "{text:?} is not in: {}", self.err);
        }
        self
    }
}

/// Sends a signal: `-INT`, `-TERM`.
pub fn signal(child: &Child, signal: &str) {
    let sent = Command::new("kill").args([signal, &child.id().to_string()]).status();
    assert!(sent.expect("kill").success());
}

/// Waits for its end, beside what else the test's runtime has to do.
pub async fn finish(child: Child) -> Finished {
    let output = tokio::task::spawn_blocking(move || child.wait_with_output()).await;
    Finished::from(output.expect("task").expect("wait"))
}

/// Waits until a line on stderr contains something. What follows is still to be read.
pub async fn says(mut child: Child, what: &'static str) -> Child {
    let task = tokio::task::spawn_blocking(move || {
        let stderr = child.stderr.as_mut().expect("stderr");
        let (mut said, mut byte) = (Vec::new(), [0]);
        while !String::from_utf8_lossy(&said).contains(what) || !said.ends_with(b"\n") {
            let read = stderr.read(&mut byte).expect("stderr");
            assert_eq!(read, 1, "it ended without that: {}", String::from_utf8_lossy(&said));
            said.push(byte[0]);
        }
        child
    });
    task.await.expect("it says so")
}

pub fn command(url: &str, arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_duroxide-postgres"));
    command
        .args(arguments)
        .env("DATABASE_URL", url)
        .env_remove("DUROXIDE_SCHEMA")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    command
}

/// Runs the command on the test server.
pub fn run(arguments: &[&str]) -> Finished {
    run_on(&database_url(), arguments)
}

pub fn run_on(url: &str, arguments: &[&str]) -> Finished {
    Finished::from(command(url, arguments).output().expect("duroxide-postgres"))
}

/// Runs the command on the schema of a test.
pub fn cli(schema: &TestSchema, arguments: &[&str]) -> Finished {
    run_on(&schema.url, &[&["--schema", &schema.name], arguments].concat())
}

/// The same, with something to read.
pub fn cli_with_input(schema: &TestSchema, arguments: &[&str], input: &str) -> Finished {
    let arguments = [&["--schema", &schema.name], arguments].concat();
    feed(command(&schema.url, &arguments), input)
}

/// Runs a script. None if there is no psql, which is said loudly, and cannot be in CI.
pub fn psql(url: &str, script: &str) -> Option<Finished> {
    psql_with(url, &["-X"], script)
}

/// The same, with other arguments.
pub fn psql_with(url: &str, arguments: &[&str], script: &str) -> Option<Finished> {
    let mut psql = Command::new("psql");
    psql.args(arguments)
        .args(["-d", url])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    has_program("psql").then(|| feed(psql, script))
}

/// The same, by somebody who has set up psql in a way of their own.
pub fn psql_set_up(url: &str, psqlrc: &str, script: &str) -> Option<Finished> {
    let file = std::env::temp_dir().join(format!("psqlrc-{}", uuid::Uuid::new_v4().simple()));
    std::fs::write(&file, psqlrc).expect("psqlrc");
    let mut psql = Command::new("psql");
    psql.args(["-d", url])
        .env("PSQLRC", &file)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let finished = has_program("psql").then(|| feed(psql, script));
    std::fs::remove_file(&file).expect("psqlrc");
    finished
}

/// What pg_dump prints. None if there is none for this server, which is said loudly, and cannot be in CI: it knows no later
/// releases than its own.
pub async fn pg_dump(url: &str, arguments: &[&str]) -> Option<String> {
    if !has_program("pg_dump") {
        return None;
    }
    let row = connect(url).await.query_one("show server_version_num", &[]).await;
    let server: u32 = row.expect("version").get::<_, &str>(0).parse().expect("a number");
    let version = Command::new("pg_dump").arg("--version").output().expect("pg_dump");
    let version = String::from_utf8(version.stdout).expect("UTF-8");
    let number = |word: &str| word.split('.').next()?.parse::<u32>().ok();
    let own = version.split(' ').find_map(number).expect("a version");
    if own < server / 10_000 {
        let advice = format!("pg_dump {own} cannot dump a server of release {}", server / 10_000);
        assert!(std::env::var_os("CI").is_none(), "{advice}");
        eprintln!("SKIPPED, NOTHING WAS TESTED: {advice}");
        return None;
    }
    let output = Command::new("pg_dump").args(arguments).args(["-d", url]).output();
    let dump = Finished::from(output.expect("pg_dump")).ok().out;
    // What is different each time.
    let same = dump
        .lines()
        .filter(|line| !line.starts_with("\\restrict") && !line.starts_with("\\unrestrict"));
    Some(same.collect::<Vec<_>>().join("\n"))
}

fn has_program(name: &str) -> bool {
    let found = Command::new(name).arg("--version").output().is_ok();
    if !found {
        assert!(std::env::var_os("CI").is_none(), "{name} is not installed");
        eprintln!("SKIPPED, NOTHING WAS TESTED: {name} is not installed");
    }
    found
}

fn feed(mut command: Command, input: &str) -> Finished {
    let mut child: Child = command.stdin(Stdio::piped()).spawn().expect("start");
    let mut stdin = child.stdin.take().expect("stdin");
    let input = input.to_string();
    // Beside reading its output: neither pipe may fill up.
    let writer = std::thread::spawn(move || stdin.write_all(input.as_bytes()));
    let output = child.wait_with_output().expect("wait");
    // It need not have read all of it.
    let _ = writer.join().expect("writer");
    Finished::from(output)
}

/// A URL as key=value pairs, without its user.
pub fn key_values(url: &str) -> String {
    let config: Config = url.parse().expect("DATABASE_URL");
    let host = match &config.get_hosts()[0] {
        Host::Tcp(host) => host.clone(),
        Host::Unix(path) => path.display().to_string(),
    };
    let port = config.get_ports().first().copied().unwrap_or(5432);
    let database = config.get_dbname().expect("a database");
    format!("host={host} port={port} dbname={database}")
}

/// The user and password of a URL, as key=value pairs.
pub fn user(url: &str) -> String {
    let config: Config = url.parse().expect("DATABASE_URL");
    let password = config
        .get_password()
        .map(|password| String::from_utf8_lossy(password).into_owned());
    let user = config.get_user().expect("a user").to_string();
    password.map_or(user.clone(), |password| format!("{user} password={password}"))
}
