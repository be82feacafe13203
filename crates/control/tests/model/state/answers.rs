//! Which answers to operations are right, and what they change.

use super::*;

impl Model {
    /// Checks the answer to an operation, and does it.
    pub(crate) fn apply(&mut self, bound: &Bound, outcome: &Outcome, rivals: &Rivals) -> Checked {
        if let Outcome::Refused(Refusal::Engine, _) = outcome
            && rivals.faults == 0
        {
            return Err(format!("the engine failed by itself: {outcome:?}"));
        }
        let target = || bound.op.target().zip(bound.name.as_ref()).and_then(|(target, name)| self.find(target.tenant, name));
        match &bound.op {
            Op::Create(create) => self.create(create, bound, outcome, rivals),
            Op::Batch { tenant, count, min, size, key } => {
                self.batch(*tenant, (*count, *min), *size, *key, bound, outcome, rivals)
            }
            Op::Pause(_) | Op::Resume(_) | Op::Start(_) | Op::Call { .. } => {
                let found = target();
                self.change(found, bound, outcome, rivals)
            }
            Op::Extend { seconds, from_now, .. } => {
                let found = target();
                self.extend(found, *seconds, *from_now, bound, outcome, rivals)
            }
            Op::Delete(_) => {
                let found = target();
                self.delete(found, bound, outcome, rivals)
            }
            Op::Release(tenant) => {
                let now = self.now;
                for held in self.sandboxes.values_mut().filter(|held| held.tenant() == *tenant && held.leases > 0) {
                    held.leases = 0;
                    held.idle_from = now;
                }
                Ok(())
            }
            Op::End(_) => {
                let found = target().filter(|id| self.sandboxes[id].is_alive());
                if let (Some(id), Outcome::Done) = (found, outcome) {
                    let now = self.now;
                    self.set(&id, SandboxState::Failed);
                    self.sandboxes.get_mut(&id).expect("it was found").metered.end_unread(now, UNREAD);
                    let below: Vec<_> =
                        self.sandboxes.values().filter(|held| held.is_below(&id)).map(|held| held.row.id.clone()).collect();
                    below.iter().for_each(|id| self.remove(id));
                }
                Ok(())
            }
            Op::OpenGroup { tenant, group, ttl } => {
                let expires_at = self.now + Duration::from_secs(*ttl);
                let groups = &mut self.tenant_mut(*tenant).groups;
                match (groups.contains_key(group), outcome) {
                    (true, Outcome::Refused(Refusal::GroupExists, _)) => Ok(()),
                    (false, Outcome::Group(made)) if made.expires_at == expires_at && !made.is_ending => {
                        groups.insert(*group, GroupModel { ttl: Duration::from_secs(*ttl), expires_at, is_ending: false });
                        Ok(())
                    }
                    (exists, other) => expected(("a group, exists:", exists), other),
                }
            }
            Op::RenewGroup { tenant, group, ttl } => {
                let now = self.now;
                match (self.tenant_mut(*tenant).groups.get_mut(group), outcome) {
                    (None, Outcome::Refused(Refusal::NoGroup, _)) => Ok(()),
                    (Some(GroupModel { is_ending: true, .. }), Outcome::Refused(Refusal::GroupEnding, _)) => Ok(()),
                    (Some(model), Outcome::Group(group)) if !model.is_ending => {
                        model.ttl = ttl.map_or(model.ttl, Duration::from_secs);
                        model.expires_at = now + model.ttl;
                        if group.expires_at == model.expires_at { Ok(()) } else { expected(model, outcome) }
                    }
                    // The end of a group is not one moment.
                    (_, Outcome::Refused(Refusal::GroupEnding | Refusal::NoGroup, _)) if rivals.end_group(*tenant, *group) => {
                        Ok(())
                    }
                    (model, other) => expected(model, other),
                }
            }
            Op::EndGroup { tenant, group } => self.end_group(*tenant, *group, outcome, rivals),
            Op::Limit { tenant, quota, limit } => {
                self.tenant_mut(*tenant).limits.set(*quota, *limit).expect("a limit in bounds");
                is_done(outcome)
            }
            Op::NewKey { tenant, role, life } => {
                let (now, end) = (self.now, life.map(|life| self.now + Duration::from_secs(life)));
                match outcome {
                    Outcome::Key(NewKey { id, text, expires_at }) if *expires_at == end => {
                        let (id, text) = (id.clone(), text.clone());
                        let key = KeyModel { id, text, role: *role, created_at: now, expires_at: end, revoked: false };
                        self.tenant_mut(*tenant).keys.push(key);
                        Ok(())
                    }
                    Outcome::Skipped => Ok(()),
                    other => expected(end, other),
                }
            }
            Op::RotateKey { tenant, which, overlap } => self.rotate(*tenant, *which, *overlap, outcome),
            Op::RevokeKey { tenant, which } => match (self.tenant_mut(*tenant).keys.get_mut(usize::from(*which)), outcome) {
                (None, Outcome::Skipped) => Ok(()),
                (Some(key), Outcome::Done) => {
                    key.revoked = true;
                    Ok(())
                }
                (key, other) => expected(key, other),
            },
            Op::Disable { tenant, disabled } => {
                self.tenant_mut(*tenant).disabled = *disabled;
                is_done(outcome)
            }
            Op::Wait(_) => {
                self.reap();
                is_done(outcome)
            }
        }
    }

