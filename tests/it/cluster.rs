//! Servers and poolers of a test's own, from installed programs. They end with the test process, however that ends.

use std::future::Future;
use std::net::{Ipv4Addr, TcpListener};
use std::os::unix::fs::{PermissionsExt, chown};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use std::{env, fs};

use crate::support::connect;

/// Runs what a signal ends when its input does: a process cannot see to it that others end with it.
const KEEPER: &str =
    r#"dir=$1 signal=$2; shift 2; "$@" & pid=$!; read -r _; kill "-$signal" "$pid"; wait "$pid"; rm -rf "$dir""#;
const PATIENCE: Duration = Duration::from_secs(60);

/// Where a program is: beside PostgreSQL's own, or on the path.
pub fn program(name: &str) -> Option<PathBuf> {
    let mut folders: Vec<PathBuf> = env::var_os("PG_BIN_DIR").map(PathBuf::from).into_iter().collect();
    folders.extend(env::split_paths(&env::var_os("PATH").unwrap_or_default()));
    folders.push("/usr/sbin".into());
    let mut installed: Vec<PathBuf> = fs::read_dir("/usr/lib/postgresql")
        .into_iter()
        .flatten()
        .filter_map(|entry| Some(entry.ok()?.path().join("bin")))
        .collect();
    installed.sort();
    folders.extend(installed.into_iter().rev());
    folders
        .into_iter()
        .map(|folder| folder.join(name))
        .find(|file| file.is_file())
}

/// Whether a program that a test needs is there. Without it the test is skipped, loudly, and never in CI.
pub fn have(name: &str) -> bool {
    let found = program(name).is_some();
    if !found {
        skipped(&format!("{name} is not installed on this machine"));
    }
    found
}

/// Whether a server can be copied: pg_basebackup knows no later releases than its own, and may be another one's where that
/// of the server is not installed. Skipped as [`have`] does.
pub fn have_copies() -> bool {
    if !have("postgres") || !have("pg_basebackup") {
        return false;
    }
    let (server, copier) = (major("postgres"), major("pg_basebackup"));
    if copier < server {
        skipped(&format!(
            "pg_basebackup {copier} cannot copy a server of release {server}"
        ));
    }
    copier >= server
}

fn skipped(why: &str) {
    assert!(env::var_os("CI").is_none(), "{why}");
    eprintln!("SKIPPED, NOTHING WAS TESTED: {why}");
}

/// The release of a program of PostgreSQL: the first number of what it says, "18beta1" included.
fn major(name: &str) -> u32 {
    let output = Command::new(program(name).expect(name)).arg("--version").output();
    let text = String::from_utf8(output.expect(name).stdout).expect("UTF-8");
    let digits = text
        .split(|c: char| !c.is_ascii_digit())
        .find(|digits| !digits.is_empty());
    digits.expect("a version").parse().expect("a number")
}

/// A folder of a process that runs as somebody who is not root.
struct Folder {
    path: PathBuf,
    user: Option<u32>,
}

impl Folder {
    fn new() -> Self {
        let path = env::temp_dir().join(format!("dxpg-{}", &uuid::Uuid::new_v4().simple().to_string()[..12]));
        fs::create_dir(&path).expect("a folder");
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).expect("permissions");
        let folder = Self {
            path,
            user: (user_id(&[]) == Some(0)).then(|| user_id(&["postgres"]).expect("root needs a user postgres")),
        };
        folder.give(&folder.path);
        folder
    }

    fn give(&self, file: &Path) {
        if self.user.is_some() {
            chown(file, self.user, None).expect("chown");
        }
    }

    /// Readable for its owner alone, as keys have to be.
    fn write(&self, name: &str, text: &str) -> PathBuf {
        let file = self.path.join(name);
        fs::write(&file, text).expect("write");
        fs::set_permissions(&file, fs::Permissions::from_mode(0o600)).expect("permissions");
        self.give(&file);
        file
    }

    fn command(&self, program: &Path) -> Command {
        let mut command = Command::new(program);
        command.current_dir(&self.path).stdin(Stdio::null());
        if let Some(user) = self.user {
            command.uid(user);
        }
        command
    }

    fn run(&self, name: &str, arguments: &[&str]) {
        let output = self
            .command(&program(name).expect(name))
            .args(arguments)
            .output()
            .expect(name);
        assert!(
            output.status.success(),
            "{name}: {}",
            String::from_utf8_lossy(&output.stderr)
        );
    }

    /// Starts a process that `signal` ends together with this one.
    fn keep(&self, signal: &str, name: &str, arguments: &[&str]) -> Child {
        let log = fs::File::create(self.path.join("log")).expect("log");
        self.command(Path::new("/bin/sh"))
            .args(["-c", KEEPER, "sh"])
            .arg(&self.path)
            .arg(signal)
            .arg(program(name).expect(name))
            .args(arguments)
            .stdin(Stdio::piped())
            .stdout(log.try_clone().expect("log"))
            .stderr(log)
            .spawn()
            .expect(name)
    }

    fn log(&self) -> String {
        fs::read_to_string(self.path.join("log")).unwrap_or_default()
    }
}

