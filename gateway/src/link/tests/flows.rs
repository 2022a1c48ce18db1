//! Connections from their SYN to their last segment.

use std::io;

use smoltcp::iface::SocketHandle;
use smoltcp::socket::tcp::{self, State};
use smoltcp::wire::TcpControl;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::sync::{mpsc, oneshot};

use super::guest::{Guest, pair};
use super::raw::{self, RawGuest, Segment, syn};
use super::*;

const SERVER: (Ipv4Addr, u16) = (Ipv4Addr::new(203, 0, 113, 7), 443);

/// Hands every stream to the test.
fn collecting() -> (Arc<Recorder>, mpsc::Receiver<FlowStream>) {
    let (sender, streams) = mpsc::channel(512);
    let recorder = Recorder::serving(move |stream| {
        let sender = sender.clone();
        async move { sender.send(stream).await.unwrap() }
    });
    (recorder, streams)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_echo_larger_than_all_buffers_comes_back() {
    let recorder = Recorder::serving(echo);
    let (mut guest, _stack) = Guest::start(&recorder);
    let handle = guest.connect(SERVER);
    guest.until_established(handle).await;
    guest.echo(handle, 24 << 20).await;
    guest.tcp(handle).close();
    guest.until_state(handle, State::TimeWait).await;
}

#[tokio::test]
async fn an_echo_works_on_one_thread_too() {
    let recorder = Recorder::serving(echo);
    let (mut guest, _stack) = Guest::start(&recorder);
    let handle = guest.connect(SERVER);
    guest.echo(handle, 8 << 20).await;
}

#[tokio::test]
async fn a_guest_may_close_first_and_still_read() {
    let recorder = Recorder::serving(|mut stream: FlowStream| async move {
        let mut request = Vec::new();
        stream.read_to_end(&mut request).await.unwrap();
        assert_eq!(request, b"request");
        stream.write_all(&vec![7; 3 << 20]).await.unwrap();
        stream.shutdown().await.unwrap();
    });
    let (mut guest, _stack) = Guest::start(&recorder);
    let handle = guest.connect(SERVER);
    guest.until_established(handle).await;
    guest.tcp(handle).send_slice(b"request").unwrap();
    guest.tcp(handle).close();
    assert_eq!(read_to_end(&mut guest, handle).await.len(), 3 << 20);
}

#[tokio::test]
async fn a_server_may_close_first_and_still_read() {
    let (done, outcome) = oneshot::channel();
    let done = Arc::new(Mutex::new(Some(done)));
    let recorder = Recorder::serving(move |mut stream: FlowStream| {
        let done = lock(&done).take().unwrap();
        async move {
            stream.write_all(b"bye").await.unwrap();
            stream.shutdown().await.unwrap();
            let late = stream.write(b"more").await.unwrap_err();
            assert_eq!(late.kind(), io::ErrorKind::BrokenPipe);
            let mut rest = Vec::new();
            stream.read_to_end(&mut rest).await.unwrap();
            done.send(rest).unwrap();
        }
    });
    let (mut guest, _stack) = Guest::start(&recorder);
    let handle = guest.connect(SERVER);
    assert_eq!(read_to_end(&mut guest, handle).await, b"bye");
    guest.tcp(handle).send_slice(b"thanks").unwrap();
    guest.tcp(handle).close();
    guest.until_state(handle, State::Closed).await;
    assert_eq!(in_time(outcome).await.unwrap(), b"thanks");
}

#[tokio::test]
async fn a_refused_connection_is_reset() {
    let (mut guest, _stack) = Guest::start(&Recorder::refusing());
    let handle = guest.connect(SERVER);
    guest.until_state(handle, State::Closed).await;
}

#[tokio::test]
async fn a_syn_is_held_until_the_decision_and_asked_about_once() {
    let (asked, mut questions) = mpsc::channel::<(FlowDestination, oneshot::Sender<()>)>(8);
    let recorder = Recorder::new(move |to| {
        let asked = asked.clone();
        Box::pin(async move {
            let (decide, decision) = oneshot::channel();
            asked.send((to, decide)).await.unwrap();
            decision.await.unwrap();
            Opening::Accept(Box::new(|stream| drop(tokio::spawn(echo(stream)))))
        })
    });
    let (guest, _stack) = RawGuest::start(&recorder);
    guest.send(&syn(1000, SERVER, 77)).await;
    let (to, decide) = in_time(questions.recv()).await.unwrap();
    assert_eq!(
        to,
        FlowDestination {
            ip: SERVER.0.into(),
            port: SERVER.1,
            name: None
        }
    );
    guest.send(&syn(1000, SERVER, 77)).await;
    assert_eq!(
        guest.drain().await,
        Vec::<Vec<u8>>::new(),
        "an answer before the decision"
    );
    decide.send(()).unwrap();
    let answer = guest.receive_tcp().await;
    assert_eq!(answer.from, SERVER);
    assert_eq!((answer.control, answer.ack), (TcpControl::Syn, Some(78)));
    assert!(
        questions.try_recv().is_err(),
        "a retransmitted SYN is not asked about again"
    );
}

#[tokio::test]
async fn a_guest_that_gives_up_a_held_syn_takes_the_question_back() {
    let (asked, mut questions) = mpsc::channel::<oneshot::Sender<()>>(8);
    let recorder = Recorder::new(move |_| {
        let asked = asked.clone();
        Box::pin(async move {
            let (decide, decision) = oneshot::channel();
            asked.send(decide).await.unwrap();
            decision.await.unwrap();
            Opening::Refuse
        })
    });
    let (guest, _stack) = RawGuest::start(&recorder);
    guest.send(&syn(1000, SERVER, 77)).await;
    let mut decide = in_time(questions.recv()).await.unwrap();
    let reset = Segment {
        to: SERVER,
        port: 1000,
        control: TcpControl::Rst,
        seq: 78,
        ack: None,
        payload: &[],
    };
    guest.send(&raw::tcp(&reset)).await;
    in_time(decide.closed()).await;
    assert_eq!(guest.drain().await, Vec::<Vec<u8>>::new());
}

#[tokio::test]
async fn a_segment_of_an_unknown_flow_is_reset() {
    let (guest, _stack) = RawGuest::start(&Recorder::refusing());
    let stray = Segment {
        to: SERVER,
        port: 1000,
        control: TcpControl::Psh,
        seq: 5,
        ack: Some(900),
        payload: b"late",
    };
    guest.send(&raw::tcp(&stray)).await;
    let answer = guest.receive_tcp().await;
    assert_eq!((answer.from, answer.to_port), (SERVER, 1000));
    assert_eq!((answer.control, answer.seq), (TcpControl::Rst, 900));
    guest
        .send(&raw::tcp(&Segment {
            control: TcpControl::Rst,
            ..stray
        }))
        .await;
    assert_eq!(
        guest.drain().await,
        Vec::<Vec<u8>>::new(),
        "a reset is never answered"
    );
}

/// A neighbour leaked sockets on FIN until every slot was taken and the network went dark.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ten_times_the_cap_of_connections_in_sequence() {
    let recorder = Recorder::serving(|mut stream: FlowStream| async move {
        let first = stream.read_u8().await.unwrap();
        match first {
            b'e' => echo(stream).await,
            b'c' => stream.shutdown().await.unwrap(),
            _ => drop(stream),
        }
    });
    let (mut guest, _stack) = Guest::start(&recorder);
    for round in 0..MAX_FLOWS * 10 {
        let handle = guest.connect(SERVER);
        guest.until_established(handle).await;
        let (kind, end) = match round % 3 {
            0 => (b"e", State::TimeWait),
            1 => (b"c", State::Closed),
            _ => (b"r", State::Closed),
        };
        guest.tcp(handle).send_slice(kind).unwrap();
        if round % 3 == 1 {
            guest.until_state(handle, State::CloseWait).await;
        }
        if round % 3 != 2 {
            guest.tcp(handle).close();
        }
        guest.until_state(handle, end).await;
        guest.sockets.remove(handle);
    }
    assert_eq!(recorder.dropped(Dropped::FlowLimit), 0);
    assert_eq!(recorder.dropped(Dropped::SynBacklog), 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_does_not_read_stalls_only_its_own_flow() {
    let (recorder, mut streams) = collecting();
    let (mut guest, _stack) = Guest::start(&recorder);
    let stuck = guest.connect(SERVER);
    guest.until_established(stuck).await;
    let mut stuck_stream = in_time(streams.recv()).await.unwrap();
    fill(&mut guest, stuck).await;
    let lively = guest.connect(SERVER);
    guest.until_established(lively).await;
    tokio::spawn(echo(in_time(streams.recv()).await.unwrap()));
    guest.echo(lively, 4 << 20).await;
    // And what was held up arrives once somebody reads.
    let reader = tokio::spawn(async move {
        let mut buffer = vec![0; 1 << 20];
        stuck_stream
            .read_exact(&mut buffer[..flow::RECEIVE_BUFFER])
            .await
            .unwrap();
        stuck_stream
    });
    guest.until(|_| reader.is_finished().then_some(())).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_guest_that_does_not_read_one_flow_has_the_others() {
    let (recorder, mut streams) = collecting();
    let (mut guest, _stack) = Guest::start(&recorder);
    let stuck = guest.connect(SERVER);
    guest.until_established(stuck).await;
    let mut stream = in_time(streams.recv()).await.unwrap();
    let writer = tokio::spawn(async move {
        stream.write_all(&vec![1; 4 << 20]).await.unwrap();
        stream
    });
    let lively = guest.connect(SERVER);
    guest.until_established(lively).await;
    tokio::spawn(echo(in_time(streams.recv()).await.unwrap()));
    guest.echo(lively, 4 << 20).await;
    assert!(!writer.is_finished(), "the buffers hold less than 4 MiB");
    let mut received = 0;
    guest
        .until(|sockets| {
            let socket = sockets.get_mut::<tcp::Socket<'_>>(stuck);
            received += socket.recv(|data| (data.len(), data.len())).unwrap_or(0);
            (received == 4 << 20).then_some(())
        })
        .await;
    in_time(writer).await.unwrap();
}

#[tokio::test]
async fn a_stream_dropped_without_shutdown_resets_the_guest() {
    let (recorder, mut streams) = collecting();
    let (mut guest, _stack) = Guest::start(&recorder);
    let handle = guest.connect(SERVER);
    guest.until_established(handle).await;
    drop(in_time(streams.recv()).await.unwrap());
    guest.until_state(handle, State::Closed).await;
}

#[tokio::test]
async fn a_guest_that_resets_is_an_error_for_the_stream() {
    let (recorder, mut streams) = collecting();
    let (mut guest, _stack) = Guest::start(&recorder);
    let handle = guest.connect(SERVER);
    guest.until_established(handle).await;
    let mut stream = in_time(streams.recv()).await.unwrap();
    guest.tcp(handle).abort();
    let read = tokio::spawn(async move { stream.read_u8().await });
    let outcome = loop_guest(&mut guest, read).await.unwrap_err();
    assert_eq!(outcome.kind(), io::ErrorKind::ConnectionReset);
}

#[tokio::test]
async fn streams_end_with_the_stack() {
    let (recorder, mut streams) = collecting();
    let (mut guest, stack) = Guest::start(&recorder);
    let handle = guest.connect(SERVER);
    guest.until_established(handle).await;
    let mut stream = in_time(streams.recv()).await.unwrap();
    drop(stack);
    let outcome = in_time(stream.read_u8()).await.unwrap_err();
    assert_eq!(outcome.kind(), io::ErrorKind::ConnectionReset);
}

#[tokio::test]
async fn a_restarted_gateway_resets_old_flows_and_takes_new_ones() {
    let (ours, theirs) = std::os::unix::net::UnixDatagram::pair().unwrap();
    let kept_by_the_node = ours.try_clone().unwrap();
    let recorder = Recorder::serving(echo);
    let handler = || -> Arc<dyn FlowHandler> { Arc::<Recorder>::clone(&recorder) };
    let link = Link::from_fd(ours.into()).unwrap();
    let first = Stack::spawn(link, handler(), LinkConfig::default());
    let mut guest = Guest::new(theirs, 1);
    let old = guest.connect(SERVER);
    guest.echo(old, 1000).await;
    drop(first);
    tokio::task::yield_now().await;
    let link = Link::from_fd(kept_by_the_node.into()).unwrap();
    let _second = Stack::spawn(link, handler(), LinkConfig::default());
    guest.tcp(old).send_slice(b"still there?").unwrap();
    guest.until_state(old, State::Closed).await;
    let new = guest.connect(SERVER);
    guest.echo(new, 1000).await;
}

#[tokio::test]
async fn a_port_that_the_guest_uses_again_opens_a_new_flow() {
    let (recorder, mut streams) = collecting();
    let (guest, _stack) = RawGuest::start(&recorder);
    let first = handshake(&guest, 1000, 50).await;
    let mut forgotten = in_time(streams.recv()).await.unwrap();
    let second = handshake(&guest, 1000, 9_000).await;
    let outcome = in_time(forgotten.read_u8()).await.unwrap_err();
    assert_eq!(outcome.kind(), io::ErrorKind::ConnectionReset);
    let _renewed = in_time(streams.recv()).await.unwrap();
    assert_ne!(first, second);
}

#[tokio::test]
async fn sequence_numbers_wrap() {
    let recorder = Recorder::serving(echo);
    let (guest, _stack) = RawGuest::start(&recorder);
    for start in [-5_i32, i32::MAX - 5] {
        let port = 1000 + u16::from(start > 0);
        let isn = handshake(&guest, port, start).await;
        let payload = vec![3; 40_000];
        let data = Segment {
            to: SERVER,
            port,
            control: TcpControl::Psh,
            seq: start.wrapping_add(1),
            ack: Some(isn.wrapping_add(1)),
            payload: &payload,
        };
        guest.send(&raw::tcp(&data)).await;
        let mut echoed = 0;
        while echoed < payload.len() {
            let answer = guest.receive_tcp().await;
            assert_eq!(answer.ack, Some(start.wrapping_add(40_001)));
            echoed += answer.payload;
        }
    }
}

#[tokio::test]
async fn more_flows_than_the_cap_are_dropped_and_counted() {
    let (recorder, mut streams) = collecting();
    let (mut guest, _stack) = Guest::start(&recorder);
    let mut held = Vec::new();
    for _ in 0..MAX_FLOWS {
        let handle = guest.connect(SERVER);
        guest.until_established(handle).await;
        held.push(in_time(streams.recv()).await.unwrap());
    }
    let one_more = guest.connect(SERVER);
    guest
        .until(|_| (recorder.dropped(Dropped::FlowLimit) == 1).then_some(()))
        .await;
    assert_eq!(guest.tcp(one_more).state(), State::SynSent);
    // A slot is free again as soon as one is given back; the guest's next SYN gets it.
    held.pop();
    guest.until_established(one_more).await;
}

#[tokio::test]
async fn a_syn_flood_fills_only_the_backlog() {
    let recorder = Recorder::new(|_| Box::pin(std::future::pending()));
    let (guest, _stack) = RawGuest::start(&recorder);
    for port in 0..1000 {
        guest.send(&syn(2000 + port, SERVER, 1)).await;
    }
    recorder
        .until_dropped(Dropped::SynBacklog, 1000 - MAX_OPENINGS as u64)
        .await;
    assert_eq!(guest.drain().await, Vec::<Vec<u8>>::new());
}

#[tokio::test]
async fn half_open_flows_count_as_backlog() {
    let (recorder, _streams) = collecting();
    let (guest, _stack) = RawGuest::start(&recorder);
    for port in 0..MAX_OPENINGS as u16 {
        guest.send(&syn(2000 + port, SERVER, 1)).await;
        assert_eq!(guest.receive_tcp().await.control, TcpControl::Syn);
    }
    guest.send(&syn(4000, SERVER, 1)).await;
    recorder.until_dropped(Dropped::SynBacklog, 1).await;
}

#[tokio::test]
async fn a_guest_that_stops_reading_is_waited_for_without_spinning() {
    let recorder = Recorder::serving(|mut stream: FlowStream| async move {
        let chunk = vec![9; 1 << 16];
        while stream.write_all(&chunk).await.is_ok() {}
    });
    let (link, theirs) = pair();
    let handler: Arc<dyn FlowHandler> = Arc::<Recorder>::clone(&recorder);
    let _stack = Stack::spawn(link, handler, LinkConfig::default());
    let mut guest = Guest::new(theirs, 1);
    let handles: Vec<_> = (0..32).map(|_| guest.connect(SERVER)).collect();
    for handle in &handles {
        guest.until_established(*handle).await;
    }
    // The guest goes silent; then it reads again and gets everything in order.
    let before = cpu_time();
    tokio::time::sleep(Duration::from_millis(500)).await;
    let spent = cpu_time() - before;
    assert!(
        spent < Duration::from_millis(250),
        "waiting took {spent:?} of CPU"
    );
    for handle in handles {
        let mut received = 0;
        guest
            .until(|sockets| {
                let socket = sockets.get_mut::<tcp::Socket<'_>>(handle);
                received += socket.recv(|data| (data.len(), data.len())).unwrap_or(0);
                (received > 2 << 20).then_some(())
            })
            .await;
    }
}

/// A link whose other end is closed is an unplugged cable.
#[tokio::test]
async fn a_guest_that_went_away_is_waited_for_without_spinning() {
    let (recorder, mut streams) = collecting();
    let (mut guest, _stack) = Guest::start(&recorder);
    let handle = guest.connect(SERVER);
    guest.until_established(handle).await;
    let mut stream = in_time(streams.recv()).await.unwrap();
    drop(guest);
    stream.write_all(b"anybody?").await.unwrap();
    assert_idle().await;
}

/// Lets the clock run, which is what is measured here: all tasks are on this thread.
async fn assert_idle() {
    let before = cpu_time();
    tokio::time::sleep(Duration::from_millis(500)).await;
    let spent = cpu_time() - before;
    assert!(
        spent < Duration::from_millis(200),
        "waiting took {spent:?} of CPU"
    );
}

fn cpu_time() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    Duration::new(
        time.tv_sec.try_into().unwrap(),
        time.tv_nsec.try_into().unwrap(),
    )
}

async fn handshake(guest: &RawGuest, port: u16, start: i32) -> i32 {
    guest.send(&syn(port, SERVER, start)).await;
    let answer = guest.receive_tcp().await;
    assert_eq!(answer.control, TcpControl::Syn);
    assert_eq!(answer.ack, Some(start.wrapping_add(1)));
    let ack = Segment {
        to: SERVER,
        port,
        control: TcpControl::None,
        seq: start.wrapping_add(1),
        ack: Some(answer.seq.wrapping_add(1)),
        payload: &[],
    };
    guest.send(&raw::tcp(&ack)).await;
    answer.seq
}

/// Writes until nothing fits any more at either end.
async fn fill(guest: &mut Guest, handle: SocketHandle) {
    let want = flow::RECEIVE_BUFFER + guest::GUEST_BUFFER;
    let mut sent = 0;
    guest
        .until(|sockets| {
            let socket = sockets.get_mut::<tcp::Socket<'_>>(handle);
            let chunk = vec![0; want - sent];
            sent += socket.send_slice(&chunk).unwrap();
            (sent == want).then_some(())
        })
        .await;
}

async fn read_to_end(guest: &mut Guest, handle: SocketHandle) -> Vec<u8> {
    let mut received = Vec::new();
    guest
        .until(|sockets| {
            let socket = sockets.get_mut::<tcp::Socket<'_>>(handle);
            while socket.can_recv() {
                socket
                    .recv(|data| (data.len(), received.extend_from_slice(data)))
                    .unwrap();
            }
            (socket.recv(|_| (0, ())) == Err(tcp::RecvError::Finished)).then_some(())
        })
        .await;
    received
}

async fn loop_guest<T>(guest: &mut Guest, task: tokio::task::JoinHandle<T>) -> T {
    tokio::select! {
        result = task => result.unwrap(),
        () = guest.until(|_| None::<()>) => unreachable!(),
    }
}
