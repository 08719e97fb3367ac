//! A TCP proxy in front of PostgreSQL that refuses, cuts and freezes connections, and loses or holds back what is said
//! on them. It reads enough of the protocol to do so at an exact point of a chosen call.

mod connection;

use std::future::pending;
use std::io;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::sync::{oneshot, watch};
use tokio::task::JoinHandle;
use tokio_postgres::Config;
use tokio_postgres::config::{Host, SslMode};

use connection::Connection;

/// How the proxy treats connections. Changing it to anything but `Pass` and `Blackhole` cuts those that exist.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    Pass,
    /// Nobody listens.
    Refuse,
    AcceptThenClose,
    /// Connections are accepted and stay open, but nothing gets through until the mode changes.
    Blackhole,
}

/// How long a trap waits for its call.
const PATIENCE: Duration = Duration::from_secs(30);

/// What happens to the next call whose SQL contains the text of a trap.
enum Action {
    /// The connection is cut before the server gets the call. Then the mode changes.
    LoseRequest(Mode),
    /// The connection is cut once the server has answered, which it does after its commit. Then the mode changes.
    LoseAnswer(Mode),
    HoldRequest(oneshot::Receiver<()>),
    HoldAnswer(oneshot::Receiver<()>),
}

struct Trap {
    text: String,
    action: Action,
    sprung: oneshot::Sender<()>,
}

/// The near end of a trap that was set.
pub struct Sprung {
    sprung: oneshot::Receiver<()>,
    release: Option<oneshot::Sender<()>>,
}

impl Sprung {
    /// Returns when the call came to the point of the trap.
    pub async fn wait(&mut self) {
        let sprung = tokio::time::timeout(PATIENCE, &mut self.sprung).await;
        sprung
            .expect("in vain: nobody walks into the trap")
            .expect("the trap was removed");
    }

    /// Whether a call came to the point of the trap.
    pub fn has_happened(&mut self) -> bool {
        self.sprung.try_recv().is_ok()
    }

    /// Lets through what is held back.
    pub fn release(mut self) {
        let _ = self.release.take().expect("something is held back").send(());
    }
}

#[derive(Clone, Copy)]
struct State {
    mode: Mode,
    /// Connections older than the last cut end.
    cuts: u64,
    /// Connections older than the last freeze stay open, but nothing gets through any more.
    freezes: u64,
}

struct Shared {
    server: (String, u16),
    state: watch::Sender<State>,
    traps: Mutex<Vec<Trap>>,
    /// Connections that send or prepare a statement with one of these texts are cut.
    forbidden: Mutex<Vec<String>>,
    /// The SQL of every call that was sent, in order.
    calls: Mutex<Vec<String>>,
    /// How many connections were accepted.
    accepted: AtomicUsize,
    /// How often an answer was asked for, on connections that do not listen.
    round_trips: AtomicUsize,
}

pub struct Proxy {
    shared: Arc<Shared>,
    address: SocketAddr,
    config: Config,
    /// Keeps the port while nobody listens on it.
    _port: TcpSocket,
    accepting: JoinHandle<()>,
}

impl Proxy {
    /// In front of the server of this connection string.
    pub fn start(url: &str) -> Self {
        let target: Config = url.parse().expect("connection string");
        let [Host::Tcp(host)] = target.get_hosts() else {
            panic!("the proxy needs a server on TCP, and one only");
        };
        let server = (host.clone(), target.get_ports().first().copied().unwrap_or(5432));
        let port = bind(SocketAddr::from(([127, 0, 0, 1], 0))).expect("a port");
        let address = port.local_addr().expect("address");
        let mut config = Config::new();
        // It has to understand what is said.
        config.host("127.0.0.1").port(address.port()).ssl_mode(SslMode::Disable);
        if let Some(user) = target.get_user() {
            config.user(user);
        }
        if let Some(password) = target.get_password() {
            config.password(password);
        }
        if let Some(database) = target.get_dbname() {
            config.dbname(database);
        }
        let (state, _) = watch::channel(State {
            mode: Mode::Pass,
            cuts: 0,
            freezes: 0,
        });
        let shared = Arc::new(Shared {
            server,
            state,
            traps: Mutex::default(),
            forbidden: Mutex::default(),
            calls: Mutex::default(),
            accepted: AtomicUsize::default(),
            round_trips: AtomicUsize::default(),
        });
        // Listens before it returns, so that the first connection is not refused.
        let listener = listen(address).expect("listen");
        let accepting = tokio::spawn(accept(Arc::clone(&shared), address, Some(listener)));
        Self {
            shared,
            address,
            config,
            _port: port,
            accepting,
        }
    }

    /// How to connect through the proxy.
    pub fn config(&self) -> Config {
        self.config.clone()
    }

