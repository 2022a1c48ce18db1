//! The stack as a guest meets it, over a real socketpair.

mod datagrams;
mod flows;
mod guest;
mod hostile;
mod mtu;
mod names_over_tcp;
mod raw;
mod services;

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::sync::Notify;

use super::*;

/// Far beyond what any step takes; only a hang gets here.
const PATIENCE: Duration = Duration::from_secs(30);

async fn in_time<T>(future: impl Future<Output = T>) -> T {
    tokio::time::timeout(PATIENCE, future)
        .await
        .expect("the stack hangs")
}

type Open = dyn Fn(FlowDestination) -> BoxFuture<'static, Opening> + Send + Sync;

type OpenDatagrams = dyn Fn(FlowDestination) -> BoxFuture<'static, DatagramOpening> + Send + Sync;

/// The only port to which a rule of the tests lets datagrams.
const DATAGRAM_PORT: u16 = 5432;

/// A handler that remembers what it was told.
pub(super) struct Recorder {
    open: Box<Open>,
    open_datagrams: Box<OpenDatagrams>,
    names: Vec<Host>,
    drops: Mutex<HashMap<Dropped, u64>>,
    pub(super) queries: Mutex<Vec<(String, NameAnswer)>>,
    pub(super) alarms: Mutex<Vec<NameAlarm>>,
    changed: Notify,
}

impl Recorder {
    pub(super) fn new(
        open: impl Fn(FlowDestination) -> BoxFuture<'static, Opening> + Send + Sync + 'static,
    ) -> Arc<Self> {
        Arc::new(Self {
            open: Box::new(open),
            open_datagrams: Box::new(|_| Box::pin(async { DatagramOpening::Refuse })),
            names: vec![
                Host::parse("a.test").unwrap(),
                Host::parse("b.test").unwrap(),
            ],
            drops: Mutex::default(),
            queries: Mutex::default(),
            alarms: Mutex::default(),
            changed: Notify::new(),
        })
    }

    /// Accepts every flow and lets `serve` have it.
    fn serving<F>(serve: impl Fn(FlowStream) -> F + Clone + Send + Sync + 'static) -> Arc<Self>
    where
        F: Future<Output = ()> + Send + 'static,
    {
        Self::new(move |_| {
            let serve = serve.clone();
            let deliver = move |stream| {
                tokio::spawn(serve(stream));
            };
            Box::pin(async move { Opening::Accept(Box::new(deliver)) })
        })
    }

    pub(super) fn refusing() -> Arc<Self> {
        Self::new(|_| Box::pin(async { Opening::Refuse }))
    }

    /// The same, for datagrams to [`DATAGRAM_PORT`].
    fn with_datagrams(
        self: Arc<Self>,
        open: impl Fn(FlowDestination) -> BoxFuture<'static, DatagramOpening> + Send + Sync + 'static,
    ) -> Arc<Self> {
        let mut recorder = Arc::into_inner(self).expect("not yet shared");
        recorder.open_datagrams = Box::new(open);
        Arc::new(recorder)
    }

    pub(super) fn dropped(&self, what: Dropped) -> u64 {
        lock(&self.drops).get(&what).copied().unwrap_or(0)
    }

    async fn until_dropped(&self, what: Dropped, count: u64) {
        in_time(async {
            while self.dropped(what) < count {
                self.changed.notified().await;
            }
        })
        .await;
    }
}

impl FlowHandler for Recorder {
    fn open(&self, to: FlowDestination) -> BoxFuture<'_, Opening> {
        (self.open)(to)
    }

    fn admits_datagrams(&self, to: &FlowDestination) -> bool {
        to.port == DATAGRAM_PORT
    }

    fn open_datagrams(&self, to: FlowDestination) -> BoxFuture<'_, DatagramOpening> {
        (self.open_datagrams)(to)
    }

    fn resolve(&self, name: &Host) -> NameAdmission {
        if self.names.contains(name) {
            NameAdmission::Listed
        } else if name.as_str().ends_with(".many.test") {
            NameAdmission::Wildcard
        } else {
            NameAdmission::Denied
        }
    }

    fn dropped(&self, what: Dropped, count: u64) {
        *lock(&self.drops).entry(what).or_default() += count;
        self.changed.notify_one();
    }

    fn name_query(&self, name: &str, answer: NameAnswer) {
        lock(&self.queries).push((name.to_owned(), answer));
    }

    fn name_alarm(&self, alarm: &NameAlarm) {
        lock(&self.alarms).push(alarm.clone());
    }
}

/// Sends back what comes, then closes like the guest did.
async fn echo(stream: FlowStream) {
    let (mut reader, mut writer) = tokio::io::split(stream);
    let _outcome = tokio::io::copy(&mut reader, &mut writer).await;
    let _outcome = tokio::io::AsyncWriteExt::shutdown(&mut writer).await;
}
