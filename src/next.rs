//! What those who end something ask for next, looked for while they end it, or before.
//!
//! A worker that has acked an activity fetches the next one. When nobody of its process waits for any, there are probably some, and
//! they are looked for beside the call that acks: they are there before they are asked for, and the ack itself is as short as it can be,
//! as are its locks. Where activities are short, more are looked for than are needed at once, and as soon as an ack is answered: while those work who
//! come back, and not while they ack.
//!
//! Only for those who wait for work when they fetch, because others may not come back; and not once a fetch that waited
//! was dropped, until there is another: that is how a runtime begins to shut down. Should it end all the same before something can
//! be handed back (six for each worker at most), that can be had when its lease ends.

use std::sync::Arc;

use tokio::time::Instant;

use crate::inner::Inner;
use crate::look::send_look;
use crate::poll::{Line, Request};

impl<R: Request> Line<R> {
    /// Some are about to come back to this group: looks for what they will ask for, if less than `enough` is at hand and nobody does so already.
    /// `ahead`: how much is to be at hand then.
    pub(crate) fn look_next(&self, inner: &Arc<Inner>, group: u64, enough: usize, ahead: usize) {
        if inner.is_leaving() {
            return;
        }
        let now = Instant::now();
        let look = (self.lock().iter_mut())
            .find(|(_, known)| known.id == group)
            .and_then(|(request, group)| Some((request.clone(), group.look_next(now, enough, ahead)?)));
        // After the lock: whoever subscribes to spans is told.
        if let Some((request, sent)) = look {
            send_look(inner, &request, Some(sent), None);
        }
    }
}
