//! The shop: a client that places orders, confirms payments and watches. It executes nothing itself.

use std::collections::HashSet;
use std::error::Error;
use std::time::{Duration, Instant};

use duroxide::Client;
use tokio::sync::mpsc::UnboundedReceiver;

use crate::node::{LEASE, Node};
use crate::order::{self, Order};
use crate::outside::{Charge, Outside};
use crate::progress::Progress;
use crate::{NODES, Result};

/// The node that is going to die.
const VICTIM: usize = 2;
/// At most so many orders are open at a time, so that some are in every stage when the node dies.
const OPEN_ORDERS: usize = 60;
const LOOK_EVERY: Duration = Duration::from_millis(100);
/// Tasks that are running when their node is killed stop when they next wait for something.
const A_LAST_BREATH: Duration = Duration::from_millis(20);
/// No order ended for so long: something is broken, so report instead of waiting for ever.
const GIVE_UP_AFTER: Duration = Duration::from_secs(30);

/// How a day at the shop went.
pub(crate) struct Day {
    pub(crate) placed: usize,
    pub(crate) took: Duration,
    pub(crate) kill: Option<Kill>,
}

/// The death of a node.
pub(crate) struct Kill {
    at: Instant,
    /// Activities that it was executing.
    pub(crate) lost: usize,
    /// How long it took until all of them had begun elsewhere.
    pub(crate) taken_over: Option<Duration>,
}

pub(crate) struct Shop<'a> {
    client: &'a Client,
    outside: &'a Outside,
    orders: &'a [Order],
    nodes: &'a mut Vec<Node>,
    progress: Progress,
    placed: usize,
    ended: usize,
    last_ended: Instant,
    kill: Option<Kill>,
}

impl<'a> Shop<'a> {
    pub(crate) fn new(client: &'a Client, outside: &'a Outside, orders: &'a [Order], nodes: &'a mut Vec<Node>) -> Self {
        Self {
            client,
            outside,
            orders,
            nodes,
            progress: Progress::new(orders.len()),
            placed: 0,
            ended: 0,
            last_ended: Instant::now(),
            kill: None,
        }
    }

    /// Until all orders have ended, or nothing moves any more.
    pub(crate) async fn open(mut self) -> Result<Day> {
        let began = Instant::now();
        self.progress.say(&format!("{NODES} nodes at work"));
        while self.ended < self.orders.len() {
            self.place_orders().await?;
            tokio::time::sleep(LOOK_EVERY).await;
            self.look().await?;
            self.kill_a_node().await;
            if self.last_ended.elapsed() > GIVE_UP_AFTER {
                self.progress.say("nothing moves any more: giving up");
                break;
            }
        }
        self.progress.finish();
        Ok(Day {
            placed: self.placed,
            took: began.elapsed(),
            kill: self.kill,
        })
    }

    async fn place_orders(&mut self) -> Result<()> {
        let up_to = self.orders.len().min(self.ended + OPEN_ORDERS);
        for order in &self.orders[self.placed..up_to] {
            self.client
                .start_orchestration(&order.instance, order::ORDER, order.number.to_string())
                .await?;
            self.placed += 1;
        }
        Ok(())
    }

    /// Counts the orders that have ended. One look at them all costs less than waiting for each of them.
    async fn look(&mut self) -> Result<()> {
        let ours: HashSet<&str> = self.orders.iter().map(|order| order.instance.as_str()).collect();
        let mut ended = 0;
        for status in ["Completed", "Failed"] {
            let instances = self.client.list_instances_by_status(status).await?;
            ended += instances.iter().filter(|id| ours.contains(id.as_str())).count();
        }
        if ended > self.ended {
            (self.ended, self.last_ended) = (ended, Instant::now());
        }
        self.progress.ended(ended);
        Ok(())
    }

    /// Kills a node when a third of the orders are done, and then sees when its work is taken over.
    async fn kill_a_node(&mut self) {
        let executing = self.outside.running_on(VICTIM);
        match &mut self.kill {
            // Not before it has its hands full: there shall be something to take over.
            None if self.ended >= self.orders.len() / 3 && executing >= (self.orders.len() / 10).clamp(1, 3) => {
                let at = Instant::now();
                self.nodes.retain(|node| node.number != VICTIM); // dropping it is the crash
                tokio::time::sleep(A_LAST_BREATH).await;
                let lost = self.outside.running_on(VICTIM);
                self.progress.say(&format!(
                    "node {VICTIM} killed; activities it was executing: {lost}; its leases end in {LEASE:?}"
                ));
                self.kill = Some(Kill {
                    at,
                    lost,
                    taken_over: None,
                });
            }
            Some(kill) if kill.taken_over.is_none() && executing == 0 => {
                let after = kill.at.elapsed();
                kill.taken_over = Some(after);
                self.progress.say(&format!(
                    "the other nodes have taken over, {:.1} s after",
                    after.as_secs_f64()
                ));
            }
            _ => {}
        }
    }
}

/// The shop's bank confirms charges later, by an event, as a webhook would. Only ever returns an error.
pub(crate) async fn confirm_payments(
    client: &Client,
    mut charges: UnboundedReceiver<Charge>,
) -> Box<dyn Error + Send + Sync> {
    while let Some(charge) = charges.recv().await {
        let confirmed = client
            .raise_event(charge.instance, order::PAYMENT, charge.receipt)
            .await;
        if let Err(error) = confirmed {
            return error.into();
        }
    }
    "the bank is closed".into()
}
