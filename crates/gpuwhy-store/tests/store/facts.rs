// SPDX-License-Identifier: Apache-2.0
//! Sums of threads, samples of every second, and what processes are called.

use crate::support::*;
use gpuwhy_model::sample::*;
use gpuwhy_model::{Samples, ThreadSums};
use gpuwhy_store::Reader;

pub(crate) fn sums(tid: u32, since: u64, at: u64) -> ThreadSums {
    ThreadSums {
        pid: 200,
        tid,
        name: *b"python\0\0\0\0\0\0\0\0\0\0",
        born_ns: ORIGIN - 900,
        since_ns: ORIGIN + since,
        at_ns: ORIGIN + at,
        on_cpu_ns: (at - since) / 2,
        ready_ns: (at - since) / 4,
        blocked_ns: (at - since) / 4,
        throttled_ns: 3,
        switches: 5,
        page_allocations: 2,
        page_bytes: 8_192,
        ended: false,
        has_times: true,
    }
}

#[test]
fn a_threads_time_is_the_newest_of_each_of_its_lives() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("run.db");
    let mut writer = create(&path);
    writer.set_thread_sums(sums(201, 0, 400));
    writer.set_thread_sums(sums(201, 0, 4_000));
    writer.commit().unwrap();
    // Older ones come late, before and after a commit.
    writer.set_thread_sums(sums(201, 0, 800));
    writer.commit().unwrap();
    writer.set_thread_sums(ThreadSums { name: *b"worker\0\0\0\0\0\0\0\0\0\0", ended: true, ..sums(201, 6_000, 6_800) });
    writer.set_thread_sums(sums(201, 6_000, 6_400));
    writer.set_thread_sums(sums(200, 0, 4_000));
    writer.set_thread_sums(ThreadSums { has_times: false, ..sums(202, 0, 4_000) });
    writer.finish(&end());
    let reader = Reader::open(&path).unwrap();
    let time = "SELECT pid, tid, name, lifetime_ns, on_cpu_ns, ready_ns, blocked_ns, throttled_ns, switches, since,
        born, ended, page_allocations, page_bytes FROM thread_time ORDER BY tid";
    assert_eq!(
        ask(&reader, time).unwrap(),
        [
            "200|200|python|4000|2000|1000|1000|3|5|0|-900|0|2|8192",
            "200|201|worker|4800|2400|1200|1200|6|10|0|-900|1|4|16384",
            "200|202|python|4000|NULL|NULL|NULL|NULL|NULL|0|-900|0|2|8192",
        ]
    );
    assert_eq!(ask(&reader, "SELECT pid, tid FROM threads ORDER BY tid").unwrap(), ["200|200", "200|201", "200|202"]);
    assert_eq!(ask(&reader, "SELECT name FROM process_names").unwrap(), ["pid 200"]);
}

/// A second with a different number in every field that takes one.
pub(crate) fn second() -> Samples {
    let at_ns = ORIGIN + 2_500_000_000;
    Samples {
        system: Some(SystemSample {
            at_ns,
            span_ns: 1,
            user_ns: 2,
            system_ns: 3,
            iowait_ns: 4,
            idle_ns: 5,
            steal_ns: 6,
            cores: 7,
            load1: Some(0.5),
            runnable: Some(8),
            memory_total: Some(9),
            memory_available: Some(10),
            swap_used: Some(11),
            swap_in: Some(12),
            swap_out: Some(13),
            pressure_cpu_ns: Some(14),
            pressure_memory_some_ns: Some(15),
            pressure_memory_full_ns: Some(16),
            pressure_io_some_ns: Some(17),
            pressure_io_full_ns: Some(u64::MAX),
        }),
        processes: vec![ProcessSample {
            at_ns,
            span_ns: 1,
            pid: 200,
            user_ns: 2,
            system_ns: 3,
            resident: 4,
            anonymous: Some(5),
            swapped: Some(6),
            threads: 7,
            major_faults: 8,
            minor_faults: 9,
            read_bytes: Some(10),
            write_bytes: Some(11),
            page_allocations: Some(12),
            page_bytes: Some(13),
        }],
        cgroups: vec![CgroupSample {
            at_ns,
            path: "/kubepods/pod1".into(),
            version: 2,
            quota_ns: Some(1),
            period_ns: Some(2),
            periods: Some(3),
            throttled_periods: Some(4),
            throttled_ns: Some(5),
            usage_ns: Some(6),
            memory_used: Some(7),
            memory_limit: Some(8),
            oom_kills: Some(9),
        }],
        gpus: vec![GpuSample {
            at_ns,
            gpu: 1,
            rate_percent: Some(2),
            memory_rate_percent: Some(3),
            memory_used: Some(4),
            memory_total: Some(5),
            sm_mhz: Some(6),
            memory_mhz: Some(7),
            power_mw: Some(8),
            temperature_c: Some(9),
            throttle_reasons: Some(1 << 63),
        }],
        busy: vec![GpuBusy { at_ns: ORIGIN - 10, gpu: 1, percent: 99 }, GpuBusy { at_ns, gpu: 1, percent: 98 }],
        gpu_processes: vec![
            GpuProcess {
                at_ns,
                gpu: 1,
                pid: 200,
                bytes: Some(1 << 40),
                sm_percent: Some(37),
                name: *b"other\0\0\0\0\0\0\0\0\0\0\0",
            },
            GpuProcess { at_ns, gpu: 1, pid: 201, bytes: None, sm_percent: None, name: [0; 16] },
        ],
        gpu_errors: vec![GpuError { at_ns, gpu: 1, xid: 79 }],
        new_gpus: vec![Gpu { gpu: 1, name: "H200".into(), uuid: "GPU-1".into(), bus: "0000:01:00.0".into() }],
    }
}

