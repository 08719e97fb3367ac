//! One connection through the proxy, message by message.

use std::collections::HashMap;
use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::{oneshot, watch};

use super::{Action, Mode, Shared, State, Trap};

/// One side of a connection: the socket, and what has arrived of the next message.
struct Side {
    stream: TcpStream,
    buffer: Vec<u8>,
}

impl Side {
    fn new(stream: TcpStream) -> io::Result<Self> {
        // Messages are passed on one by one: none should wait for the acknowledgement of another.
        stream.set_nodelay(true)?;
        Ok(Self {
            stream,
            buffer: Vec::new(),
        })
    }

    /// The next whole message. Can be dropped and called again at any point.
    async fn message(&mut self, typed: bool) -> io::Result<Vec<u8>> {
        let header = if typed { 5 } else { 4 };
        loop {
            if let Some(length) = self.buffer.get(header - 4..header) {
                let length = u32::from_be_bytes(length.try_into().expect("four bytes"));
                let whole = header - 4 + length as usize;
                if self.buffer.len() >= whole {
                    return Ok(self.buffer.drain(..whole).collect());
                }
            }
            if self.stream.read_buf(&mut self.buffer).await? == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
        }
    }
}

pub(super) struct Connection {
    shared: Arc<Shared>,
    state: watch::Receiver<State>,
    born: State,
    /// SQL of the prepared statements.
    statements: HashMap<String, String>,
    /// Calls whose answers are still to come.
    unanswered: usize,
    /// Somebody waits for notifications on it, and says there what others are to be told.
    listens: bool,
    trapped: Option<Trapped>,
    held: Option<Held>,
}

/// A trap that waits for the answer of its call.
struct Trapped {
    trap: Trap,
    /// Answers to earlier calls come first.
    ahead: usize,
    /// What has come of it.
    answer: Vec<u8>,
}

/// An answer that is held back. What the client sends meanwhile gets through.
struct Held {
    answer: Vec<u8>,
    released: oneshot::Receiver<()>,
}

async fn release(held: &mut Option<Held>) -> io::Result<Vec<u8>> {
    match held {
        None => std::future::pending().await,
        Some(waiting) => {
            (&mut waiting.released).await.map_err(io::Error::other)?;
            Ok(held.take().expect("held").answer)
        }
    }
}

impl Connection {
    pub(super) async fn serve(client: TcpStream, shared: Arc<Shared>) {
        let state = shared.state.subscribe();
        let born = *state.borrow();
        let mut connection = Self {
            shared,
            state,
            born,
            statements: HashMap::new(),
            unanswered: 0,
            listens: false,
            trapped: None,
            held: None,
        };
        // However it ends, both sides are closed.
        let _ = connection.run(client).await;
    }

    async fn run(&mut self, client: TcpStream) -> io::Result<()> {
        let mut client = Side::new(client)?;
        self.passable().await?;
        let startup = client.message(false).await?;
        let (host, port) = &self.shared.server;
        let mut server = Side::new(TcpStream::connect((host.as_str(), *port)).await?)?;
        server.stream.write_all(&startup).await?;
        loop {
            self.passable().await?;
            tokio::select! {
                _ = self.state.changed() => {}
                message = client.message(true) => {
                    let message = message?;
                    self.inspect(&message).await?;
                    server.stream.write_all(&message).await?;
                }
                answer = release(&mut self.held) => client.stream.write_all(&answer?).await?,
                message = server.message(true), if self.held.is_none() => {
                    let answer = self.answer(message?)?;
                    client.stream.write_all(&answer).await?;
                }
            }
        }
    }

    /// Returns when messages may pass; an error when the connection is to be cut.
    async fn passable(&mut self) -> io::Result<()> {
        loop {
            let now = *self.state.borrow_and_update();
            if now.cuts != self.born.cuts {
                return Err(io::ErrorKind::ConnectionAborted.into());
            }
            if now.mode == Mode::Pass && now.freezes == self.born.freezes {
                return Ok(());
            }
            self.state.changed().await.map_err(io::Error::other)?;
        }
    }

    /// Looks at a message of the client before it goes to the server.
    async fn inspect(&mut self, message: &[u8]) -> io::Result<()> {
        let mut texts = message[5..].split(|byte| *byte == 0);
        let mut text = || String::from_utf8_lossy(texts.next().unwrap_or_default()).into_owned();
        let sql = match message[0] {
            b'P' => {
                let (statement, sql) = (text(), text());
                self.shared.check(&sql)?;
                self.statements.insert(statement, sql);
                return Ok(());
            }
            b'B' => {
                let (_portal, statement) = (text(), text());
                self.statements.get(&statement).cloned().unwrap_or_default()
            }
            b'Q' => text(),
            b'S' => {
                self.asks();
                return Ok(());
            }
            _ => return Ok(()),
        };
        let ahead = self.unanswered;
        if message[0] == b'Q' {
            self.listens |= sql.contains("listen \"");
            self.asks();
        }
        self.shared.check(&sql)?;
        let Some(trap) = self.shared.called(&sql) else {
            return Ok(());
        };
        match trap.action {
            Action::LoseRequest(mode) => Err(self.lose(mode, trap.sprung)),
            Action::HoldRequest(released) => {
                let _ = trap.sprung.send(());
                released.await.map_err(io::Error::other)
            }
            Action::LoseAnswer(_) | Action::HoldAnswer(_) => {
                self.trapped = Some(Trapped {
                    trap,
                    ahead,
                    answer: Vec::new(),
                });
                Ok(())
            }
        }
    }

    /// The client wants an answer to what it has sent: a round trip.
    fn asks(&mut self) {
        self.unanswered += 1;
        if !self.listens {
            self.shared.round_trips.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// What of the server's messages goes to the client now.
    fn answer(&mut self, message: Vec<u8>) -> io::Result<Vec<u8>> {
        // ReadyForQuery: the transaction has ended.
        let complete = message[0] == b'Z';
        if complete {
            // The first comes when the connection is there.
            self.unanswered = self.unanswered.saturating_sub(1);
        }
        match &mut self.trapped {
            None => return Ok(message),
            Some(trapped) if trapped.ahead > 0 => {
                trapped.ahead -= usize::from(complete);
                return Ok(message);
            }
            Some(trapped) => trapped.answer.extend(message),
        }
        if complete && let Some(Trapped { trap, answer, .. }) = self.trapped.take() {
            match trap.action {
                Action::HoldAnswer(released) => {
                    let _ = trap.sprung.send(());
                    self.held = Some(Held { answer, released });
                }
                Action::LoseAnswer(mode) => return Err(self.lose(mode, trap.sprung)),
                Action::LoseRequest(_) | Action::HoldRequest(_) => unreachable!("sprung before the server was asked"),
            }
        }
        Ok(Vec::new())
    }

    /// Why the connection ends at a trap.
    fn lose(&self, then: Mode, sprung: oneshot::Sender<()>) -> io::Error {
        if then != Mode::Pass {
            self.shared.set(then);
        }
        let _ = sprung.send(());
        io::Error::other("lost")
    }
}