    fn rotate(&mut self, tenant: u8, which: u8, overlap: u64, outcome: &Outcome) -> Checked {
        let now = self.now;
        let Some(old) = self.tenant(tenant).keys.get(usize::from(which)).cloned() else {
            return if matches!(outcome, Outcome::Skipped) { Ok(()) } else { expected("no key", outcome) };
        };
        match outcome {
            Outcome::Refused(Refusal::KeyEnded, _) if !self.is_valid(&old) => Ok(()),
            Outcome::Key(NewKey { id, text, expires_at }) if self.is_valid(&old) => {
                let life = old.expires_at.map(|end| end.duration_since(old.created_at));
                let end = life.map(|life| now + life);
                if *expires_at != end {
                    return expected(end, outcome);
                }
                let overlap = now + Duration::from_secs(overlap);
                let keys = &mut self.tenant_mut(tenant).keys;
                let key = &mut keys[usize::from(which)];
                key.expires_at = Some(key.expires_at.map_or(overlap, |end| end.min(overlap)));
                keys.push(KeyModel { id: id.clone(), text: text.clone(), created_at: now, expires_at: end, ..old });
                Ok(())
            }
            other => expected(old, other),
        }
    }

    /// Why a create must be refused, in the order of the server's checks.
    fn refusal(&self, create: &Create, parent: Option<&SandboxId>, rivals: &[[u64; 4]]) -> Option<Refusal> {
        let chain = match self.ancestors(create, parent) {
            Ok(chain) => chain,
            Err(refusal) => return Some(refusal),
        };
        if let Some(group) = create.group {
            match self.tenant(create.tenant).groups.get(&group) {
                None => return Some(Refusal::NoGroup),
                Some(GroupModel { is_ending: true, .. }) => return Some(Refusal::GroupEnding),
                Some(_) => {}
            }
        }
        let name = create.name.map(|name| NAMES[usize::from(name)].parse().expect("a name of the test"));
        if name.is_some_and(|name| self.find(create.tenant, &name).is_some()) {
            return Some(Refusal::Exists);
        }
        if self.sandboxes.len() + rivals.len() >= MAX_SANDBOXES {
            return Some(Refusal::Full);
        }
        let used = rivals.iter().copied().fold(self.reserved(create.tenant), add);
        if let Some(quota) = self.exceeded(create.tenant, used, reserve_of(create.size)) {
            return Some(Refusal::Quota(quota));
        }
        if self.tenant(create.tenant).limits.concurrent_creates.is_some_and(|limit| rivals.len() as u64 >= limit) {
            return Some(Refusal::Quota(Quota::ConcurrentCreates));
        }
        self.over_budget(&chain, reserve_of(create.size), rivals).then_some(Refusal::OverBudget)
    }

