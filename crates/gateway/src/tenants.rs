//! `/api/v2/me`, `/api/v2/tenants`, `/api/v2/keys` and `/api/v2/audit`.
//!
//! Admins manage the keys of their tenant; operators those of all tenants, and the tenants. An admin who is no operator can't
//! change an operator's key: a rotation would hand it out. Except for `me`, a ticket is not enough.

use std::sync::Arc;
use std::time::Duration;

use arenite_control::ControlError;
use arenite_control::tenants::{ApiKey, AuditQuery, KeyText, NewKey, Principal, Quota, Tenant, Tenants};
use arenite_model::{ErrorCode, KeyId, TenantId};
use arenite_synthesis::Caller;
use axum::body::Body;
use http::header::CACHE_CONTROL;
use http::{HeaderValue, Response, StatusCode};
use jiff::Timestamp;
use serde_json::json;

use crate::api::types::{
    AuditInfo, AuditPage, ChangeTenant, CreateKey, CreateTenant, KeyInfo, KeyList, KeyState, Me, NewKeyInfo, QuotaState,
    RemovedTenant, RotateKey, TenantInfo, TenantList,
};
use crate::api::{DIALECT, PATH};
use crate::exchange::{Answered, Exchange};
use crate::gateway::{Context, Gateway};
use crate::idempotency::{self, Begun};
use crate::lifecycle::{self, LifecycleAnswer, LifecycleCall};
use crate::lists::PageQuery;
use crate::network::{self, NetworkRules};
use crate::nodes::{self, Passed};
use crate::refusal::{Refusal, json_response};
use crate::{audit, auth};

/// How long a removal waits for sandboxes that are being created or deleted.
const REMOVAL: Duration = Duration::from_secs(60);

/// The tenants of a server that keeps some, for a caller with more than a ticket.
fn tenants(exchange: &Exchange) -> Result<Arc<Tenants>, Refusal> {
    auth::refuse_tickets(&exchange.caller)?;
    let tenants = exchange.gateway.control.tenants().cloned();
    tenants.ok_or_else(|| {
        Refusal::not_found("this server keeps no tenants and no keys").hint("start it with: arenite serve --tenants")
    })
}

pub(crate) async fn me(exchange: &mut Exchange) -> Answered {
    let principal = &exchange.context.principal;
    let tenants = exchange.gateway.control.tenants();
    let key = principal.key.as_ref().and_then(|id| tenants?.key(id).ok());
    let me = Me {
        tenant: principal.tenant.clone(),
        key: principal.key.clone(),
        subject: principal.subject.clone(),
        role: principal.role,
        operator: principal.operator,
        bound: principal.bound.clone(),
        expires_at: principal.expires_at.or_else(|| key.as_ref()?.expires_at),
        name: key.map(|key| key.name),
        tenants: tenants.is_some(),
        quotas: if principal.is_bound() { Vec::new() } else { quotas(&exchange.gateway, &principal.tenant).await? },
    };
    Ok(json_response(StatusCode::OK, &me))
}

async fn quotas(gateway: &Gateway, tenant: &TenantId) -> Result<Vec<QuotaState>, Refusal> {
    let (limits, mut reserved) = (gateway.control.tenant_limits(tenant), gateway.control.reserved(tenant));
    (reserved.volumes, reserved.volume_bytes) = gateway.control.volume_totals(tenant).await?;
    let snapshots = gateway.control.snapshots(tenant).await?.len() as u64;
    let used = |quota| match quota {
        Quota::ConcurrentCreates => Some(gateway.control.creates_of(tenant)),
        Quota::TrajectoryBytes => Some(gateway.recorder.bytes_of(tenant)),
        Quota::Snapshots => Some(snapshots),
        _ => reserved.get(quota),
    };
    Ok(Quota::ALL.map(|quota| QuotaState { quota, limit: limits.get(quota), used: used(quota) }).into())
}

async fn described(exchange: &Exchange, tenants: &Tenants, tenant: Tenant) -> Result<TenantInfo, Refusal> {
    let now = Timestamp::now();
    let keys = tenants.keys(Some(&tenant.name)).into_iter().filter(|key| key.is_valid_at(now)).count();
    let Tenant { name, created_at, limits, network, disabled } = tenant;
    let sandboxes = exchange.gateway.control.reserved(&name).sandboxes;
    let quotas = quotas(&exchange.gateway, &name).await?;
    let min_tier = limits.min_tier;
    let limits = Quota::ALL.into_iter().map(|quota| (quota, limits.get(quota))).collect();
    let network_default = network.default.map(|default| NetworkRules::new(default.mode, default.policy));
    let network_floor = NetworkRules::of_floor(network.floor);
    Ok(TenantInfo { name, created_at, disabled, sandboxes, keys, limits, min_tier, network_default, network_floor, quotas })
}

