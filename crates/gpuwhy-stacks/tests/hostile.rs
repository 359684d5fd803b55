// SPDX-License-Identifier: Apache-2.0
//! Looking for Python in a process that wants gpuwhy to open something for it.
#![allow(clippy::unwrap_used, clippy::disallowed_methods, missing_docs)]

use gpuwhy_stacks::python;
use std::ffi::CString;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};

/// Maps a file called like an interpreter's library, then has its path lead to a device, in a mount namespace of its own.
const ATTACK: &str = "
import ctypes, os, sys
library, device = sys.argv[1:3]
libc = ctypes.CDLL(None, use_errno=True)
libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t] + [ctypes.c_int] * 3 + [ctypes.c_long]
# Below everything else, so that it is the first that is looked at: PROT_READ, MAP_PRIVATE | MAP_FIXED.
libc.mmap(0x200000, 8192, 1, 0x12, os.open(library, os.O_RDONLY), 0)
assert libc.unshare(0x20000) == 0, os.strerror(ctypes.get_errno())
assert libc.mount(b'none', b'/', None, 0x4000 | 0x40000, None) == 0
assert libc.mount(device.encode(), library.encode(), None, 0x1000, None) == 0, os.strerror(ctypes.get_errno())
print('ready', flush=True)
sys.stdin.read()
";

/// Takes from this thread what opens files through `/proc/PID/map_files`, as gpuwhy does when its job exists.
fn give_up_rights() {
    const KEPT: u64 = 1 << 2 | 1 << 19;
    let header = [0x2008_0522u32, 0];
    let low = KEPT as u32;
    let data = [low, low, 0, 0, 0, 0u32];
    // SAFETY: version 3 means a header of two and data of six words, which are ours.
    let failed = unsafe { libc::syscall(libc::SYS_capset, header.as_ptr(), data.as_ptr()) };
    assert_eq!(failed, 0);
}

/// How often a file was opened so far.
struct Opens(i32);

impl Opens {
    fn of(path: &Path) -> Self {
        let path = CString::new(path.to_str().unwrap()).unwrap();
        // SAFETY: plain system calls; the string outlives them.
        unsafe {
            let watch = libc::inotify_init1(libc::IN_NONBLOCK | libc::IN_CLOEXEC);
            assert!(libc::inotify_add_watch(watch, path.as_ptr(), libc::IN_OPEN) >= 0);
            Self(watch)
        }
    }

    fn any(&self) -> bool {
        let mut events = [0u8; 4096];
        // SAFETY: the buffer is ours and as long as is said.
        unsafe { libc::read(self.0, events.as_mut_ptr().cast(), events.len()) > 0 }
    }
}

#[test]
fn a_device_behind_a_librarys_path_is_not_opened() {
    // SAFETY: reads a number.
    assert_eq!(unsafe { libc::geteuid() }, 0, "this test makes a device and a mount: it needs root");
    let dir = tempfile::tempdir().unwrap();
    let (library, device) = (dir.path().join("libpython3.11.so.1.0"), dir.path().join("device"));
    std::fs::write(&library, [0; 8192]).unwrap();
    let name = CString::new(device.to_str().unwrap()).unwrap();
    // SAFETY: the string outlives the call. This is /dev/zero under another name, which nobody else opens.
    assert_eq!(unsafe { libc::mknod(name.as_ptr(), libc::S_IFCHR | 0o600, libc::makedev(1, 5)) }, 0);
    let mut command = Command::new("python3");
    command.args(["-c", ATTACK]).args([&library, &device]).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut process = command.spawn().unwrap();
    let mut line = String::new();
    BufReader::new(process.stdout.take().unwrap()).read_line(&mut line).unwrap();
    assert_eq!(line, "ready\n");
    let (opens, pid) = (Opens::of(&device), process.id());
    let found = std::thread::spawn(move || {
        give_up_rights();
        python::find(pid)
    });
    let found = found.join().unwrap();
    drop(process.stdin.take());
    process.wait().unwrap();
    assert!(!opens.any(), "the device was opened");
    // The process runs Python all the same.
    assert!(found.is_ok(), "{found:?}");
    assert!(std::fs::File::open(&device).is_ok() && opens.any(), "an open is noticed");
}
