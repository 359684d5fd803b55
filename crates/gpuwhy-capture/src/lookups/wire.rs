// SPDX-License-Identifier: Apache-2.0
//! Messages between gpuwhy and the processes that look things up for it: bytes and at most one open file each, over a
//! socket that keeps packets apart. A long message is several packets.

use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags, SocketFlags, SocketType, recvmsg, sendmsg, socketpair,
};
use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// Bytes of a packet; a socket holds some 200 kB.
const PACKET: usize = 32 << 10;
/// Maximum length of a message: a longer one means that the sender is broken or compromised.
const LONGEST: usize = 16 << 20;
/// A packet's first byte: whether another one of the same message follows.
const LAST: u8 = 0;
const MORE: u8 = 1;

/// One end. Both ends are closed by `exec`.
#[derive(Debug)]
pub(super) struct Wire {
    socket: OwnedFd,
    unfinished: Vec<u8>,
    file: Option<OwnedFd>,
}

/// Received messages.
#[derive(Debug)]
pub(super) struct Message {
    pub(super) bytes: Vec<u8>,
    pub(super) file: Option<OwnedFd>,
}

impl Wire {
    pub(super) fn new(socket: OwnedFd) -> Self {
        Self { socket, unfinished: Vec::new(), file: None }
    }

    /// Two ends.
    pub(super) fn pair() -> io::Result<(OwnedFd, OwnedFd)> {
        Ok(socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?)
    }

    /// Sends a message; waits while the other end is behind, unless it `must_not_wait`.
    pub(super) fn send(&self, bytes: &[u8], file: Option<BorrowedFd<'_>>, must_not_wait: bool) -> io::Result<()> {
        let flags = if must_not_wait { SendFlags::DONTWAIT } else { SendFlags::empty() } | SendFlags::NOSIGNAL;
        let mut chunks = bytes.chunks(PACKET).peekable();
        let mut first = true;
        loop {
            let chunk = chunks.next().unwrap_or_default();
            let mark = [if chunks.peek().is_some() { MORE } else { LAST }];
            let files: Vec<BorrowedFd<'_>> = file.into_iter().filter(|_| first).collect();
            let mut room = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
            let mut ancillary = SendAncillaryBuffer::new(&mut room);
            if !files.is_empty() && !ancillary.push(SendAncillaryMessage::ScmRights(&files)) {
                return Err(io::ErrorKind::OutOfMemory.into());
            }
            rustix::io::retry_on_intr(|| {
                let parts = [IoSlice::new(&mark), IoSlice::new(chunk)];
                sendmsg(&self.socket, &parts, &mut ancillary, flags)
            })?;
            first = false;
            if mark == [LAST] {
                return Ok(());
            }
        }
    }

    /// The next complete message; `None` if there is none yet. With `wait`, waits for it.
    pub(super) fn receive(&mut self, wait: bool) -> io::Result<Option<Message>> {
        let flags = if wait { RecvFlags::empty() } else { RecvFlags::DONTWAIT } | RecvFlags::CMSG_CLOEXEC;
        loop {
            let mut packet = [0; PACKET + 1];
            let mut room = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
            let mut ancillary = RecvAncillaryBuffer::new(&mut room);
            let received = rustix::io::retry_on_intr(|| {
                recvmsg(&self.socket, &mut [IoSliceMut::new(&mut packet)], &mut ancillary, flags)
            });
            let received = match received {
                Err(rustix::io::Errno::AGAIN) => return Ok(None),
                other => other?.bytes,
            };
            for message in ancillary.drain() {
                if let RecvAncillaryMessage::ScmRights(files) = message {
                    self.file = files.into_iter().next().or(self.file.take());
                }
            }
            let (mark, rest) = packet[..received].split_first().ok_or(io::ErrorKind::UnexpectedEof)?;
            if self.unfinished.len() + rest.len() > LONGEST {
                return Err(io::ErrorKind::InvalidData.into());
            }
            self.unfinished.extend_from_slice(rest);
            if *mark == LAST {
                return Ok(Some(Message { bytes: std::mem::take(&mut self.unfinished), file: self.file.take() }));
            }
        }
    }
}

impl AsFd for Wire {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::MetadataExt;

    #[test]
    fn messages_of_any_length_arrive_with_their_files() {
        let (one, other) = Wire::pair().unwrap();
        let (one, mut other) = (Wire::new(one), Wire::new(other));
        assert!(other.receive(false).unwrap().is_none());
        let file = std::fs::File::open("/etc/passwd").unwrap();
        for length in [0, 1, PACKET - 1, PACKET, PACKET + 1, 3 * PACKET + 7] {
            let bytes: Vec<u8> = (0..length).map(|at| at as u8).collect();
            one.send(&bytes, Some(file.as_fd()), false).unwrap();
            let got = other.receive(true).unwrap().unwrap();
            assert_eq!(got.bytes, bytes);
            let got = std::fs::File::from(got.file.unwrap()).metadata().unwrap();
            assert_eq!(got.ino(), file.metadata().unwrap().ino());
        }
        one.send(b"x", None, true).unwrap();
        assert!(other.receive(false).unwrap().unwrap().file.is_none());
        drop(one);
        assert!(other.receive(true).is_err(), "the other end is gone");
    }
}
