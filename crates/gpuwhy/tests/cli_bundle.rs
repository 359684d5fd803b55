// SPDX-License-Identifier: Apache-2.0
//! `gpuwhy memory --bundle`: really traces a leaking job on a simulated GPU and writes its bundle. The truth is the
//! simulated allocator's own log; the page is opened in a real browser.
#![allow(missing_docs, clippy::unwrap_used)]

mod common;

use common::jobs::{assert_nothing_lost, report as said_report};
use common::{GPUWHY, Place, can_trace, one_at_a_time, refusal, sim, succeed, text};
use serde_json::Value;
use simgpu::log::detail::{Detail, Report};
use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

const FILES: [&str; 8] = [
    "events.json",
    "events.csv",
    "timeline.json",
    "stats.json",
    "alerts.json",
    "timeline.png",
    "timeline.html",
    "manifest.json",
];

/// A hostile function name; it must remain text.
const EVIL: &str = "</script><img/src=x/onerror=document.body.id='taken'>";

/// memjob.py, with one function called so.
const SCRIPT: &str = r#"
import sys
sys.path.insert(0, sys.argv.pop(1))
name = sys.argv.pop(1)
import memjob
code = memjob.Job.keep_clone.__code__
names = {key: name for key in ("co_name", "co_qualname") if hasattr(code, key)}
memjob.Job.keep_clone.__code__ = code.replace(**names)
memjob.main()
"#;

struct Bundle {
    place: Place,
    folder: PathBuf,
    truth: Value,
}

impl Bundle {
    fn new() -> Self {
        let place = Place::new();
        let (script, settings) = (place.dir.path().join("job.py"), place.dir.path().join("nvml.conf"));
        fs::write(&script, SCRIPT).unwrap();
        fs::write(&settings, "count 1\nmemory_total 1073741824\nmemory_used 500000000\n").unwrap();
        let mut command = place.trace();
        command
            .env("SIMGPU_NVML", settings)
            .args(["--quiet", "--alert", "none", "--", "python3"])
            .arg(script)
            .arg(&sim().dir)
            .arg(EVIL);
        let output = succeed(command.args(["leak", "--onset", "40", "--step-ms", "15"]));
        assert_nothing_lost(&place.run_file());
        let (folder, truth) = (place.dir.path().join("out"), said_report(&text(&output)));
        Self { place, folder, truth }
    }

    fn memory(&self) -> Command {
        let mut command = Command::new(GPUWHY);
        command.args(["memory", "--db"]).arg(self.place.db());
        command
    }

    fn write(&self, folder: &Path, args: &[&str]) -> String {
        String::from_utf8(succeed(self.memory().arg("--bundle").arg(folder).args(args)).stdout).unwrap()
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }

    fn json(&self, name: &str) -> Value {
        serde_json::from_slice(&fs::read(self.path(name)).unwrap()).unwrap()
    }

    fn text(&self, name: &str) -> String {
        fs::read_to_string(self.path(name)).unwrap()
    }
}

fn answer(command: &mut Command) -> Value {
    serde_json::from_slice(&succeed(command.arg("--json")).stdout).unwrap()
}

#[test]
fn a_bundle_is_complete_and_is_read_back() {
    if !can_trace() {
        return;
    }
    let _lock = one_at_a_time();
    let bundle = Bundle::new();
    let said = bundle.write(&bundle.folder, &[]);
    assert!(said.lines().count() == 9 && FILES.iter().all(|name| said.contains(name)), "{said}");
    the_manifest_has_every_file(&bundle);
    sums_are_the_truth(&bundle);
    reading_back_gives_the_same_report(&bundle);
    alerts_and_marks_tell_the_leak(&bundle);
    the_picture_is_one(&bundle);
    every_key_is_documented(&bundle);
    folders_of_others_are_left_alone(&bundle);
    the_page_shows_what_was_live(&bundle);
}

