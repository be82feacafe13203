//! The screen's content as an image file.

use image::codecs::jpeg::JpegEncoder;
use image::codecs::png::{CompressionType, FilterType, PngEncoder};
use image::{ExtendedColorType, ImageEncoder};
use serde::Deserialize;
use utoipa::ToSchema;
use x11rb::protocol::xproto::{ConnectionExt, ImageFormat};

use super::screen::{Screen, ScreenError};
use super::service::DesktopError;

/// Default quality of a JPEG.
const QUALITY: u8 = 80;

/// A file format.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
    Png,
    /// With a quality of 1 to 100; none: 80.
    Jpeg(Option<u8>),
}

impl Format {
    pub fn media_type(self) -> &'static str {
        match self {
            Self::Png => "image/png",
            Self::Jpeg(_) => "image/jpeg",
        }
    }
}

/// A file format as clients name it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
#[schema(default = "png")]
pub enum PictureFormat {
    #[default]
    Png,
    Jpg,
    Jpeg,
}

impl PictureFormat {
    /// Sets the quality, if the format has one.
    pub fn of_quality(self, quality: Option<i64>) -> Format {
        match self {
            Self::Png => Format::Png,
            Self::Jpg | Self::Jpeg => Format::Jpeg(quality.and_then(|quality| u8::try_from(quality).ok())),
        }
    }
}

/// A part of the screen, in pixels. Pixels outside of the screen are cut off.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Region {
    pub x: i32,
    pub y: i32,
    pub width: u32,
    pub height: u32,
}

impl Region {
    fn on(self, (width, height): (u16, u16)) -> Option<(i16, i16, u16, u16)> {
        let edges = |at: i32, length: u32, size: u16| {
            let (from, to) = (i64::from(at).max(0), (i64::from(at) + i64::from(length)).min(i64::from(size)));
            (from < to).then_some((from as i16, (to - from) as u16))
        };
        let ((x, width), (y, height)) = (edges(self.x, self.width, width)?, edges(self.y, self.height, height)?);
        Some((x, y, width, height))
    }
}

/// A snapshot of pixels: three bytes each (red, green, blue), row by row.
#[derive(Debug, Clone)]
pub struct Picture {
    pub width: u16,
    pub height: u16,
    /// Size of the screen that it was taken from.
    pub screen: (u16, u16),
    pixels: Vec<u8>,
}

impl Screen {
    /// Captures the whole screen, or a part of it.
    pub fn picture(&self, region: Option<Region>) -> Result<Picture, ScreenError> {
        let screen = self.size()?;
        let whole = Region { x: 0, y: 0, width: screen.0.into(), height: screen.1.into() };
        let wanted = region.unwrap_or(whole);
        let (x, y, width, height) = wanted.on(screen).ok_or(ScreenError::Outside {
            x: wanted.x.into(),
            y: wanted.y.into(),
            width: screen.0,
            height: screen.1,
        })?;
        let image = self.connection.get_image(ImageFormat::Z_PIXMAP, self.root, x, y, width, height, u32::MAX)?.reply()?;
        // The X server is started with 24 bits in 32, the lowest byte first: blue, green, red, unused.
        let count = usize::from(width) * usize::from(height);
        if image.data.len() < count * 4 {
            return Err(ScreenError::NoPicture(format!("the X server has {} bits for a pixel, not 24", image.depth)));
        }
        let mut pixels = Vec::with_capacity(count * 3);
        pixels.extend(image.data.as_chunks::<4>().0.iter().take(count).flat_map(|&[blue, green, red, _]| [red, green, blue]));
        Ok(Picture { width, height, screen, pixels })
    }
}

impl Picture {
    /// Builds the picture of a whole screen.
    pub fn of_pixels(width: u16, height: u16, pixels: Vec<u8>) -> Self {
        debug_assert_eq!(pixels.len(), usize::from(width) * usize::from(height) * 3);
        Self { width, height, screen: (width, height), pixels }
    }

    #[cfg(test)]
    pub fn pixels(&self) -> &[u8] {
        &self.pixels
    }

    pub fn into_pixels(self) -> Vec<u8> {
        self.pixels
    }