    /// The sandboxes above a new one.
    fn ancestors(&self, create: &Create, parent: Option<&SandboxId>) -> Result<Vec<SandboxId>, Refusal> {
        let Some(parent) = parent else { return Ok(Vec::new()) };
        let parent = self.sandboxes.get(parent).ok_or(Refusal::Missing)?;
        if parent.row.provenance.child_budget.is_none() || !parent.is_alive() {
            return Err(Refusal::NotBelow);
        }
        let chain: Vec<SandboxId> = parent.row.provenance.ancestors.iter().chain([&parent.row.id]).cloned().collect();
        let own = create.budget.map_or(0, |(_, depth)| depth);
        for (distance, id) in (1..).zip(chain.iter().rev()) {
            let budget =
                self.sandboxes.get(id).and_then(|held| held.row.provenance.child_budget.as_ref()).ok_or(Refusal::NotBelow)?;
            if distance + own > budget.depth {
                return Err(Refusal::OverBudget);
            }
        }
        Ok(chain)
    }

    fn over_budget(&self, chain: &[SandboxId], wanted: [u64; 4], rivals: &[[u64; 4]]) -> bool {
        chain.iter().any(|id| {
            let below = self.sandboxes.values().filter(|held| held.is_below(id)).map(|held| {
                let resources = &held.row.spec.resources;
                [1, resources.cpu_millis.into(), resources.memory_bytes, 0]
            });
            let used = below.chain(rivals.iter().copied()).fold(wanted, add);
            self.sandboxes.get(id).and_then(|held| held.row.provenance.child_budget.as_ref()).is_some_and(|budget| {
                used[0] > budget.sandboxes.into() || used[1] > budget.cpu_millis || used[2] > budget.memory_bytes
            })
        })
    }

    /// The quota that a sandbox exceeds: one that it exceeds alone before others.
    fn exceeded(&self, tenant: u8, used: [u64; 4], wanted: [u64; 4]) -> Option<Quota> {
        let limits = &self.tenant(tenant).limits;
        let quotas = [Quota::Sandboxes, Quota::CpuMillis, Quota::MemoryBytes, Quota::DiskBytes];
        let over = |(at, quota): (usize, &Quota)| {
            let limit = limits.get(*quota).filter(|limit| used[at] + wanted[at] > *limit)?;
            Some((wanted[at] <= limit, *quota))
        };
        let over: Vec<_> = quotas.iter().enumerate().filter_map(over).collect();
        over.iter().find(|(is_temporary, _)| !is_temporary).or(over.first()).map(|(_, quota)| *quota)
    }

