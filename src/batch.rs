//! Natural batching: calls that are ready at the same moment, or arrive while one is on the wire, share one.
//!
//! A call that finds the line free goes out at once, with those that are ready as well: batching costs nothing when there is
//! nothing to batch. Those that arrive meanwhile are carried out together when it is back: one round trip and one commit
//! for all of them. Calls for several are made in tasks of their own, so that a caller that goes away takes nobody with it.

use std::collections::{HashSet, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use tokio::runtime::Handle;
use tokio::sync::oneshot;
use tracing::{Instrument, Span, debug};

use crate::carried::{Carried, Dependent};
use crate::error::CallError;
use crate::inner::Inner;
use crate::pace::{self, Step};
use crate::telemetry::{self, metrics};
use crate::wake::Queue;

/// The most requests in one call.
const MAX_REQUESTS: usize = 64;
/// A call that carries this much already takes no more.
const MAX_BYTES: usize = 1 << 20;
/// Who had no company so many times in a row has none this time.
const ALONE: u32 = 8;
/// Who waited this long for a place in a call goes alone: the line may be stuck.
const PATIENCE: Duration = Duration::from_millis(250);

/// Something that can be asked for together with others.
pub(crate) trait Request: Send + Sync + 'static {
    /// No two requests of one call have the same; none if it gets along with every other.
    fn key(&self) -> Option<String> {
        None
    }

    /// How much it carries, roughly.
    fn bytes(&self) -> usize;
}

/// What became of a request.
enum Batched<R> {
    Answered(R),
    /// It was not sent, and must go alone.
    Alone,
    /// It may have been sent, but there will be no answer: the runtime that carried it out is gone.
    Unknown,
}

/// Makes one call of many requests and answers each, in their order.
pub(crate) type Call<T, R> = fn(Arc<Inner>, Vec<Arc<T>>) -> BoxFuture<'static, Vec<R>>;

/// Calls of one kind, one on the wire at a time.
pub(crate) struct Batcher<T, R: Send + 'static> {
    line: Arc<Line<T, R>>,
}

struct Line<T, R: Send + 'static> {
    /// The method whose calls these are.
    operation: &'static str,
    /// Its place among the calls of those who work through a queue, if it has one.
    step: Option<(Queue, Step)>,
    call: Call<T, R>,
    state: Mutex<State<T, R>>,
}

struct State<T, R: Send + 'static> {
    busy: bool,
    /// What keeps the line busy, if a caller carries it out itself.
    carried: Option<Dependent<Option<R>>>,
    /// How many calls in a row nobody joined.
    alone: u32,
    next_id: u64,
    waiting: VecDeque<Waiting<T, R>>,
}

struct Waiting<T, R> {
    id: u64,
    request: Arc<T>,
    /// Of its caller.
    span: Span,
    answer: oneshot::Sender<R>,
}

impl<T: Request, R: Send + 'static> Batcher<T, R> {
    pub(crate) fn new(operation: &'static str, call: Call<T, R>) -> Self {
        Self::at(operation, None, call)
    }

    /// One whose calls wait for those of the step before.
    pub(crate) fn paced(operation: &'static str, queue: Queue, step: Step, call: Call<T, R>) -> Self {
        Self::at(operation, Some((queue, step)), call)
    }

    fn at(operation: &'static str, step: Option<(Queue, Step)>, call: Call<T, R>) -> Self {
        Self {
            line: Arc::new(Line {
                operation,
                step,
                call,
                state: Mutex::new(State {
                    busy: false,
                    carried: None,
                    alone: 0,
                    next_id: 0,
                    waiting: VecDeque::new(),
                }),
            }),
        }
    }

    /// Carries out a request, also if the caller goes away.
    async fn submit(&self, inner: &Arc<Inner>, request: Arc<T>) -> Batched<R> {
        let span = Span::current();
        let (id, mut answer) = match self.line.enter(request, &span) {
            Entered::Free { request, alone } => {
                let mut turn = Turn {
                    line: Arc::clone(&self.line),
                    inner: Arc::clone(inner),
                    passed_on: false,
                    paced: false,
                };
                let call = async move {
                    // Those whom one answer set free act in step: whoever is ready comes along. Where there is nobody it would only
                    // wake up another thread to look for work.
                    if !alone {
                        tokio::task::yield_now().await;
                    }
                    turn.keep_pace(1).await;
                    match turn.line.company(request, &span) {
                        Company::None(request) => turn.alone(request, &span).await,
                        Company::Some(answer) => {
                            turn.paced = true;
                            drop(turn);
                            answer.await.ok()
                        }
                    }
                };
                let carried = Carried::new(call.boxed());
                self.line.lock().carried = Some(carried.dependent());
                return carried.await.flatten().map_or(Batched::Unknown, Batched::Answered);
            }
            Entered::Waiting { id, answer } => (id, answer),
        };
        let answered = match tokio::time::timeout(PATIENCE, &mut answer).await {
            Ok(answered) => answered,
            Err(_) if self.line.withdraw(id) => {
                // Should its caller have stopped, the line must not stay stuck.
                if let Some(carried) = self.line.lock().carried.take() {
                    carried.adopt();
                }
                return Batched::Alone;
            }
            Err(_) => answer.await,
        };
        answered.map_or(Batched::Unknown, Batched::Answered)
    }
}

