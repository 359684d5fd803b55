// SPDX-License-Identifier: Apache-2.0
//! What threads wait for, and who ends the wait.
#![allow(missing_docs, clippy::unwrap_used)]

mod common;

use common::host::{HostRun, Off, Window};
use common::{can_trace, one_at_a_time};
use serde::Deserialize;

/// A wait of a known kind, ended at a known moment.
#[derive(Debug, Deserialize)]
struct Waited {
    kind: String,
    wait: String,
    /// The number that /proc/PID/task/TID/syscall had while it slept.
    syscall: i64,
    tid: u32,
    /// Who ended it: 0 is a timer, −1 some thread of the kernel's.
    waker: i64,
    by: String,
    begin: i64,
    /// When the waker began to end it; 0 for a timer.
    woken: i64,
    end: i64,
}

/// The system calls hostjob waits in, by their number here.
fn syscall_name(number: i64) -> &'static str {
    let known = [
        (libc::SYS_read, "read"),
        (libc::SYS_ppoll, "ppoll"),
        (libc::SYS_pselect6, "pselect6"),
        (libc::SYS_epoll_pwait, "epoll_pwait"),
        (libc::SYS_accept, "accept"),
        (libc::SYS_futex, "futex"),
        (libc::SYS_wait4, "wait4"),
        (libc::SYS_rt_sigtimedwait, "rt_sigtimedwait"),
        (libc::SYS_rt_sigsuspend, "rt_sigsuspend"),
        (libc::SYS_clock_nanosleep, "clock_nanosleep"),
        (libc::SYS_msgrcv, "msgrcv"),
        (libc::SYS_io_getevents, "io_getevents"),
        #[cfg(target_arch = "x86_64")]
        (libc::SYS_poll, "poll"),
        #[cfg(target_arch = "x86_64")]
        (libc::SYS_select, "select"),
        #[cfg(target_arch = "x86_64")]
        (libc::SYS_epoll_wait, "epoll_wait"),
    ];
    known.iter().find(|(n, _)| *n == number).unwrap_or_else(|| panic!("system call {number}?")).1
}

/// The one long wait between two moments: what else the call blocks on, it does for a shorter time.
fn longest(rows: &[Off]) -> &Off {
    rows.iter().filter(|row| row.blocked()).max_by_key(|row| row.duration).unwrap()
}

fn check_wait(run: &HostRun, waited: &Waited) {
    let rows = run.off(waited.tid, waited.begin, waited.end);
    let row = longest(&rows);
    assert_eq!(row.reason, "asleep", "{waited:?} {row:?}");
    // Polling one pipe is waiting for a pipe.
    let wait = if waited.kind == "poll" { "pipe" } else { waited.wait.as_str() };
    assert_eq!(row.wait, wait, "{waited:?} {row:?}");
    assert_eq!(row.syscall, syscall_name(waited.syscall), "{waited:?} {row:?}");
    assert!(!row.io_wait, "{waited:?} {row:?}");
    // On the loopback the sender's own thread plays the network.
    let network = matches!(waited.kind.as_str(), "tcp" | "accept") && row.woken_by == "network";
    // A timer's interrupt in a task that the machine hides is not seen.
    let unseen = waited.by == "timer" && row.woken_by.is_empty();
    assert!(network || unseen || row.woken_by == waited.by, "{waited:?} {row:?}");
    match waited.waker {
        0 => {}
        _ if network => {}
        -1 => assert!(row.waker_tid != 0 && row.waker_tid != waited.tid, "{waited:?} {row:?}"),
        tid => assert_eq!(i64::from(row.waker_tid), tid, "{waited:?} {row:?}"),
    }
    // The waker saw it asleep, and then slept itself for 5 ms.
    assert!(waited.by == "timer" || row.duration >= 5_000_000, "{waited:?} {row:?}");
    assert!(row.woken() >= waited.woken && row.end() <= waited.end, "{waited:?} {row:?}");
}

#[test]
fn every_kind_of_wait_is_named_with_who_ended_it() {
    if !can_trace() {
        return;
    }
    let _lock = one_at_a_time();
    let run = HostRun::attached(&["waits"]);
    run.check();
    let waits: Vec<Waited> =
        run.told("wait").into_iter().map(|line| serde_json::from_value(line.clone()).unwrap()).collect();
    assert_eq!(waits.len(), 21);
    for waited in &waits {
        check_wait(&run, waited);
    }
    let timed = waits.iter().find(|waited| waited.kind == "timedwait").unwrap();
    let rows = run.off(timed.tid, timed.begin, timed.end);
    let row = longest(&rows);
    let limit = row.timeout_ns.unwrap();
    // The deadline was 5 ms away when the thread looked at the clock, after `begin` and before it slept.
    assert!(limit <= 5_000_000 && row.start + limit >= timed.begin + 4_900_000, "{timed:?} {row:?}");
}

