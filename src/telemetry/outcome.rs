//! How much an operation brought.

use std::collections::HashMap;

use duroxide::SystemStats;
use duroxide::providers::{
    DeleteInstanceResult, ExecutionInfo, InstanceInfo, InstanceTree, PruneResult, QueueDepths, SystemMetrics,
};

use crate::activity_fetch::Activity;
use crate::instances::CustomStatus;
use crate::turn::Turn;
use crate::work_item;

/// What an operation returns.
pub(crate) trait Outcome {
    /// How many of what it returns; of what it deleted, where it deletes.
    fn rows(&self) -> u64;

    /// The instance that it turned out to be about.
    fn instance(&self) -> Option<&str> {
        None
    }
}

impl Outcome for Option<Turn> {
    fn rows(&self) -> u64 {
        self.iter().len() as u64
    }

    fn instance(&self) -> Option<&str> {
        self.as_ref().map(|(item, _, _)| item.instance.as_str())
    }
}

impl Outcome for Option<Activity> {
    fn rows(&self) -> u64 {
        self.iter().len() as u64
    }

    fn instance(&self) -> Option<&str> {
        self.as_ref().and_then(|(item, _, _)| work_item::instance(item))
    }
}

impl<T> Outcome for Vec<T> {
    fn rows(&self) -> u64 {
        self.len() as u64
    }
}

impl Outcome for usize {
    fn rows(&self) -> u64 {
        *self as u64
    }
}

macro_rules! outcomes {
    ($($of:ty: |$outcome:pat_param| $rows:expr;)*) => {
        $(impl Outcome for $of {
            fn rows(&self) -> u64 {
                let $outcome = self;
                $rows
            }
        })*
    };
}

outcomes! {
    (): |_| 1;
    // An execution id.
    u64: |_| 1;
    Option<String>: |value| value.iter().len() as u64;
    Option<CustomStatus>: |status| status.iter().len() as u64;
    Option<SystemStats>: |stats| stats.iter().len() as u64;
    HashMap<String, String>: |values| values.len() as u64;
    InstanceInfo: |_| 1;
    ExecutionInfo: |_| 1;
    SystemMetrics: |_| 1;
    QueueDepths: |_| 1;
    InstanceTree: |tree| tree.all_ids.len() as u64;
    DeleteInstanceResult: |deleted| deleted.instances_deleted;
    PruneResult: |pruned| pruned.executions_deleted;
}
