//! Keeps every span and event of a thread.

use std::collections::BTreeMap;
use std::fmt;
use std::future::Future;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock};

use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Dispatch, Event, Subscriber};
use tracing_subscriber::Layer;
use tracing_subscriber::layer::{Context, SubscriberExt};
use tracing_subscriber::registry::LookupSpan;

pub const OPERATION: &str = "duroxide_postgres.operation";
pub const BATCH: &str = "duroxide_postgres.batch";
pub const LOOK: &str = "duroxide_postgres.look";
pub const CALL: &str = "duroxide_postgres.call";

#[derive(Debug, Clone)]
pub struct Span {
    pub index: usize,
    pub name: &'static str,
    pub target: &'static str,
    /// What it can have.
    pub field_names: Vec<&'static str>,
    /// What it has.
    pub fields: BTreeMap<&'static str, String>,
    /// Indices.
    pub parent: Option<usize>,
    pub follows: Vec<usize>,
}

impl Span {
    pub fn get(&self, field: &str) -> Option<&str> {
        self.fields.get(field).map(String::as_str)
    }

    pub fn number(&self, field: &str) -> Option<u64> {
        self.get(field).map(|text| text.parse().expect(field))
    }
}

/// Where a span is among those that were kept.
struct Index(usize);

#[derive(Clone, Default)]
pub struct Capture {
    spans: Arc<Mutex<Vec<Span>>>,
    /// Target and fields of events.
    events: Arc<Mutex<Vec<String>>>,
}

impl Capture {
    /// Runs a test on this thread alone, with all its spans and events captured.
    pub fn run<T, F: Future<Output = T>>(test: impl FnOnce(Self) -> F) -> T {
        // With one subscriber alone, `tracing` takes what a thread that has none thinks of a span for everybody's opinion.
        static ANOTHER: OnceLock<Dispatch> = OnceLock::new();
        ANOTHER.get_or_init(|| Dispatch::new(tracing_subscriber::registry()));
        let capture = Self::default();
        let subscriber = tracing_subscriber::registry().with(capture.clone());
        tracing::subscriber::with_default(subscriber, || super::run(test(capture)))
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Span>> {
        self.spans.lock().expect("spans")
    }

    /// All spans of a name so far, in the order in which they began.
    pub fn spans(&self, name: &str) -> Vec<Span> {
        self.lock().iter().filter(|span| span.name == name).cloned().collect()
    }

    /// Those of this crate.
    pub fn own_spans(&self) -> Vec<Span> {
        let spans = self.lock();
        spans
            .iter()
            .filter(|span| span.target.starts_with("duroxide_postgres"))
            .cloned()
            .collect()
    }

    /// The spans above one, from the nearest to the root.
    pub fn above(&self, span: &Span) -> Vec<Span> {
        let spans = self.lock();
        let mut above = Vec::new();
        let mut next = span.parent;
        while let Some(parent) = next {
            above.push(spans[parent].clone());
            next = spans[parent].parent;
        }
        above
    }

    pub fn events(&self) -> Vec<String> {
        self.events.lock().expect("events").clone()
    }

    /// Everything anybody could read.
    pub fn everything(&self) -> Vec<String> {
        let spans = self.lock();
        let spans = spans.iter().map(|span| format!("{} {:?}", span.name, span.fields));
        spans.chain(self.events()).collect()
    }
}

impl<S: Subscriber + for<'a> LookupSpan<'a>> Layer<S> for Capture {
    fn on_new_span(&self, attributes: &Attributes<'_>, id: &Id, context: Context<'_, S>) {
        let span = context.span(id).expect("it is new");
        let index_of = |span: tracing_subscriber::registry::SpanRef<'_, S>| {
            let index = span.extensions().get::<Index>().map(|index| index.0);
            index.expect("every span has an index")
        };
        let parent = span.parent().map(index_of);
        let mut fields = Fields::default();
        attributes.record(&mut fields);
        let mut spans = self.lock();
        span.extensions_mut().insert(Index(spans.len()));
        let metadata = attributes.metadata();
        let index = spans.len();
        spans.push(Span {
            index,
            name: metadata.name(),
            target: metadata.target(),
            field_names: metadata.fields().iter().map(|field| field.name()).collect(),
            fields: fields.0,
            parent,
            follows: Vec::new(),
        });
    }

    fn on_record(&self, id: &Id, values: &Record<'_>, context: Context<'_, S>) {
        let mut fields = Fields::default();
        values.record(&mut fields);
        let span = context.span(id).expect("it is open");
        let index = span.extensions().get::<Index>().expect("an index").0;
        self.lock()[index].fields.extend(fields.0);
    }

    fn on_follows_from(&self, id: &Id, follows: &Id, context: Context<'_, S>) {
        let index = |id| {
            let span = context.span(id).expect("it is open");
            span.extensions().get::<Index>().expect("an index").0
        };
        let (id, follows) = (index(id), index(follows));
        self.lock()[id].follows.push(follows);
    }

    fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
        let mut fields = Fields::default();
        event.record(&mut fields);
        let text = format!("{} {:?}", event.metadata().target(), fields.0);
        self.events.lock().expect("events").push(text);
    }
}

#[derive(Default)]
struct Fields(BTreeMap<&'static str, String>);

impl Visit for Fields {
    fn record_str(&mut self, field: &Field, value: &str) {
        self.0.insert(field.name(), value.to_string());
    }

    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.0.insert(field.name(), format!("{value:?}"));
    }
}