    fn create(&mut self, create: &Create, bound: &Bound, outcome: &Outcome, rivals: &Rivals) -> Checked {
        if create.parent.is_some() && bound.parent.is_none() {
            return if matches!(outcome, Outcome::Skipped) { Ok(()) } else { expected("no parent", outcome) };
        }
        let print = fingerprint(&bound.op);
        if let Some(key) = create.key
            && let Some(record) = self.tenant(create.tenant).records.get(&key)
        {
            match (record, outcome) {
                (record, Outcome::Refused(Refusal::KeyReused, _)) if record.fingerprint != print => return Ok(()),
                (record, other) if record.fingerprint != print => return expected(record, other),
                (RecordModel { answer: Some(body), .. }, Outcome::Replayed(replayed)) if body == replayed => return Ok(()),
                (RecordModel { answer: Some(_), .. }, other) => return expected(record, other),
                // The create ended with its server: what is left of it is the answer.
                (RecordModel { answer: None, .. }, _) => {
                    if let Some(left) = self.left(create.tenant, key, &print).first() {
                        return match outcome {
                            Outcome::Made(sandbox) if sandbox.id == *left => {
                                self.answer(create.tenant, key, print, &[(**sandbox).clone()]);
                                Ok(())
                            }
                            other => expected(left, other),
                        };
                    }
                }
            }
        }
        let refusal = self.refusal(create, bound.parent.as_ref(), &[]);
        match (outcome, refusal) {
            (Outcome::Made(sandbox), None) => {
                self.check_made(create, bound, sandbox)?;
                self.insert((**sandbox).clone());
                if let Some(key) = create.key {
                    self.answer(create.tenant, key, print, &[(**sandbox).clone()]);
                }
                return Ok(());
            }
            (Outcome::Refused(found, _), Some(refusal)) if *found == refusal => {}
            (Outcome::Refused(Refusal::Engine, _), None) if rivals.faults > 0 => {}
            (Outcome::Refused(found, _), _) if self.is_excused(*found, create, bound, rivals) => {}
            (other, refusal) => return expected(refusal, other),
        }
        if let Some(key) = create.key {
            self.tenant_mut(create.tenant).records.remove(&key);
        }
        Ok(())
    }

    fn answer(&mut self, tenant: u8, key: u8, fingerprint: String, sandboxes: &[Sandbox]) {
        let answer = Some(answer_of(sandboxes).to_string());
        self.tenant_mut(tenant).records.insert(key, RecordModel { fingerprint, answer });
    }

    /// The sandboxes that an interrupted create with this key left, by position.
    fn left(&self, tenant: u8, key: u8, fingerprint: &str) -> Vec<SandboxId> {
        let mut left: Vec<_> = self
            .owned_by(tenant)
            .filter(|held| held.row.state != SandboxState::Deleting)
            .filter_map(|held| {
                let keyed = held.row.provenance.keyed.as_ref()?;
                let belongs = keyed.key.as_str() == key_text(key) && keyed.fingerprint == fingerprint;
                // Sandboxes of an earlier, answered create with this key are of another time.
                (belongs && self.tenant(tenant).records.get(&key).is_some_and(|record| record.answer.is_none()))
                    .then(|| (keyed.index, held.row.id.clone()))
            })
            .collect();
        left.sort();
        left.into_iter().map(|(_, id)| id).collect()
    }

    /// Whether other operations of the step explain a refusal that no order of them does: they reserve before they succeed.
    fn is_excused(&self, refusal: Refusal, create: &Create, bound: &Bound, rivals: &Rivals) -> bool {
        let others = || rivals.ops.iter().filter(|other| other.op.tenant() == Some(create.tenant));
        let reserves: Vec<[u64; 4]> = rivals
            .ops
            .iter()
            .filter_map(|other| match &other.op {
                Op::Create(other) => Some(reserve_of(other.size)),
                Op::Start(target) => self.find(target.tenant, other.name.as_ref()?).map(|id| {
                    let resources = &self.sandboxes[&id].row.spec.resources;
                    [0, resources.cpu_millis.into(), resources.memory_bytes, 0]
                }),
                _ => None,
            })
            .collect();
        match refusal {
            Refusal::Exists => {
                others().any(|other| matches!(other.op, Op::Create(_)) && other.name == bound.name && bound.name.is_some())
            }
            Refusal::Quota(_) | Refusal::Full | Refusal::OverBudget => {
                self.refusal(create, bound.parent.as_ref(), &reserves).is_some_and(|refusal| {
                    matches!(refusal, Refusal::Quota(_) | Refusal::Full | Refusal::OverBudget | Refusal::Exists)
                })
            }
            Refusal::Cancelled => others().any(|other| matches!(other.op, Op::Delete(_)) && other.name == bound.name),
            Refusal::NoGroup | Refusal::GroupEnding => create.group.is_some_and(|group| rivals.end_group(create.tenant, group)),
            Refusal::Missing | Refusal::NotBelow => {
                bound.parent.is_some() && others().any(|other| matches!(other.op, Op::Delete(_) | Op::EndGroup { .. }))
            }
            _ => false,
        }
    }

