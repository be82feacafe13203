//! The names of an archive's objects.
//!
//! ```text
//! TENANT/index/TIME.ID                 a summary as JSON; TIME descends, so that the newest is the first of a list
//! TENANT/logs/ID/TIME-BLAKE3           the log, as the node wrote it
//! TENANT/bodies/ID/TIME/BLAKE3         a body that the log refers to
//! ```
//!
//! TIME is that of a trajectory's first step. So a worker that is used again with the same name, on another node or after its log
//! was dropped, does not replace what it did before.

use arenite_model::TenantId;
use jiff::Timestamp;

/// The names of one trajectory's objects.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Names {
    pub(super) index: String,
    logs: String,
    pub(super) bodies: String,
}

impl Names {
    pub(super) fn new(tenant: &TenantId, trajectory: &str, first_at: Timestamp) -> Self {
        Self::at(tenant, trajectory, &time(first_at))
    }

    fn at(tenant: &TenantId, trajectory: &str, time: &str) -> Self {
        Self {
            index: format!("{}/{time}.{trajectory}", index_folder(tenant)),
            logs: format!("{}/{time}-", logs_folder(tenant, trajectory)),
            bodies: format!("{tenant}/bodies/{trajectory}/{time}"),
        }
    }

    /// Of the trajectory with this log.
    pub(super) fn of_log(tenant: &TenantId, trajectory: &str, log: &str) -> Option<Self> {
        let (time, _) = log.strip_prefix(&logs_folder(tenant, trajectory))?.strip_prefix('/')?.split_once('-')?;
        Some(Self::at(tenant, trajectory, time))
    }

    pub(super) fn log(&self, digest: &str) -> String {
        format!("{}{digest}", self.logs)
    }

    pub(super) fn body(&self, digest: &str) -> String {
        format!("{}/{digest}", self.bodies)
    }
}

pub(super) fn index_folder(tenant: &TenantId) -> String {
    format!("{tenant}/index")
}

pub(super) fn logs_folder(tenant: &TenantId, trajectory: &str) -> String {
    format!("{tenant}/logs/{trajectory}")
}

/// The name in the index of an entry at a position: the time of its first step, in microseconds since 1970, and its id.
pub(super) fn index_at(tenant: &TenantId, first_at: i64, trajectory: &str) -> String {
    format!("{}/{}.{trajectory}", index_folder(tenant), inverted(first_at))
}

/// The position of an entry in the index.
pub(super) fn position(index: &str) -> Option<(i64, String)> {
    let (time, trajectory) = index.rsplit_once('/')?.1.split_once('.')?;
    let micros = u64::MAX - u64::from_str_radix(time, 16).ok()?;
    Some((i64::try_from(micros).ok()?, trajectory.to_owned()))
}

fn time(at: Timestamp) -> String {
    inverted(at.as_microsecond())
}

fn inverted(micros: i64) -> String {
    format!("{:016x}", u64::MAX - micros.max(0).unsigned_abs())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_sort_as_lists_do() {
        let tenant = TenantId::default_tenant();
        let at = |text: &str| text.parse::<Timestamp>().unwrap();
        let (old, new) = (at("2026-01-01T00:00:00Z"), at("2026-01-01T00:00:00.000001Z"));
        let names = |id: &str, at| Names::new(&tenant, id, at);
        let mut sorted = [names("a", old).index, names("b", new).index, names("a-b", old).index, names("a", new).index];
        sorted.sort();
        let positions: Vec<_> = sorted.iter().map(|name| position(name).unwrap()).collect();
        let place = |at: Timestamp, id: &str| (at.as_microsecond(), id.to_owned());
        assert_eq!(positions, [place(new, "a"), place(new, "b"), place(old, "a"), place(old, "a-b")]);
        assert_eq!(index_at(&tenant, old.as_microsecond(), "a"), names("a", old).index);
        assert_eq!(Names::of_log(&tenant, "a", &names("a", old).log("abc")), Some(names("a", old)));
        assert_eq!(Names::of_log(&tenant, "b", &names("a", old).log("abc")), None);
        assert_eq!(position("default/index/x"), None);
    }
}
