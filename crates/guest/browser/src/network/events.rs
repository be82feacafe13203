//! Events of the protocol's domain `Network`, as far as they are recorded.

use serde::Deserialize;

use super::headers::Headers;

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct WillBeSent {
    pub(super) request_id: String,
    pub(super) request: Request,
    /// Seconds on a monotonic clock.
    pub(super) timestamp: f64,
    /// Seconds since 1970.
    pub(super) wall_time: f64,
    #[serde(default)]
    pub(super) redirect_has_extra_info: bool,
    /// The answer that redirected to this request.
    pub(super) redirect_response: Option<Response>,
    #[serde(default)]
    pub(super) r#type: String,
    #[serde(default)]
    pub(super) frame_id: String,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Request {
    pub(super) url: String,
    pub(super) method: String,
    pub(super) headers: Headers,
    pub(super) post_data: Option<String>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Response {
    pub(super) status: u16,
    pub(super) status_text: String,
    pub(super) headers: Headers,
    #[serde(default)]
    pub(super) mime_type: String,
    pub(super) protocol: Option<String>,
    #[serde(rename = "remoteIPAddress")]
    pub(super) remote_address: Option<String>,
    pub(super) connection_id: Option<f64>,
    #[serde(default)]
    pub(super) from_disk_cache: bool,
    #[serde(default)]
    pub(super) from_prefetch_cache: bool,
    pub(super) timing: Option<Timing>,
}

/// Milliseconds since `request_time`; below 0 if the phase did not happen.
#[derive(Debug, Clone, Copy, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Timing {
    /// Seconds on the clock of [`WillBeSent::timestamp`].
    pub(super) request_time: f64,
    pub(super) dns_start: f64,
    pub(super) connect_start: f64,
    pub(super) ssl_start: f64,
    pub(super) ssl_end: f64,
    pub(super) send_start: f64,
    pub(super) send_end: f64,
    pub(super) receive_headers_end: f64,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Received {
    pub(super) request_id: String,
    pub(super) response: Response,
    #[serde(default)]
    pub(super) r#type: String,
    #[serde(default)]
    pub(super) has_extra_info: bool,
}

/// Headers as they were on the wire.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct ExtraInfo {
    pub(super) request_id: String,
    pub(super) headers: Headers,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct OfRequest {
    pub(super) request_id: String,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Data {
    pub(super) request_id: String,
    pub(super) data_length: u64,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Finished {
    pub(super) request_id: String,
    pub(super) timestamp: f64,
    pub(super) encoded_data_length: f64,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Failed {
    pub(super) request_id: String,
    pub(super) timestamp: f64,
    #[serde(default)]
    pub(super) error_text: String,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct SocketCreated {
    pub(super) request_id: String,
    pub(super) url: String,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct SocketAsks {
    pub(super) request_id: String,
    pub(super) timestamp: f64,
    pub(super) wall_time: f64,
    pub(super) request: SocketRequest,
}

#[derive(Debug, Deserialize)]
pub(super) struct SocketRequest {
    pub(super) headers: Headers,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct SocketAnswered {
    pub(super) request_id: String,
    pub(super) response: Response,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct SocketFailed {
    pub(super) request_id: String,
    #[serde(default)]
    pub(super) error_message: String,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct SocketClosed {
    pub(super) request_id: String,
    pub(super) timestamp: f64,
}
