// SPDX-License-Identifier: Apache-2.0
//! A panel: one process's memory on one device over time, with marks.

use super::canvas::{Canvas, Font, Pen, Rgb};
use super::scale::{part, ticks};
use super::{ALARM, ALLOCATED, BOLD, DEVICE, FAINT, GRID, INK, LEAK, PLAIN, RESERVED, SMALL, TOTAL, title};
use crate::timeline::{Mark, Point, SpaceTimeline};
use gpuwhy_memory::report::Source;
use gpuwhy_model::units;

/// Room in a panel for its title, the labels of its marks and the times below it, pixels.
const TITLE_ROOM: f32 = 26.0;
const TIMES_ROOM: f32 = 34.0;
const ROW: f32 = 19.0;
/// Rows of labels; further marks have only a line.
const MOST_ROWS: usize = 3;
/// The device's memory is drawn if it is at most this many times the process's: other processes may fill the device.
const IN_SIGHT: u64 = 4;

/// Where a panel is.
pub(super) struct Frame {
    pub(super) left: f32,
    pub(super) right: f32,
    pub(super) top: f32,
    pub(super) height: f32,
}

/// From times and bytes to pixels.
struct Axes<'a> {
    frame: &'a Frame,
    span: (u64, u64),
    /// The largest value, and its pixel row.
    most: u64,
    top: f32,
    bottom: f32,
}

impl Axes<'_> {
    fn x(&self, at_ns: u64) -> f32 {
        self.frame.left + part(at_ns, self.span.0, self.span.1) * (self.frame.right - self.frame.left)
    }

    fn y(&self, bytes: u64) -> f32 {
        self.bottom - part(bytes, 0, self.most) * (self.bottom - self.top)
    }

    /// Steps from point to point: a value holds for its whole time slice.
    fn steps(&self, points: &[Point], value: impl Fn(&Point) -> u64) -> Vec<(f32, f32)> {
        let ends = points.iter().skip(1).map(|point| point.memory.at_ns).chain([self.end(points)]);
        let step = |(point, end): (&Point, u64)| {
            let y = self.y(value(point));
            [(self.x(point.memory.at_ns), y), (self.x(end), y)]
        };
        points.iter().zip(ends).flat_map(step).collect()
    }

    /// The last slice is as long as the one before.
    fn end(&self, points: &[Point]) -> u64 {
        let last = points.last().map_or(self.span.1, |point| point.memory.at_ns);
        let before = points.iter().rev().nth(1).map_or(last, |point| point.memory.at_ns);
        last.saturating_add(last.saturating_sub(before)).min(self.span.1).max(last)
    }
}

pub(super) fn draw(canvas: &mut Canvas, frame: &Frame, space: &SpaceTimeline, span: (u64, u64)) {
    let own = space.points.iter().map(|point| point.memory.allocated.max(point.memory.reserved)).max().unwrap_or(0);
    let in_sight = |bytes: &u64| *bytes <= own.saturating_mul(IN_SIGHT);
    let device_most = space.points.iter().filter_map(|point| point.memory.device_used).max();
    let (used, total) = (device_most.filter(in_sight), space.device_total.filter(in_sight));
    let most = own.max(used.unwrap_or(0)).max(total.unwrap_or(0));
    let most = most.saturating_add(most / 20);
    let rows = space.marks.len().min(MOST_ROWS) as f32;
    let top = frame.top + TITLE_ROOM + rows * ROW + 6.0;
    let axes = Axes { frame, span, most: most.max(1), top, bottom: frame.top + frame.height - TIMES_ROOM };
    let mut name = title(space);
    let beyond = [("used", device_most, used), ("total", space.device_total, total)];
    for (what, bytes, _) in beyond.into_iter().filter(|(_, _, shown)| shown.is_none()) {
        if let Some(bytes) = bytes {
            name += &format!(" (off the scale: device {what}, {})", units::bytes(bytes));
        }
    }
    canvas.text((frame.left, frame.top), &BOLD.fit(&name, frame.right - frame.left), BOLD);
    grid(canvas, &axes);
    lines(canvas, &axes, space, used.is_some());
    if let Some(total) = total {
        let y = axes.y(total);
        canvas.line(&[(frame.left, y), (frame.right, y)], Pen { color: TOTAL, width: 2.0, dashed: true });
    }
    marks(canvas, &axes, &space.marks);
}

