//! The volumes of the previous server, at start.

use std::collections::{HashMap, HashSet};

use arenite_model::VolumeId;

use super::place::{FoundVolume, VolumePlace};
use super::{Memo, Volume};
use crate::store::RecordKind;
use crate::tenants::TenantLimits;
use crate::{Control, ControlError};

impl Control {
    /// Completes what a crash interrupted.
    pub(crate) async fn recover_volumes(&self) -> Result<(), ControlError> {
        let Ok(place) = self.volume_place() else { return Ok(()) };
        let unread = ControlError::store("read the volumes");
        let records = self.store.records(RecordKind::Volume).await.map_err(&unread)?;
        let rows: Vec<Volume> = records.iter().map(Volume::read).collect::<Result<_, _>>().map_err(unread)?;
        let rows: HashMap<VolumeId, Volume> = rows.into_iter().map(|row| (row.id.clone(), row)).collect();
        let found = match place.list().await {
            Ok(found) => found,
            // Sandboxes without volumes need no right to claims.
            Err(error) if matches!(place, VolumePlace::Cluster(_)) => {
                let hint = error.hint();
                tracing::error!(%error, hint, "the volumes of the cluster could not be looked for; the next start tries again");
                return Ok(());
            }
            Err(error) => return Err(error),
        };
        for found in &found {
            match rows.get(&found.id) {
                None => self.explain_volume(&place, found).await,
                Some(row) if !self.is_here(row) => {
                    tracing::warn!(id = %row.id, "a volume of another node is here; it stays unchanged");
                }
                Some(row) if row.is_removing => {}
                Some(row) => self.settle_volume(&place, row, found).await,
            }
        }
        let ids: HashSet<&VolumeId> = found.iter().map(|found| &found.id).collect();
        for row in rows.values().filter(|row| self.is_here(row)) {
            if row.is_removing && row.bucket.is_some() {
                // A bucket that does not answer must not delay the start.
                let (control, row) = (self.shared(), row.clone());
                tokio::spawn(async move { control.complete_removal(&row).await });
            } else if row.is_removing {
                self.complete_removal(row).await;
            } else if !ids.contains(&row.id) {
                tracing::error!(volume = %row.name, id = %row.id, "the files of a volume are gone; its row stays until it is removed");
            }
        }
        Ok(())
    }

    /// Gives a volume the size of its row, and the memo.
    async fn settle_volume(&self, place: &VolumePlace, row: &Volume, found: &FoundVolume) {
        let has_memo = row.memo().is_ok_and(|memo| found.memo.as_ref() == Some(&memo));
        // The memo is written after a claim has grown.
        if has_memo && matches!(place, VolumePlace::Cluster(_)) {
            return;
        }
        match place.resize(row).await {
            Ok(()) if has_memo => {}
            Ok(()) => self.keep_memo(place, row).await,
            Err(error) => tracing::error!(volume = %row.name, %error, "the size of a volume could not be set"),
        }
    }

    async fn complete_removal(&self, row: &Volume) {
        match self.carry_out_removal(row, false).await {
            Ok(()) => tracing::info!(volume = %row.name, id = %row.id, "completed the removal of a volume"),
            Err(error) => {
                tracing::error!(volume = %row.name, id = %row.id, %error, "a volume could not be removed; the next start tries again");
            }
        }
    }

    /// A volume without a row: its creation was interrupted, or the store has lost the row.
    async fn explain_volume(&self, place: &VolumePlace, found: &FoundVolume) {
        let id = &found.id;
        let Some(memo) = &found.memo else {
            match place.remove(id).await {
                Ok(()) => tracing::info!(%id, "removed a volume that was not completed"),
                Err(error) => tracing::error!(%id, %error, "a volume that was not completed could not be removed"),
            }
            return;
        };
        let restored = match serde_json::from_str::<Memo>(memo) {
            Ok(Memo { tenant, name, stored }) if stored.id == *id => {
                let volume = Volume { node: self.node_of_new_volume(), ..Volume::new(tenant, name, stored) };
                self.write_volume(&volume, None, &TenantLimits::default()).await.map_err(|error| error.to_string())
            }
            Ok(_) => Err("its memo is that of another one".to_owned()),
            Err(error) => Err(format!("its memo can't be read: {error}")),
        };
        match restored {
            Ok(()) => tracing::warn!(%id, "the store had lost a volume; its row is made again from its memo"),
            Err(reason) => tracing::error!(%id, reason, "a volume has no row, and stays without one"),
        }
    }
}
