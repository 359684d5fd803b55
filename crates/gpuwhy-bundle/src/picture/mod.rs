// SPDX-License-Identifier: Apache-2.0
//! `timeline.png`: memory over time, a panel for each process and device.

mod canvas;
mod panel;
mod scale;

use crate::timeline::SpaceTimeline;
use crate::{Error, Result, Timeline};
use canvas::{Canvas, Font, Pen, Rgb};
use gpuwhy_memory::report::Source;
use panel::Frame;

/// The picture's size, pixels.
pub const SIZE: (u32, u32) = (1600, 900);
/// More panels would not be legible.
const MOST_PANELS: usize = 4;

const INK: Rgb = (31, 35, 40);
const FAINT: Rgb = (101, 109, 118);
const GRID: Rgb = (228, 231, 235);
const ALLOCATED: Rgb = (9, 105, 218);
const RESERVED: Rgb = (219, 109, 0);
const DEVICE: Rgb = (26, 127, 55);
const TOTAL: Rgb = (140, 149, 159);
const ALARM: Rgb = (207, 34, 46);
const LEAK: Rgb = (130, 80, 223);

const PLAIN: Font = Font { bold: false, large: false, color: INK };
const SMALL: Font = Font { bold: false, large: false, color: FAINT };
const BOLD: Font = Font { bold: true, large: false, color: INK };
const TITLE: Font = Font { bold: true, large: true, color: INK };

/// Room around the panels, pixels.
const LEFT: f32 = 110.0;
const RIGHT: f32 = 36.0;
const TOP: f32 = 106.0;
const BOTTOM: f32 = 24.0;

/// Draws it.
pub fn png(timeline: &Timeline) -> Result<Vec<u8>> {
    let failed = |what: String| Error::Picture { what };
    let mut canvas = Canvas::new(SIZE.0, SIZE.1).ok_or_else(|| failed("out of main memory".to_owned()))?;
    head(&mut canvas, timeline);
    let shown = timeline.spaces.len().min(MOST_PANELS);
    let more = timeline.spaces.len() - shown;
    let bottom = if more > 0 { BOTTOM + 20.0 } else { BOTTOM };
    let height = (SIZE.1 as f32 - TOP - bottom) / shown.max(1) as f32;
    for (number, space) in timeline.spaces.iter().take(shown).enumerate() {
        let frame = Frame { left: LEFT, right: SIZE.0 as f32 - RIGHT, top: TOP + number as f32 * height, height };
        panel::draw(&mut canvas, &frame, space, (timeline.from_ns, timeline.to_ns));
    }
    if more > 0 {
        let text = format!("and {more} more: see timeline.html");
        canvas.text((LEFT, SIZE.1 as f32 - BOTTOM - 8.0), &text, SMALL);
    }
    if timeline.spaces.is_empty() {
        canvas.text((LEFT, TOP + 40.0), "no process allocated GPU memory in this time", PLAIN);
    }
    canvas.png().map_err(failed)
}

/// The run, the verdict and the legend.
fn head(canvas: &mut Canvas, timeline: &Timeline) {
    let width = SIZE.0 as f32 - 2.0 * RIGHT;
    let name = timeline.run.rsplit('/').next().unwrap_or(&timeline.run);
    canvas.text((RIGHT, 16.0), &TITLE.fit(&format!("GPU memory of {name}"), width), TITLE);
    canvas.text((RIGHT, 46.0), &PLAIN.fit(&timeline.verdict, width), PLAIN);
    let mut left = RIGHT;
    let any = |has: &dyn Fn(&SpaceTimeline) -> bool| timeline.spaces.iter().any(has);
    let has_device = |space: &SpaceTimeline| space.points.iter().any(|point| point.memory.device_used.is_some());
    let entries = [
        (true, "in use", ALLOCATED, false),
        (any(&|space| space.source == Source::Torch), "reserved by PyTorch", RESERVED, false),
        (any(&has_device), "device used, all processes", DEVICE, false),
        (any(&|space| space.device_total.is_some()), "device total", TOTAL, true),
    ];
    for (_, text, color, dashed) in entries.into_iter().filter(|entry| entry.0) {
        canvas.line(&[(left, 84.0), (left + 28.0, 84.0)], Pen { color, width: 3.0, dashed });
        canvas.text((left + 36.0, 76.0), text, SMALL);
        left += 36.0 + SMALL.width(text) + 28.0;
    }
}

/// `python3 4821 on cuda:0, PyTorch's allocator`.
fn title(space: &SpaceTimeline) -> String {
    let device = space.device.map_or_else(|| "an unknown device".to_owned(), |device| format!("cuda:{device}"));
    let source = match space.source {
        Source::Torch => "PyTorch's allocator",
        Source::Driver => "outside PyTorch's allocator",
    };
    format!("{} {} on {device}, {source}", space.name, space.pid)
}
