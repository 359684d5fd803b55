// SPDX-License-Identifier: Apache-2.0
//! GPUs through a stand-in for NVML, and through the real one where there is one.

use super::*;
use gpuwhy_model::sample::{Gpu, GpuBusy, GpuProcess, GpuSample};

const SETTINGS: &str = "\
count 2
rate 48
memory_rate 12
memory_used 4096
memory_total 81920
sm_mhz 1980
memory_mhz 3201
power_mw 345678
temperature_c 61
throttle 0x24
busy 37
process 4242 1048576
process 4243 -1
graphics 4242 1048576
graphics 77 512
";

/// The stand-in in a folder of its own, whose answers a test can change.
struct Stand {
    folder: Folder,
    nvml: PathBuf,
}

impl Stand {
    fn new(name: &str, settings: &str) -> Self {
        let folder = Folder::new(name);
        let nvml = simgpu::install(&folder.0).unwrap().nvml;
        let stand = Self { folder, nvml };
        stand.set(settings);
        stand
    }

    fn set(&self, settings: &str) {
        let fresh = self.folder.0.join("nvml.new");
        std::fs::write(&fresh, settings).unwrap();
        std::fs::rename(fresh, self.folder.0.join("nvml.conf")).unwrap();
    }

    fn options(&self) -> SampleOptions {
        SampleOptions { nvml_path: Some(self.nvml.clone()), ..Default::default() }
    }
}

fn read(gpus: &mut Gpus) -> Samples {
    let mut samples = Samples::default();
    gpus.read(&mut samples);
    samples
}

#[test]
fn every_figure_arrives() {
    let stand = Stand::new("gpuwhy-nvml-all", SETTINGS);
    let nvml = open_nvml(Some(&stand.nvml)).unwrap();
    let mut gpus = Gpus::new(&nvml);
    let samples = read(&mut gpus);
    let gpu = |gpu: u32, bus: &str| Gpu {
        gpu,
        name: "Simulated GPU".into(),
        uuid: format!("GPU-00000000-0000-0000-0000-00000000000{gpu}"),
        bus: bus.into(),
    };
    assert_eq!(samples.new_gpus, [gpu(0, "0000:3a:00.0"), gpu(1, "0000:3b:00.0")]);
    assert_eq!(samples.gpus.len(), 2);
    for (index, sample) in samples.gpus.iter().enumerate() {
        let expected = GpuSample {
            at_ns: sample.at_ns,
            gpu: index as u32,
            rate_percent: Some(48),
            memory_rate_percent: Some(12),
            memory_used: Some(4096),
            memory_total: Some(81920),
            sm_mhz: Some(1980),
            memory_mhz: Some(3201),
            power_mw: Some(345_678),
            temperature_c: Some(61),
            throttle_reasons: Some(0x24),
        };
        assert_eq!(*sample, expected);
        assert!(now_ns() - sample.at_ns < 1_000_000_000);
    }
    let of_first = |p: &&GpuProcess| p.gpu == 0;
    let processes: Vec<_> = samples.gpu_processes.iter().filter(of_first).map(|p| (p.pid, p.bytes)).collect();
    assert_eq!(processes, [(77, Some(512)), (4242, Some(1 << 20)), (4243, None)]);
    assert!(samples.gpu_errors.is_empty());
    stand.set(&SETTINGS.replace("rate 48", "rate 100"));
    let second = read(&mut gpus);
    assert!(second.new_gpus.is_empty(), "told once");
    assert_eq!(second.gpus[0].rate_percent, Some(100));
}

#[test]
fn the_drivers_samples_are_primed_and_none_comes_twice() {
    let stand = Stand::new("gpuwhy-nvml-busy", SETTINGS);
    let nvml = open_nvml(Some(&stand.nvml)).unwrap();
    let before_ns = now_ns();
    let mut gpus = Gpus::new(&nvml);
    let mut all: Vec<GpuBusy> = Vec::new();
    for _ in 0..5 {
        std::thread::sleep(Duration::from_millis(330));
        all.extend(read(&mut gpus).busy);
        all.extend(read(&mut gpus).busy);
    }
    let after_ns = now_ns();
    for gpu in 0..2 {
        let mine: Vec<&GpuBusy> = all.iter().filter(|busy| busy.gpu == gpu).collect();
        // Every 200 ms, and nothing older than we are.
        let expected = (after_ns - before_ns) / 200_000_000;
        assert!((mine.len() as u64).abs_diff(expected) <= 1, "{} of {expected}", mine.len());
        assert!(mine.iter().all(|busy| busy.percent == 37), "the first read's zeros are thrown away: {mine:?}");
        assert!(
            mine.iter().all(|busy| busy.at_ns + 1_000_000 > before_ns && busy.at_ns <= after_ns + 1_000_000),
            "{mine:?}"
        );
        for pair in mine.windows(2) {
            assert!((pair[1].at_ns - pair[0].at_ns).abs_diff(200_000_000) < 1_000_000, "{mine:?}");
        }
    }
}