    /// Returns when the mode is in force for new connections.
    pub async fn set(&self, mode: Mode) {
        self.shared.set(mode);
        // Whether somebody listens is seen by trying.
        while TcpStream::connect(self.address).await.is_ok() == (mode == Mode::Refuse) {
            tokio::task::yield_now().await;
        }
    }

    /// How many connections were accepted so far.
    pub fn accepted(&self) -> usize {
        self.shared.accepted.load(Ordering::Relaxed)
    }

    /// How often the server was asked for an answer so far, whatever about. Connections that listen do not count.
    pub fn round_trips(&self) -> usize {
        self.shared.round_trips.load(Ordering::Relaxed)
    }

    /// Cuts the connections that exist.
    pub fn cut(&self) {
        self.shared.state.send_modify(|state| state.cuts += 1);
    }

    /// From now on nothing gets through on the connections that exist, and nobody is told.
    pub fn freeze(&self) {
        self.shared.state.send_modify(|state| state.freezes += 1);
    }

    pub fn lose_request_of(&self, text: &str, then: Mode) -> Sprung {
        self.trap(text, Action::LoseRequest(then), None)
    }

    pub fn lose_answer_of(&self, text: &str, then: Mode) -> Sprung {
        self.trap(text, Action::LoseAnswer(then), None)
    }

    pub fn hold_request_of(&self, text: &str) -> Sprung {
        let (release, released) = oneshot::channel();
        self.trap(text, Action::HoldRequest(released), Some(release))
    }

    pub fn hold_answer_of(&self, text: &str) -> Sprung {
        let (release, released) = oneshot::channel();
        self.trap(text, Action::HoldAnswer(released), Some(release))
    }

    fn trap(&self, text: &str, action: Action, release: Option<oneshot::Sender<()>>) -> Sprung {
        let (sender, sprung) = oneshot::channel();
        self.shared.traps.lock().expect("traps").push(Trap {
            text: text.to_string(),
            action,
            sprung: sender,
        });
        Sprung { sprung, release }
    }

    /// Cuts every connection that sends or prepares a statement with this text, until [`allow_all`](Self::allow_all).
    pub fn forbid(&self, text: &str) {
        self.shared.forbidden.lock().expect("forbidden").push(text.to_string());
    }

    pub fn allow_all(&self) {
        self.shared.forbidden.lock().expect("forbidden").clear();
    }

    /// How often something with this text was called so far.
    pub fn calls_of(&self, text: &str) -> usize {
        let calls = self.shared.calls.lock().expect("calls");
        calls.iter().filter(|sql| sql.contains(text)).count()
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.accepting.abort();
        self.cut();
    }
}

impl Shared {
    fn set(&self, mode: Mode) {
        self.state.send_modify(|state| {
            state.mode = mode;
            if matches!(mode, Mode::Refuse | Mode::AcceptThenClose) {
                state.cuts += 1;
            }
        });
    }

    fn check(&self, sql: &str) -> io::Result<()> {
        let forbidden = self.forbidden.lock().expect("forbidden");
        if forbidden.iter().any(|text| sql.contains(text.as_str())) {
            return Err(io::ErrorKind::PermissionDenied.into());
        }
        Ok(())
    }

    /// The trap for a call, if any.
    fn called(&self, sql: &str) -> Option<Trap> {
        self.calls.lock().expect("calls").push(sql.to_string());
        let mut traps = self.traps.lock().expect("traps");
        let position = traps.iter().position(|trap| sql.contains(&trap.text));
        position.map(|position| traps.remove(position))
    }
}

fn bind(address: SocketAddr) -> io::Result<TcpSocket> {
    let socket = TcpSocket::new_v4()?;
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    Ok(socket)
}

fn listen(address: SocketAddr) -> io::Result<TcpListener> {
    bind(address)?.listen(128)
}

async fn accept(shared: Arc<Shared>, address: SocketAddr, mut listener: Option<TcpListener>) {
    let mut state = shared.state.subscribe();
    loop {
        let mode = state.borrow_and_update().mode;
        if mode == Mode::Refuse {
            listener = None;
        } else if listener.is_none() {
            listener = Some(listen(address).expect("listen again"));
        }
        let accepted = async {
            match &listener {
                Some(listener) => listener.accept().await,
                None => pending().await,
            }
        };
        tokio::select! {
            _ = state.changed() => {}
            Ok((client, _)) = accepted => {
                shared.accepted.fetch_add(1, Ordering::Relaxed);
                match shared.state.borrow().mode {
                    Mode::Pass | Mode::Blackhole => {
                        tokio::spawn(Connection::serve(client, Arc::clone(&shared)));
                    }
                    Mode::Refuse | Mode::AcceptThenClose => drop(client),
                }
            }
        }
    }
}
