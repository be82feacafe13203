//! The volumes of the previous server, at start.

use std::collections::HashMap;

use arenite_engine::Storage;
use arenite_model::VolumeId;

use super::{Memo, Volume};
use crate::store::RecordKind;
use crate::tenants::TenantLimits;
use crate::{Control, ControlError};

impl Control {
    /// Completes what a crash interrupted.
    pub(crate) async fn recover_volumes(&self) -> Result<(), ControlError> {
        if self.engine.volumes().is_none() {
            return Ok(());
        }
        let unread = ControlError::store("read the volumes");
        let records = self.store.records(RecordKind::Volume).await.map_err(&unread)?;
        let rows: Vec<Volume> = records.iter().map(Volume::read).collect::<Result<_, _>>().map_err(unread)?;
        let rows: HashMap<VolumeId, Volume> = rows.into_iter().map(|row| (row.id.clone(), row)).collect();
        let ids = self.on_storage(Storage::list_volumes).await?;
        for id in &ids {
            match rows.get(id) {
                None => self.explain_volume(id).await,
                Some(row) if !self.is_here(row) => {
                    tracing::warn!(%id, "a volume of another node is here; it stays unchanged");
                }
                Some(row) if row.is_removing => {}
                Some(row) => {
                    let (id, size_bytes) = (id.clone(), row.size_bytes);
                    if let Err(error) = self.on_storage(move |storage| storage.limit_volume(&id, size_bytes)).await {
                        tracing::error!(volume = %row.name, %error, "the size of a volume could not be set");
                    }
                    self.keep_memo(row).await;
                }
            }
        }
        for row in rows.values().filter(|row| self.is_here(row)) {
            if row.is_removing && row.bucket.is_some() {
                // A bucket that does not answer must not delay the start.
                let (control, row) = (self.shared(), row.clone());
                tokio::spawn(async move { control.complete_removal(&row).await });
            } else if row.is_removing {
                self.complete_removal(row).await;
            } else if ids.binary_search(&row.id).is_err() {
                tracing::error!(volume = %row.name, id = %row.id, "the files of a volume are gone; its row stays until it is removed");
            }
        }
        Ok(())
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
    async fn explain_volume(&self, id: &VolumeId) {
        let wanted = id.clone();
        let memo = self.on_storage(move |storage| Ok(storage.volume_memo(&wanted))).await.ok().flatten();
        let Some(memo) = memo else {
            let removed = id.clone();
            match self.on_storage(move |storage| storage.delete_volume(&removed)).await {
                Ok(()) => tracing::info!(%id, "removed a volume that was not completed"),
                Err(error) => tracing::error!(%id, %error, "a volume that was not completed could not be removed"),
            }
            return;
        };
        let restored = match serde_json::from_str::<Memo>(&memo) {
            Ok(Memo { tenant, name, stored }) if stored.id == *id => {
                let volume = Volume { node: self.own_node(), ..Volume::new(tenant, name, stored) };
                self.write_volume(&volume, None, &TenantLimits::default()).await.map_err(|error| error.to_string())
            }
            Ok(_) => Err("its memo is that of another one".to_owned()),
            Err(error) => Err(format!("its memo can't be read: {error}")),
        };
        match restored {
            Ok(()) => tracing::warn!(%id, "the store had lost a volume; its row is made again from its memo"),
            Err(reason) => tracing::error!(%id, reason, "a volume has no row, and stays on the disk without one"),
        }
    }
}