async fn answer_with(exchange: &Exchange, tenants: &Tenants, status: StatusCode, tenant: Tenant) -> Answered {
    Ok(json_response(status, &described(exchange, tenants, tenant).await?))
}

pub(crate) async fn list(exchange: &mut Exchange) -> Answered {
    let tenants = tenants(exchange)?;
    let (page, next_cursor) = PageQuery::read(exchange)?.take(tenants.list(), |tenant| tenant.name.to_string())?;
    let mut described_page = Vec::with_capacity(page.len());
    for tenant in page {
        described_page.push(described(exchange, &tenants, tenant).await?);
    }
    Ok(json_response(StatusCode::OK, &TenantList { tenants: described_page, next_cursor }))
}

/// The tenant in the path. A text that is no valid name names none.
fn named(exchange: &Exchange) -> Result<TenantId, Refusal> {
    let given = exchange.param("name");
    given.parse().map_err(|_| Refusal::not_found(format!("there is no tenant {:?}", given.chars().take(80).collect::<String>())))
}

pub(crate) async fn get(exchange: &mut Exchange) -> Answered {
    let tenants = tenants(exchange)?;
    let tenant = tenants.get(&named(exchange)?)?;
    answer_with(exchange, &tenants, StatusCode::OK, tenant).await
}

pub(crate) async fn create(exchange: &mut Exchange) -> Answered {
    let tenants = tenants(exchange)?;
    let (CreateTenant { name }, arguments) = exchange.json().await?;
    let name = name.ok_or_else(|| Refusal::bad_request("name is missing"))?;
    let key = match idempotency::begin(exchange, &arguments, 1).await? {
        Begun::Create(key) => key,
        Begun::Replay(answer) => return Ok(idempotency::replay(answer)),
    };
    let since = idempotency::note(key.as_ref()).await?;
    let created = create_or_find(exchange, &tenants, name, since).await;
    let (status, body) = idempotency::settle(key, created).await?;
    Ok(json_response(status, &body))
}

async fn create_or_find(
    exchange: &Exchange,
    tenants: &Arc<Tenants>,
    name: TenantId,
    since: Option<Timestamp>,
) -> Result<LifecycleAnswer, Refusal> {
    let left = since.and_then(|since| tenants.get(&name).ok().filter(|tenant| tenant.created_at >= since));
    let tenant = match left {
        Some(tenant) => tenant,
        None => {
            let (shared, object) = (Arc::clone(tenants), name.to_string());
            audit::change_with(exchange, "tenant.create", object, Box::pin(async move { Ok(shared.create(name).await?) })).await?
        }
    };
    Ok((StatusCode::CREATED, json!(described(exchange, tenants, tenant).await?)))
}

pub(crate) async fn change(exchange: &mut Exchange) -> Answered {
    let tenants = tenants(exchange)?;
    let name = named(exchange)?;
    let (ChangeTenant { disabled, limits, min_tier, network_default, network_floor }, _) = exchange.json().await?;
    let default = network_default.map(|given| given.map(network::default_network).transpose()).transpose()?;
    let floor = network_floor.map(|given| given.map(network::floor).transpose()).transpose()?;
    let mut tenant = tenants.get(&name)?;
    if !limits.is_empty() {
        let (shared, name) = (Arc::clone(&tenants), name.clone());
        let changed = Box::pin(async move { Ok(shared.set_limits(&name, &limits).await?) });
        tenant = audit::change_with(exchange, "tenant.limit", tenant.name.to_string(), changed).await?;
    }
    if let Some(minimum) = min_tier {
        let (shared, name) = (Arc::clone(&tenants), name.clone());
        let changed = Box::pin(async move { Ok(shared.set_min_tier(&name, minimum).await?) });
        tenant = audit::change_with(exchange, "tenant.limit", tenant.name.to_string(), changed).await?;
    }
    if default.is_some() || floor.is_some() {
        let (control, name) = (Arc::clone(&exchange.gateway.control), name.clone());
        let changed = Box::pin(async move { Ok(control.set_tenant_network(&name, default, floor).await?) });
        tenant = audit::change_with(exchange, "tenant.network", tenant.name.to_string(), changed).await?;
    }
    if let Some(disabled) = disabled {
        let action = if disabled { "tenant.disable" } else { "tenant.enable" };
        let (shared, object) = (Arc::clone(&tenants), name.to_string());
        let changed = Box::pin(async move { Ok(shared.set_disabled(&name, disabled).await?) });
        tenant = audit::change_with(exchange, action, object, changed).await?;
    }
    answer_with(exchange, &tenants, StatusCode::OK, tenant).await
}

