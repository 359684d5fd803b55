// SPDX-License-Identifier: Apache-2.0
//! Reads a source in chunks and unpacks gzip.
//!
//! After the first chunk a separate thread reads (and unpacks) ahead, so that the parser never waits for a copy.

use super::error::Error;
use std::io::{BufRead, BufReader, ErrorKind, Read};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, SyncSender, channel, sync_channel};

/// Small enough to stay in a processor's second-level cache.
const CHUNK: usize = 128 << 10;
/// Room before each chunk's bytes for the unparsed rest of the previous chunk.
const HEAD: usize = 4 << 10;
/// Files up to this size are not worth a thread.
const FIRST: usize = 1 << 20;
/// Chunks read ahead at most.
const AHEAD: usize = 4;
/// The longest string accepted; no snapshot has a longer one.
const MAX_STRING: usize = 64 << 20;
const GZIP_MAGIC: [u8; 2] = [0x1f, 0x8b];

/// `HEAD` bytes of room, the bytes read, and why there are no more after them.
struct Chunk {
    bytes: Vec<u8>,
    end: Option<End>,
    /// Bytes read from the source, before unpacking, when this chunk was full.
    drawn: u64,
}

/// Counts bytes read from the source, before unpacking.
struct Counted<'a, R> {
    source: R,
    drawn: &'a AtomicU64,
}

impl<R: Read> Read for Counted<'_, R> {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        let n = self.source.read(buffer)?;
        self.drawn.fetch_add(n as u64, Ordering::Relaxed);
        Ok(n)
    }
}

/// Why a source has no more bytes.
#[derive(Debug)]
enum End {
    OfFile,
    Failed(std::io::Error),
}

/// Where chunks come from and return to.
struct Pump {
    full: Receiver<Chunk>,
    empty: Sender<Vec<u8>>,
}

/// A buffer that knows its offset. It never trusts a length before it has seen the bytes.
pub(super) struct Input<'a> {
    buffer: Vec<u8>,
    at: usize,
    /// Offset in the unpacked stream of the buffer's first byte; wraps below 0, because the room before it has no offset.
    base: u64,
    end: Option<End>,
    pump: Option<Pump>,
    /// Bytes of the source consumed so far.
    drawn: u64,
    progress: Option<&'a mut dyn FnMut(u64)>,
}

