//! Being asked to end.

use std::io;

use indicatif::ProgressBar;
#[cfg(unix)]
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::watch;
use tokio::task::JoinHandle;

use crate::cli::output::{Failure, say};

/// The exit code of what was interrupted, by custom.
pub(super) const INTERRUPTED: u8 = 130;

/// From now on a signal does not end the process: the batch under way is finished first. The second one does.
/// Says whether there was one.
pub(super) fn listen(progress: ProgressBar) -> Result<(watch::Receiver<bool>, JoinHandle<()>), Failure> {
    let (sender, interrupted) = watch::channel(false);
    let mut signals = Signals::new().map_err(|error| Failure::new(format!("cannot listen for signals: {error}")))?;
    let task = tokio::spawn(async move {
        signals.next().await;
        sender.send_replace(true);
        progress.suspend(|| say("interrupted: ending the batch under way first. Once more ends it at once"));
        signals.next().await;
        // The server undoes the batch under way.
        std::process::exit(INTERRUPTED.into());
    });
    Ok((interrupted, task))
}

/// What asks a process to end.
struct Signals {
    #[cfg(unix)]
    interrupt: Signal,
    #[cfg(unix)]
    terminate: Signal,
}

impl Signals {
    #[cfg(unix)]
    fn new() -> io::Result<Self> {
        Ok(Self {
            interrupt: signal(SignalKind::interrupt())?,
            terminate: signal(SignalKind::terminate())?,
        })
    }

    #[cfg(not(unix))]
    fn new() -> io::Result<Self> {
        Ok(Self {})
    }

    #[cfg(unix)]
    async fn next(&mut self) {
        tokio::select! {
            _ = self.interrupt.recv() => {}
            _ = self.terminate.recv() => {}
        }
    }

    #[cfg(not(unix))]
    async fn next(&mut self) {
        let _ = tokio::signal::ctrl_c().await;
    }
}