    /// Cuts out a part.
    pub(super) fn cut(self, region: Region) -> Result<Self, ScreenError> {
        let (width, height) = (self.width, self.height);
        let outside = || ScreenError::Outside { x: region.x.into(), y: region.y.into(), width, height };
        let (x, y, part_width, part_height) = region.on((width, height)).ok_or_else(outside)?;
        if (part_width, part_height) == (width, height) {
            return Ok(self);
        }
        let (from, length) = (x as usize * 3, usize::from(part_width) * 3);
        let rows = self.pixels.chunks_exact(usize::from(width) * 3).skip(y as usize).take(part_height.into());
        let pixels = rows.flat_map(|row| &row[from..from + length]).copied().collect();
        Ok(Self { width: part_width, height: part_height, screen: self.screen, pixels })
    }

    /// Encodes the picture off the runtime's thread, and returns both.
    pub async fn encoded(self, format: Format) -> Result<(Self, Vec<u8>), DesktopError> {
        let encoded = tokio::task::spawn_blocking(move || self.encode(format).map(|file| (self, file))).await;
        let broken = |error: tokio::task::JoinError| Err(ScreenError::NoPicture(error.to_string()));
        Ok(encoded.unwrap_or_else(broken)?)
    }

    /// Encodes the file. It takes some milliseconds: call it off the runtime's thread.
    pub fn encode(&self, format: Format) -> Result<Vec<u8>, ScreenError> {
        let mut file = Vec::with_capacity(self.pixels.len() / 16);
        let (width, height) = (self.width.into(), self.height.into());
        let written =
            match format {
                Format::Png => PngEncoder::new_with_quality(&mut file, CompressionType::Fast, FilterType::Up).write_image(
                    &self.pixels,
                    width,
                    height,
                    ExtendedColorType::Rgb8,
                ),
                Format::Jpeg(quality) => JpegEncoder::new_with_quality(&mut file, quality.unwrap_or(QUALITY).clamp(1, 100))
                    .encode(&self.pixels, width, height, ExtendedColorType::Rgb8),
            };
        written.map_err(|error| ScreenError::NoPicture(error.to_string()))?;
        Ok(file)
    }

    /// Whether all pixels have the same colour, which usually means that nothing is drawn yet.
    pub fn is_plain(&self) -> bool {
        let (pixels, _) = self.pixels.as_chunks::<3>();
        pixels.windows(2).all(|pair| pair[0] == pair[1])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn regions_end_at_the_edges() {
        let region = |x, y, width, height| Region { x, y, width, height }.on((100, 50));
        assert_eq!(region(0, 0, 100, 50), Some((0, 0, 100, 50)));
        assert_eq!(region(-10, 40, 30, 30), Some((0, 40, 20, 10)));
        assert_eq!(region(100, 0, 1, 1), None);
        assert_eq!(region(0, 0, 0, 10), None);
        assert_eq!(region(i32::MAX, 0, u32::MAX, 10), None);
        assert_eq!(region(i32::MIN, i32::MIN, u32::MAX, u32::MAX), Some((0, 0, 100, 50)));
    }

    #[test]
    fn parts_are_cut_out_of_a_whole_screen() {
        let screen = Picture::of_pixels(3, 2, (0..18).collect());
        let part = screen.clone().cut(Region { x: 1, y: 1, width: 9, height: 9 }).unwrap();
        assert_eq!((part.width, part.height, part.screen), (2, 1, (3, 2)));
        assert_eq!(part.pixels(), [12, 13, 14, 15, 16, 17]);
        assert!(screen.cut(Region { x: 3, y: 0, width: 1, height: 1 }).is_err());
    }

    #[test]
    fn files_are_what_they_say() {
        let mut picture = Picture { width: 4, height: 2, screen: (4, 2), pixels: vec![7; 24] };
        assert!(picture.is_plain());
        picture.pixels[23] = 8;
        assert!(!picture.is_plain());
        let png = picture.encode(Format::Png).unwrap();
        assert!(png.starts_with(b"\x89PNG"));
        let read = image::load_from_memory(&png).unwrap().to_rgb8();
        assert_eq!(read.as_raw(), &picture.pixels);
        let jpeg = picture.encode(Format::Jpeg(Some(0))).unwrap();
        assert!(jpeg.starts_with(b"\xff\xd8"));
    }
}