/// Opens a source and hands it to `work`.
pub(super) fn with_input<T>(
    source: impl Read + Send,
    progress: Option<&mut dyn FnMut(u64)>,
    work: impl FnOnce(Input<'_>) -> T,
) -> Result<T, Error> {
    let drawn = &AtomicU64::new(0);
    let mut plain = BufReader::with_capacity(HEAD, Counted { source, drawn });
    let packed = plain.fill_buf().map_err(|source| Error::Read { offset: 0, source })?.starts_with(&GZIP_MAGIC);
    let mut source: Box<dyn Read + Send + '_> =
        if packed { Box::new(flate2::bufread::MultiGzDecoder::new(plain)) } else { Box::new(plain) };
    let Chunk { bytes, end, drawn: first } = read_chunk(&mut source, Vec::new(), FIRST, drawn);
    let base = 0u64.wrapping_sub(HEAD as u64);
    let mut input = Input { buffer: bytes, at: HEAD, base, end, pump: None, drawn: first, progress };
    if input.end.is_some() {
        return Ok(work(input));
    }
    std::thread::scope(|scope| {
        let (to_parser, full) = sync_channel(AHEAD);
        let (empty, used) = channel();
        std::thread::Builder::new()
            .spawn_scoped(scope, move || pump(source, &to_parser, &used, drawn))
            .map_err(|source| Error::Read { offset: FIRST as u64, source })?;
        input.pump = Some(Pump { full, empty });
        // When `work` is done with the input, the channel closes and the thread ends.
        Ok(work(input))
    })
}

/// Reads until the source ends or the receiver is gone.
fn pump(mut source: impl Read, to_parser: &SyncSender<Chunk>, used: &Receiver<Vec<u8>>, drawn: &AtomicU64) {
    loop {
        let chunk = read_chunk(&mut source, used.try_recv().unwrap_or_default(), CHUNK, drawn);
        let last = chunk.end.is_some();
        if to_parser.send(chunk).is_err() || last {
            return;
        }
    }
}

/// The next `size` bytes, or all that are left.
fn read_chunk(source: &mut impl Read, mut bytes: Vec<u8>, size: usize, drawn: &AtomicU64) -> Chunk {
    bytes.resize(HEAD + size, 0);
    let mut filled = HEAD;
    let mut end = None;
    while filled < bytes.len() && end.is_none() {
        match source.read(&mut bytes[filled..]) {
            Ok(0) => end = Some(End::OfFile),
            Ok(got) => filled += got,
            Err(e) if e.kind() == ErrorKind::Interrupted => {}
            // A gzip stream that is cut off.
            Err(e) if e.kind() == ErrorKind::UnexpectedEof => end = Some(End::OfFile),
            Err(e) => end = Some(End::Failed(e)),
        }
    }
    bytes.truncate(filled);
    Chunk { bytes, end, drawn: drawn.load(Ordering::Relaxed) }
}

impl Input<'_> {
    /// Offset of the next byte.
    #[inline]
    pub(super) fn offset(&self) -> u64 {
        self.base.wrapping_add(self.at as u64)
    }

    /// The buffered bytes not yet taken.
    #[inline]
    pub(super) fn ahead(&self) -> &[u8] {
        &self.buffer[self.at..]
    }

    /// Takes `n` bytes off [`Self::ahead`].
    #[inline]
    pub(super) fn skip_buffered(&mut self, n: usize) {
        self.at = (self.at + n).min(self.buffer.len());
    }

    /// Makes at least `n` bytes available; an error if the file ends before.
    #[inline]
    fn need(&mut self, n: usize) -> Result<(), Error> {
        if self.buffer.len() - self.at >= n { Ok(()) } else { self.refill(n) }
    }

    #[cold]
    fn refill(&mut self, n: usize) -> Result<(), Error> {
        let offset = self.offset();
        if let Some(report) = &mut self.progress {
            report(self.drawn);
        }
        while self.buffer.len() - self.at < n {
            let Some(Chunk { mut bytes, end, drawn }) = self.next_chunk() else {
                let offset = offset + self.ahead().len() as u64;
                return Err(match self.end.take() {
                    Some(End::Failed(source)) => Error::Read { offset, source },
                    _ => Error::Truncated { offset },
                });
            };
            let left = self.buffer.len() - self.at;
            if let Some(start) = HEAD.checked_sub(left) {
                bytes[start..HEAD].copy_from_slice(&self.buffer[self.at..]);
                let used = std::mem::replace(&mut self.buffer, bytes);
                self.at = start;
                if let Some(pump) = &self.pump {
                    // The reader may have ended already.
                    let _ = pump.empty.send(used);
                }
            } else {
                self.buffer.drain(..self.at);
                self.buffer.extend_from_slice(&bytes[HEAD..]);
                self.at = 0;
            }
            self.base = offset.wrapping_sub(self.at as u64);
            self.end = end;
            self.drawn = drawn;
        }
        Ok(())
    }

    fn next_chunk(&mut self) -> Option<Chunk> {
        if self.end.is_some() {
            return None;
        }
        self.pump.as_ref()?.full.recv().ok()
    }

    #[inline]
    pub(super) fn byte(&mut self) -> Result<u8, Error> {
        self.need(1)?;
        let byte = self.buffer[self.at];
        self.at += 1;
        Ok(byte)
    }

    /// The next `N` bytes, for numbers of fixed size.
    #[inline]
    pub(super) fn fixed<const N: usize>(&mut self) -> Result<[u8; N], Error> {
        self.need(N)?;
        let mut out = [0; N];
        out.copy_from_slice(&self.buffer[self.at..self.at + N]);
        self.at += N;
        Ok(out)
    }

    /// Hands the next `n` bytes to `take`. Those that do not fit a chunk are gathered as they arrive.
    pub(super) fn bytes<T>(&mut self, n: u64, take: impl FnOnce(&[u8]) -> T) -> Result<T, Error> {
        if n <= CHUNK as u64 {
            let n = n as usize;
            self.need(n)?;
            let out = take(&self.buffer[self.at..self.at + n]);
            self.at += n;
            return Ok(out);
        }
        let offset = self.offset();
        if n > MAX_STRING as u64 {
            return Err(Error::Damaged { offset, what: format!("a string of {n} bytes") });
        }
        let mut left = n as usize;
        let mut gathered = Vec::new();
        while left > 0 {
            self.need(1)?;
            let part = left.min(self.buffer.len() - self.at);
            gathered.extend_from_slice(&self.buffer[self.at..self.at + part]);
            self.at += part;
            left -= part;
        }
        Ok(take(&gathered))
    }

    /// Skips the next `n` bytes.
    pub(super) fn skip(&mut self, n: u64) -> Result<(), Error> {
        let mut left = n;
        while left > 0 {
            self.need(1)?;
            let part = left.min((self.buffer.len() - self.at) as u64);
            self.at += part as usize;
            left -= part;
        }
        Ok(())
    }

    /// A decimal number up to the end of the line, as the text forms of GET and PUT write it.
    pub(super) fn line_number(&mut self) -> Result<u64, Error> {
        let offset = self.offset();
        let mut number = 0u64;
        for _ in 0..=20 {
            match self.byte()? {
                b'\n' => return Ok(number),
                digit @ b'0'..=b'9' => number = number.saturating_mul(10).saturating_add(u64::from(digit - b'0')),
                b'\r' => {}
                _ => break,
            }
        }
        Err(Error::Damaged { offset, what: "a memo index that is not a number".into() })
    }
}