fn user_id(of: &[&str]) -> Option<u32> {
    let output = Command::new("id").arg("-u").args(of).output().ok()?;
    String::from_utf8(output.stdout).ok()?.trim().parse().ok()
}

/// Below those that systems hand out to outgoing connections.
fn free_port() -> u16 {
    loop {
        let port = 20_000 + (uuid::Uuid::new_v4().as_u128() % 12_000) as u16;
        if TcpListener::bind((Ipv4Addr::LOCALHOST, port)).is_ok() {
            return port;
        }
    }
}

/// Runs a future on a thread of its own: the caller may be inside a runtime, or in none.
pub fn block_on<T: Send>(future: impl Future<Output = T> + Send) -> T {
    std::thread::scope(|scope| {
        scope
            .spawn(|| {
                tokio::runtime::Builder::new_current_thread()
                    .enable_all()
                    .build()
                    .expect("runtime")
                    .block_on(future)
            })
            .join()
            .expect("no panic")
    })
}

/// What a server has beside the defaults.
#[derive(Default)]
pub struct Options<'a> {
    /// Lines of `postgresql.conf`.
    pub settings: &'a str,
    /// Settings of its command line.
    pub arguments: &'a [&'a str],
    /// Lines of `pg_hba.conf`; connections by the socket are trusted before them.
    pub authentication: &'a str,
    /// More files of its data directory.
    pub files: &'a [(&'a str, &'a str)],
    /// What it follows, and starts as a copy of.
    pub primary: Option<&'a Cluster>,
}

/// A PostgreSQL server.
pub struct Cluster {
    folder: Folder,
    pub port: u16,
    keeper: Child,
}

/// The process that every start of the server begins anew.
async fn checkpointer(client: &tokio_postgres::Client) -> Option<i32> {
    let pid = "select pid from pg_stat_activity where backend_type = 'checkpointer'";
    let row = client.query_opt(pid, &[]).await.ok().flatten()?;
    row.get(0)
}

impl Cluster {
    pub fn start(options: &Options<'_>) -> Self {
        let folder = Folder::new();
        let port = free_port();
        let directory = folder.path.display().to_string();
        let data = format!("{directory}/data");
        match options.primary {
            None => folder.run(
                "initdb",
                &[
                    "-D",
                    &data,
                    "-U",
                    "postgres",
                    "-A",
                    "trust",
                    "-E",
                    "UTF8",
                    "--locale=C",
                    "-N",
                ],
            ),
            Some(primary) => folder.run(
                "pg_basebackup",
                &["-D", &data, "-R", "-c", "fast", "-d", &primary.admin_url()],
            ),
        }
        for (name, text) in options.files {
            folder.write(&format!("data/{name}"), text);
        }
        folder.write(
            "data/pg_hba.conf",
            &format!(
                "local all all trust\nlocal replication all trust\n{}\n",
                options.authentication
            ),
        );
        folder.write(
            "data/postgresql.auto.conf",
            &format!(
                "{}\nlisten_addresses = '127.0.0.1'\nport = {port}\nunix_socket_directories = '{directory}'\n\
                 max_connections = 300\nfsync = off\nfull_page_writes = off\n{}\n",
                fs::read_to_string(folder.path.join("data/postgresql.auto.conf")).unwrap_or_default(),
                options.settings
            ),
        );
        let keeper = folder.keep("QUIT", "postgres", &[&["-D", &data], options.arguments].concat());
        let cluster = Self { folder, port, keeper };
        block_on(cluster.wait_until_it_answers());
        cluster
    }

