//! Copies the pages' scripts and styles, which `cargo xtask web` builds, to where they are included from.
//!
//! Without them, the program still builds, and its pages say what to do. So work on other parts needs no Node.js.

use std::path::Path;
use std::{env, fs, io};

const NOT_BUILT: &str = "document.querySelector('main').textContent = \
    'This program was built without its pages. Run: cargo xtask web, and build it again.';\n";

fn main() -> io::Result<()> {
    let of_cargo = |name| env::var_os(name).ok_or_else(|| io::Error::other("cargo runs this"));
    let web = Path::new(&of_cargo("CARGO_MANIFEST_DIR")?).join("../../web");
    let (built, out) = (web.join("dist"), of_cargo("OUT_DIR")?);
    // A watched file that does not exist would cause a rebuild each time.
    let watched = if built.is_dir() { &built } else { &web };
    println!("cargo:rerun-if-changed={}", watched.display());
    for page in ["console", "dashboard", "viewer", "docs"] {
        for (kind, instead) in [("js", NOT_BUILT), ("css", "")] {
            let name = format!("{page}.{kind}");
            let text = match fs::read_to_string(built.join(&name)) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => instead.to_owned(),
                other => other?,
            };
            fs::write(Path::new(&out).join(&name), text)?;
            for form in ["gz", "br"] {
                let name = format!("{name}.{form}");
                let bytes = match fs::read(built.join(&name)) {
                    Err(error) if error.kind() == io::ErrorKind::NotFound => Vec::new(),
                    other => other?,
                };
                fs::write(Path::new(&out).join(&name), bytes)?;
            }
        }
    }
    Ok(())
}
