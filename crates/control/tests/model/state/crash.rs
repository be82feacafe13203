//! What a crash and a start may change.

use super::*;

impl Model {
    /// Compares what a crash left with what the operations at that time explain, and goes on from there.
    pub(crate) fn reconcile(
        &mut self,
        rows: &[Sandbox],
        engine: &FakeEngine,
        records: &BTreeMap<(u8, u8), (String, Option<String>)>,
        during: &[(Bound, Option<Outcome>)],
        begun: Timestamp,
        is_rebooted: bool,
    ) -> Checked {
        let ops = || during.iter().map(|(bound, _)| bound);
        let kept: BTreeMap<&SandboxId, &Sandbox> = rows.iter().map(|row| (&row.id, row)).collect();
        let half = |row: &Sandbox| matches!(row.state, SandboxState::Creating | SandboxState::Deleting);
        for row in rows.iter().filter(|row| !half(row)) {
            if let Some(above) = row.provenance.ancestors.iter().find(|above| !kept.contains_key(above)) {
                return Err(format!("sandbox {above} was removed before one below it: {row:?}"));
            }
        }
        let before = self.clone();
        // One that was woken, started or extended may have come to its end in the same wait.
        let waits = ops().any(|op| matches!(op.op, Op::Wait(_)));
        let was_changed = |held: &Held| {
            let is_idle = held.row.spec.idle_timeout_seconds.is_some() && ops().any(|op| op.may_change(held));
            waits && (is_idle || ops().any(|op| op.may_extend(held)))
        };
        let came_to_end = |held: &Held| {
            let above = held.row.provenance.ancestors.iter().filter_map(|id| before.sandboxes.get(id));
            was_changed(held) || above.into_iter().any(was_changed)
        };
        for held in before.sandboxes.values() {
            let id = &held.row.id;
            let found = engine.found(id);
            let is_gone = kept.get(id).is_none_or(|row| half(row));
            if is_gone
                && held.row.state != SandboxState::Deleting
                && !came_to_end(held)
                && !ops().any(|op| op.may_end(held, &before))
            {
                return Err(format!("the crash lost sandbox {}: {:?}, {found:?}", held.row.name, kept.get(id)));
            }
            if let Some(row) = kept.get(id).filter(|row| row.expires_at != held.row.expires_at && !is_gone) {
                if !ops().any(|op| op.may_extend(held)) {
                    return Err(format!("the crash changed the end of sandbox {}: {row:?}", held.row.name));
                }
                self.sandboxes.get_mut(id).expect("it is from there").row.expires_at = row.expires_at;
            }
            let state = match (kept.get(id), found) {
                _ if is_gone => {
                    if held.is_dead() && ops().any(|op| op.may_change(held)) {
                        // It may have run for a while before its end.
                        let now = self.now;
                        self.sandboxes.get_mut(id).expect("it is from there").metered.resume_between(begun, now);
                    }
                    // The start removes one that was left in state deleting before.
                    if held.row.state != SandboxState::Deleting || !kept.contains_key(id) {
                        // Those below it may be untouched yet: the start ends them.
                        self.remove_one(id);
                    }
                    continue;
                }
                (_, Some(FoundState::Running)) => SandboxState::Running,
                (_, Some(FoundState::Paused)) => SandboxState::Paused,
                (Some(row), Some(FoundState::Lost(_))) if held.is_dead() => {
                    let is_half = !matches!(row.state, SandboxState::Failed | SandboxState::Lost);
                    if is_half && !ops().any(|op| op.may_change(held)) {
                        return Err(format!("the crash changed the dead sandbox {} to {row:?}", held.row.name));
                    }
                    self.sandboxes.get_mut(id).expect("it is from there").is_half_started = is_half;
                    continue;
                }
                (row, found) => return Err(format!("sandbox {} has the row {row:?} and is {found:?}", held.row.name)),
            };
            if state != held.row.state && !ops().any(|op| op.may_change(held) || matches!(op.op, Op::Wait(_))) {
                return Err(format!("the crash changed sandbox {} from {} to {state}", held.row.name, held.row.state));
            }
            if state != held.row.state {
                if held.is_dead() {
                    let now = self.now;
                    self.sandboxes.get_mut(id).expect("it is from there").metered.resume_between(begun, now);
                }
                self.set(id, state);
            }
        }
        for row in rows.iter().filter(|row| !half(row)) {
            if self.sandboxes.contains_key(&row.id) {
                continue;
            }
            if !ops().any(|op| op.may_create(row)) {
                return Err(format!("the crash left a sandbox that no operation created: {row:?}"));
            }
            // The row of a claim is written first. Without the claim, the start removes both; after a reboot, it is lost.
            if engine.is_pooled(&row.id) && !is_rebooted {
                continue;
            }
            self.insert(row.clone());
            if engine.found(&row.id) == Some(FoundState::Paused) {
                self.set(&row.id, SandboxState::Paused);
            }
        }
        self.check_acknowledged(during)?;
        self.reconcile_records(records, during)
    }

