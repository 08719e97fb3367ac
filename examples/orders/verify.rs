//! What became of the orders, as the database has it.

use std::fmt;
use std::sync::atomic::Ordering;

use duroxide::{Client, Event, EventKind, OrchestrationStatus};

use crate::Result;
use crate::order::{self, Order};
use crate::outside::Outside;
use crate::shop::Day;

const PROBLEMS_SHOWN: usize = 10;

/// The result of a run.
pub(crate) struct Report {
    orders: Vec<Order>,
    completed_once: usize,
    failed: usize,
    problems: Vec<String>,
    turns: u64,
    executions: usize,
    scheduled: usize,
    retried: usize,
    repeated_requests: usize,
    day: Day,
}

/// What the history of an order says about its activities.
struct Activities {
    /// Every attempt of a retry is scheduled anew.
    scheduled: usize,
    failed: usize,
}

impl Report {
    /// Reads every order back.
    pub(crate) async fn new(client: &Client, orders: Vec<Order>, outside: &Outside, day: Day) -> Result<Self> {
        let mut report = Self {
            orders: Vec::new(),
            completed_once: 0,
            failed: 0,
            problems: Vec::new(),
            turns: outside.turns.load(Ordering::Relaxed),
            executions: 0,
            scheduled: 0,
            retried: 0,
            repeated_requests: outside.repeated_requests(),
            day,
        };
        for order in &orders {
            report.add(client, order, outside).await?;
        }
        report.orders = orders;
        Ok(report)
    }

    async fn add(&mut self, client: &Client, order: &Order, outside: &Outside) -> Result<()> {
        let problem = match client.get_orchestration_status(&order.instance).await? {
            OrchestrationStatus::Completed { output, .. } if output == order::expected_output(order.number) => None,
            OrchestrationStatus::Completed { output, .. } => Some(format!("returned {output:?}")),
            OrchestrationStatus::Failed { details, .. } => {
                self.failed += 1;
                Some(format!("failed: {}", details.display_message()))
            }
            OrchestrationStatus::Running { .. } => Some("is not done".to_string()),
            OrchestrationStatus::NotFound => Some("is missing".to_string()),
        };
        let problem = match problem {
            Some(problem) => Some(problem),
            None => self.add_histories(client, order, outside).await?.err(),
        };
        match problem {
            None => self.completed_once += 1,
            Some(problem) => self.problems.push(format!("order {} {problem}", order.number)),
        }
        Ok(())
    }

    /// Goes through the histories of a completed order and its shipment. The inner error is a problem found.
    async fn add_histories(
        &mut self,
        client: &Client,
        order: &Order,
        outside: &Outside,
    ) -> Result<std::result::Result<(), String>> {
        for instance in [order.instance.clone(), order::shipment_of(&order.instance)] {
            let executions = client.list_executions(&instance).await?;
            let [execution] = executions[..] else {
                return Ok(Err(format!("has {} executions", executions.len())));
            };
            let history = client.read_execution_history(&instance, execution).await?;
            match check(&history) {
                Ok(activities) => {
                    self.scheduled += activities.scheduled;
                    self.retried += activities.failed;
                }
                Err(problem) => return Ok(Err(problem)),
            }
        }
        for key in order::effects(&order.instance) {
            if !outside.has(&key) {
                return Ok(Err(format!("completed without {key}")));
            }
            self.executions += outside.executions(&key);
        }
        Ok(Ok(()))
    }

    /// All orders completed exactly once.
    pub(crate) fn is_good(&self) -> bool {
        self.completed_once == self.orders.len()
    }

    pub(crate) fn instances(&self) -> Vec<String> {
        self.orders.iter().map(|order| order.instance.clone()).collect()
    }
}

/// Checks that it all happened once: the completion, and the result of everything that was scheduled.
fn check(history: &[Event]) -> std::result::Result<Activities, String> {
    let count = |is: fn(&EventKind) -> bool| history.iter().filter(|event| is(&event.kind)).count();
    let completions = count(|kind| matches!(kind, EventKind::OrchestrationCompleted { .. }));
    if completions != 1 {
        return Err(format!("completed {completions} times"));
    }
    for event in history {
        let has_result = matches!(
            event.kind,
            EventKind::ActivityScheduled { .. }
                | EventKind::TimerCreated { .. }
                | EventKind::SubOrchestrationScheduled { .. }
        );
        let is_result = |other: &&Event| other.source_event_id == Some(event.event_id);
        let results = history.iter().filter(is_result).count();
        if has_result && results != 1 {
            return Err(format!("has {results} results of its event {}", event.event_id));
        }
    }
    Ok(Activities {
        scheduled: count(|kind| matches!(kind, EventKind::ActivityScheduled { .. })),
        failed: count(|kind| matches!(kind, EventKind::ActivityFailed { .. })),
    })
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let orders = self.orders.len();
        let mut row = |name: &str, value: &dyn fmt::Display| writeln!(f, "{name:<42} {value:>8}");
        row("Orders started", &self.day.placed)?;
        row("  completed exactly once", &self.completed_once)?;
        row("  failed", &self.failed)?;
        row("  missing or wrong", &(orders - self.completed_once - self.failed))?;
        row("Turns", &self.turns)?;
        row("Activities executed", &self.executions)?;
        row("  retries of declined cards", &self.retried)?;
        // What was scheduled once and executed twice.
        row(
            "  redeliveries after the kill",
            &(self.executions.saturating_sub(self.scheduled)),
        )?;
        row("  effects that had happened already", &self.repeated_requests)?;
        match &self.day.kill {
            Some(kill) => {
                row("Activities the killed node left behind", &kill.lost)?;
                if let Some(took) = kill.taken_over {
                    row("  taken over within", &format!("{:.1} s", took.as_secs_f64()))?;
                }
            }
            None => row("Nodes killed (too few orders to catch one)", &0)?,
        }
        row("Seconds", &format!("{:.1}", self.day.took.as_secs_f64()))?;
        row(
            "Orders per second",
            &format!("{:.1}", self.completed_once as f64 / self.day.took.as_secs_f64()),
        )?;
        for problem in self.problems.iter().take(PROBLEMS_SHOWN) {
            writeln!(f, "PROBLEM: {problem}")?;
        }
        if self.problems.len() > PROBLEMS_SHOWN {
            writeln!(f, "... and {} more", self.problems.len() - PROBLEMS_SHOWN)?;
        }
        Ok(())
    }
}
