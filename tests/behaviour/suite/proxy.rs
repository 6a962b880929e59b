//! A man in the middle: passes what a client and a server say to each other, frame by frame, until it is told to stop.

use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use serde_json::Value;

/// Every connection begins with this, from either end.
const PREAMBLE: &[u8] = b"verbmark/1\n";

/// Who said something.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum From {
    Client,
    Server,
}

/// What was said: by whom, and the message.
#[derive(Debug, Clone)]
pub struct Frame {
    pub from: From,
    pub message: Value,
}

impl Frame {
    /// It is the message that has this key.
    pub fn has(&self, key: &str) -> bool {
        self.message.pointer(&format!("/ok/{key}")).is_some()
    }
}

/// What happens in place of the frame after the last that is passed.
pub type Act = Box<dyn FnOnce(&Proxy) + Send>;

struct Inner {
    /// How many frames are passed, on all connections and in both directions.
    pass: usize,
    act: Option<Act>,
    frames: Vec<Frame>,
    streams: Vec<TcpStream>,
    /// Whose bytes on a data connection are changed, and the place of the one that is.
    wrong: Option<(From, u64)>,
    /// Which frame is changed, counted as `pass` is, and how.
    change: Option<(usize, Change)>,
}

/// What is said in place of a message.
pub type Change = Box<dyn FnOnce(Value) -> Value + Send>;

/// A running proxy. It lives on in its own threads, until both ends have gone.
#[derive(Clone)]
pub struct Proxy {
    inner: Arc<Mutex<Inner>>,
    closed: Arc<AtomicBool>,
    address: SocketAddr,
}

impl Proxy {
    /// Listens for a client of the server on `port`. Passes `pass` frames, and in place of the next does `act`.
    pub fn start(port: u16, pass: usize, act: impl FnOnce(&Proxy) + Send + 'static) -> Self {
        Self::listen(port, pass, Some(Box::new(act)), None, None)
    }

    /// Passes everything, but another message than the one after the first `pass`.
    pub fn with_wrong_message(
        port: u16,
        pass: usize,
        change: impl FnOnce(Value) -> Value + Send + 'static,
    ) -> Self {
        Self::listen(port, usize::MAX, None, None, Some((pass + 1, Box::new(change))))
    }

    /// Passes everything, with one bit of byte number `at` wrong in what `from` sends on the data connection.
    pub fn with_wrong_byte(port: u16, from: From, at: u64) -> Self {
        Self::listen(port, usize::MAX, None, Some((from, at)), None)
    }