fn grid(canvas: &mut Canvas, axes: &Axes<'_>) {
    let Frame { left, right, .. } = *axes.frame;
    let thin = |color: Rgb| Pen { color, width: 1.0, dashed: false };
    let many = ((axes.bottom - axes.top) / 45.0).clamp(2.0, 8.0) as u64;
    for bytes in ticks(0, axes.most, many) {
        let y = axes.y(bytes).round() + 0.5;
        canvas.line(&[(left, y), (right, y)], thin(GRID));
        let text = if bytes == 0 { "0".to_owned() } else { units::bytes(bytes) };
        canvas.text((left - 10.0 - SMALL.width(&text), y - 8.0), &text, SMALL);
    }
    for at in ticks(axes.span.0, axes.span.1, 10) {
        let x = axes.x(at).round() + 0.5;
        canvas.line(&[(x, axes.bottom), (x, axes.bottom + 5.0)], thin(FAINT));
        let text = if at == 0 { "0".to_owned() } else { units::time(at) };
        let place = (x - SMALL.width(&text) / 2.0).min(right - SMALL.width(&text));
        canvas.text((place, axes.bottom + 8.0), &text, SMALL);
    }
    canvas.line(&[(left, axes.bottom + 0.5), (right, axes.bottom + 0.5)], thin(FAINT));
}

fn lines(canvas: &mut Canvas, axes: &Axes<'_>, space: &SpaceTimeline, with_device: bool) {
    let points = &space.points;
    let pen = |color: Rgb, width: f32| Pen { color, width, dashed: false };
    let in_use = axes.steps(points, |point| point.memory.allocated);
    if let (Some(first), Some(last)) = (in_use.first().copied(), in_use.last().copied()) {
        let floor = [(last.0, axes.bottom), (first.0, axes.bottom)];
        canvas.area(&in_use.iter().copied().chain(floor).collect::<Vec<_>>(), ALLOCATED, 36);
        // Between minimum and maximum of each slice.
        let least = axes.steps(points, |point| point.memory.allocated_least);
        canvas.area(&in_use.iter().copied().chain(least.into_iter().rev()).collect::<Vec<_>>(), ALLOCATED, 60);
    }
    let used = points.iter().filter_map(|point| Some((axes.x(point.memory.at_ns), axes.y(point.memory.device_used?))));
    let used: Vec<(f32, f32)> = used.filter(|_| with_device).collect();
    canvas.line(&used, pen(DEVICE, 2.0));
    used.iter().for_each(|sample| canvas.dot(*sample, 2.5, DEVICE));
    if space.source == Source::Torch {
        canvas.line(&axes.steps(points, |point| point.memory.reserved), pen(RESERVED, 2.0));
    }
    canvas.line(&in_use, pen(ALLOCATED, 2.0));
}

/// A vertical line for each mark, and its label if there is room.
fn marks(canvas: &mut Canvas, axes: &Axes<'_>, marks: &[Mark]) {
    let mut free_from = [f32::MIN; MOST_ROWS];
    let rows = marks.len().min(MOST_ROWS);
    for mark in marks {
        let (color, bold) = match mark.kind {
            "oom" => (ALARM, true),
            "leak" => (LEAK, true),
            "peak" => (ALLOCATED, false),
            _ => (INK, false),
        };
        let x = axes.x(mark.at_ns);
        let font = Font { bold, color, ..PLAIN };
        let text = format!("{} at {}", mark.text, units::time(mark.at_ns));
        let text = font.fit(&text, axes.frame.right - axes.frame.left);
        let width = font.width(&text);
        // Left of its line if there is no room on the right.
        let after = x + 6.0 + width <= axes.frame.right;
        let start = if after { x + 6.0 } else { (x - 6.0 - width).max(axes.frame.left) };
        let row = free_from.iter().take(rows).position(|free| *free <= start);
        let top = axes.frame.top + TITLE_ROOM + row.unwrap_or(rows) as f32 * ROW;
        canvas.line(&[(x, top), (x, axes.bottom)], Pen { color, width: 1.5, dashed: mark.kind != "oom" });
        if mark.kind == "peak"
            && let Some(bytes) = mark.bytes
        {
            canvas.dot((x, axes.y(bytes)), 5.0, color);
        }
        if let Some(free) = row.and_then(|row| free_from.get_mut(row)) {
            *free = start + width + 16.0;
            canvas.rectangle((start - 2.0, top), (width + 4.0, 17.0), (255, 255, 255), 220);
            canvas.text((start, top), &text, font);
        }
    }
}