    fn check_made(&self, create: &Create, bound: &Bound, made: &Sandbox) -> Checked {
        let (cpu, memory, disk) = SIZES[usize::from(create.size)];
        let resources = &made.spec.resources;
        let end = (create.life > 0).then(|| self.now + Duration::from_secs(create.life));
        let ancestors = self.ancestors(create, bound.parent.as_ref()).unwrap_or_default();
        let checks = [
            ("state", made.state == SandboxState::Running),
            ("tenant", made.tenant.as_str() == TENANTS[usize::from(create.tenant)]),
            ("name", made.name.as_str() == create.name.map_or(made.id.as_str(), |name| NAMES[usize::from(name)])),
            ("size", (resources.cpu_millis, resources.memory_bytes, resources.disk_bytes) == (cpu, memory, disk)),
            ("time", made.created_at == self.now && made.state_since == self.now && made.last_used_at == self.now),
            ("end", made.expires_at == end),
            ("ancestors", made.provenance.ancestors == ancestors),
            ("group", made.provenance.group.as_ref().map(|group| group.as_str().to_owned()) == create.group.map(group_text)),
            ("budget", made.provenance.child_budget.as_ref().map(|budget| (budget.sandboxes, budget.depth)) == create.budget),
            ("id", !self.sandboxes.contains_key(&made.id)),
        ];
        match checks.into_iter().find(|(_, is_right)| !is_right) {
            Some((what, _)) => Err(format!("the {what} of a new sandbox is wrong: {made:?}")),
            None => Ok(()),
        }
    }

    #[allow(clippy::too_many_arguments, reason = "the fields of one operation")]
    fn batch(
        &mut self,
        tenant: u8,
        (count, min): (usize, usize),
        size: u8,
        key: Option<u8>,
        bound: &Bound,
        outcome: &Outcome,
        rivals: &Rivals,
    ) -> Checked {
        let print = fingerprint(&bound.op);
        let mut left = Vec::new();
        if let Some(key) = key
            && let Some(record) = self.tenant(tenant).records.get(&key)
        {
            match (record, outcome) {
                (record, Outcome::Refused(Refusal::KeyReused, _)) if record.fingerprint != print => return Ok(()),
                (RecordModel { answer: Some(body), fingerprint }, Outcome::Replayed(replayed))
                    if *fingerprint == print && body == replayed =>
                {
                    return Ok(());
                }
                (RecordModel { answer: None, fingerprint }, _) if *fingerprint == print => left = self.left(tenant, key, &print),
                (record, other) => return expected(record, other),
            }
        }
        let one = Create {
            tenant,
            name: None,
            size,
            life: 0,
            idle: 0,
            pauses_when_idle: false,
            group: None,
            parent: None,
            budget: None,
            key,
        };
        let wanted = count - left.len();
        let room = (0..wanted).take_while(|before| self.refusal(&one, None, &vec![reserve_of(size); *before]).is_none()).count();
        let (least, most) = (left.len() + room.saturating_sub(rivals.faults), left.len() + room);
        match outcome {
            Outcome::Several(made) if (least.max(min)..=most).contains(&made.len()) => {
                for sandbox in made.iter().filter(|sandbox| !left.contains(&sandbox.id)) {
                    self.check_made(&one, bound, sandbox)?;
                    self.insert(sandbox.clone());
                }
                if let Some(missing) = left.iter().find(|id| !made.iter().any(|sandbox| sandbox.id == **id)) {
                    return Err(format!("sandbox {missing} of the create before is not in the answer"));
                }
                if let Some(key) = key {
                    self.answer(tenant, key, print, made);
                }
                Ok(())
            }
            Outcome::Refused(_, _) if least < min => {
                left.iter().for_each(|id| self.remove(id));
                if let Some(key) = key {
                    self.tenant_mut(tenant).records.remove(&key);
                }
                Ok(())
            }
            other => expected(("sandboxes", least, most, "at least", min), other),
        }
    }