    fn listen(
        port: u16,
        pass: usize,
        act: Option<Act>,
        wrong: Option<(From, u64)>,
        change: Option<(usize, Change)>,
    ) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let address = listener.local_addr().expect("an address");
        let inner = Inner { pass, act, frames: Vec::new(), streams: Vec::new(), wrong, change };
        let proxy =
            Self { inner: Arc::new(Mutex::new(inner)), closed: Arc::new(AtomicBool::new(false)), address };
        let accepting = proxy.clone();
        std::thread::spawn(move || accepting.accept(&listener, port));
        proxy
    }

    /// Where the client is to connect.
    pub fn port(&self) -> u16 {
        self.address.port()
    }

    /// All that was said so far, the frame that was not passed included.
    pub fn frames(&self) -> Vec<Frame> {
        self.locked(|inner| inner.frames.clone())
    }

    /// Ends all connections, and takes no more.
    pub fn cut(&self) {
        self.refuse();
        self.locked(|inner| {
            for stream in inner.streams.drain(..) {
                let _ = stream.shutdown(Shutdown::Both);
            }
        });
    }

    /// Takes no more connections; those there are go on.
    pub fn refuse(&self) {
        self.closed.store(true, Ordering::SeqCst);
        // Wakes whoever accepts.
        let _ = TcpStream::connect(self.address);
    }

    fn locked<T>(&self, body: impl FnOnce(&mut Inner) -> T) -> T {
        body(&mut self.inner.lock().unwrap_or_else(|poisoned| poisoned.into_inner()))
    }

    fn accept(&self, listener: &TcpListener, port: u16) {
        for client in listener.incoming() {
            if self.closed.load(Ordering::SeqCst) {
                return;
            }
            let Ok(client) = client else { continue };
            // A server that is gone is a client's connection that ends at once.
            let Ok(server) = TcpStream::connect(("127.0.0.1", port)) else { continue };
            let both = || -> io::Result<_> { Ok((client.try_clone()?, server.try_clone()?)) };
            let (there, back) = (both().expect("a descriptor"), both().expect("a descriptor"));
            self.locked(|inner| inner.streams.extend([client, server]));
            for (from, (client, server)) in [(From::Client, there), (From::Server, back)] {
                let (source, sink) = if from == From::Client { (client, server) } else { (server, client) };
                let proxy = self.clone();
                std::thread::spawn(move || {
                    let _ = proxy.pass(from, &source, &sink);
                    // The other direction may go on; the end of this one is passed too.
                    let _ = sink.shutdown(Shutdown::Write);
                });
            }
        }
    }

    fn pass(&self, from: From, mut source: &TcpStream, mut sink: &TcpStream) -> io::Result<()> {
        source.set_nodelay(true)?;
        sink.set_nodelay(true)?;
        let mut preamble = [0; PREAMBLE.len()];
        source.read_exact(&mut preamble)?;
        assert_eq!(preamble, PREAMBLE, "{from:?} speaks another protocol");
        let mut is_data = false;
        let mut is_first = true;
        while !is_data {
            let mut length = [0; 4];
            source.read_exact(&mut length)?;
            let mut body = vec![0; u32::from_be_bytes(length) as usize];
            source.read_exact(&mut body)?;
            let message = serde_json::from_slice(&body).expect("frames are JSON");
            let frame = Frame { from, message };
            // A data connection has one frame each way, and then bytes of any kind.
            is_data = frame.message.pointer("/ok/purpose/data").is_some()
                || (is_first && self.answers_data(&frame));
            let message = frame.message.clone();
            if !self.may_pass(frame) {
                return Ok(());
            }
            let changed = self.locked(|inner| {
                let is_next = inner.change.as_ref().is_some_and(|(at, _)| *at == inner.frames.len());
                inner.change.take_if(|_| is_next)
            });
            if let Some((_, change)) = changed {
                body = change(message).to_string().into_bytes();
                length = (body.len() as u32).to_be_bytes();
            }
            // At once: half of a frame would be another kind of failure.
            let mut whole = if is_first { preamble.to_vec() } else { Vec::new() };
            whole.extend(length);
            whole.extend(body);
            sink.write_all(&whole)?;
            is_first = false;
        }
        if let Some((_, at)) = self.locked(|inner| inner.wrong.filter(|(whose, _)| *whose == from)) {
            io::copy(&mut source.take(at), &mut sink)?;
            let mut byte = [0];
            source.read_exact(&mut byte)?;
            sink.write_all(&[byte[0] ^ 0x10])?;
        }
        io::copy(&mut source, &mut sink).map(drop)
    }

    /// A welcome after the hello of a data connection.
    fn answers_data(&self, frame: &Frame) -> bool {
        let is_welcome = frame.from == From::Server && frame.has("identity");
        is_welcome && self.frames().iter().any(|seen| seen.message.pointer("/ok/purpose/data").is_some())
    }

    /// Counts a frame. It is passed unless it is the one in whose place something happens, or comes after it.
    fn may_pass(&self, frame: Frame) -> bool {
        let act = self.locked(|inner| {
            inner.frames.push(frame);
            if inner.frames.len() <= inner.pass { Err(()) } else { Ok(inner.act.take()) }
        });
        match act {
            Err(()) => true,
            Ok(None) => false,
            Ok(Some(act)) => {
                act(self);
                false
            }
        }
    }
}
