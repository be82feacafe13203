//! Why a sandbox ended.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// Why a sandbox has no processes any more, or does not exist any more.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Death {
    pub reason: DeathReason,
    /// The status with which its guest exited.
    pub exit_status: Option<i32>,
    /// The number of the signal that ended its guest.
    pub signal: Option<i32>,
    /// When the server noticed it.
    pub at: Timestamp,
    /// The same for people.
    pub message: String,
}

/// The kind of an end: stable across versions, for programs to match on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum DeathReason {
    /// The kernel killed its guest for want of memory. A command that is killed for want of memory does not end the sandbox.
    Oom,
    /// Its guest exited.
    Exit,
    /// A signal from outside the sandbox ended its guest.
    Killed,
    /// Its guest crashed: a fault, or a failed assertion.
    GuestFailed,
    /// The host was restarted.
    HostLost,
    /// Its node did not answer, and the cluster gave the node up.
    NodeLost,
    /// The engine did not find it, or could not read its record.
    RecordLost,
    /// Its guest ended, and nothing says how: no server was there, or the kernel does not report it (before Linux 6.15).
    Unknown,
    /// A request deleted it.
    Deleted,
    /// Its lifetime was over.
    Expired,
    /// It was idle, and its idle policy is to delete it.
    Idle,
    /// Its group ended.
    GroupEnded,
    /// The sandbox with the agent that created it ended.
    ParentEnded,
    /// Its node was drained, and the drain's deadline was over.
    NodeDrained,
    /// The server stopped, and was asked to remove all sandboxes.
    ServerStopped,
}

impl DeathReason {
    pub const ALL: [Self; 15] = [
        Self::Oom,
        Self::Exit,
        Self::Killed,
        Self::GuestFailed,
        Self::HostLost,
        Self::NodeLost,
        Self::RecordLost,
        Self::Unknown,
        Self::Deleted,
        Self::Expired,
        Self::Idle,
        Self::GroupEnded,
        Self::ParentEnded,
        Self::NodeDrained,
        Self::ServerStopped,
    ];

    pub fn as_str(self) -> &'static str {
        match self {
            Self::Oom => "oom",
            Self::Exit => "exit",
            Self::Killed => "killed",
            Self::GuestFailed => "guest_failed",
            Self::HostLost => "host_lost",
            Self::NodeLost => "node_lost",
            Self::RecordLost => "record_lost",
            Self::Unknown => "unknown",
            Self::Deleted => "deleted",
            Self::Expired => "expired",
            Self::Idle => "idle",
            Self::GroupEnded => "group_ended",
            Self::ParentEnded => "parent_ended",
            Self::NodeDrained => "node_drained",
            Self::ServerStopped => "server_stopped",
        }
    }

    /// Whether the server ended it to remove it: until then it lived.
    pub fn is_removal(self) -> bool {
        match self {
            Self::Deleted
            | Self::Expired
            | Self::Idle
            | Self::GroupEnded
            | Self::ParentEnded
            | Self::NodeDrained
            | Self::ServerStopped => true,
            Self::Oom
            | Self::Exit
            | Self::Killed
            | Self::GuestFailed
            | Self::HostLost
            | Self::NodeLost
            | Self::RecordLost
            | Self::Unknown => false,
        }
    }

    fn message(self) -> &'static str {
        match self {
            Self::Oom => "the kernel killed its guest for want of memory",
            Self::Exit => "its guest exited",
            Self::Killed => "its guest was killed",
            Self::GuestFailed => "its guest crashed",
            Self::HostLost => "the host was restarted",
            Self::NodeLost => "its node does not answer",
            Self::RecordLost => "the engine did not find it again",
            Self::Unknown => "its guest ended",
            Self::Deleted => "it was deleted",
            Self::Expired => "its lifetime was over",
            Self::Idle => "it was idle",
            Self::GroupEnded => "its group ended",
            Self::ParentEnded => "the sandbox that created it ended",
            Self::NodeDrained => "its node was drained",
            Self::ServerStopped => "the server stopped and removed all sandboxes",
        }
    }
}

impl Death {
    /// An end that is noticed now.
    pub fn new(reason: DeathReason) -> Self {
        Self::with_message(reason, reason.message())
    }

    pub fn with_message(reason: DeathReason, message: impl Into<String>) -> Self {
        Self { reason, exit_status: None, signal: None, at: Timestamp::now(), message: message.into() }
    }

    #[must_use]
    pub fn noticed_at(self, at: Timestamp) -> Self {
        Self { at, ..self }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reasons_are_written_as_they_are_named() {
        for reason in DeathReason::ALL {
            assert_eq!(serde_json::to_value(reason).unwrap(), reason.as_str());
            let death = Death::new(reason).noticed_at(Timestamp::UNIX_EPOCH);
            let text = serde_json::to_string(&death).unwrap();
            assert_eq!(serde_json::from_str::<Death>(&text).unwrap(), death);
        }
    }
}
