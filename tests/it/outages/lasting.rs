//! The server is away for seconds. Calls that end or extend a lease go on until it is back, or until the lease has
//! certainly ended: only then do they report an error.

use std::time::{Duration, Instant};

use duroxide::providers::{Provider, ProviderError};

use super::{ACTIVITY, LEASE, World};
use crate::fixtures::{self, Ack};
use crate::proxy::Mode;

const OUTAGE: Duration = Duration::from_secs(5);

/// One lease for each kind of call.
struct Leases {
    acked_turn: String,
    renewed_turn: String,
    acked_activity: String,
    renewed_activity: String,
}

impl Leases {
    async fn take(world: &World, lease: Duration) -> Self {
        // What one takes, the next cannot.
        Self {
            acked_turn: world.turn("acked turn", lease).await,
            renewed_turn: world.turn("renewed turn", lease).await,
            acked_activity: world.activity("acked activity", lease).await,
            renewed_activity: world.activity("renewed activity", lease).await,
        }
    }
}

async fn ack_turn(world: &World, token: &str) -> Result<(), ProviderError> {
    let ack = Ack {
        events: vec![fixtures::started("acked turn"), fixtures::scheduled("acked turn", 2)],
        activities: vec![fixtures::activity("acked turn", 2)],
        messages: vec![fixtures::start("child")],
        metadata: fixtures::named(),
        ..Ack::default()
    };
    fixtures::ack(&*world.provider, token, ack).await
}

async fn ack_activity(world: &World, token: &str, instance: &str) -> Result<(), ProviderError> {
    let completion = fixtures::completed(instance, ACTIVITY);
    world.provider.ack_work_item(token, Some(completion)).await
}

