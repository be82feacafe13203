//! Layers as a pull unpacks them. The first byte says what the rest is: a script, a tar with wrong check sums, or a layer as it is.
#![no_main]

use std::sync::LazyLock;

use arenite_fuzz::{Scratch, repair, script, seeds};
use arenite_image::fuzz;
use libfuzzer_sys::fuzz_target;

static SCRATCH: LazyLock<Scratch> = LazyLock::new(|| Scratch::new("layer"));

fuzz_target!(init: seeds::write_if_wanted(), |data: &[u8]| {
    let Some((kind, rest)) = data.split_first() else { return };
    let layers = match kind % 8 {
        0 => vec![rest.to_vec()],
        1 => {
            let mut tar = rest.to_vec();
            repair(&mut tar);
            vec![tar]
        }
        _ => script::layers(rest, SCRATCH.decoy()),
    };
    fuzz::unpack(SCRATCH.dir(), &layers);
    SCRATCH.check();
});
