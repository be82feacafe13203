//! Each sandbox's record: a Secret, since it contains the sandbox's environment.

use std::collections::BTreeMap;

use arenite_model::{SandboxId, SandboxName, Tier};
use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::Secret;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde::{Deserialize, Serialize};

use crate::{INSTALLATION, SANDBOX, object_name};

/// The key of the record in the Secret.
const DATA: &str = "record";

/// What a start needs to find a sandbox again.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Record {
    pub(crate) id: SandboxId,
    /// None: created in advance, and not assigned yet.
    pub(crate) name: Option<SandboxName>,
    /// Content from which control recreates its row. The engine doesn't read it.
    pub(crate) memo: String,
    pub(crate) tier: Tier,
    /// Known once the pod has proven its identity. A record without it was never used.
    pub(crate) guest: Option<GuestIdentity>,
}

/// The identity of a pod's guest.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct GuestIdentity {
    pub(crate) pod_uid: String,
    /// The guest's public key.
    pub(crate) key: String,
}

impl Record {
    /// The Secret of this record.
    pub(crate) fn secret(&self, installation: &str) -> serde_json::Result<Secret> {
        let labels = [(INSTALLATION, installation), (SANDBOX, self.id.as_str())];
        Ok(Secret {
            metadata: ObjectMeta {
                name: Some(object_name(&self.id)),
                labels: Some(labels.map(|(key, value)| (key.to_owned(), value.to_owned())).into()),
                ..ObjectMeta::default()
            },
            type_: Some("arenite/sandbox".to_owned()),
            data: Some(BTreeMap::from([(DATA.to_owned(), ByteString(serde_json::to_vec(self)?))])),
            ..Secret::default()
        })
    }

    /// None: the Secret does not have a record of this sandbox.
    pub(crate) fn of_secret(id: &SandboxId, secret: &Secret) -> Option<Self> {
        let bytes = &secret.data.as_ref()?.get(DATA)?.0;
        serde_json::from_slice(bytes).ok().filter(|record: &Self| record.id == *id)
    }
}

/// The sandbox of an object's labels.
pub(crate) fn sandbox_of(metadata: &ObjectMeta) -> Option<SandboxId> {
    metadata.labels.as_ref()?.get(SANDBOX)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_is_read_as_it_was_written() {
        let id = SandboxId::random();
        let mut record = Record { id: id.clone(), name: None, memo: "m".to_owned(), tier: Tier::Namespace, guest: None };
        for guest in [None, Some(GuestIdentity { pod_uid: "u".to_owned(), key: "k".to_owned() })] {
            record.guest = guest;
            let secret = record.secret("here").unwrap();
            assert_eq!(sandbox_of(&secret.metadata), Some(id.clone()));
            assert_eq!(Record::of_secret(&id, &secret), Some(record.clone()));
            assert_eq!(Record::of_secret(&SandboxId::random(), &secret), None);
        }
    }
}
