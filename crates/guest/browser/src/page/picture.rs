//! Screenshots of pages.

use std::io::Cursor;
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use image::codecs::jpeg::JpegEncoder;
use image::codecs::png::{CompressionType, FilterType, PngEncoder};
use image::{ImageEncoder, RgbImage};
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::time::{Instant, sleep};

use super::element::{Element, LOOK, eventually};
use super::error::is_gone;
use super::{AUTO_WAIT, PageError, Target, Work};
use arenite_guest_cdp::CdpError;

/// Timeout for the browser to draw one picture; the retry has `LAST_PATIENCE`.
const FIRST_PATIENCE: Duration = Duration::from_secs(5);
const LAST_PATIENCE: Duration = Duration::from_secs(15);
/// Maximum height in pixels that the browser draws at once; longer pages are stitched from pieces.
const MAX_PIECE: f64 = 8192.0;
/// Maximum pixels of a stitched picture: 400 MB in memory.
const MAX_PIXELS: f64 = 133e6;
/// Default quality of JPEG and WebP.
const QUALITY: i64 = 80;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
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

    pub fn media_type(self) -> &'static str {
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
pub struct Picture {
    pub file: Vec<u8>,
    pub width: u32,
    pub height: u32,
}

/// What to capture, and how to change the page meanwhile.
#[derive(Debug, Clone, Default)]
pub struct Shot {
    /// `None`: the page.
    pub target: Option<Target>,
    /// The whole page, not only its visible part.
    pub full: bool,
    /// Overrides for the viewport's sides, in pixels.
    pub width: Option<u32>,
    pub height: Option<u32>,
    /// Draws boxes around the usable elements, with their indexes.
    pub marked: bool,
}

impl Work {
    /// Takes a picture of a page that is changed for it and restored afterwards.
    pub async fn shot(&self, shot: &Shot, format: Format) -> Result<Picture, PageError> {
        let resized = shot.width.is_some() || shot.height.is_some();
        if resized {
            let (width, height) = self.size().await?;
            let (width, height) = (shot.width.unwrap_or(width as u32), shot.height.unwrap_or(height as u32));
            let metrics = json!({"width": width, "height": height, "deviceScaleFactor": 0, "mobile": false});
            self.tab.effect("Emulation.setDeviceMetricsOverride", metrics).await?;
        }
        let taken = self.taken(shot, format).await;
        // The page may have navigated, and its marks with it.
        let unmarked = if shot.marked { self.tab.ours("arenite.unmark()").await.map(drop) } else { Ok(()) };
        if resized {
            self.tab.effect("Emulation.clearDeviceMetricsOverride", json!({})).await?;
        }
        unmarked.and(taken)
    }

    async fn taken(&self, shot: &Shot, format: Format) -> Result<Picture, PageError> {
        if shot.width.is_some() || shot.height.is_some() {
            self.frames().await?;
        }
        if let Some(target) = &shot.target {
            self.tab.with(target, |element| async move { self.show(&element).await.map(Ok) }).await?;
        }
        if shot.marked {
            let boxes = self.elements().await?;
            let boxes: Vec<Value> =
                boxes.into_iter().map(|element| json!({"index": element["index"], "box": element["box"]})).collect();
            self.read::<Value>("mark", json!([boxes])).await?;
        }
        match &shot.target {
            Some(target) => self.picture_of(target, format).await,
            None => self.screenshot(shot.full, format, None).await,
        }
    }

