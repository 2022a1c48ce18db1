//! The exchanges that a sandbox has under way, so that a new policy reaches each of them.
//!
//! A request is judged before it leaves, but an answer may take hours. So every exchange that was let
//! through is listed until it ends; a new policy judges them all again and cuts those that it denies.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use outgate_policy::{CanonicalRequest, Policy, Reason};

/// All exchanges of one sandbox. As many as may be open at a time.
#[derive(Debug, Default)]
pub(super) struct Exchanges(Mutex<Open>);

#[derive(Debug, Default)]
struct Open {
    next: u64,
    exchanges: HashMap<u64, (Arc<CanonicalRequest>, Arc<Cut>)>,
}

impl Exchanges {
    /// Judges what is open by `policy`.
    pub(super) fn judge(&self, policy: &Policy) {
        // Cut outside of the lock: whoever is woken may end its exchange at once.
        let denied: Vec<_> = lock(&self.0)
            .exchanges
            .values()
            .filter_map(|(request, cut)| Some((denial(policy, request)?, Arc::clone(cut))))
            .collect();
        for (reason, cut) in denied {
            cut.cut(reason);
        }
    }

    fn enter(&self, request: Arc<CanonicalRequest>, cut: Arc<Cut>) -> u64 {
        let mut open = lock(&self.0);
        let key = open.next;
        open.next += 1;
        open.exchanges.insert(key, (request, cut));
        key
    }
}

/// Why `policy` does not let `request` through.
fn denial(policy: &Policy, request: &CanonicalRequest) -> Option<Reason> {
    let decision = policy.decide(request);
    decision.permit().is_none().then(|| decision.reason())
}

/// One exchange's place in the list. Leaves it when dropped.
#[derive(Debug)]
pub(crate) struct Listed {
    sandbox: Arc<super::SandboxContext>,
    key: u64,
    cut: Arc<Cut>,
}

impl Listed {
    /// Lists an exchange that was let through by `judged_by`.
    pub(super) fn enter(
        sandbox: Arc<super::SandboxContext>,
        request: &Arc<CanonicalRequest>,
        judged_by: &Arc<Policy>,
    ) -> Self {
        let cut = Arc::<Cut>::default();
        let key = sandbox
            .exchanges_under_way
            .enter(Arc::clone(request), Arc::clone(&cut));
        // A policy that came in between has not seen it in the list.
        let now = sandbox.policy();
        if !Arc::ptr_eq(&now, judged_by)
            && let Some(reason) = denial(&now, request)
        {
            cut.cut(reason);
        }
        Self { sandbox, key, cut }
    }

    /// Ready once a new policy denies the exchange.
    pub(crate) fn poll_cut(&self, who: Direction, cx: &Context<'_>) -> Poll<Reason> {
        self.cut.poll(who, cx)
    }
}

impl Drop for Listed {
    fn drop(&mut self) {
        lock(&self.sandbox.exchanges_under_way.0)
            .exchanges
            .remove(&self.key);
    }
}

/// Who waits for a cut, beside what it waits for anyway.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Direction {
    /// The request's body.
    Up,
    /// The answer, its head first.
    Down,
}

/// Tells both directions of an exchange that it is over.
#[derive(Debug, Default)]
struct Cut(Mutex<CutState>);

#[derive(Debug, Default)]
struct CutState {
    reason: Option<Reason>,
    up: Option<Waker>,
    down: Option<Waker>,
}

impl Cut {
    fn cut(&self, reason: Reason) {
        let mut state = lock(&self.0);
        state.reason = Some(reason);
        let woken = [state.up.take(), state.down.take()];
        drop(state);
        woken.into_iter().flatten().for_each(Waker::wake);
    }

    fn poll(&self, who: Direction, cx: &Context<'_>) -> Poll<Reason> {
        let mut state = lock(&self.0);
        if let Some(reason) = state.reason {
            return Poll::Ready(reason);
        }
        let waiting = match who {
            Direction::Up => &mut state.up,
            Direction::Down => &mut state.down,
        };
        match waiting {
            Some(waker) if waker.will_wake(cx.waker()) => {}
            _ => *waiting = Some(cx.waker().clone()),
        }
        Poll::Pending
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