fn the_manifest_has_every_file(bundle: &Bundle) {
    let there: BTreeSet<String> =
        fs::read_dir(&bundle.folder).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    assert_eq!(there, FILES.iter().map(|name| (*name).to_owned()).collect());
    let manifest = bundle.json("manifest.json");
    assert_eq!(manifest["schema"], "gpuwhy.memory-bundle/1");
    let files = manifest["files"].as_array().unwrap();
    assert_eq!(files.len(), FILES.len() - 1);
    for file in files {
        let path = bundle.path(file["name"].as_str().unwrap());
        assert_eq!(file["bytes"], fs::metadata(&path).unwrap().len(), "{file}");
        let sum = String::from_utf8(succeed(Command::new("sha256sum").arg(&path)).stdout).unwrap();
        assert_eq!(file["sha256"], sum.split(' ').next().unwrap(), "{file}");
    }
}

/// Count and bytes of what was allocated, and of what was freed.
type Sums = [(u64, u64); 2];

/// The allocator's reports by its own log, by the table and by the JSON: the same.
fn sums_are_the_truth(bundle: &Bundle) {
    let truth = bundle.place.truth();
    let reports = truth.calls().filter_map(|call| match &call.detail {
        Some(Detail::Report(report)) if !call.function.contains("OutOfMemory") => Some(*report),
        _ => None,
    });
    let mut true_sums = Sums::default();
    for Report { size, .. } in reports {
        let sum = &mut true_sums[usize::from(size < 0)];
        *sum = (sum.0 + 1, sum.1 + size.unsigned_abs());
    }
    assert!(true_sums[0].0 > 1_000, "{true_sums:?}");
    let csv = bundle.text("events.csv");
    let mut rows = csv.split_terminator("\n").map(|row| row.split(',').collect::<Vec<_>>());
    let head = rows.next().unwrap();
    let column = |name: &str| head.iter().position(|column| *column == name).unwrap();
    let (kind, bytes) = (column("kind"), column("bytes"));
    let (mut table, mut count) = (Sums::default(), 0);
    for row in rows {
        assert_eq!(row.len(), head.len(), "{row:?}");
        count += 1;
        if let Some(sum) = ["alloc", "free"].iter().position(|name| *name == row[kind]).map(|place| &mut table[place]) {
            *sum = (sum.0 + 1, sum.1 + row[bytes].parse::<u64>().unwrap());
        }
    }
    assert_eq!(table, true_sums, "events.csv");
    let events = bundle.json("events.json");
    let events = events["events"].as_array().unwrap();
    assert!(events.len() >= count);
    let sum = |kind: &str| {
        let of_it = events.iter().filter(|event| event["kind"] == kind);
        of_it.fold((0, 0), |sum, event| (sum.0 + 1, sum.1 + event["bytes"].as_u64().unwrap()))
    };
    assert_eq!([sum("alloc"), sum("free")], true_sums, "events.json");
    let stats = bundle.json("stats.json");
    let balance = &stats["spaces"][0]["balance"];
    assert_eq!((balance["allocs"].as_u64(), balance["alloc_bytes"].as_u64()), (Some(table[0].0), Some(table[0].1)));
    // What was live at every point of the timeline adds up to what was in use.
    let timeline = bundle.json("timeline.json");
    for point in timeline["spaces"][0]["points"].as_array().unwrap() {
        let live: u64 = point["live"].as_array().unwrap().iter().map(|held| held[1].as_u64().unwrap()).sum();
        let rest = point["others"].as_u64().unwrap() + point["unseen"].as_u64().unwrap();
        assert_eq!(point["allocated"], live + rest, "{point}");
    }
}