pub(crate) async fn remove(exchange: &mut Exchange) -> Answered {
    let tenants = tenants(exchange)?;
    let name = named(exchange)?;
    let force = exchange.query("force").is_some_and(|given| given == "true");
    let (gateway, removed, of_caller) = (Arc::clone(&exchange.gateway), name.clone(), exchange.context.clone());
    let removal = async move { remove_tenant(&gateway, &tenants, &of_caller, &removed, force).await };
    let deleted_sandboxes = audit::change_with(exchange, "tenant.remove", name.to_string(), Box::pin(removal)).await?;
    Ok(json_response(StatusCode::OK, &RemovedTenant { name, removed: true, deleted_sandboxes }))
}

/// Disables the tenant first, so that nothing new comes while its sandboxes are deleted.
async fn remove_tenant(
    gateway: &Arc<Gateway>,
    tenants: &Tenants,
    of_caller: &Context,
    name: &TenantId,
    force: bool,
) -> Result<usize, Refusal> {
    let was_disabled = tenants.get(name)?.disabled;
    if name.is_default() {
        return Err(ControlError::DefaultTenant.into());
    }
    let in_use = async || {
        let sandboxes = gateway.control.list(name).await.map_or(0, |all| all.len()) as u64;
        Refusal::from(ControlError::TenantInUse { name: name.clone(), sandboxes })
    };
    if !force && gateway.control.has_sandboxes(name) {
        return Err(in_use().await);
    }
    let volumes = gateway.control.volume_totals(name).await?.0;
    if !force && volumes > 0 {
        return Err(ControlError::TenantHasVolumes { name: name.clone(), volumes }.into());
    }
    let mut changes = gateway.control.subscribe();
    tenants.set_disabled(name, true).await?;
    if !force && gateway.control.has_sandboxes(name) {
        // A create was faster.
        tenants.set_disabled(name, was_disabled).await?;
        return Err(in_use().await);
    }
    if let Some(synthesis) = gateway.synthesis.get() {
        let (request_id, origin) = (of_caller.request_id.clone(), of_caller.client.clone());
        synthesis.disconnect_all(&Caller { tenant: name.clone(), request_id, origin }).await;
    }
    let context = Context { principal: Arc::new(Principal::server(name.clone())), ..of_caller.clone() };
    let mut deleted = 0;
    let emptied = async {
        while gateway.control.has_sandboxes(name) {
            let sandboxes = gateway.control.list(name).await?;
            for sandbox in sandboxes {
                let action = format!("DELETE {PATH}/tenants/{name}");
                let call = LifecycleCall { dialect: DIALECT, action, arguments: None };
                match lifecycle::delete(gateway, &context, call, sandbox.name, |_| (StatusCode::OK, json!(null))).await {
                    Ok(_) => deleted += 1,
                    Err(refusal) if refusal.code == ErrorCode::NotFound => {}
                    Err(refusal) => return Err(refusal),
                }
            }
            if gateway.control.has_sandboxes(name) {
                // A create that was admitted before ends in a change. One that fails early does not, so the wait is bounded.
                let _ = tokio::time::timeout(Duration::from_millis(100), changes.recv()).await;
            }
        }
        Ok(())
    };
    match tokio::time::timeout(REMOVAL, emptied).await {
        Ok(emptied) => emptied?,
        Err(_) => return Err(in_use().await),
    }
    if let Some(webhooks) = gateway.control.webhooks() {
        webhooks.remove_all(name).await?;
    }
    gateway.control.remove_model_routes_of(name).await?;
    gateway.control.remove_secrets_of(name).await?;
    // Snapshots come first: layers that they use stay when an image goes.
    for snapshot in gateway.control.snapshots(name).await? {
        if !nodes::remove_snapshot(gateway, &Passed::of_server(name.clone()), &snapshot.name).await? {
            gateway.control.remove_snapshot(name, &snapshot.name).await?;
            nodes::drop_copies(gateway, name, &snapshot.name).await?;
        }
    }
    gateway.control.remove_images_of(name).await?;
    gateway.control.remove_volumes_of(name).await?;
    tenants.remove(name).await?;
    Ok(deleted)
}

