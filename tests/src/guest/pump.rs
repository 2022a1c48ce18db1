//! Moves Ethernet frames between a TAP interface and a link socket, one frame per datagram, as a
//! virtual machine monitor does. Neither end is read while the other cannot take what it gives.

use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::thread::JoinHandle;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::pipe::PipeFlags;

/// The largest frame: an IP MTU of 65,520 bytes and the Ethernet header, rounded up.
const FRAME_BYTES: usize = 65_536;

/// Frames moved in one direction before the other direction gets its turn.
const BURST: usize = 64;

/// A running pump; it stops when dropped.
#[derive(Debug)]
pub(super) struct Pump {
    // Closing it is the signal to stop.
    stop: Option<OwnedFd>,
    thread: Option<JoinHandle<()>>,
}

impl Pump {
    pub(super) fn start(tap: File, link: OwnedFd) -> io::Result<Self> {
        rustix::io::ioctl_fionbio(&link, true)?;
        let (stopped, stop) = rustix::pipe::pipe_with(PipeFlags::CLOEXEC)?;
        let thread = std::thread::Builder::new()
            .name("pump".to_owned())
            .spawn(move || run(&tap.into(), &link, &stopped))?;
        Ok(Self {
            stop: Some(stop),
            thread: Some(thread),
        })
    }
}

impl Drop for Pump {
    fn drop(&mut self) {
        self.stop.take();
        if let Some(thread) = self.thread.take() {
            // A panic of the pump has been printed by its own thread.
            let _ = thread.join();
        }
    }
}

fn run(tap: &OwnedFd, link: &OwnedFd, stopped: &OwnedFd) {
    let mut up = Direction::default();
    let mut down = Direction::default();
    loop {
        let mut tap_events = PollFlags::empty();
        let mut link_events = PollFlags::empty();
        up.add_interest(&mut tap_events, &mut link_events);
        down.add_interest(&mut link_events, &mut tap_events);
        let mut polled = [
            PollFd::new(tap, tap_events),
            PollFd::new(link, link_events),
            PollFd::new(stopped, PollFlags::empty()),
        ];
        match poll(&mut polled, None) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(_) => return,
        }
        let ended = PollFlags::HUP | PollFlags::ERR | PollFlags::NVAL;
        if polled[1..].iter().any(|fd| fd.revents().intersects(ended)) {
            return;
        }
        if up.move_frames(tap, link).is_err() || down.move_frames(link, tap).is_err() {
            return;
        }
    }
}

/// One direction and the frame that its destination has not taken yet.
#[derive(Debug)]
struct Direction {
    frame: Vec<u8>,
    waiting: usize,
}

impl Default for Direction {
    fn default() -> Self {
        Self {
            frame: vec![0; FRAME_BYTES],
            waiting: 0,
        }
    }
}

impl Direction {
    fn add_interest(&self, source: &mut PollFlags, destination: &mut PollFlags) {
        if self.waiting == 0 {
            *source |= PollFlags::IN;
        } else {
            *destination |= PollFlags::OUT;
        }
    }

    fn move_frames(&mut self, source: &OwnedFd, destination: &OwnedFd) -> io::Result<()> {
        for _ in 0..BURST {
            if self.waiting == 0 {
                match rustix::io::read(source, &mut self.frame[..]) {
                    Ok(length) => self.waiting = length,
                    Err(Errno::AGAIN | Errno::INTR) => return Ok(()),
                    Err(error) => return Err(error.into()),
                }
            }
            match rustix::io::write(destination, &self.frame[..self.waiting]) {
                // An interface that is down takes nothing, as a cable that is not plugged in.
                Ok(_) | Err(Errno::IO) => self.waiting = 0,
                Err(Errno::AGAIN | Errno::INTR | Errno::NOBUFS) => return Ok(()),
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }
}