fn reading_back_gives_the_same_report(bundle: &Bundle) {
    let mut from_run = answer(&mut bundle.memory());
    assert_eq!(from_run["leaks"].as_array().unwrap().len(), 1, "{:#}", from_run["leaks"]);
    assert_eq!(from_run["leaks"][0]["onset_step"], bundle.truth["onset"]);
    assert!(!from_run["gaps"].as_array().unwrap().is_empty(), "NVML was asked");
    // Recognised by content, not by name.
    let renamed = bundle.place.dir.path().join("kept");
    fs::copy(bundle.path("events.json"), &renamed).unwrap();
    let read_back = answer(Command::new(GPUWHY).arg("memory").arg(&renamed));
    assert_eq!(from_run, read_back);
    let pid = bundle.truth["pid"].to_string();
    let of_it = answer(bundle.memory().args(["--pid", &pid]));
    assert_eq!(of_it, answer(Command::new(GPUWHY).arg("memory").arg(&renamed).args(["--pid", &pid])));
    // The text is the same, too; the first screen but for the file that its last line names.
    let words = succeed(bundle.memory().arg("--full")).stdout;
    assert_eq!(words, succeed(Command::new(GPUWHY).args(["memory", "--full"]).arg(&renamed)).stdout);
    let first = |command: &mut Command| {
        let shown = String::from_utf8(succeed(command).stdout).unwrap();
        shown.split_once("More: ").unwrap().0.to_owned()
    };
    assert_eq!(first(&mut bundle.memory()), first(Command::new(GPUWHY).arg("memory").arg(&renamed)));
    // A run file may also be named without --db.
    from_run["run"] = Value::Null;
    let mut positional = answer(Command::new(GPUWHY).arg("memory").arg(bundle.place.db()));
    positional["run"] = Value::Null;
    assert_eq!(from_run, positional);
    // stats.json is the report without its timelines.
    let mut stats = bundle.json("stats.json");
    for report in [&mut from_run, &mut stats] {
        report["run"] = Value::Null;
        report["spaces"].as_array_mut().unwrap().iter_mut().for_each(|space| space["timeline"] = Value::Null);
    }
    assert_eq!(stats, from_run);
    // A time range of the run.
    let part = bundle.place.dir.path().join("part");
    let args = ["--since", "800ms", "--pid", &pid];
    bundle.write(&part, &args);
    let of_part = answer(bundle.memory().args(args));
    assert_eq!(of_part, answer(Command::new(GPUWHY).arg("memory").arg(part.join("events.json"))));
    let said = refusal(Command::new(GPUWHY).arg("memory").arg(&renamed).args(["--since", "1s"]), 1);
    assert!(said.contains("covers a fixed time range"), "{said}");
    let said = refusal(Command::new(GPUWHY).arg("memory").arg(&renamed).args(["--pid", "1"]), 1);
    assert!(said.contains("invalid --pid 1"), "{said}");
    let whole = fs::read(&renamed).unwrap();
    fs::write(&renamed, &whole[..whole.len() / 2]).unwrap();
    let said = refusal(Command::new(GPUWHY).arg("memory").arg(&renamed), 1);
    assert!(said.contains("cut off"), "{said}");
}

fn alerts_and_marks_tell_the_leak(bundle: &Bundle) {
    let line = format!("memjob.py:{}", bundle.truth["lines"]["leak"]);
    let alerts = bundle.json("alerts.json");
    let leak = alerts["alerts"].as_array().unwrap().iter().find(|alert| alert["kind"] == "memory_leak").unwrap();
    assert_eq!((&leak["line"], &leak["pid"]), (&line.clone().into(), &bundle.truth["pid"]), "{leak:#}");
    let timeline = bundle.json("timeline.json");
    let marks = timeline["spaces"][0]["marks"].as_array().unwrap();
    let mark = marks.iter().find(|mark| mark["kind"] == "leak").unwrap();
    assert_eq!(mark["at_ns"], leak["at_ns"]);
    assert!(marks.iter().any(|mark| mark["kind"] == "peak"));
}

fn the_picture_is_one(bundle: &Bundle) {
    let picture = tiny_skia::Pixmap::decode_png(&fs::read(bundle.path("timeline.png")).unwrap()).unwrap();
    assert_eq!((picture.width(), picture.height()), (1600, 900));
    let count = |color: [u8; 3]| {
        picture.pixels().iter().filter(|pixel| [pixel.red(), pixel.green(), pixel.blue()] == color).count()
    };
    let all = (picture.width() * picture.height()) as usize;
    assert!(count([255, 255, 255]) > all / 4 && count([255, 255, 255]) < all * 19 / 20, "{}", count([255, 255, 255]));
    // Memory in use, reserved memory, and the device's memory, which is sampled once a second.
    for (line, least) in [([9, 105, 218], 500), ([219, 109, 0], 500), ([26, 127, 55], 50)] {
        assert!(count(line) > least, "{line:?}: {}", count(line));
    }
}

/// Every key that is written anywhere.
fn keys(value: &Value, found: &mut BTreeSet<String>) {
    match value {
        Value::Object(object) => object.iter().for_each(|(key, value)| {
            found.insert(key.clone());
            keys(value, found);
        }),
        Value::Array(list) => list.iter().for_each(|value| keys(value, found)),
        _ => {}
    }
}

