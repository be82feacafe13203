//! Arguments of ffmpeg that all recordings share.

/// The start of a command line: no questions, errors only, and an existing file is replaced.
pub fn ffmpeg_command(program: String) -> Vec<String> {
    let options = ["-hide_banner", "-nostdin", "-loglevel", "error", "-y"];
    std::iter::once(program).chain(options.map(str::to_owned)).collect()
}

/// H.264 in colours that every player shows. `crf`: the amount of detail that is left out, from 0 to 51.
pub fn h264_arguments(crf: &str) -> [&str; 6] {
    ["-preset", "veryfast", "-crf", crf, "-pix_fmt", "yuv420p"]
}
