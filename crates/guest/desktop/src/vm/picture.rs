//! The VM's screen as pixels: QEMU writes a PPM file, which has the same pixel format as `Picture`.

use std::path::Path;

use serde_json::json;

use super::qmp::Qmp;
use super::service::VmError;
use crate::desktop::Picture;

/// Maximum side of the screen, in pixels.
const MAX_SIDE: usize = 8192;

/// Has QEMU write a screenshot to a directory that it may write to.
pub(super) async fn take(qmp: &Qmp, dir: &Path) -> Result<Picture, VmError> {
    // Each has a separate file, because there may be several at once.
    let place = dir.join(format!("screen-{}", arenite_guest_runtime::random_id()));
    let name = place.display().to_string();
    let taken = qmp.execute("screendump", json!({"filename": name})).await;
    let read = tokio::task::spawn_blocking(move || {
        let file = std::fs::read(&place);
        let _ = std::fs::remove_file(&place);
        file
    });
    let file = read.await.map_err(|error| VmError::Picture(error.to_string()))?;
    taken?;
    let file = file.map_err(|error| VmError::Picture(error.to_string()))?;
    of_ppm(&file).ok_or_else(|| VmError::Picture("QEMU wrote no picture".to_owned()))
}

/// Parses `P6`, width, height, and 255, each followed by one white space, and three bytes per pixel.
fn of_ppm(file: &[u8]) -> Option<Picture> {
    let mut rest = file.strip_prefix(b"P6")?;
    let mut numbers = [0; 3];
    for number in &mut numbers {
        let start = rest.iter().position(|byte| !byte.is_ascii_whitespace())?;
        rest = &rest[start..];
        let end = rest.iter().take(8).position(|byte| !byte.is_ascii_digit())?;
        *number = std::str::from_utf8(&rest[..end]).ok()?.parse().ok()?;
        rest = &rest[end..];
    }
    let [width, height, most] = numbers;
    let pixels = rest.get(1..)?;
    let sane = (1..=MAX_SIDE).contains(&width) && (1..=MAX_SIDE).contains(&height) && most == 255;
    (sane && pixels.len() == width * height * 3).then(|| Picture::of_pixels(width as u16, height as u16, pixels.to_vec()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_whole_pictures_are_taken() {
        let picture = of_ppm(b"P6\n2 1\n255\nabcdef").unwrap();
        assert_eq!((picture.width, picture.height, picture.screen), (2, 1, (2, 1)));
        assert_eq!(picture.pixels(), b"abcdef");
        for bad in [
            &b""[..],
            b"P6",
            b"P6\n2 1\n255\nabcde",
            b"P6\n2 1\n255\nabcdefg",
            b"P6\n2 1\n65535\nabcdef",
            b"P5\n2 1\n255\nabcdef",
            b"P6\n0 1\n255\n",
            b"P6\n99999999999 1\n255\n",
            b"P6\n-2 1\n255\nabcdef",
            b"P6 9999 9999 255 ",
        ] {
            assert!(of_ppm(bad).is_none(), "{:?}", String::from_utf8_lossy(bad));
        }
    }
}