/// Every wait of the player for its partner was ended by the partner. `pong` also sleeps now and then.
fn check_player(run: &HostRun, player: &Window, partner: &Window, rounds: usize) {
    let rows = run.off_in(player);
    let (waits, others): (Vec<&Off>, Vec<&Off>) = rows.iter().filter(|r| r.blocked()).partition(|r| r.wait == "pipe");
    assert!(!waits.is_empty() && waits.len() <= rounds, "{} waits in {rounds} rounds", waits.len());
    for row in &waits {
        assert_eq!((row.reason.as_str(), row.syscall.as_str()), ("asleep", "read"), "{row:?}");
        let by = (row.woken_by.as_str(), row.waker_pid, row.waker_tid);
        assert_eq!(by, ("thread", partner.pid, partner.tid), "{row:?}");
    }
    for row in others {
        let known = row.wait == "sleep" && row.woken_by == "timer";
        // Threads wait for their turn to end, when the game is over.
        assert!(known || row.wait == "futex" && row.start > partner.begin, "{row:?}");
    }
}

#[test]
fn every_wake_of_a_ping_pong_is_the_partners() {
    if !can_trace() {
        return;
    }
    let _lock = one_at_a_time();
    for variant in ["processes", "threads"] {
        let run = HostRun::attached(&["pingpong", "--count", "2000", "--variant", variant]);
        run.check();
        let (ping, pong) = (run.window("ping"), run.window("pong"));
        check_player(&run, &ping, &pong, 2000);
        check_player(&run, &pong, &ping, 2000);
    }
}

/// An unlock: who, and the time it took.
#[derive(Debug, Deserialize)]
struct Turn {
    tid: u32,
    asked: i64,
    got: i64,
    unlocking: i64,
    unlocked: i64,
}

#[test]
fn in_a_convoy_each_waiter_is_woken_by_who_unlocks() {
    if !can_trace() {
        return;
    }
    let _lock = one_at_a_time();
    for variant in ["sleep", "spin"] {
        let run = HostRun::attached(&["convoy", "--threads", "5", "--count", "20", "--variant", variant]);
        run.check();
        let mut turns: Vec<Turn> =
            run.told("turn").into_iter().map(|line| serde_json::from_value(line.clone()).unwrap()).collect();
        turns.sort_by_key(|turn| turn.got);
        assert!(turns.windows(2).all(|pair| pair[0].unlocking <= pair[1].got), "one owner at a time");
        let object = run.told("lock")[0]["object"].as_i64().unwrap();
        let mut edges = 0;
        for turn in &turns {
            for row in run.off(turn.tid, turn.asked, turn.got).iter().filter(|row| row.blocked()) {
                assert_eq!(
                    [&row.reason, &row.wait, &row.syscall, &row.woken_by],
                    ["asleep", "futex", "futex", "thread"]
                );
                assert_eq!(row.object, Some(object), "the lock's address: {row:?}");
                // It stands in a CPU's queue a moment after it was woken, when that is another CPU.
                let soon = |t: &&Turn| t.unlocking <= row.woken() && row.woken() <= t.unlocked + 500_000;
                let unlock = turns.iter().filter(soon).max_by_key(|t| t.unlocking);
                let unlock = unlock.unwrap_or_else(|| panic!("nobody unlocked when {row:?} was woken"));
                assert_eq!(row.waker_tid, unlock.tid, "{row:?} {unlock:?}");
                edges += 1;
            }
        }
        // Five threads that hold it for 2 ms and pause for 0.5 ms: nearly every turn waits.
        assert!(edges >= turns.len() / 2, "{edges} waits in {} turns", turns.len());
    }
}

#[test]
fn waiting_for_the_address_spaces_lock_is_told_from_other_waits() {
    if !can_trace() {
        return;
    }
    let _lock = one_at_a_time();
    let run = HostRun::attached(&["mmaplock", "--count", "10"]);
    run.check();
    let slow = run.told("slow");
    let (holder, mut waits) = (run.window("populate").tid, 0);
    for call in &slow {
        let [tid, begin, end] = ["tid", "begin", "end"].map(|key| call[key].as_i64().unwrap());
        let rows = run.off(tid as u32, begin, end);
        // It may also have been slow for want of a CPU.
        let Some(row) = rows.iter().filter(|row| row.blocked()).max_by_key(|row| row.duration) else { continue };
        waits += 1;
        assert_eq!([&row.wait, &row.reason, &row.syscall], ["mmap lock", "uninterruptible", "mmap"], "{row:?}");
        assert_eq!((row.woken_by.as_str(), row.waker_tid), ("thread", holder), "{row:?}");
        let covered = run.number(&format!(
            "SELECT SUM(duration_ns) FROM events \
             WHERE op = 'mmap_lock' AND tid = {tid} AND timestamp BETWEEN {} AND {}",
            begin - run.origin,
            end - run.origin
        ));
        assert!(covered >= row.duration && covered <= end - begin, "{covered} ns of waiting for the lock; {row:?}");
    }
    assert!(waits > 0, "filling 128 MiB holds the lock for long: {slow:?}");
}
