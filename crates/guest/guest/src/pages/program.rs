//! The two programs and their differences.

use arenite_guest_runtime::Runtime;
use arenite_guest_runtime::requirements::Requirement;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Program {
    VsCode,
    JupyterLab,
}

impl Program {
    /// The name for users.
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::VsCode => "VS Code",
            Self::JupyterLab => "JupyterLab",
        }
    }

    /// The command on the search path.
    pub(super) const fn command(self) -> &'static str {
        match self {
            Self::VsCode => "code-server",
            Self::JupyterLab => "jupyter-lab",
        }
    }

    pub(super) const fn requirement(self) -> Requirement {
        match self {
            Self::VsCode => Requirement::VS_CODE,
            Self::JupyterLab => Requirement::JUPYTER_LAB,
        }
    }

    /// The path of its pages.
    pub(super) const fn root(self) -> &'static str {
        match self {
            Self::VsCode => "/code-server",
            Self::JupyterLab => "/jupyter",
        }
    }

    /// The variable that switches it off.
    pub(super) const fn switch(self) -> &'static str {
        match self {
            Self::VsCode => "DISABLE_CODE_SERVER",
            Self::JupyterLab => "DISABLE_JUPYTER",
        }
    }

    pub(super) fn is_off(self, runtime: &Runtime) -> bool {
        let config = runtime.config();
        let value = config.env.get(self.switch()).map(|value| value.trim().to_ascii_lowercase());
        matches!(value.as_deref(), Some("true" | "1"))
    }

    /// The prefix to remove from a path before it is passed on. VS Code's links are all relative, so it need not know its
    /// location; JupyterLab's are absolute and start with the root.
    pub(super) const fn cut(self) -> &'static str {
        match self {
            Self::VsCode => self.root(),
            Self::JupyterLab => "",
        }
    }

    /// A path of the program that it answers once it serves, cheaply.
    pub(super) const fn health(self) -> &'static str {
        match self {
            Self::VsCode => "/healthz",
            Self::JupyterLab => "/jupyter/api",
        }
    }
}