/// The tenant that a request is for: the caller's, or the one that an operator names.
fn chosen(exchange: &Exchange, given: Option<TenantId>) -> Result<TenantId, Refusal> {
    let principal = &exchange.context.principal;
    match given {
        Some(tenant) if tenant != principal.tenant && !principal.operator => {
            Err(Refusal::new(ErrorCode::Forbidden, "only an operator's key may name another tenant"))
        }
        Some(tenant) => Ok(tenant),
        None => Ok(principal.tenant.clone()),
    }
}

/// The tenant that a list names, which exists.
pub(crate) fn of_list(exchange: &Exchange) -> Result<Option<TenantId>, Refusal> {
    let Some(given) = tenant_in_query(exchange)? else { return Ok(None) };
    let tenants = tenants(exchange)?;
    let tenant = chosen(exchange, Some(given))?;
    tenants.get(&tenant)?;
    Ok(Some(tenant))
}

fn tenant_in_query(exchange: &Exchange) -> Result<Option<TenantId>, Refusal> {
    Ok(exchange.query("tenant").map(|given| given.parse()).transpose()?)
}

fn key_info(key: ApiKey) -> KeyInfo {
    let state = match () {
        () if key.revoked_at.is_some() => KeyState::Revoked,
        () if key.is_valid_at(Timestamp::now()) => KeyState::Valid,
        () => KeyState::Expired,
    };
    let ApiKey { id, tenant, name, role, operator, bound, created_at, expires_at, revoked_at, .. } = key;
    KeyInfo { id, tenant, name, role, operator, bound, state, created_at, expires_at, revoked_at }
}

/// Without a text for a key that was created before.
fn new_key(key: ApiKey, text: Option<&KeyText>) -> Response<Body> {
    let answer = NewKeyInfo { key: text.map(|text| text.as_str().to_owned()), info: key_info(key) };
    let mut answer = json_response(StatusCode::CREATED, &answer);
    answer.headers_mut().insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    answer
}

pub(crate) async fn keys(exchange: &mut Exchange) -> Answered {
    let tenants = tenants(exchange)?;
    let tenant = chosen(exchange, tenant_in_query(exchange)?)?;
    tenants.get(&tenant)?;
    let position = |key: &ApiKey| (key.created_at.as_microsecond(), key.id.to_string());
    let (keys, next_cursor) = PageQuery::read(exchange)?.take(tenants.keys(Some(&tenant)), position)?;
    let keys = keys.into_iter().map(key_info).collect();
    Ok(json_response(StatusCode::OK, &KeyList { keys, next_cursor }))
}

pub(crate) async fn create_key(exchange: &mut Exchange) -> Answered {
    let tenants = tenants(exchange)?;
    let (create, arguments) = exchange.json::<CreateKey>().await?;
    let missing = |field: &str| Refusal::bad_request(format!("{field} is missing"));
    let new = NewKey {
        tenant: chosen(exchange, create.tenant)?,
        name: create.name.ok_or_else(|| missing("name"))?,
        role: create.role.ok_or_else(|| missing("role"))?,
        expires_in: create.expires_in_seconds.map(Duration::from_secs),
        bound: create.bound,
        operator: create.operator,
    };
    if new.operator && !exchange.context.principal.operator {
        return Err(Refusal::new(ErrorCode::Forbidden, "only an operator's key creates another"));
    }
    let held = match idempotency::begin(exchange, &arguments, 1).await? {
        Begun::Create(held) => held,
        Begun::Replay(answer) => return Ok(idempotency::replay(answer)),
    };
    let since = idempotency::note(held.as_ref()).await?;
    let left = since.and_then(|since| {
        let is_left = |key: &ApiKey| key.created_at >= since && key.name == new.name && key.role == new.role;
        tenants.keys(Some(&new.tenant)).into_iter().find(is_left)
    });
    let created = match left {
        Some(key) => Ok((key, None)),
        None => {
            let (shared, object) = (Arc::clone(&tenants), new.name.clone());
            let create = Box::pin(async move { Ok(shared.create_key(new).await?) });
            audit::change_with(exchange, "key.create", object, create).await.map(|(key, text)| (key, Some(text)))
        }
    };
    match (held, &created) {
        // The text is shown once, so it is not stored.
        (Some(held), Ok((key, _))) => {
            let answer = NewKeyInfo { key: None, info: key_info(key.clone()) };
            held.finish(StatusCode::CREATED.as_u16(), &json!(answer)).await;
        }
        (Some(held), Err(_)) => held.free().await,
        (None, _) => {}
    }
    let (key, text) = created?;
    Ok(new_key(key, text.as_ref()))
}

