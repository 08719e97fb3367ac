//! The workflow of an order, and the activities it is made of.
//!
//! An orchestration is ordinary async code with one rule: it must do the same whenever it is run again, because
//! that is how it is resumed. Everything that touches the world goes into activities. Those run at least once:
//! a node can die after it did the work and before it could say so. Hence the idempotency keys.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use duroxide::runtime::registry::{ActivityRegistry, OrchestrationRegistry};
use duroxide::{ActivityContext, BackoffStrategy, OrchestrationContext, RetryPolicy};

use crate::outside::Outside;

pub(crate) const ORDER: &str = "order";
pub(crate) const SHIPMENT: &str = "shipment";
/// The event that confirms a payment. Its data is the receipt.
pub(crate) const PAYMENT: &str = "payment";

const RESERVE_STOCK: &str = "reserve-stock";
const CHARGE_CARD: &str = "charge-card";
const PACK: &str = "pack";
const SHIP: &str = "ship";

/// The customer may change their mind for so long.
const COOLING_OFF: Duration = Duration::from_millis(500);
/// How long an activity takes.
const WORK: Duration = Duration::from_millis(40);

/// An order: its number, and the id of its orchestration.
pub(crate) struct Order {
    pub(crate) number: usize,
    pub(crate) instance: String,
}

impl Order {
    /// Orders with ids that no earlier run used: starting an id that exists already starts nothing.
    pub(crate) fn new_run(count: usize) -> Vec<Self> {
        let run = uuid::Uuid::new_v4().simple().to_string();
        let order = |number| Self {
            number,
            instance: format!("{run:.8}-order-{number}"),
        };
        (1..=count).map(order).collect()
    }
}

/// An order, from the warehouse shelf to the customer's door.
async fn order(ctx: OrchestrationContext, number: String) -> Result<String, String> {
    ctx.schedule_activity(RESERVE_STOCK, &number).await?;

    // Subscribed before the charge is made: an event that nobody waits for is dropped.
    let payment = ctx.schedule_wait(PAYMENT);
    let retries = RetryPolicy::new(3).with_backoff(BackoffStrategy::Fixed {
        delay: Duration::from_millis(200),
    });
    ctx.schedule_activity_with_retry(CHARGE_CARD, &number, retries).await?;
    let receipt = payment.await;

    // Durable: no node has to stay up for it.
    ctx.schedule_timer(COOLING_OFF).await;

    let shipment = shipment_of(&ctx.instance_id());
    let parcel = ctx
        .schedule_sub_orchestration_with_id(SHIPMENT, shipment, &number)
        .await?;
    Ok(format!("order {number}: {receipt}, {parcel}"))
}

/// What [`order`] must return.
pub(crate) fn expected_output(number: usize) -> String {
    format!("order {number}: receipt R{number}, parcel P{number}")
}

/// The instance id of an order's shipment.
pub(crate) fn shipment_of(order: &str) -> String {
    format!("{order}-shipment")
}

/// The idempotency keys of all that is done for an order.
pub(crate) fn effects(order: &str) -> impl Iterator<Item = String> {
    let shipment = shipment_of(order);
    [
        (order, RESERVE_STOCK),
        (order, CHARGE_CARD),
        (&shipment, PACK),
        (&shipment, SHIP),
    ]
    .map(|(instance, activity)| key(instance, activity))
    .into_iter()
}

/// The same whenever this activity of this instance runs, so the outside can tell that it had the request already.
fn key(instance: &str, activity: &str) -> String {
    format!("{instance}/{activity}")
}

/// Packs and ships an order: an orchestration of its own, started by the order's.
async fn shipment(ctx: OrchestrationContext, number: String) -> Result<String, String> {
    ctx.schedule_activity(PACK, &number).await?;
    ctx.schedule_activity(SHIP, &number).await
}

/// What an activity of a node works with.
#[derive(Clone)]
pub(crate) struct Desk {
    pub(crate) outside: Arc<Outside>,
    pub(crate) node: usize,
}

impl Desk {
    /// Work with an effect in its middle: a node can die before the effect, or after it.
    async fn work<T>(&self, ctx: &ActivityContext, effect: impl FnOnce(&Outside, &str) -> T) -> T {
        let key = key(ctx.instance_id(), ctx.activity_name());
        self.outside.began(&key, self.node);
        tokio::time::sleep(WORK / 2).await;
        let result = effect(&self.outside, &key);
        tokio::time::sleep(WORK / 2).await;
        self.outside.ended(&key);
        result
    }
}

async fn reserve_stock(desk: Desk, ctx: ActivityContext, _number: String) -> Result<String, String> {
    desk.work(&ctx, |outside, key| outside.request(key)).await;
    Ok(String::new())
}

/// Every tenth card is declined once; the orchestration's retry policy deals with that. A refusal that dies with its
/// node is not repeated, so there can be fewer retries than declined cards.
async fn charge_card(desk: Desk, ctx: ActivityContext, number: String) -> Result<String, String> {
    let declined = number.ends_with('0') && desk.outside.decline_once(ctx.instance_id());
    desk.work(&ctx, |outside, key| {
        if declined {
            return Err("card declined, try again".to_string());
        }
        outside.charge(key, ctx.instance_id(), format!("receipt R{number}"));
        Ok(String::new())
    })
    .await
}

async fn pack(desk: Desk, ctx: ActivityContext, _number: String) -> Result<String, String> {
    desk.work(&ctx, |outside, key| outside.request(key)).await;
    Ok(String::new())
}

async fn ship(desk: Desk, ctx: ActivityContext, number: String) -> Result<String, String> {
    desk.work(&ctx, |outside, key| outside.request(key)).await;
    Ok(format!("parcel P{number}"))
}

/// The activities, as one node runs them.
pub(crate) fn activities(desk: &Desk) -> ActivityRegistry {
    /// Gives an activity its desk.
    fn at<F, R>(desk: &Desk, activity: F) -> impl Fn(ActivityContext, String) -> R + use<F, R>
    where
        F: Fn(Desk, ActivityContext, String) -> R,
    {
        let desk = desk.clone();
        move |ctx, input| activity(desk.clone(), ctx, input)
    }
    ActivityRegistry::builder()
        .register(RESERVE_STOCK, at(desk, reserve_stock))
        .register(CHARGE_CARD, at(desk, charge_card))
        .register(PACK, at(desk, pack))
        .register(SHIP, at(desk, ship))
        .build()
}

/// The orchestrations. Each turn runs the function from its beginning, so counting calls counts turns.
pub(crate) fn orchestrations(outside: &Arc<Outside>) -> OrchestrationRegistry {
    fn counted<F, R>(outside: &Arc<Outside>, orchestration: F) -> impl Fn(OrchestrationContext, String) -> R + use<F, R>
    where
        F: Fn(OrchestrationContext, String) -> R,
    {
        let outside = Arc::clone(outside);
        move |ctx, input| {
            outside.turns.fetch_add(1, Ordering::Relaxed);
            orchestration(ctx, input)
        }
    }
    OrchestrationRegistry::builder()
        .register(ORDER, counted(outside, order))
        .register(SHIPMENT, counted(outside, shipment))
        .build()
}
