//! A progress bar on a terminal; elsewhere a line now and then.

use std::fmt::Write;
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressState, ProgressStyle};

const LINE_EVERY: Duration = Duration::from_secs(2);

pub(crate) struct Progress {
    bar: ProgressBar,
    began: Instant,
    last_line: Instant,
}

impl Progress {
    pub(crate) fn new(orders: usize) -> Self {
        let style = ProgressStyle::with_template("{elapsed:>5} {wide_bar:.green} {pos}/{len} orders, {rate}")
            .unwrap_or_else(|_| ProgressStyle::default_bar())
            .with_key("rate", |state: &ProgressState, out: &mut dyn Write| {
                let _ = write!(out, "{:.1}/s", state.pos() as f64 / state.elapsed().as_secs_f64());
            });
        let bar = ProgressBar::new(orders as u64).with_style(style);
        // Log lines and a bar do not mix.
        if std::env::var_os("RUST_LOG").is_some() {
            bar.set_draw_target(ProgressDrawTarget::hidden());
        }
        let now = Instant::now();
        Self {
            bar,
            began: now,
            last_line: now,
        }
    }

    /// So many orders have ended.
    pub(crate) fn ended(&mut self, orders: usize) {
        self.bar.set_position(orders as u64);
        if self.bar.is_hidden() && self.last_line.elapsed() >= LINE_EVERY {
            self.say(&format!("{orders} of {} orders", self.bar.length().unwrap_or_default()));
        }
    }

    /// Tells what happened, above the bar.
    pub(crate) fn say(&mut self, what: &str) {
        let line = format!("{:5.1} s  {what}", self.began.elapsed().as_secs_f64());
        if self.bar.is_hidden() {
            eprintln!("{line}");
            self.last_line = Instant::now();
        } else {
            self.bar.println(line);
        }
    }

    pub(crate) fn finish(&self) {
        self.bar.finish_and_clear();
    }
}