    /// What was answered before the crash must be there after it, unless another operation explains it.
    fn check_acknowledged(&self, during: &[(Bound, Option<Outcome>)]) -> Checked {
        for (at, (bound, outcome)) in during.iter().enumerate() {
            let others = || during.iter().enumerate().filter(|(other, _)| *other != at).map(|(_, (bound, _))| bound);
            match outcome {
                Some(Outcome::Made(made)) if matches!(bound.op, Op::Create(_)) => {
                    let may_be_due = made.expires_at.is_some()
                        || made.spec.idle_timeout_seconds.is_some()
                        || made.provenance.group.is_some()
                        || !made.provenance.ancestors.is_empty();
                    let ended = others().any(|other| match other.op {
                        Op::Wait(_) => may_be_due,
                        Op::Delete(_) | Op::EndGroup { .. } => other.op.tenant() == bound.op.tenant(),
                        _ => false,
                    });
                    if !self.sandboxes.contains_key(&made.id) && !ended {
                        return Err(format!("the crash lost a sandbox that was answered: {made:?}"));
                    }
                }
                Some(Outcome::Done) if matches!(bound.op, Op::Delete(_)) => {
                    let there = self
                        .owned_by(bound.op.tenant().expect("a delete has one"))
                        .any(|held| Some(&held.row.name) == bound.name.as_ref());
                    if there && !others().any(|other| matches!(other.op, Op::Create(_)) && other.name == bound.name) {
                        return Err(format!("a deleted sandbox came back: {bound:?}"));
                    }
                }
                _ => {}
            }
        }
        Ok(())
    }

    fn reconcile_records(
        &mut self,
        records: &BTreeMap<(u8, u8), (String, Option<String>)>,
        during: &[(Bound, Option<Outcome>)],
    ) -> Checked {
        for tenant in 0..TENANTS.len() as u8 {
            let found: BTreeMap<u8, RecordModel> = records
                .iter()
                .filter(|((of, _), _)| *of == tenant)
                .map(|((_, key), (fingerprint, answer))| {
                    (*key, RecordModel { fingerprint: fingerprint.clone(), answer: answer.clone() })
                })
                .collect();
            let is_used = |key: u8| {
                during.iter().any(|(bound, _)| match &bound.op {
                    Op::Create(create) => create.tenant == tenant && create.key == Some(key),
                    Op::Batch { tenant: of, key: used, .. } => *of == tenant && *used == Some(key),
                    _ => false,
                })
            };
            let known = &self.tenant(tenant).records;
            let keys: BTreeSet<u8> = found.keys().chain(known.keys()).copied().collect();
            if let Some(key) = keys.into_iter().find(|key| found.get(key) != known.get(key) && !is_used(*key)) {
                return Err(format!("the crash changed key {key} from {:?} to {:?}", known.get(&key), found.get(&key)));
            }
            self.tenant_mut(tenant).records = found;
        }
        Ok(())
    }

    /// A server that was killed: what it had not written is lost.
    pub(crate) fn crash(&mut self, is_rebooted: bool, during: &[(Bound, Option<Outcome>)]) {
        let now = self.now;
        let waited = |(bound, _): &(Bound, Option<Outcome>)| if let Op::Wait(seconds) = bound.op { seconds as f64 } else { 0.0 };
        let unread = UNREAD + during.iter().map(waited).sum::<f64>();
        // Calls that may have been counted.
        for (bound, _) in during.iter().filter(|(bound, _)| matches!(bound.op, Op::Call { .. })) {
            let all = self.sandboxes.values_mut().chain(&mut self.gone);
            let called =
                all.filter(|held| Some(held.tenant()) == bound.op.tenant() && Some(&held.row.name) == bound.name.as_ref());
            called.for_each(|held| held.metered.call(now));
        }
        for held in self.sandboxes.values_mut() {
            held.metered.lose(now, unread);
            if is_rebooted && held.is_alive() {
                held.metered.end_unread(now, unread);
            }
        }
        self.gone.iter_mut().for_each(|held| held.metered.lose(now, unread));
    }