impl<T: Request, A: Send + 'static> Batcher<T, Result<A, CallError>> {
    /// Carries out a request that can be repeated.
    pub(crate) async fn ask(&self, inner: &Arc<Inner>, request: Arc<T>) -> Result<A, CallError> {
        match self.submit(inner, Arc::clone(&request)).await {
            Batched::Answered(Err(CallError::InCompany(_))) => self.again(inner, request).await,
            Batched::Alone | Batched::Unknown => self.alone(inner, request).await,
            Batched::Answered(answer) => answer,
        }
    }

    /// Carries out a request that must not be repeated unless it certainly had no effect.
    pub(crate) async fn tell(&self, inner: &Arc<Inner>, request: Arc<T>) -> Result<A, CallError> {
        match self.attempt(inner, Arc::clone(&request)).await {
            Err(None) => self.alone(inner, request).await,
            Err(Some(CallError::InCompany(false))) => self.again(inner, request).await,
            Err(Some(error)) => Err(error),
            Ok(answer) => Ok(answer),
        }
    }

    /// Carries out a request once. No error: it was not even sent.
    pub(crate) async fn attempt(&self, inner: &Arc<Inner>, request: Arc<T>) -> Result<A, Option<CallError>> {
        match self.submit(inner, request).await {
            Batched::Answered(answer) => answer.map_err(Some),
            Batched::Alone => Err(None),
            Batched::Unknown => Err(Some(CallError::InCompany(true))),
        }
    }

    /// In company it failed, perhaps because of another.
    async fn again(&self, inner: &Arc<Inner>, request: Arc<T>) -> Result<A, CallError> {
        metrics::retry(self.line.operation, "company");
        self.alone(inner, request).await
    }

    async fn alone(&self, inner: &Arc<Inner>, request: Arc<T>) -> Result<A, CallError> {
        let batch = telemetry::batch(self.line.operation, 1, &[Span::current()]);
        let call = (self.line.call)(Arc::clone(inner), vec![request]);
        // It goes on should its caller go away: what it leases for others must not be lost.
        match Carried::new(call.instrument(batch).boxed()).await {
            Some(mut answers) => answers.pop().unwrap_or(Err(CallError::NoAnswer)),
            None => Err(CallError::InCompany(true)),
        }
    }
}

/// How a request finds the line.
enum Entered<T, R> {
    /// It may go out at once, and nobody else until it is back. `alone`: as the last ones did.
    Free {
        request: Arc<T>,
        alone: bool,
    },
    Waiting {
        id: u64,
        answer: oneshot::Receiver<R>,
    },
}

/// Whether others wait beside the one who may go out.
enum Company<T, R> {
    None(Arc<T>),
    /// It goes with them, first of all.
    Some(oneshot::Receiver<R>),
}

impl<T, R: Send + 'static> Line<T, R> {
    fn enter(&self, request: Arc<T>, span: &Span) -> Entered<T, R> {
        let mut state = self.lock();
        if !std::mem::replace(&mut state.busy, true) {
            let alone = state.alone >= ALONE;
            return Entered::Free { request, alone };
        }
        state.alone = 0;
        let (waiting, answer) = state.place(request, span);
        let id = waiting.id;
        state.waiting.push_back(waiting);
        Entered::Waiting { id, answer }
    }

    fn company(&self, request: Arc<T>, span: &Span) -> Company<T, R> {
        let mut state = self.lock();
        if state.waiting.is_empty() {
            state.alone = state.alone.saturating_add(1);
            return Company::None(request);
        }
        let (waiting, answer) = state.place(request, span);
        state.waiting.push_front(waiting);
        Company::Some(answer)
    }

    fn lock(&self) -> MutexGuard<'_, State<T, R>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether the request was still waiting.
    fn withdraw(&self, id: u64) -> bool {
        let mut state = self.lock();
        let before = state.waiting.len();
        state.waiting.retain(|waiting| waiting.id != id);
        state.waiting.len() < before
    }
}

impl<T, R: Send + 'static> State<T, R> {
    fn place(&mut self, request: Arc<T>, span: &Span) -> (Waiting<T, R>, oneshot::Receiver<R>) {
        let (sender, answer) = oneshot::channel();
        self.next_id += 1;
        let waiting = Waiting {
            id: self.next_id,
            request,
            span: span.clone(),
            answer: sender,
        };
        (waiting, answer)
    }
}

