//! Provider methods, as those who watch see them.

use std::future::Future;
use std::time::Instant;

use duroxide::providers::ProviderError;
use tracing::{Instrument, Span, debug_span, field};

use super::outcome::Outcome;
use super::{End, metrics};
use crate::ahead;
use crate::error::Failure;

/// A provider method that was called. `instance`: the one it is about, if that is known beforehand.
pub(crate) fn operation(operation: &'static str, instance: Option<&str>) -> Operation {
    Operation {
        name: operation,
        span: debug_span!(
            target: "duroxide_postgres",
            "duroxide_postgres.operation",
            operation,
            instance,
            rows = field::Empty,
            elapsed_us = field::Empty,
            error = field::Empty,
        ),
        started: Instant::now(),
        writes: None,
        ended: false,
    }
}

pub(crate) struct Operation {
    name: &'static str,
    span: Span,
    started: Instant,
    writes: Option<u64>,
    ended: bool,
}

impl Operation {
    /// How many rows it adds, where its result does not tell.
    pub(crate) fn writes(mut self, rows: usize) -> Self {
        self.writes = Some(rows as u64);
        self
    }

    pub(crate) async fn run<T: Outcome>(
        mut self,
        method: impl Future<Output = Result<T, Failure>>,
    ) -> Result<T, ProviderError> {
        ahead::step();
        let result = method.instrument(self.span.clone()).await;
        ahead::step();
        self.ended = true;
        match &result {
            Ok(outcome) => {
                if !self.span.is_disabled()
                    && let Some(instance) = outcome.instance()
                {
                    self.span.record("instance", instance);
                }
                self.finish(End::Done {
                    rows: self.writes.unwrap_or_else(|| outcome.rows()),
                });
            }
            Err(failure) => {
                self.finish(End::Failed(failure.class));
                metrics::error(self.name, failure.class);
            }
        }
        result.map_err(|failure| failure.error)
    }

    fn finish(&self, end: End) {
        let elapsed = self.started.elapsed();
        end.record(&self.span, elapsed);
        metrics::operation(self.name, end.outcome(), elapsed);
    }
}

impl Drop for Operation {
    fn drop(&mut self) {
        if !self.ended {
            self.finish(End::Dropped);
        }
    }
}