    /// Pause, resume, start, and calls.
    fn change(&mut self, found: Option<SandboxId>, bound: &Bound, outcome: &Outcome, rivals: &Rivals) -> Checked {
        use SandboxState::{Failed, Lost, Paused, Running};
        if bound.name.is_none() {
            return if matches!(outcome, Outcome::Skipped) { Ok(()) } else { expected("no sandbox", outcome) };
        }
        let op = &bound.op;
        let refused = match outcome {
            Outcome::Refused(refusal, _) => Some(*refusal),
            _ => None,
        };
        let Some(id) = found else {
            return match refused {
                Some(Refusal::Missing) => Ok(()),
                // A call waits for a create of its sandbox, and gets its error.
                Some(_) if matches!(op, Op::Call { .. }) && rivals.create(bound) => Ok(()),
                _ => expected(Refusal::Missing, outcome),
            };
        };
        if refused == Some(Refusal::Engine) && rivals.faults > 0 {
            return Ok(());
        }
        let held = &self.sandboxes[&id];
        let (state, tenant) = (held.row.state, held.tenant());
        let (wanted, next) = match (op, state) {
            (Op::Pause(_), Running | Paused) => (None, Some(Paused)),
            (Op::Resume(_) | Op::Call { .. } | Op::Start(_), Running | Paused) => (None, Some(Running)),
            (Op::Start(_), Failed | Lost) => {
                let before = held.reserves();
                let Resources { cpu_millis, memory_bytes, .. } = held.row.spec.resources;
                let mut used = self.reserved(tenant);
                for (used, before) in used.iter_mut().zip(before) {
                    *used -= before;
                }
                let limits = &self.tenant(tenant).limits;
                let exceeded = [(Quota::CpuMillis, 1, cpu_millis.into()), (Quota::MemoryBytes, 2, memory_bytes)]
                    .into_iter()
                    .filter(|(quota, at, wanted)| limits.get(*quota).is_some_and(|limit| used[*at] + wanted > limit))
                    .map(|(quota, ..)| quota);
                let exceeded: Vec<Quota> = exceeded.collect();
                match refused {
                    Some(Refusal::Quota(quota)) if exceeded.contains(&quota) => return Ok(()),
                    _ => (exceeded.first().copied().map(Refusal::Quota), Some(Running)),
                }
            }
            (_, Failed | Lost) => (Some(Refusal::Gone), None),
            _ => (Some(Refusal::Conflict), None),
        };
        if let (Some(Refusal::Quota(_)), Op::Start(_)) = (refused, op)
            && rivals.ops.iter().any(|other| matches!(other.op, Op::Create(_)) && other.op.tenant() == Some(tenant))
        {
            return Ok(());
        }
        match (refused, wanted, next) {
            (None, None, Some(next)) => {
                if let Outcome::Made(sandbox) = outcome
                    && (sandbox.state != next || sandbox.id != id)
                {
                    return expected(next, outcome);
                }
                let now = self.now;
                if matches!(state, Failed | Lost) {
                    self.sandboxes.get_mut(&id).expect("it was found").metered.resume(now);
                }
                if state != next {
                    self.set(&id, next);
                }
                if let Op::Call { lasts, .. } = op {
                    let held = self.sandboxes.get_mut(&id).expect("it was found");
                    held.idle_from = now;
                    held.leases += usize::from(*lasts);
                    held.metered.call(now);
                }
                Ok(())
            }
            (Some(refused), Some(wanted), _) if refused == wanted => Ok(()),
            // A delete is not one moment.
            (Some(Refusal::Conflict | Refusal::Missing), ..) if rivals.may_end(held, self) => Ok(()),
            (_, wanted, _) => expected(wanted, outcome),
        }
    }