    async fn wait_until_it_answers(&self) {
        let url = self.admin_url();
        let begun = Instant::now();
        while tokio_postgres::connect(&url, tokio_postgres::NoTls).await.is_err() {
            assert!(begun.elapsed() < PATIENCE, "no server: {}", self.folder.log());
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    /// The superuser, by way of the socket.
    pub fn admin_url(&self) -> String {
        format!(
            "host={} port={} user=postgres dbname=postgres",
            self.folder.path.display(),
            self.port
        )
    }

    /// Runs SQL as the superuser.
    pub fn execute(&self, sql: &str) {
        let url = self.admin_url();
        block_on(async { connect(&url).await.batch_execute(sql).await.expect(sql) });
    }

    /// A file of the data directory.
    pub fn write(&self, name: &str, text: &str) {
        self.folder.write(&format!("data/{name}"), text);
    }

    /// A file of a client, that only this user can read. It goes with the server.
    pub fn client_file(&self, text: &str) -> PathBuf {
        let file = self
            .folder
            .path
            .join(format!("client-{}", uuid::Uuid::new_v4().simple()));
        fs::write(&file, text).expect("write");
        fs::set_permissions(&file, fs::Permissions::from_mode(0o600)).expect("permissions");
        file
    }

    /// Makes a server that follows another one stand on its own.
    pub fn promote(&self) {
        let data = self.folder.path.join("data").display().to_string();
        self.folder.run("pg_ctl", &["promote", "-w", "-D", &data]);
    }

    /// One of its processes dies: it ends all others, and recovers. Returns when it answers again.
    pub fn crash(&self) {
        let url = self.admin_url();
        block_on(async {
            let client = connect(&url).await;
            let before = checkpointer(&client).await;
            let backend = client
                .query_one("select pg_backend_pid()", &[])
                .await
                .expect("a backend");
            let kill = format!("kill -KILL {}", backend.get::<_, i32>(0));
            let killed = self.folder.command(Path::new("/bin/sh")).args(["-c", &kill]).status();
            assert!(killed.expect("sh").success(), "{kill}");
            let begun = Instant::now();
            loop {
                // It may answer until it has heard of that death.
                self.wait_until_it_answers().await;
                if let Ok((client, connection)) = tokio_postgres::connect(&url, tokio_postgres::NoTls).await {
                    tokio::spawn(connection);
                    let now = checkpointer(&client).await;
                    if now.is_some() && now != before {
                        return;
                    }
                }
                assert!(begun.elapsed() < PATIENCE, "no crash: {}", self.folder.log());
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        });
    }

    /// Ends it as a crash of the machine would: for good.
    pub fn kill(&mut self) {
        drop(self.keeper.stdin.take());
        self.keeper.wait().expect("the server has ended");
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        self.kill();
    }
}

/// A PgBouncer in front of a server.
pub struct Pooler {
    folder: Folder,
    pub port: u16,
    keeper: Child,
}

impl Pooler {
    /// `connections`: how many it has to the server, for each role.
    pub fn start(cluster: &Cluster, connections: usize) -> Self {
        Self::start_in("transaction", cluster, connections)
    }

    /// `mode`: for how long it lends them.
    pub fn start_in(mode: &str, cluster: &Cluster, connections: usize) -> Self {
        Self::start_with("", mode, cluster, connections)
    }

    /// `more`: settings of its file, a line each.
    pub fn start_with(more: &str, mode: &str, cluster: &Cluster, connections: usize) -> Self {
        let folder = Folder::new();
        let port = free_port();
        let directory = folder.path.display().to_string();
        folder.write("users", "\"postgres\" \"\"\n");
        // A backend that has seen the schemas of many tests spends its time on each deployment of another one,
        // forgetting plans: none gets old here.
        let mut settings = format!(
            "[databases]\n* = host={} port={}\n[pgbouncer]\nlisten_addr = 127.0.0.1\nlisten_port = {port}\n\
             unix_socket_dir =\npool_mode = {mode}\nauth_type = trust\nauth_file = {directory}/users\n\
             auth_user = postgres\nauth_query = select usename, passwd from pg_shadow where usename = $1\n\
             default_pool_size = {connections}\nmax_client_conn = 1000\nserver_idle_timeout = 5\nserver_lifetime = 5\n\
             log_connections = 0\nlog_disconnections = 0\n{more}\n",
            cluster.folder.path.display(),
            cluster.port,
        );
        if has_prepared_statements(&folder) {
            settings.push_str("max_prepared_statements = 0\n");
        }
        let file = folder.write("pgbouncer.ini", &settings);
        let keeper = folder.keep("TERM", "pgbouncer", &[&file.display().to_string()]);
        let pooler = Self { folder, port, keeper };
        let url = pooler.url("postgres");
        block_on(async {
            let begun = Instant::now();
            while tokio_postgres::connect(&url, tokio_postgres::NoTls).await.is_err() {
                assert!(begun.elapsed() < PATIENCE, "no pooler: {}", pooler.folder.log());
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        });
        pooler
    }

    pub fn url(&self, user: &str) -> String {
        format!("postgres://{user}@127.0.0.1:{}/postgres", self.port)
    }
}

impl Drop for Pooler {
    fn drop(&mut self) {
        drop(self.keeper.stdin.take());
        self.keeper.wait().expect("the pooler has ended");
    }
}

/// PgBouncer can make named statements work since 1.21. Here it must not.
fn has_prepared_statements(folder: &Folder) -> bool {
    let output = folder
        .command(&program("pgbouncer").expect("pgbouncer"))
        .arg("--version")
        .output()
        .expect("pgbouncer");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let minor = text
        .split("PgBouncer 1.")
        .nth(1)
        .and_then(|rest| rest.split('.').next()?.parse().ok());
    minor.unwrap_or(u32::MAX) >= 21
}