    /// Takes a picture of an element that is in view.
    async fn picture_of(&self, target: &Target, format: Format) -> Result<Picture, PageError> {
        #[derive(Deserialize)]
        struct Boxes {
            model: Sides,
        }
        #[derive(Deserialize)]
        struct Sides {
            border: [f64; 8],
        }
        let border = |element: Element| async move {
            let boxes: Result<Boxes, CdpError> = self.tab.call("DOM.getBoxModel", json!({"objectId": element.object})).await;
            match boxes.map_err(PageError::from) {
                Ok(boxes) => Ok(Ok(boxes.model.border)),
                Err(error) if is_gone(&error) => Err(error),
                Err(PageError::Cdp(CdpError::Refused { .. })) => Err(PageError::Failed(format!("{target} is not visible"))),
                Err(error) => Err(error),
            }
        };
        let border = self.tab.with(target, border).await?;
        let side = |first: usize| {
            let ends = border.iter().skip(first).step_by(2);
            let (low, high) = ends.fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), at| (low.min(*at), high.max(*at)));
            (low.floor(), high.ceil())
        };
        let ((left, right), (top, bottom)) = (side(0), side(1));
        let (width, height) = (right - left, bottom - top);
        if width < 1.0 || height < 1.0 {
            return Err(PageError::Failed(format!("{target} is not visible")));
        }
        if height > MAX_PIECE || width * height > MAX_PIXELS {
            return Err(PageError::Failed(format!("{target} is too large for a picture: {width} x {height} pixels")));
        }
        let shown = self.tab.viewport().await?;
        let fits = left >= 0.0 && top >= 0.0 && right <= shown.client_width && bottom <= shown.client_height;
        let clip = json!({"x": left + shown.page_x, "y": top + shown.page_y, "width": width, "height": height, "scale": 1});
        sized(self.capture(Some(clip), !fits, format, QUALITY).await?)
    }

    /// Takes a picture of the page's visible part, or of the whole page.
    pub async fn screenshot(&self, full: bool, format: Format, quality: Option<i64>) -> Result<Picture, PageError> {
        if quality.is_some_and(|quality| !(0..=100).contains(&quality)) {
            return Err(PageError::Bad("quality is from 0 to 100".to_owned()));
        }
        let quality = quality.unwrap_or(QUALITY);
        let take = || async { self.drawn(full, format, quality).await.map(Ok) };
        eventually(Instant::now() + AUTO_WAIT, take).await
    }

    /// One attempt. The document may change meanwhile.
    async fn drawn(&self, full: bool, format: Format, quality: i64) -> Result<Picture, PageError> {
        if !full {
            return sized(self.capture(None, false, format, quality).await?);
        }
        let metrics = self.tab.metrics().await?;
        let width = metrics.css_content_size.width.max(metrics.css_layout_viewport.client_width).ceil().max(1.0);
        let height = metrics.css_content_size.height.ceil().max(1.0);
        if width * height > MAX_PIXELS {
            return Err(PageError::Failed(format!("the page is too large for a picture: {width} x {height} pixels")));
        }
        let piece = |y: f64, height: f64| json!({"x": 0, "y": y, "width": width, "height": height, "scale": 1});
        if height <= MAX_PIECE {
            return sized(self.capture(Some(piece(0.0, height)), true, format, quality).await?);
        }
        if format == Format::Webp {
            return Err(PageError::Bad("a page of this length can be a png or a jpeg".to_owned()));
        }
        let mut whole = RgbImage::new(width as u32, height as u32);
        let mut top = 0.0;
        while top < height {
            let part = (height - top).min(MAX_PIECE);
            let file = self.capture(Some(piece(top, part)), true, Format::Png, quality).await?;
            let drawn = spawned(move || image::load_from_memory(&file).map_err(unreadable)).await?;
            image::imageops::replace(&mut whole, &drawn.to_rgb8(), 0, top as i64);
            top += part;
        }
        spawned(move || encode(whole, format, quality)).await
    }

    async fn capture(&self, clip: Option<Value>, beyond: bool, format: Format, quality: i64) -> Result<Vec<u8>, PageError> {
        #[derive(Deserialize)]
        struct Shot {
            data: String,
        }
        let mut params = json!({"format": format.name(), "captureBeyondViewport": beyond, "optimizeForSpeed": true});
        if let Some(clip) = clip {
            params["clip"] = clip;
        }
        if format != Format::Png {
            params["quality"] = json!(quality);
        }
        let begun = Instant::now();
        let mut patience = FIRST_PATIENCE;
        let shot = loop {
            let shot: Result<Shot, CdpError> = self.tab.call_within("Page.captureScreenshot", params.clone(), patience).await;
            match shot {
                // During a navigation, there is nothing to draw.
                Err(CdpError::Refused { .. }) if begun.elapsed() < FIRST_PATIENCE => sleep(LOOK).await,
                Err(CdpError::TimedOut { .. }) if patience == FIRST_PATIENCE => patience = LAST_PATIENCE,
                shot => break shot?,
            }
            self.tab.effect("Page.bringToFront", json!({})).await?;
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