    /// Takes over groups that operations at the crash may have changed. `groups` has what the store has: lease and ending.
    pub(crate) fn reconcile_groups(
        &mut self,
        groups: &BTreeMap<(u8, u8), (u64, bool)>,
        during: &[(Bound, Option<Outcome>)],
    ) -> Checked {
        for tenant in 0..TENANTS.len() as u8 {
            for group in 0..crate::op::GROUPS {
                let found = groups.get(&(tenant, group)).map(|(ttl, is_ending)| (*ttl, *is_ending));
                let known = self.tenant(tenant).groups.get(&group).map(|known| (known.ttl.as_secs(), known.is_ending));
                let is_touched = during.iter().any(|(bound, _)| match &bound.op {
                    Op::OpenGroup { tenant: of, group: which, .. }
                    | Op::RenewGroup { tenant: of, group: which, .. }
                    | Op::EndGroup { tenant: of, group: which } => (*of, *which) == (tenant, group),
                    Op::Wait(_) => true,
                    _ => false,
                });
                let has_lapsed = self.tenant(tenant).groups.get(&group).is_some_and(|known| known.expires_at <= self.now);
                // Those that were due by themselves, or deleted by name, say nothing about the group.
                let is_named = |held: &Held| {
                    let deletes =
                        |bound: &Bound| matches!(bound.op, Op::Delete(_)) && bound.name.as_ref() == Some(&held.row.name);
                    during.iter().any(|(bound, _)| deletes(bound))
                };
                let lost = self.gone.iter().any(|held| {
                    held.tenant() == tenant
                        && held.group() == Some(group)
                        && self.doomed.contains(&held.row.id)
                        && Self::due(held).is_none_or(|(at, _)| at > self.now)
                        && !is_named(held)
                });
                if has_lapsed && lost && found.is_some_and(|(_, is_ending)| !is_ending) {
                    return Err(format!(
                        "group {group} of {tenant} was ending, and goes on after the crash without some of its sandboxes"
                    ));
                }
                if found != known && !is_touched {
                    return Err(format!("the crash changed group {group} of {tenant} from {known:?} to {found:?}"));
                }
                let expires_at = self.now;
                match found {
                    Some((ttl, is_ending)) => {
                        let model = GroupModel { ttl: Duration::from_secs(ttl), expires_at, is_ending };
                        self.tenant_mut(tenant).groups.insert(group, model);
                    }
                    None => drop(self.tenant_mut(tenant).groups.remove(&group)),
                }
            }
        }
        Ok(())
    }

    /// A start of the server. Time has passed.
    pub(crate) fn restart(&mut self, is_rebooted: bool) {
        let now = self.now;
        let is_half = |held: &&Held| held.row.state == SandboxState::Deleting;
        let half: Vec<SandboxId> = self.sandboxes.values().filter(is_half).map(|held| held.row.id.clone()).collect();
        half.iter().for_each(|id| self.remove(id));
        for held in self.sandboxes.values_mut() {
            held.leases = 0;
            held.idle_from = now;
            if is_rebooted && held.is_alive() || std::mem::take(&mut held.is_half_started) {
                held.row.state = SandboxState::Lost;
                held.since = now;
            }
        }
        loop {
            let is_there = |id: &SandboxId| self.sandboxes.get(id).is_some_and(Held::is_alive);
            let orphan = self.sandboxes.values().find(|held| !held.row.provenance.ancestors.iter().all(is_there));
            let Some(orphan) = orphan.map(|held| held.row.id.clone()) else { break };
            self.remove(&orphan);
        }
        for tenant in &mut self.tenants {
            for group in tenant.groups.values_mut() {
                group.expires_at = if group.is_ending { now } else { now + group.ttl };
            }
        }
        self.reap();
    }
}