#[test]
fn every_field_of_the_samples_comes_back() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("run.db");
    let mut writer = create(&path);
    writer.add_samples(second());
    writer.commit().unwrap();
    let at_ns = ORIGIN + 3_500_000_000;
    writer.add_samples(Samples {
        system: Some(SystemSample { at_ns, ..SystemSample::default() }),
        processes: vec![ProcessSample { at_ns, pid: 200, ..ProcessSample::default() }],
        cgroups: vec![CgroupSample { at_ns, path: "/kubepods/pod1".into(), version: 2, ..CgroupSample::default() }],
        gpus: vec![GpuSample { at_ns, gpu: 1, ..GpuSample::default() }],
        ..Samples::default()
    });
    writer.finish(&end());
    let reader = Reader::open(&path).unwrap();
    let nulls = |n: usize| vec!["NULL"; n].join("|");
    for (view, rows) in [
        (
            "system_seconds",
            vec![
                "2|2500000000|1|2|3|4|5|6|7|0.5|8|9|10|11|12|13|14|15|16|17|9223372036854775807|0".to_owned(),
                format!("3|3500000000|0|0|0|0|0|0|0|{}|0", nulls(12)),
            ],
        ),
        (
            "process_seconds",
            vec![
                "2|2500000000|1|200|2|3|4|5|6|7|8|9|10|11|12|13".to_owned(),
                format!("3|3500000000|0|200|0|0|0|NULL|NULL|0|0|0|{}", nulls(4)),
            ],
        ),
        (
            "cgroup_seconds",
            vec![
                "2|2500000000|/kubepods/pod1|2|1|2|3|4|5|6|7|8|9".to_owned(),
                format!("3|3500000000|/kubepods/pod1|2|{}", nulls(9)),
            ],
        ),
        (
            "gpu_seconds",
            vec![
                "2|2500000000|1|2|3|4|5|6|7|8|9|-9223372036854775808".to_owned(),
                format!("3|3500000000|1|{}", nulls(9)),
            ],
        ),
        ("gpu_busy", vec!["-10|1|99".to_owned(), "2500000000|1|98".to_owned()]),
        (
            "gpu_processes",
            vec![
                "2|2500000000|1|200|1099511627776|37|other".to_owned(),
                "2|2500000000|1|201|NULL|NULL|NULL".to_owned(),
            ],
        ),
        ("gpu_errors", vec!["2500000000|1|79".to_owned()]),
        ("gpus", vec!["1|H200|GPU-1|0000:01:00.0".to_owned()]),
    ] {
        assert_eq!(ask(&reader, &format!("SELECT * FROM {view}")).unwrap(), rows, "{view}");
    }
    assert_eq!(number(&reader, "SELECT events_seen FROM sessions"), 0);
}

#[test]
fn siblings_of_one_name_are_numbered_by_their_start() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("run.db");
    let mut writer = create(&path);
    let reader = Reader::open(&path).unwrap();
    let names = || ask(&reader, "SELECT name FROM process_names ORDER BY pid").unwrap();
    let mut start = |pid: u32, name: &str, parent: Option<u32>, started: u64| {
        writer.set_process(pid, name);
        parent.into_iter().for_each(|parent| writer.set_process_parent(pid, parent));
        writer.set_process_times(pid, Some(ORIGIN + started), None);
        writer.commit().unwrap();
    };
    start(10, "train.py", None, 0);
    start(30, "pt_data_worker", Some(10), 500);
    assert_eq!(names(), ["train.py", "pt_data_worker"]);
    // Pids may wrap: what counts is who was first.
    start(20, "pt_data_worker", Some(10), 700);
    assert_eq!(names(), ["train.py", "pt_data_worker:1", "pt_data_worker:0"]);
    // Another parent's worker, a child on its way to become a worker, and one whose parent nobody knows.
    start(40, "pt_data_worker", Some(11), 600);
    start(41, "train.py", Some(10), 800);
    start(42, "train.py", Some(10), 900);
    start(43, "pt_data_worker", None, 100);
    let stable = ["train.py", "pt_data_worker:1", "pt_data_worker:0", "pt_data_worker", "train.py", "train.py"];
    assert_eq!(names()[..6], stable);
    assert_eq!(names()[6], "pt_data_worker");
    start(42, "pt_data_worker", Some(10), 900);
    assert_eq!(names()[5], "pt_data_worker:2");
    start(42, "cleaner", Some(10), 900);
    assert_eq!(names()[..6], [&stable[..5], &["cleaner"]].concat());
}

#[test]
fn a_process_has_a_parent_a_container_and_a_command() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("run.db");
    let mut writer = create(&path);
    writer.set_process_container(200, "docker 4f5e");
    writer.write_off_cpu(&mut [off_cpu(5, 5, 5)]).unwrap();
    writer.commit().unwrap();
    writer.set_process_parent(200, 1);
    writer.set_process_command(200, "python -m train");
    writer.finish(&end());
    let reader = Reader::open(&path).unwrap();
    assert_eq!(
        ask(&reader, "SELECT pid, name, parent, container, command FROM processes").unwrap(),
        ["200|pid 200|1|docker 4f5e|python -m train"]
    );
    let process = &reader.processes().unwrap()[0];
    assert_eq!((process.parent, process.container.as_deref()), (Some(1), Some("docker 4f5e")));
    assert_eq!(process.command.as_deref(), Some("python -m train"));
}