#[test]
fn what_is_not_supported_is_missing_alone() {
    type Missing = fn(&GpuSample) -> bool;
    let cases: [(&str, Missing); 7] = [
        ("rate", |s| s.rate_percent.is_none() && s.memory_rate_percent.is_none()),
        ("memory", |s| s.memory_used.is_none() && s.memory_total.is_none()),
        ("sm_mhz", |s| s.sm_mhz.is_none()),
        ("memory_mhz", |s| s.memory_mhz.is_none()),
        ("power_mw", |s| s.power_mw.is_none()),
        ("temperature_c", |s| s.temperature_c.is_none()),
        ("throttle", |s| s.throttle_reasons.is_none()),
    ];
    let stand = Stand::new("gpuwhy-nvml-some", SETTINGS);
    let nvml = open_nvml(Some(&stand.nvml)).unwrap();
    let mut gpus = Gpus::new(&nvml);
    for (name, _) in cases {
        stand.set(&format!("{SETTINGS}unsupported {name}\n"));
        let samples = read(&mut gpus);
        for (other, is_missing) in cases {
            assert_eq!(is_missing(&samples.gpus[0]), name == other, "{name}: {other}");
        }
        assert!(!samples.gpu_processes.is_empty());
    }
    let all: String = cases.iter().map(|(name, _)| format!("unsupported {name}\n")).collect();
    stand.set(&format!("{SETTINGS}{all}unsupported process\nunsupported graphics\n"));
    let nothing = read(&mut gpus);
    assert!(nothing.gpus.is_empty() && nothing.gpu_processes.is_empty());
    // Neither utilisation samples nor events from the start.
    stand.set(&format!("{SETTINGS}unsupported samples\nunsupported events\nxid 79 3\n"));
    let mut gpus = Gpus::new(&nvml);
    std::thread::sleep(Duration::from_millis(250));
    let samples = read(&mut gpus);
    assert!(samples.busy.is_empty() && samples.gpu_errors.is_empty() && samples.gpus.len() == 2);
}

#[test]
fn errors_are_told_once() {
    let stand = Stand::new("gpuwhy-nvml-xid", "count 1\n");
    let nvml = open_nvml(Some(&stand.nvml)).unwrap();
    let mut gpus = Gpus::new(&nvml);
    let mut errors = |settings: &str| {
        stand.set(settings);
        read(&mut gpus).gpu_errors.iter().map(|error| (error.gpu, error.xid)).collect::<Vec<_>>()
    };
    assert_eq!(errors("count 1\n"), []);
    assert_eq!(errors("xid 79 2\n"), [(0, 79), (0, 79)]);
    assert_eq!(errors("xid 79 2\n"), []);
    assert_eq!(errors("xid 13 3\n"), [(0, 13)]);
    // Without end, but not for ever.
    assert_eq!(errors("xid 13 100000\n").len(), 64);
}

#[test]
fn the_thread_brings_gpus_and_a_slow_driver_delays_nothing() {
    let stand = Stand::new("gpuwhy-nvml-slow", &format!("{SETTINGS}slow_init_ms 1400\n"));
    let start = Instant::now();
    let sampler = Sampler::start(stand.options());
    assert!(start.elapsed() < Duration::from_millis(200), "{:?}", start.elapsed());
    std::thread::sleep(Duration::from_millis(2200));
    let (samples, _) = sampler.finish();
    assert_eq!(samples.len(), 3);
    assert!(samples[0].system.is_some() && samples[0].gpus.is_empty(), "{:?}", samples[0]);
    assert_eq!((samples[1].new_gpus.len(), samples[1].gpus.len()), (2, 2));
    assert!(!samples[1].busy.is_empty());
    assert_eq!((samples[2].new_gpus.len(), samples[2].gpus.len()), (0, 2));
    // Dropped while the driver still opens.
    let start = Instant::now();
    drop(Sampler::start(stand.options()));
    assert!(start.elapsed() < Duration::from_millis(500), "{:?}", start.elapsed());
    std::thread::sleep(Duration::from_millis(1500));
}

/// Memory ran out: how much was used then is known, before the next second.
#[test]
fn a_look_out_of_turn_tells_of_memory_and_nothing_else() {
    let stand = Stand::new("gpuwhy-nvml-look", SETTINGS);
    let sampler = Sampler::start(stand.options());
    let mut looks = Vec::new();
    let start = Instant::now();
    // Until the driver has answered, there is nothing to look at.
    while looks.is_empty() && start.elapsed() < Duration::from_secs(60) {
        sampler.look();
        std::thread::sleep(Duration::from_millis(1));
        looks = sampler.take_looks();
    }
    let told = |gpu| GpuSample { gpu, memory_used: Some(4096), memory_total: Some(81920), ..GpuSample::default() };
    let seen: Vec<GpuSample> = looks.iter().map(|look| GpuSample { at_ns: 0, ..look.clone() }).collect();
    assert_eq!(seen, [told(0), told(1)]);
    assert!(looks.iter().all(|look| look.at_ns > 0 && look.at_ns <= now_ns()));
    // Asked without end, it does not look without end: the second time in 50 ms it does not.
    let mut at: Vec<u64> = looks.iter().filter(|look| look.gpu == 0).map(|look| look.at_ns).collect();
    while at.len() < 3 && start.elapsed() < Duration::from_secs(60) {
        sampler.look();
        std::thread::sleep(Duration::from_millis(1));
        at.extend(sampler.take_looks().iter().filter(|look| look.gpu == 0).map(|look| look.at_ns));
    }
    assert!(at.len() == 3 && at.windows(2).all(|pair| pair[1] - pair[0] >= 50_000_000), "{at:?}");
}

#[test]
fn no_library_and_no_driver_are_fine() {
    let folder = Folder::new("gpuwhy-nvml-none");
    let without_driver = simgpu::install(&folder.0).unwrap().nvml;
    let no_library = folder.0.join("nothing.so");
    let text_file = folder.0.join("train.py");
    for path in [without_driver, no_library, text_file] {
        assert!(open_nvml(Some(&path)).is_none(), "{path:?}");
        let sampler = Sampler::start(SampleOptions { nvml_path: Some(path), ..Default::default() });
        std::thread::sleep(Duration::from_millis(100));
        let (samples, _) = sampler.finish();
        assert_eq!(samples.len(), 1);
        assert!(samples[0].system.is_some() && samples[0].gpus.is_empty() && samples[0].new_gpus.is_empty());
    }
}
