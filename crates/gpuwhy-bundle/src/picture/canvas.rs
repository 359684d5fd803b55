// SPDX-License-Identifier: Apache-2.0
//! Lines, areas and text on a bitmap. The font, Noto Sans Mono, is built in, so the picture is the same on every machine.

use noto_sans_mono_bitmap::{FontWeight, RasterHeight, get_raster, get_raster_width};
use tiny_skia::{Color, FillRule, Paint, Path, PathBuilder, Pixmap, Rect, Stroke, StrokeDash, Transform};

/// Red, green, blue.
pub(super) type Rgb = (u8, u8, u8);

/// A text style.
#[derive(Debug, Clone, Copy)]
pub(super) struct Font {
    pub(super) bold: bool,
    pub(super) large: bool,
    pub(super) color: Rgb,
}

impl Font {
    fn raster(self) -> (FontWeight, RasterHeight) {
        let weight = if self.bold { FontWeight::Bold } else { FontWeight::Regular };
        (weight, if self.large { RasterHeight::Size20 } else { RasterHeight::Size16 })
    }

    /// The width of a text, pixels.
    pub(super) fn width(self, text: &str) -> f32 {
        let (weight, size) = self.raster();
        (get_raster_width(weight, size) * text.chars().count()) as f32
    }

    /// Cuts a text to this width, pixels.
    pub(super) fn fit(self, text: &str, width: f32) -> String {
        let (weight, size) = self.raster();
        let most = (width / get_raster_width(weight, size) as f32).max(0.0) as usize;
        if text.chars().count() <= most {
            return text.to_owned();
        }
        text.chars().take(most.saturating_sub(3)).chain("...".chars()).collect()
    }
}

/// A line style.
#[derive(Debug, Clone, Copy)]
pub(super) struct Pen {
    pub(super) color: Rgb,
    pub(super) width: f32,
    pub(super) dashed: bool,
}

/// The bitmap.
pub(super) struct Canvas {
    pixels: Pixmap,
}

impl Canvas {
    /// A white bitmap; `None` for an invalid size.
    pub(super) fn new(width: u32, height: u32) -> Option<Self> {
        let mut pixels = Pixmap::new(width, height)?;
        pixels.fill(Color::WHITE);
        Some(Self { pixels })
    }

    fn paint((red, green, blue): Rgb, alpha: u8) -> Paint<'static> {
        let mut paint = Paint { anti_alias: true, ..Paint::default() };
        paint.set_color_rgba8(red, green, blue, alpha);
        paint
    }

    pub(super) fn line(&mut self, points: &[(f32, f32)], pen: Pen) {
        let Some(path) = path(points, false) else { return };
        let dash = pen.dashed.then(|| StrokeDash::new(vec![8.0, 5.0], 0.0)).flatten();
        let stroke = Stroke { width: pen.width, dash, ..Stroke::default() };
        self.pixels.stroke_path(&path, &Self::paint(pen.color, 255), &stroke, Transform::identity(), None);
    }

    /// A filled shape; alpha 255 is opaque.
    pub(super) fn area(&mut self, points: &[(f32, f32)], color: Rgb, alpha: u8) {
        let Some(path) = path(points, true) else { return };
        self.pixels.fill_path(&path, &Self::paint(color, alpha), FillRule::Winding, Transform::identity(), None);
    }

    pub(super) fn dot(&mut self, (x, y): (f32, f32), radius: f32, color: Rgb) {
        let Some(path) = PathBuilder::from_circle(x, y, radius) else { return };
        self.pixels.fill_path(&path, &Self::paint(color, 255), FillRule::Winding, Transform::identity(), None);
    }

    pub(super) fn rectangle(&mut self, (x, y): (f32, f32), (width, height): (f32, f32), color: Rgb, alpha: u8) {
        let Some(rect) = Rect::from_xywh(x, y, width, height) else { return };
        self.pixels.fill_rect(rect, &Self::paint(color, alpha), Transform::identity(), None);
    }

    /// Draws a text; the position is its upper left corner. Characters the font lacks become question marks.
    pub(super) fn text(&mut self, (x, y): (f32, f32), text: &str, font: Font) {
        let (weight, size) = font.raster();
        let (mut left, top) = (x.round() as i64, y.round() as i64);
        for letter in text.chars() {
            let Some(raster) = get_raster(letter, weight, size).or_else(|| get_raster('?', weight, size)) else {
                continue;
            };
            for (row, line) in raster.raster().iter().enumerate() {
                for (column, ink) in line.iter().enumerate() {
                    self.blend(left + column as i64, top + row as i64, font.color, *ink);
                }
            }
            left += raster.width() as i64;
        }
    }

    /// Blends a pixel. The background is opaque, so the result is, too.
    fn blend(&mut self, x: i64, y: i64, (red, green, blue): Rgb, ink: u8) {
        let (width, height) = (i64::from(self.pixels.width()), i64::from(self.pixels.height()));
        if ink == 0 || !(0..width).contains(&x) || !(0..height).contains(&y) {
            return;
        }
        let start = usize::try_from((y * width + x) * 4).unwrap_or(usize::MAX);
        let Some(pixel) = self.pixels.data_mut().get_mut(start..start.saturating_add(3)) else { return };
        for (below, color) in pixel.iter_mut().zip([red, green, blue]) {
            let mixed = u32::from(*below) * u32::from(255 - ink) + u32::from(color) * u32::from(ink);
            *below = (mixed / 255) as u8;
        }
    }

    /// As a PNG file.
    pub(super) fn png(&self) -> Result<Vec<u8>, String> {
        self.pixels.encode_png().map_err(|error| error.to_string())
    }
}

fn path(points: &[(f32, f32)], closed: bool) -> Option<Path> {
    let mut builder = PathBuilder::new();
    for (number, (x, y)) in points.iter().enumerate() {
        if number == 0 { builder.move_to(*x, *y) } else { builder.line_to(*x, *y) }
    }
    if closed {
        builder.close();
    }
    builder.finish()
}
