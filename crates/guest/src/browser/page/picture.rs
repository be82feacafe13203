//! Pictures of pages.

use std::io::Cursor;
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use image::codecs::jpeg::JpegEncoder;
use image::codecs::png::{CompressionType, FilterType, PngEncoder};
use image::{ImageEncoder, RgbImage};
use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::{Value, json};

use super::super::cdp::CdpError;
use super::element::Viewport;
use super::{PageError, Work};

/// For the browser to draw one picture.
const PATIENCE: Duration = Duration::from_secs(20);
/// Pixels in a column that the browser draws at once; longer pages are put together from pieces.
const MAX_PIECE: f64 = 8192.0;
/// Pixels of a picture that is put together: 400 MB in memory.
const MAX_PIXELS: f64 = 133e6;
/// Of what is a JPEG or WebP, unless asked otherwise.
const QUALITY: i64 = 80;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Format {
    Png,
    Jpeg,
    Webp,
}

impl Format {
    pub(super) fn named(name: &str) -> Result<Self, PageError> {
        match name.to_ascii_lowercase().as_str() {
            "png" => Ok(Self::Png),
            "jpg" | "jpeg" => Ok(Self::Jpeg),
            "webp" => Ok(Self::Webp),
            _ => Err(PageError::Bad(format!("{name:?} is no format of pictures: there are png, jpeg and webp"))),
        }
    }

    pub(super) fn media_type(self) -> &'static str {
        match self {
            Self::Png => "image/png",
            Self::Jpeg => "image/jpeg",
            Self::Webp => "image/webp",
        }
    }

    fn name(self) -> &'static str {
        &self.media_type()["image/".len()..]
    }
}

/// An image file and its size in pixels.
#[derive(Debug)]
pub(super) struct Picture {
    pub(super) file: Vec<u8>,
    pub(super) width: u32,
    pub(super) height: u32,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Metrics {
    css_content_size: Size,
    css_layout_viewport: Viewport,
}

#[derive(Deserialize)]
struct Size {
    width: f64,
    height: f64,
}

impl Work {
    /// What is shown of the page, or the whole of it.
    pub(super) async fn screenshot(&self, full: bool, format: Format, quality: Option<i64>) -> Result<Picture, PageError> {
        if quality.is_some_and(|quality| !(0..=100).contains(&quality)) {
            return Err(PageError::Bad("quality is from 0 to 100".to_owned()));
        }
        let quality = quality.unwrap_or(QUALITY);
        if !full {
            return sized(self.capture(None, format, quality).await?);
        }
        let metrics: Metrics = self.tab.call("Page.getLayoutMetrics", json!({})).await?;
        let width = metrics.css_content_size.width.max(metrics.css_layout_viewport.client_width).ceil().max(1.0);
        let height = metrics.css_content_size.height.ceil().max(1.0);
        if width * height > MAX_PIXELS {
            return Err(PageError::Failed(format!("the page is too large for a picture: {width} x {height} pixels")));
        }
        let piece = |y: f64, height: f64| json!({"x": 0, "y": y, "width": width, "height": height, "scale": 1});
        if height <= MAX_PIECE {
            return sized(self.capture(Some(piece(0.0, height)), format, quality).await?);
        }
        if format == Format::Webp {
            return Err(PageError::Bad("a page of this length can be a png or a jpeg".to_owned()));
        }
        let mut whole = RgbImage::new(width as u32, height as u32);
        let mut top = 0.0;
        while top < height {
            let part = (height - top).min(MAX_PIECE);
            let file = self.capture(Some(piece(top, part)), Format::Png, quality).await?;
            let drawn = spawned(move || image::load_from_memory(&file).map_err(unreadable)).await?;
            image::imageops::replace(&mut whole, &drawn.to_rgb8(), 0, top as i64);
            top += part;
        }
        spawned(move || encode(whole, format, quality)).await
    }

    async fn capture(&self, clip: Option<Value>, format: Format, quality: i64) -> Result<Vec<u8>, PageError> {
        #[derive(Deserialize)]
        struct Shot {
            data: String,
        }
        let mut params = json!({"format": format.name(), "captureBeyondViewport": clip.is_some(), "optimizeForSpeed": true});
        if let Some(clip) = clip {
            params["clip"] = clip;
        }
        if format != Format::Png {
            params["quality"] = json!(quality);
        }
        let mut tries = 0;
        let shot = loop {
            let shot: Result<Shot, CdpError> = self.tab.call_within("Page.captureScreenshot", params.clone(), PATIENCE).await;
            match shot {
                // In the middle of a navigation there is nothing to draw.
                Err(CdpError::Refused { .. } | CdpError::TimedOut { .. }) if tries < 3 => {
                    tries += 1;
                    let _: Result<IgnoredAny, _> = self.tab.call("Page.bringToFront", json!({})).await;
                }
                shot => break shot?,
            }
        };
        STANDARD.decode(shot.data).map_err(|error| PageError::Failed(format!("the browser's picture can't be read: {error}")))
    }
}

fn unreadable(error: image::ImageError) -> PageError {
    PageError::Failed(format!("the browser's picture can't be read: {error}"))
}

async fn spawned<T: Send + 'static>(work: impl FnOnce() -> Result<T, PageError> + Send + 'static) -> Result<T, PageError> {
    let done = tokio::task::spawn_blocking(work).await;
    done.unwrap_or_else(|error| Err(PageError::Failed(format!("the picture was not made: {error}"))))
}

fn sized(file: Vec<u8>) -> Result<Picture, PageError> {
    let size = imagesize::blob_size(&file)
        .map_err(|error| PageError::Failed(format!("the browser's picture can't be read: {error}")))?;
    Ok(Picture { file, width: size.width as u32, height: size.height as u32 })
}

fn encode(whole: RgbImage, format: Format, quality: i64) -> Result<Picture, PageError> {
    let (width, height) = whole.dimensions();
    let mut file = Cursor::new(Vec::new());
    let color = image::ExtendedColorType::Rgb8;
    match format {
        Format::Jpeg => {
            let quality = u8::try_from(quality.clamp(1, 100)).unwrap_or(100);
            JpegEncoder::new_with_quality(&mut file, quality).write_image(&whole, width, height, color)
        }
        _ => PngEncoder::new_with_quality(&mut file, CompressionType::Fast, FilterType::Sub)
            .write_image(&whole, width, height, color),
    }
    .map_err(unreadable)?;
    Ok(Picture { file: file.into_inner(), width, height })
}