/// Acks and renewals during an outage of five seconds, with leases that outlast it.
async fn ride_out(mode: Mode) {
    let world = World::new().await;
    let leases = Leases::take(&world, LEASE).await;
    world.proxy.set(mode).await;
    let began = Instant::now();
    let outage = async {
        tokio::time::sleep(OUTAGE).await;
        world.proxy.set(Mode::Pass).await;
    };
    let (acked_turn, renewed_turn, acked_activity, renewed_activity, ()) = tokio::join!(
        ack_turn(&world, &leases.acked_turn),
        world
            .provider
            .renew_orchestration_item_lock(&leases.renewed_turn, 4 * LEASE),
        ack_activity(&world, &leases.acked_activity, "acked activity"),
        world.provider.renew_work_item_lock(&leases.renewed_activity, 4 * LEASE),
        outage
    );
    assert!(began.elapsed() >= OUTAGE, "there was no outage");
    acked_turn.expect("ack of a turn");
    renewed_turn.expect("renewal of a turn");
    acked_activity.expect("ack of an activity");
    renewed_activity.expect("renewal of an activity");

    assert_eq!(world.rows("history", "acked turn").await, 2);
    assert_eq!(world.rows("worker_queue", "acked turn").await, 1);
    assert_eq!(world.rows("orchestrator_queue", "acked turn").await, 0);
    assert_eq!(world.rows("orchestrator_queue", "child").await, 1);
    assert_eq!(world.rows("worker_queue", "acked activity").await, 0);
    assert_eq!(world.rows("orchestrator_queue", "acked activity").await, 1);
    assert!(world.lease_left("mailboxes").await > Some(3 * LEASE));
    assert!(world.lease_left("worker_queue").await > Some(3 * LEASE));
    ack_activity(&world, &leases.renewed_activity, "renewed activity")
        .await
        .expect("the lease still holds");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn refused_connections() {
    ride_out(Mode::Refuse).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn connections_accepted_and_closed() {
    ride_out(Mode::AcceptThenClose).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn connections_on_which_nothing_gets_through() {
    ride_out(Mode::Blackhole).await;
}

/// A failover that nobody announced: the old connections are dead, new ones work.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn connections_that_died_silently() {
    let world = World::new().await;
    let short = Duration::from_secs(8);
    let leases = Leases::take(&world, short).await;
    world.proxy.freeze();
    let (acked_turn, renewed_turn, acked_activity, renewed_activity) = tokio::join!(
        ack_turn(&world, &leases.acked_turn),
        world
            .provider
            .renew_orchestration_item_lock(&leases.renewed_turn, 4 * LEASE),
        ack_activity(&world, &leases.acked_activity, "acked activity"),
        world.provider.renew_work_item_lock(&leases.renewed_activity, 4 * LEASE),
    );
    acked_turn.expect("ack of a turn");
    renewed_turn.expect("renewal of a turn");
    acked_activity.expect("ack of an activity");
    renewed_activity.expect("renewal of an activity");
    assert_eq!(world.rows("history", "acked turn").await, 2);
    assert_eq!(world.rows("orchestrator_queue", "acked activity").await, 1);
}

/// What a lease is on.
#[derive(Clone, Copy)]
enum On {
    Turn,
    Activity,
}

impl On {
    fn table(self) -> &'static str {
        match self {
            Self::Turn => "mailboxes",
            Self::Activity => "worker_queue",
        }
    }

    async fn take(self, world: &World, lease: Duration) -> String {
        match self {
            Self::Turn => world.turn("acked turn", lease).await,
            Self::Activity => world.activity("acked activity", lease).await,
        }
    }

    async fn ack(self, world: &World, token: &str) -> Result<(), ProviderError> {
        match self {
            Self::Turn => ack_turn(world, token).await,
            Self::Activity => ack_activity(world, token, "acked activity").await,
        }
    }

    async fn renew(self, world: &World, token: &str, extend_for: Duration) -> Result<(), ProviderError> {
        match self {
            Self::Turn => world.provider.renew_orchestration_item_lock(token, extend_for).await,
            Self::Activity => world.provider.renew_work_item_lock(token, extend_for).await,
        }
    }

    /// How often it was delivered, once it can be claimed again.
    async fn claimed_again(self, world: &World) -> u32 {
        super::eventually("it is delivered again", || async {
            let fetched = match self {
                Self::Turn => world
                    .provider
                    .fetch_orchestration_item(LEASE, fixtures::NOW, None)
                    .await
                    .map(|turn| turn.map(|turn| turn.2)),
                Self::Activity => world
                    .provider
                    .fetch_work_item(LEASE, fixtures::NOW, None, &duroxide::providers::TagFilter::DefaultOnly)
                    .await
                    .map(|work| work.map(|work| work.2)),
            };
            fetched.ok().flatten()
        })
        .await
    }
}

/// A call that must fail, but not before the lease has ended by the database's clock; then somebody else gets the item.
async fn outlast(on: On, mode: Mode, lease: Duration, call: impl AsyncFn(&World, &str) -> Result<(), ProviderError>) {
    let world = World::new().await;
    let began = Instant::now();
    let token = on.take(&world, lease).await;
    if mode != Mode::Pass {
        world.proxy.set(mode).await;
    }
    let error = call(&world, &token).await.expect_err("the outage outlasts the lease");
    assert!(began.elapsed() >= lease, "{error} after {:?}", began.elapsed());
    assert_eq!(world.lease_left(on.table()).await, None, "too early: {error}");
    assert!(error.is_retryable(), "{error}");
    world.proxy.set(Mode::Pass).await;
    assert_eq!(on.claimed_again(&world).await, 2);
    assert_eq!(world.rows("history", "acked turn").await, 0, "nothing was committed");
}

const SHORT: Duration = Duration::from_secs(2);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ack_of_a_turn_fails_only_when_its_lease_has_ended() {
    outlast(On::Turn, Mode::Refuse, SHORT, async |world, token| {
        On::Turn.ack(world, token).await
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ack_of_an_activity_fails_only_when_its_lease_has_ended() {
    outlast(On::Activity, Mode::AcceptThenClose, SHORT, async |world, token| {
        On::Activity.ack(world, token).await
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn renewal_of_a_turn_fails_only_when_its_lease_has_ended() {
    outlast(On::Turn, Mode::AcceptThenClose, SHORT, async |world, token| {
        On::Turn.renew(world, token, LEASE).await
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn renewal_of_an_activity_fails_only_when_its_lease_has_ended() {
    outlast(On::Activity, Mode::Refuse, SHORT, async |world, token| {
        On::Activity.renew(world, token, LEASE).await
    })
    .await;
}

/// The renewal commits, its answer is lost, and the server stays away: the lease ends when the server says so.
async fn outlast_a_lost_renewal(on: On, function: &str) {
    let extension = Duration::from_secs(5);
    outlast(on, Mode::Pass, SHORT, async |world, token| {
        let called = format!(".{function}(");
        let mut lost = world.proxy.lose_answer_of(&called, Mode::Refuse);
        let began = Instant::now();
        let result = on.renew(world, token, extension).await;
        assert!(lost.has_happened());
        assert!(began.elapsed() >= extension, "after {:?}: {result:?}", began.elapsed());
        result
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn renewal_of_a_turn_whose_answer_was_lost_counts() {
    outlast_a_lost_renewal(On::Turn, "renew_orchestration_item_lock").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn renewal_of_an_activity_whose_answer_was_lost_counts() {
    outlast_a_lost_renewal(On::Activity, "renew_work_item_lock").await;
}

/// It may have extended the lease by less than is left of it; it may as well have done nothing.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn renewal_that_never_arrived_shortens_no_lease() {
    let lease = Duration::from_secs(4);
    outlast(On::Activity, Mode::Pass, lease, async |world, token| {
        let mut lost = world.proxy.lose_request_of(".renew_work_item_lock(", Mode::Refuse);
        let result = On::Activity.renew(world, token, Duration::from_millis(500)).await;
        assert!(lost.has_happened());
        result
    })
    .await;
}

/// Even when the server takes every call and never answers.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn renewal_gives_up_in_the_end() {
    let lease = Duration::from_secs(4);
    let renewal = outlast(On::Activity, Mode::Blackhole, lease, async |world, token| {
        On::Activity.renew(world, token, lease).await
    });
    tokio::time::timeout(Duration::from_secs(60), renewal)
        .await
        .expect("an end");
}

/// Ordinary calls that hang must not keep a lease from being renewed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ordinary_calls_leave_connections_for_renewals() {
    let world = World::new().await;
    let token = world.activity("renewed activity", LEASE).await;
    // Of a kind that shares no calls. The pool has eight connections.
    const CALL: &str = ".read_with_execution(";
    let before = world.proxy.calls_of(CALL);
    let hanging: Vec<_> = (0..8)
        .map(|_| {
            let held = world.proxy.hold_answer_of(CALL);
            let provider = world.provider.clone();
            let call = tokio::spawn(async move { provider.read_with_execution("some instance", 1).await });
            (held, call)
        })
        .collect();
    super::eventually("calls hang on all connections they may use", || async {
        (world.proxy.calls_of(CALL) - before >= 6).then_some(())
    })
    .await;
    let renewal = world.provider.renew_work_item_lock(&token, LEASE);
    tokio::time::timeout(super::SOON, renewal)
        .await
        .expect("no waiting")
        .expect("renewal");
    for (held, call) in hanging {
        call.abort();
        drop(held);
    }
}