/// The key in the path, if the caller may see it. Another tenant's is not found.
fn find_key(exchange: &Exchange, tenants: &Tenants) -> Result<ApiKey, Refusal> {
    let given = exchange.param("id");
    let absent = || Refusal::not_found(format!("there is no key {:?}", given.chars().take(80).collect::<String>()));
    let id: KeyId = given.parse().map_err(|_| absent())?;
    let principal = &exchange.context.principal;
    let key = tenants.key(&id).ok().filter(|key| principal.operator || key.tenant == principal.tenant);
    key.ok_or_else(absent)
}

/// The same, if the caller may change it.
fn find_own_key(exchange: &Exchange, tenants: &Tenants) -> Result<ApiKey, Refusal> {
    let key = find_key(exchange, tenants)?;
    if key.operator && !exchange.context.principal.operator {
        return Err(Refusal::new(ErrorCode::Forbidden, "only an operator's key changes another"));
    }
    Ok(key)
}

pub(crate) async fn get_key(exchange: &mut Exchange) -> Answered {
    let tenants = tenants(exchange)?;
    Ok(json_response(StatusCode::OK, &key_info(find_key(exchange, &tenants)?)))
}

pub(crate) async fn revoke_key(exchange: &mut Exchange) -> Answered {
    let tenants = tenants(exchange)?;
    let key = find_own_key(exchange, &tenants)?;
    let object = key.id.to_string();
    let key = audit::change_with(exchange, "key.revoke", object, Box::pin(async move { Ok(tenants.revoke_key(&key.id).await?) }))
        .await?;
    Ok(json_response(StatusCode::OK, &key_info(key)))
}

pub(crate) async fn rotate_key(exchange: &mut Exchange) -> Answered {
    let tenants = tenants(exchange)?;
    let key = find_own_key(exchange, &tenants)?;
    let (RotateKey { overlap_seconds }, _) = exchange.json().await?;
    let (object, overlap) = (key.id.to_string(), Duration::from_secs(overlap_seconds));
    let rotated = Box::pin(async move { Ok(tenants.rotate_key(&key.id, overlap).await?) });
    let (key, text) = audit::change_with(exchange, "key.rotate", object, rotated).await?;
    Ok(new_key(key, Some(&text)))
}

/// The tenant that a report is restricted to. None: an operator asks for all tenants.
pub(crate) fn tenant_of_report(exchange: &Exchange) -> Result<Option<TenantId>, Refusal> {
    let given = tenant_in_query(exchange)?;
    match exchange.context.principal.operator {
        true => Ok(given),
        false => chosen(exchange, given).map(Some),
    }
}

pub(crate) fn time_in_query(exchange: &Exchange, name: &str) -> Result<Option<Timestamp>, Refusal> {
    let given = exchange.query(name).map(|text| text.parse()).transpose();
    given.map_err(|_| Refusal::bad_request(format!("{name} is no time in RFC 3339, such as 2026-01-31T00:00:00Z")))
}

pub(crate) async fn audit(exchange: &mut Exchange) -> Answered {
    let tenants = tenants(exchange)?;
    let tenant = tenant_of_report(exchange)?;
    let page = PageQuery::read(exchange)?;
    let (since, until) = (time_in_query(exchange, "since")?, time_in_query(exchange, "until")?);
    let query = AuditQuery { tenant, since, until, before: page.after()?, limit: page.limit + 1 };
    let mut rows = tenants.audit_page(query).await?;
    let next_cursor = page.end(&mut rows, |row| row.number);
    let or_dash = |text: Option<String>| text.unwrap_or_else(|| "-".to_owned());
    let rows = rows.into_iter().map(|row| AuditInfo {
        time: row.entry.at,
        key: or_dash(row.entry.actor()),
        tenant: row.entry.tenant,
        action: row.entry.action,
        object: row.entry.object,
        client: or_dash(row.entry.client),
        outcome: row.entry.outcome,
    });
    Ok(json_response(StatusCode::OK, &AuditPage { rows: rows.collect(), next_cursor }))
}
