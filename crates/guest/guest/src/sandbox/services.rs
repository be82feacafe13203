//! The services of this sandbox: which of them work with what is installed, and what brings the others.

use serde::Serialize;
use utoipa::ToSchema;

use arenite_guest_code::jupyter::JupyterService;
use arenite_guest_runtime::Runtime;
use arenite_guest_runtime::requirements::Requirement;

/// Services that need a program of the image. The others work in every sandbox.
const WITH_PROGRAM: [(&str, Requirement); 9] = [
    ("shell", Requirement::SHELL),
    ("bash", Requirement::SHELL),
    ("jupyter", Requirement::KERNEL),
    ("nodejs", Requirement::NODE),
    ("browser", Requirement::BROWSER),
    ("display", Requirement::SCREEN),
    ("recording", Requirement::RECORDER),
    ("code-server", Requirement::VS_CODE),
    ("jupyter-lab", Requirement::JUPYTER_LAB),
];
const ALWAYS: [&str; 8] = ["file", "hooks", "mcp", "observe", "proxy", "sandbox", "skills", "util"];

/// A service of the sandbox.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, ToSchema)]
pub struct ServiceState {
    pub name: &'static str,
    /// Whether the sandbox has the programs that it needs.
    pub available: bool,
    /// What the sandbox's image lacks.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub missing: Option<String>,
    /// What brings it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hint: Option<String>,
}

/// All services, by name.
pub(super) async fn list(runtime: &Runtime, jupyter: &JupyterService) -> Vec<ServiceState> {
    let has_kernel = jupyter.has_kernel().await;
    let mut services: Vec<ServiceState> =
        ALWAYS.map(|name| ServiceState { name, available: true, missing: None, hint: None }).into();
    for (name, requirement) in WITH_PROGRAM {
        let available = if requirement == Requirement::KERNEL { has_kernel } else { requirement.is_met(runtime) };
        let (missing, hint) = match available {
            true => (None, None),
            false => (Some(requirement.message()), Some(requirement.hint())),
        };
        services.push(ServiceState { name, available, missing, hint });
    }
    services.sort_unstable_by_key(|service| service.name);
    services
}
