//! References to images of registries.
#![no_main]

use arenite_image::fuzz;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    if let Ok(text) = std::str::from_utf8(data) {
        fuzz::reference(text);
    }
});