fn every_key_is_documented(bundle: &Bundle) {
    let docs = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/memory-bundle.md");
    let doc = fs::read_to_string(docs).unwrap();
    let mut written: BTreeSet<String> = FILES.iter().map(|name| (*name).to_owned()).collect();
    for name in ["events.json", "timeline.json", "alerts.json", "manifest.json"] {
        let value = bundle.json(name);
        keys(&value, &mut written);
        written.insert(value["schema"].as_str().unwrap().to_owned());
        let events = value["events"].as_array().into_iter().flatten();
        written.extend(events.map(|event| event["kind"].as_str().unwrap().to_owned()));
    }
    let csv = bundle.text("events.csv");
    written.extend(csv.lines().next().unwrap().split(',').map(str::to_owned));
    let told = |key: &str| doc.contains(&format!("`{key}`")) || doc.contains(&format!("`{key}[]`"));
    let silent: Vec<&String> = written.iter().filter(|key| !told(key)).collect();
    assert!(silent.is_empty(), "there but not described: {silent:?}");
    let first_column = doc.lines().filter_map(|line| line.strip_prefix("| ")?.split(" | ").next());
    let described =
        first_column.flat_map(|cell| cell.split('`').skip(1).step_by(2)).map(|key| key.trim_end_matches("[]"));
    // `unfinished` is written for calls that never returned; this run has none.
    let gone: Vec<&str> = described.filter(|key| !written.contains(*key) && *key != "unfinished").collect();
    assert!(gone.is_empty(), "described but not there: {gone:?}");
}

fn folders_of_others_are_left_alone(bundle: &Bundle) {
    let bundled = |folder: &Path| {
        let mut command = bundle.memory();
        command.arg("--bundle").arg(folder);
        command
    };
    let said = refusal(&mut bundled(&bundle.place.db()), 1);
    assert!(said.contains("is not a folder"), "{said}");
    let said = refusal(&mut bundled(bundle.place.dir.path()), 1);
    assert!(said.contains("not part of a memory bundle"), "{said}");
    let said = refusal(bundled(&bundle.place.dir.path().join("new")).args(["--pid", "1"]), 1);
    assert!(said.contains("--pid 1: not in this run"), "{said}");
    assert!(!bundle.place.dir.path().join("new").exists());
    let said = refusal(Command::new(GPUWHY).arg("memory").arg(bundle.path("events.json")).args(["--bundle", "x"]), 1);
    assert!(said.contains("from the run file"), "{said}");
    let both = bundle.memory().args(["--bundle", "x", "--json"]).output().unwrap();
    assert_eq!(both.status.code(), Some(2), "{}", text(&both));
    // An earlier bundle is overwritten.
    let before = bundle.text("events.csv");
    bundle.write(&bundle.folder, &[]);
    assert_eq!(bundle.text("events.csv"), before);
}

/// The DOM after a page was loaded, by a real browser. Under CI a machine without one is a failure.
fn browse(profile: &Path, address: &str) -> Option<String> {
    let there = |name: &&str| Command::new(name).arg("--version").output().is_ok_and(|output| output.status.success());
    let Some(chromium) = ["chromium", "chromium-browser", "google-chrome"].into_iter().find(there) else {
        assert!(std::env::var_os("CI").is_none(), "no chromium: scripts/deps.sh test installs it");
        eprintln!("skipped: no chromium");
        return None;
    };
    fs::create_dir(profile).unwrap();
    let mut command = Command::new(chromium);
    command.args(["--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"]);
    command.args(["--disable-background-networking", "--disable-component-update", "--disable-sync"]);
    command.arg(format!("--user-data-dir={}", profile.display()));
    command.args(["--window-size=1500,1000", "--dump-dom", address]);
    Some(String::from_utf8(succeed(&mut command).stdout).unwrap())
}

