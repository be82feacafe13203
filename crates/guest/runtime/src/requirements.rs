//! What services need of the sandbox's image, and what brings it to an image that lacks it.

use std::path::Path;

use axum::http::StatusCode;

use crate::http::ApiError;
use crate::runtime::Runtime;

/// The code of an error because the sandbox's image lacks a program.
pub const MISSING_PROGRAM: &str = "missing_program";

/// A program that a service needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Requirement {
    /// For people, such as `Node.js (node)`.
    pub name: &'static str,
    /// Its names on the search path; one of them is enough.
    pub commands: &'static [&'static str],
    /// An image of Arenite that has it.
    image: &'static str,
    /// The packages with it, as Debian and Alpine call them; empty: no package is known.
    debian: &'static str,
    alpine: &'static str,
}

impl Requirement {
    pub const SHELL: Self =
        Self { name: "shell (bash or sh)", commands: &["bash", "sh"], image: "base", debian: "bash", alpine: "bash" };
    pub const KERNEL: Self = Self {
        name: "Jupyter kernel (python3 with ipykernel)",
        commands: &[],
        image: "code",
        debian: "python3-ipykernel",
        alpine: "py3-ipykernel",
    };
    pub const NODE: Self =
        Self { name: "Node.js (node)", commands: &["node", "nodejs"], image: "code", debian: "nodejs", alpine: "nodejs" };
    pub const SCREEN: Self = Self {
        name: "X server (Xvnc)",
        commands: &["Xvnc"],
        image: "browser",
        debian: "tigervnc-standalone-server",
        alpine: "tigervnc",
    };
    pub const BROWSER: Self = Self {
        name: "browser (chromium)",
        commands: &["chromium", "chromium-browser", "google-chrome"],
        image: "browser",
        debian: "chromium tigervnc-standalone-server",
        alpine: "chromium tigervnc",
    };
    pub const RECORDER: Self =
        Self { name: "recorder (ffmpeg)", commands: &["ffmpeg"], image: "browser", debian: "ffmpeg", alpine: "ffmpeg" };
    pub const BUS: Self = Self {
        name: "bus for accessibility (dbus-daemon and at-spi2-core)",
        commands: &["dbus-daemon"],
        image: "browser",
        debian: "dbus-daemon at-spi2-core",
        alpine: "dbus at-spi2-core",
    };
    pub const VS_CODE: Self =
        Self { name: "VS Code (code-server)", commands: &["code-server"], image: "aio", debian: "", alpine: "" };
    pub const JUPYTER_LAB: Self =
        Self { name: "JupyterLab (jupyter-lab)", commands: &["jupyter-lab"], image: "aio", debian: "", alpine: "" };

    /// What is missing.
    pub fn message(&self) -> String {
        format!("this sandbox's image has no {}", self.name)
    }

    /// What brings it, as far as this sandbox's image allows.
    pub fn hint(&self) -> String {
        self.hint_for(Packager::of_image())
    }

    fn hint_for(&self, packager: Option<Packager>) -> String {
        let image = self.image;
        let step = match packager {
            Some(Packager::Apt) if !self.debian.is_empty() => format!("apt-get update && apt-get install -y {}", self.debian),
            Some(Packager::Apk) if !self.alpine.is_empty() => format!("apk add {}", self.alpine),
            _ => return format!("make the sandbox of the image `{image}`, or copy it into this image in its Dockerfile"),
        };
        format!("make the sandbox of the image `{image}`, or add `RUN {step}` to this image's Dockerfile")
    }

    /// The answer of a service that lacks it.
    pub fn error(&self) -> ApiError {
        // Not a 5xx: AIO's JavaScript client would repeat the call.
        ApiError::new(StatusCode::FAILED_DEPENDENCY, self.message()).hint(self.hint()).code(MISSING_PROGRAM)
    }

    /// Whether the sandbox has one of its commands.
    pub fn is_met(&self, runtime: &Runtime) -> bool {
        self.commands.iter().any(|command| runtime.locate(command).is_some())
    }
}

/// A package manager that is in the image.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Packager {
    Apt,
    Apk,
}

impl Packager {
    fn of_image() -> Option<Self> {
        let has = |path: &str| Path::new(path).exists();
        match () {
            () if has("/usr/bin/apt-get") => Some(Self::Apt),
            () if has("/sbin/apk") => Some(Self::Apk),
            () => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hint_names_what_the_image_can_do() {
        let hint = |requirement: Requirement, packager| requirement.hint_for(packager);
        assert!(hint(Requirement::NODE, Some(Packager::Apt)).ends_with("install -y nodejs` to this image's Dockerfile"));
        assert!(hint(Requirement::KERNEL, Some(Packager::Apk)).contains("`RUN apk add py3-ipykernel`"));
        for (requirement, packager) in [(Requirement::NODE, None), (Requirement::VS_CODE, Some(Packager::Apt))] {
            let hint = hint(requirement, packager);
            assert!(hint.contains("copy it into this image") && !hint.contains("RUN"), "{hint}");
        }
    }
}
