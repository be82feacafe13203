//! Who uses a volume now, so that it is not removed meanwhile.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use arenite_model::VolumeId;

use super::Volume;
use crate::{Control, ControlError};

/// Uses of volumes that no sandbox's row shows.
#[derive(Default)]
pub(crate) struct VolumeUses {
    state: Mutex<UsesState>,
}

#[derive(Default)]
struct UsesState {
    /// The number of creates and copies in progress.
    used: HashMap<VolumeId, usize>,
    removing: HashSet<VolumeId>,
}

impl VolumeUses {
    fn state(&self) -> MutexGuard<'_, UsesState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Volumes that can't be removed while this is held.
pub(crate) struct HeldVolumes {
    control: Arc<Control>,
    ids: Vec<VolumeId>,
}

impl Drop for HeldVolumes {
    fn drop(&mut self) {
        let mut state = self.control.volume_uses.state();
        for id in &self.ids {
            if let Some(used) = state.used.get_mut(id) {
                *used -= 1;
                if *used == 0 {
                    state.used.remove(id);
                }
            }
        }
    }
}

/// A removal in progress.
pub(super) struct Removing {
    control: Arc<Control>,
    id: VolumeId,
}

impl Drop for Removing {
    fn drop(&mut self) {
        self.control.volume_uses.state().removing.remove(&self.id);
    }
}

impl Control {
    pub(super) fn begin_removal(&self, volume: &Volume) -> Result<Removing, ControlError> {
        let mut state = self.volume_uses.state();
        if state.used.contains_key(&volume.id) {
            return Err(ControlError::VolumeBusy { name: volume.name.clone() });
        }
        if !state.removing.insert(volume.id.clone()) {
            return Err(ControlError::VolumeRemoving { name: volume.name.clone() });
        }
        Ok(Removing { control: self.shared(), id: volume.id.clone() })
    }

    pub(super) fn hold_volumes(&self, volumes: &[&Volume]) -> Result<HeldVolumes, ControlError> {
        let mut state = self.volume_uses.state();
        if let Some(removing) = volumes.iter().find(|volume| volume.is_removing || state.removing.contains(&volume.id)) {
            return Err(ControlError::VolumeRemoving { name: removing.name.clone() });
        }
        let ids: Vec<VolumeId> = volumes.iter().map(|volume| volume.id.clone()).collect();
        for id in &ids {
            *state.used.entry(id.clone()).or_default() += 1;
        }
        drop(state);
        Ok(HeldVolumes { control: self.shared(), ids })
    }
}
