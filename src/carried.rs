//! Work that its caller carries out itself, and that goes on in a task of its own should the caller go away.
//!
//! A task costs a trip through the scheduler to begin and another to answer, which on an idle machine take longer than a
//! small statement.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use futures_util::future::BoxFuture;

pub(crate) struct Carried<T: Send + 'static>(Option<BoxFuture<'static, T>>);

impl<T: Send + 'static> Carried<T> {
    pub(crate) fn new(work: BoxFuture<'static, T>) -> Self {
        Self(Some(work))
    }
}

impl<T: Send + 'static> Future for Carried<T> {
    type Output = T;

    /// Pending for ever after it is done.
    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<T> {
        let Some(work) = &mut self.0 else {
            return Poll::Pending;
        };
        let done = ready!(work.as_mut().poll(context));
        self.0 = None;
        Poll::Ready(done)
    }
}

impl<T: Send + 'static> Drop for Carried<T> {
    fn drop(&mut self) {
        if let Some(work) = self.0.take()
            && let Ok(runtime) = tokio::runtime::Handle::try_current()
        {
            runtime.spawn(work);
        }
    }
}