impl<T: Request, R: Send + 'static> State<T, R> {
    /// The requests of the next call.
    fn next_call(&mut self) -> Vec<Waiting<T, R>> {
        let mut call = Vec::new();
        let mut left = VecDeque::new();
        let mut keys = HashSet::new();
        let mut bytes = 0;
        while call.len() < MAX_REQUESTS
            && bytes < MAX_BYTES
            && let Some(waiting) = self.waiting.pop_front()
        {
            if waiting.request.key().is_none_or(|key| keys.insert(key)) {
                bytes += waiting.request.bytes();
                call.push(waiting);
            } else {
                left.push_back(waiting);
            }
        }
        left.append(&mut self.waiting);
        self.waiting = left;
        call
    }
}

/// The right to make calls. Given up, however that happens, it goes to those who wait.
struct Turn<T: Request, R: Send + 'static> {
    line: Arc<Line<T, R>>,
    inner: Arc<Inner>,
    /// Those who wait have it, but there is nobody to carry it out yet.
    passed_on: bool,
    /// It has waited for others already.
    paced: bool,
}

impl<T: Request, R: Send + 'static> Turn<T, R> {
    /// `beside`: how many go out beside those who wait.
    async fn keep_pace(&self, beside: usize) {
        if let Some((queue, step)) = self.line.step {
            let callers = beside + self.line.lock().waiting.len();
            self.inner.pace.keep(queue, step, callers, &self.inner.leases).await;
        }
    }

    fn sent(&self) -> Option<pace::Sent<'_>> {
        self.line.step.map(|(queue, step)| self.inner.pace.sent(queue, step))
    }

    /// Makes a call of one request.
    async fn alone(self, request: Arc<T>, span: &Span) -> Option<R> {
        let batch = telemetry::batch(self.line.operation, 1, std::slice::from_ref(span));
        let call = (self.line.call)(Arc::clone(&self.inner), vec![request]);
        let sent = self.sent();
        let answers = call.instrument(batch).await;
        drop(sent);
        drop(self);
        answers.into_iter().next()
    }

    /// Makes a call for those who wait.
    async fn together(mut self) {
        // Those who were just answered are often back at once: then they come along, instead of taking turns with the others.
        tokio::task::yield_now().await;
        if !std::mem::take(&mut self.paced) {
            self.keep_pace(0).await;
        }
        self.passed_on = false;
        let next = self.line.lock().next_call();
        let mut callers = Vec::new();
        let items = next.len();
        let (requests, senders): (Vec<_>, Vec<_>) = next
            .into_iter()
            .map(|waiting| {
                // Where nobody watches there is none, and nothing to keep.
                callers.extend((!waiting.span.is_none()).then_some(waiting.span));
                (waiting.request, waiting.answer)
            })
            .unzip();
        if requests.is_empty() {
            return;
        }
        let batch = telemetry::batch(self.line.operation, items, &callers);
        drop(callers);
        let call = (self.line.call)(Arc::clone(&self.inner), requests);
        let _until_answered = self.sent();
        let answers = call.instrument(batch).await;
        for (sender, answer) in senders.into_iter().zip(answers) {
            // Whoever went away does not want to know.
            let _ = sender.send(answer);
        }
    }
}

impl<T: Request, R: Send + 'static> Drop for Turn<T, R> {
    fn drop(&mut self) {
        // Without a runtime, or with one that ends, nothing is carried out: dropping their places tells those who wait.
        let runtime = Handle::try_current().ok().filter(|_| !self.passed_on);
        let mut state = self.line.lock();
        state.carried = None;
        let Some(runtime) = runtime.filter(|_| !state.waiting.is_empty()) else {
            state.busy = false;
            let nobody = std::mem::take(&mut state.waiting);
            drop(state);
            drop(nobody);
            return;
        };
        drop(state);
        let turn = Self {
            line: Arc::clone(&self.line),
            inner: Arc::clone(&self.inner),
            passed_on: true,
            paced: self.paced,
        };
        runtime.spawn(turn.together());
    }
}

/// What a call brought, for each of its requests, in their order.
pub(crate) fn answers<A>(result: Result<Vec<A>, CallError>, requests: usize) -> Vec<Result<A, CallError>> {
    match result {
        Ok(answers) => answers.into_iter().map(Ok).collect(),
        Err(error) if requests == 1 => vec![Err(error)],
        Err(error) => {
            debug!(%error, requests, "a call that carried several requests failed");
            (0..requests)
                .map(|_| Err(CallError::InCompany(error.is_ambiguous())))
                .collect()
        }
    }
}
