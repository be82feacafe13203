//! Dockerfiles and what belongs to them. An input is a Dockerfile, or one, a `.dockerignore`, and paths, with `%%` between them.
#![no_main]

use arenite_image::fuzz;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    const END: &[u8] = b"\n%%\n";
    let end = data.windows(END.len()).position(|window| window == END);
    let (file, rest) = end.map_or((data, &[][..]), |end| (&data[..end], &data[end + END.len()..]));
    fuzz::dockerfile(file);
    let rest = String::from_utf8_lossy(rest);
    let (ignore, paths) = rest.split_once("\n%%\n").unwrap_or((&rest, ""));
    fuzz::ignore(ignore, paths);
});
