//! What all requests share, and what is known of one request.

use std::sync::Arc;
use std::time::Instant;

use arenite_control::Control;
use arenite_model::TenantId;
use arenite_trajectory::Recorder;

use crate::GatewayConfig;

/// What all requests share. Handlers get `&Gateway` or an `Arc` of it.
pub(crate) struct Gateway {
    pub(crate) config: GatewayConfig,
    pub(crate) control: Arc<Control>,
    pub(crate) recorder: Recorder,
    pub(crate) started: Instant,
}

/// What is known of one request before it is answered.
#[derive(Debug, Clone)]
pub(crate) struct Context {
    pub(crate) tenant: TenantId,
    /// Ours, in `x-request-id` of the answer and in the step.
    pub(crate) request_id: String,
    /// The client's address, without its port.
    pub(crate) origin: Option<String>,
    /// How the client names this server: `http://host:port`, from its own Host header (checked) or a trusted proxy's.
    pub(crate) base_url: String,
}
