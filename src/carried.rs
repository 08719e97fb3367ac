//! Work that its caller carries out itself, and that goes on in a task of its own should the caller go away, or begin it and
//! then do something else.
//!
//! A task costs a trip through the scheduler to begin and another to answer, which on an idle machine take longer than a
//! small statement.

use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use futures_util::future::BoxFuture;
use tokio::runtime::Handle;

pub(crate) struct Carried<T: Send + 'static>(Arc<Shared<T>>);

/// For those who depend on work that another carries out.
pub(crate) struct Dependent<T: Send + 'static>(Arc<Shared<T>>);

struct Shared<T> {
    state: Mutex<State<T>>,
    /// Where it began: whoever carries it may be dropped outside of any runtime.
    runtime: Option<Handle>,
}

enum State<T> {
    /// With the caller's waker, once it waits.
    Carried(BoxFuture<'static, T>, Option<Waker>),
    /// Being polled, or never to be polled again.
    Taken,
    Adopted(Option<Waker>),
    /// None: it was dropped half-way.
    Done(Option<T>),
}

impl<T> Shared<T> {
    fn lock(&self) -> MutexGuard<'_, State<T>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes out what is carried, and its caller's waker.
    fn take(&self) -> Option<(BoxFuture<'static, T>, Option<Waker>)> {
        let mut state = self.lock();
        match std::mem::replace(&mut *state, State::Taken) {
            State::Carried(work, waker) => Some((work, waker)),
            other => {
                *state = other;
                None
            }
        }
    }
}

impl<T: Send + 'static> Carried<T> {
    pub(crate) fn new(work: BoxFuture<'static, T>) -> Self {
        Self(Arc::new(Shared {
            state: Mutex::new(State::Carried(work, None)),
            runtime: Handle::try_current().ok(),
        }))
    }

    pub(crate) fn dependent(&self) -> Dependent<T> {
        Dependent(Arc::clone(&self.0))
    }
}

impl<T: Send + 'static> Future for Carried<T> {
    /// None: it was dropped half-way, with the runtime that it ran on.
    type Output = Option<T>;

    /// Pending for ever after it is done.
    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<T>> {
        // Taken out: nobody else is held up meanwhile, and should it panic it must not be polled again.
        if let Some((mut work, _)) = self.0.take() {
            let polled = work.as_mut().poll(context).map(Some);
            if polled.is_pending() {
                *self.0.lock() = State::Carried(work, Some(context.waker().clone()));
            }
            return polled;
        }
        match &mut *self.0.lock() {
            State::Adopted(waiting) => {
                *waiting = Some(context.waker().clone());
                Poll::Pending
            }
            State::Done(done) => Poll::Ready(done.take()),
            State::Carried(..) | State::Taken => Poll::Pending,
        }
    }
}

impl<T: Send + 'static> Drop for Carried<T> {
    fn drop(&mut self) {
        if let (Some((work, _)), Some(runtime)) = (self.0.take(), &self.0.runtime) {
            runtime.spawn(work);
        }
    }
}

impl<T: Send + 'static> Dependent<T> {
    /// Lets it go on in a task of its own: its caller may have stopped polling it.
    pub(crate) fn adopt(&self) {
        let (Some(runtime), Some((work, waker))) = (&self.0.runtime, self.0.take()) else {
            return;
        };
        *self.0.lock() = State::Adopted(waker);
        let answer = Answer(Arc::clone(&self.0), None);
        runtime.spawn(async move { answer.give(work.await) });
    }
}

/// What became of adopted work, also if its task is dropped.
struct Answer<T>(Arc<Shared<T>>, Option<T>);

impl<T> Answer<T> {
    fn give(mut self, done: T) {
        self.1 = Some(done);
    }
}

impl<T> Drop for Answer<T> {
    fn drop(&mut self) {
        let before = std::mem::replace(&mut *self.0.lock(), State::Done(self.1.take()));
        if let State::Adopted(Some(waker)) = before {
            waker.wake();
        }
    }
}