    fn extend(
        &mut self,
        found: Option<SandboxId>,
        seconds: u64,
        from_now: bool,
        bound: &Bound,
        outcome: &Outcome,
        rivals: &Rivals,
    ) -> Checked {
        if bound.name.is_none() {
            return if matches!(outcome, Outcome::Skipped) { Ok(()) } else { expected("no sandbox", outcome) };
        }
        let now = self.now;
        let held = found.as_ref().map(|id| &self.sandboxes[id]);
        match (held, outcome) {
            (None, Outcome::Refused(Refusal::Missing, _)) => Ok(()),
            (Some(held), Outcome::Refused(Refusal::Conflict, _)) if held.row.state == SandboxState::Deleting => Ok(()),
            (Some(held), Outcome::Refused(Refusal::Conflict | Refusal::Missing, _)) if rivals.may_end(held, self) => Ok(()),
            (Some(held), Outcome::Made(changed)) if held.row.state != SandboxState::Deleting => {
                let more = Duration::from_secs(seconds);
                let end = if from_now { Some(now + more) } else { held.row.expires_at.map(|end| end + more) };
                if (&changed.id, changed.expires_at, changed.state) != (&held.row.id, end, held.row.state) {
                    return expected(end, outcome);
                }
                let held = self.sandboxes.get_mut(&changed.id).expect("it was found");
                held.row.expires_at = end;
                held.idle_from = now;
                Ok(())
            }
            (held, other) => expected(held, other),
        }
    }

    fn delete(&mut self, found: Option<SandboxId>, bound: &Bound, outcome: &Outcome, rivals: &Rivals) -> Checked {
        match (found, outcome) {
            (None, Outcome::Skipped) if bound.name.is_none() => Ok(()),
            (None, Outcome::Refused(Refusal::Missing, _)) => Ok(()),
            // It cancelled the create, or the create failed by itself meanwhile.
            (None, Outcome::Done) if rivals.create(bound) => Ok(()),
            (Some(id), Outcome::Done) => {
                self.remove(&id);
                Ok(())
            }
            (Some(id), Outcome::Refused(Refusal::Engine, _)) if rivals.faults > 0 => {
                self.remove(&id);
                Ok(())
            }
            (Some(id), Outcome::Refused(Refusal::Missing, _)) if rivals.may_end(&self.sandboxes[&id], self) => Ok(()),
            (found, other) => expected(found, other),
        }
    }

    pub(super) fn members(&self, tenant: u8, group: u8) -> Vec<SandboxId> {
        self.owned_by(tenant).filter(|held| held.group() == Some(group)).map(|held| held.row.id.clone()).collect()
    }

    fn end_group(&mut self, tenant: u8, group: u8, outcome: &Outcome, rivals: &Rivals) -> Checked {
        let exists = self.tenant(tenant).groups.contains_key(&group);
        match outcome {
            Outcome::Refused(Refusal::NoGroup, _) if !exists || rivals.end_group(tenant, group) => Ok(()),
            Outcome::Done if exists => {
                self.members(tenant, group).iter().for_each(|id| self.remove(id));
                self.tenant_mut(tenant).groups.remove(&group);
                Ok(())
            }
            Outcome::Refused(Refusal::Engine, _) if rivals.faults > 0 && exists => {
                self.members(tenant, group).iter().for_each(|id| self.remove(id));
                let retry = self.now + RETRY;
                let group = self.tenant_mut(tenant).groups.get_mut(&group).expect("it exists");
                group.is_ending = true;
                group.expires_at = retry;
                Ok(())
            }
            other => expected(("a group, exists:", exists), other),
        }
    }
}