/// Acts as a user, in a copy of the page without its policy.
const HAND: &str = r#"<script>
const svg = document.querySelector('svg'), box = svg.getBoundingClientRect(), done = [];
const shown = () => [...svg.querySelectorAll('text')].map((text) => text.textContent).join('|');
const who = () => document.querySelector('.who').textContent;
const at = (part) => ({ clientX: box.left + part * box.width, clientY: box.top + 99, bubbles: true, cancelable: true, button: 0 });
const whole = shown();
svg.dispatchEvent(new WheelEvent('wheel', { ...at(0.5), deltaY: -100 }));
if (shown() !== whole) done.push('wheel');
svg.dispatchEvent(new MouseEvent('dblclick', at(0.5)));
if (shown() === whole) done.push('reset');
svg.dispatchEvent(new PointerEvent('pointerdown', at(0.6)));
svg.dispatchEvent(new PointerEvent('pointermove', at(0.7)));
svg.dispatchEvent(new PointerEvent('pointerup', at(0.7)));
if (shown() !== whole) done.push('drag');
const key = (name) => svg.dispatchEvent(new KeyboardEvent('keydown', { key: name, bubbles: true }));
key('0');
if (shown() === whole) done.push('all');
key('End');
const last = who();
for (let i = 0; i < 100; i += 1) key('ArrowLeft');
if (who() !== last && last.includes('in use')) done.push('keys');
svg.dispatchEvent(new PointerEvent('pointermove', at(0.9)));
const pointed = who();
svg.dispatchEvent(new PointerEvent('pointermove', at(0.99)));
if (pointed !== who()) done.push('hover');
document.body.dataset.done = done.join(' ');
</script>"#;

fn the_page_shows_what_was_live(bundle: &Bundle) {
    let page = bundle.text("timeline.html");
    assert!(!page.contains("<img"), "a name became markup");
    // A time late in the leak, by the timeline.
    let timeline = bundle.json("timeline.json");
    let space = &timeline["spaces"][0];
    let peak = space["marks"].as_array().unwrap().iter().find(|mark| mark["kind"] == "peak").unwrap();
    let points = space["points"].as_array().unwrap();
    let at = |point: &Value| point["at_ns"].as_u64().unwrap();
    let point = points.iter().rev().find(|point| at(point) <= peak["at_ns"].as_u64().unwrap()).unwrap();
    let moment = (at(point) + 1) as f64 / 1e9;
    let address = format!("file://{}#t={moment:.9}", bundle.path("timeline.html").display());
    let Some(seen) = browse(&bundle.place.dir.path().join("profile-1"), &address) else { return };
    assert!(seen.contains("data-drawn=\"yes\""), "its script ran: {seen}");
    let exact = |key: &str| gpuwhy_model::units::count(point[key].as_u64().unwrap()) + " B";
    assert!(seen.contains(&exact("allocated")) && seen.contains(&exact("reserved")), "{}", exact("allocated"));
    assert!(seen.contains("500,000,000 B"), "what the device used");
    let shown = EVIL.replace('<', "&lt;").replace('>', "&gt;");
    assert!(seen.contains(&format!("memjob.py:{} {shown}", bundle.truth["lines"]["leak"])), "who held it: {seen}");
    assert!(!seen.contains("<img") && !seen.contains("id=\"taken\""), "a name was run");
    // Without a time it opens at the peak, with findings and fixes.
    let address = format!("file://{}", bundle.path("timeline.html").display());
    let Some(seen) = browse(&bundle.place.dir.path().join("profile-0"), &address) else { return };
    let most = points.iter().map(|point| point["allocated"].as_u64().unwrap()).max().unwrap();
    let most = gpuwhy_model::units::count(most) + " B";
    assert!(seen.contains(&most) && seen.contains(", the peak"), "{most} in {seen}");
    let fixes = seen.matches("class=\"fix\"").count();
    let stats = bundle.json("stats.json");
    let truth: usize = stats["findings"].as_array().unwrap().iter().map(|f| f["fixes"].as_array().unwrap().len()).sum();
    assert!(truth > 0 && fixes == truth, "{fixes} of {truth} fixes");
    // Zooming, moving and pointing.
    let policy = page.lines().find(|line| line.contains("Content-Security-Policy")).unwrap();
    let copy = bundle.place.dir.path().join("driven.html");
    fs::write(&copy, page.replace(policy, "").replace("</body>", &format!("{HAND}</body>"))).unwrap();
    let address = format!("file://{}", copy.display());
    let Some(seen) = browse(&bundle.place.dir.path().join("profile-2"), &address) else { return };
    assert!(
        seen.contains("data-done=\"wheel reset drag all keys hover\""),
        "{}",
        seen.split("data-done").nth(1).unwrap_or("nothing was done")
    );
    assert!(!seen.contains("<img"), "also without its policy");
}
