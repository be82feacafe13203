//! Images: their properties, not their content.

use std::io::Cursor;

use exif::{In, Tag};
use imagesize::ImageType;
use serde_json::Value;

use crate::output::Output;
use crate::{DocumentError, MAX_PROPERTY_CHARS, Metadata};

/// The Exif tags that are useful to a reader.
const TAGS: [(Tag, &str); 18] = [
    (Tag::ImageDescription, "Description"),
    (Tag::Artist, "Artist"),
    (Tag::Copyright, "Copyright"),
    (Tag::Make, "Camera maker"),
    (Tag::Model, "Camera"),
    (Tag::LensModel, "Lens"),
    (Tag::Software, "Software"),
    (Tag::DateTimeOriginal, "Taken"),
    (Tag::DateTime, "Changed"),
    (Tag::Orientation, "Orientation"),
    (Tag::ExposureTime, "Exposure time"),
    (Tag::FNumber, "Aperture"),
    (Tag::PhotographicSensitivity, "ISO"),
    (Tag::FocalLength, "Focal length"),
    (Tag::Flash, "Flash"),
    (Tag::GPSLatitude, "Latitude"),
    (Tag::GPSLongitude, "Longitude"),
    (Tag::GPSAltitude, "Altitude"),
];

fn name(kind: ImageType) -> &'static str {
    match kind {
        ImageType::Png => "PNG",
        ImageType::Jpeg => "JPEG",
        ImageType::Gif => "GIF",
        ImageType::Webp => "WebP",
        ImageType::Bmp => "BMP",
        ImageType::Tiff => "TIFF",
        ImageType::Ico => "ICO",
        ImageType::Heif(_) => "HEIF or AVIF",
        _ => "unknown",
    }
}

/// Format, size and Exif tags.
pub(crate) fn read(bytes: &[u8], limit: usize) -> Result<(Output, Metadata), DocumentError> {
    let malformed = |e: imagesize::ImageError| DocumentError::malformed("image", e);
    let kind = name(imagesize::image_type(bytes).map_err(malformed)?);
    let size = imagesize::blob_size(bytes).map_err(malformed)?;
    let mut out = Output::new(limit);
    out.push(&format!("# Image\n\n- Format: {kind}\n- Size: {} x {} pixels, {} bytes\n", size.width, size.height, bytes.len()));
    let mut metadata = Metadata::new();
    metadata.insert("format".to_owned(), Value::from(kind));
    metadata.insert("width".to_owned(), Value::from(size.width));
    metadata.insert("height".to_owned(), Value::from(size.height));
    if let Ok(notes) = exif::Reader::new().read_from_container(&mut Cursor::new(bytes)) {
        for (tag, label) in TAGS {
            let Some(field) = notes.get_field(tag, In::PRIMARY) else { continue };
            let value = field.display_value().with_unit(&notes).to_string();
            let value: String =
                value.trim_matches(['"', ' ']).chars().filter(|c| !c.is_control()).take(MAX_PROPERTY_CHARS).collect();
            if !value.is_empty() {
                out.push(&format!("- {label}: {value}\n"));
                metadata.insert(label.to_lowercase().replace(' ', "_"), Value::String(value));
            }
        }
    }
    Ok((out, metadata))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn images_tell_their_size() {
        let png = b"\x89PNG\r\n\x1a\n\0\0\0\x0dIHDR\0\0\x01\x00\0\0\0\x10\x08\x02\0\0\0";
        let (out, metadata) = read(png, 1000).unwrap();
        assert!(out.finish().0.contains("- Format: PNG\n- Size: 256 x 16 pixels"));
        assert_eq!((&metadata["width"], &metadata["height"]), (&Value::from(256), &Value::from(16)));
        assert!(read(b"\x89PNG\r\n\x1a\n", 1000).is_err());
        assert!(read(b"hello, world", 1000).is_err());
    }
}
