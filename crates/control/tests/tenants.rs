//! Tenants, keys and the audit log on the real stores.

#![allow(clippy::unwrap_used, reason = "a helper of a test fails its test")]

mod support;

use std::sync::Arc;
use std::time::{Duration, Instant};

use arenite_control::fake_engine::FakeEngine;
use arenite_control::store::{RemovedTenant, StoreError};
use arenite_control::tenants::{AuditEntry, AuditQuery, Denied, NewKey, Quota, Role, Tenant, TenantLimits, Tenants};
use arenite_control::{ControlError, CreateRequest, TenantNetwork};
use arenite_model::TenantId;
use jiff::Timestamp;
use support::home::{Home, on_both_stores};

on_both_stores! {
    keys_and_tenants_outlive_the_server_and_a_revocation_too,
    another_servers_key_and_a_changed_one_are_unknown,
    open_connections_learn_at_once_that_their_key_ended,
    a_rotation_overlaps_and_keeps_the_rights,
    requests_that_make_no_sense_are_refused,
    a_removed_tenant_leaves_no_keys_and_its_name_stays_taken,
    the_stores_audit_log_is_paged_and_bounded,
    limits_outlive_the_server_and_fall_back_to_its_defaults,
    a_flood_of_refusals_is_bounded_and_written,
    authentication_needs_no_store,
}

fn id(name: &str) -> TenantId {
    name.parse().unwrap()
}

fn new(tenant: &str, role: Role) -> NewKey {
    NewKey { tenant: id(tenant), name: "test".to_owned(), role, expires_in: None, bound: Vec::new(), operator: false }
}

fn is_ended(tenants: &Tenants, text: &str) -> bool {
    matches!(tenants.authenticate(text), Err(Denied::Ended(_)))
}

async fn keys_and_tenants_outlive_the_server_and_a_revocation_too(home: Home) {
    let control = home.start().await;
    let tenants = control.tenants().unwrap();
    let (operator, operator_text) = tenants.first_operator_key().await.unwrap().unwrap();
    assert!(operator.operator && operator.tenant.is_default());
    assert!(tenants.first_operator_key().await.unwrap().is_none(), "there is one");
    tenants.create(id("acme")).await.unwrap();
    let (kept, text) = tenants.create_key(new("acme", Role::Use)).await.unwrap();
    let (revoked, revoked_text) = tenants.create_key(new("acme", Role::Admin)).await.unwrap();
    tenants.revoke_key(&revoked.id).await.unwrap();
    for _ in 0..2 {
        let principal = tenants.authenticate(text.as_str()).unwrap();
        assert_eq!(
            (principal.tenant.clone(), principal.key.as_ref(), principal.role),
            (id("acme"), Some(&kept.id), Some(Role::Use))
        );
        assert!(principal.may(Role::Read) && !principal.may(Role::Manage) && !principal.operator);
        assert!(is_ended(tenants, revoked_text.as_str()));
    }
    control.stop(false).await;

    let control = home.start().await;
    let tenants = control.tenants().unwrap();
    assert!(tenants.authenticate(operator_text.as_str()).unwrap().operator);
    assert_eq!(tenants.authenticate(text.as_str()).unwrap().key.as_ref(), Some(&kept.id));
    assert!(is_ended(tenants, revoked_text.as_str()));
    assert_eq!(tenants.list().into_iter().map(|tenant| tenant.name).collect::<Vec<_>>(), [id("acme"), id("default")]);
    let secret = &text.as_str()[17..49];
    let holds_secret = match &home.cluster {
        None => {
            let bytes = std::fs::read(home.dir().join("control.sqlite")).unwrap();
            bytes.windows(secret.len()).any(|window| window == secret.as_bytes())
        }
        Some(cluster) => {
            let count = "SELECT count(*) FROM api_keys WHERE api_keys::text || encode(hash, 'escape') LIKE '%' || $1 || '%'";
            cluster.client().await.query_one(count, &[&secret]).await.unwrap().get::<_, i64>(0) > 0
        }
    };
    assert!(!holds_secret, "the store holds a secret");
    control.stop(false).await;
}

async fn another_servers_key_and_a_changed_one_are_unknown(home: Home) {
    let other = Home::sqlite();
    let (control, elsewhere) = (home.start().await, other.start().await);
    let (_, text) = elsewhere.tenants().unwrap().first_operator_key().await.unwrap().unwrap();
    let tenants = control.tenants().unwrap();
    for unknown in [text.as_str(), "", "arn_", &text.as_str()[..54], "x"] {
        assert_eq!(tenants.authenticate(unknown).unwrap_err(), Denied::Unknown, "{unknown:?}");
    }
    control.stop(false).await;
    elsewhere.stop(false).await;
}

async fn open_connections_learn_at_once_that_their_key_ended(home: Home) {
    let control = home.start().await;
    let tenants = control.tenants().unwrap();
    tenants.create(id("acme")).await.unwrap();
    let soon = NewKey { expires_in: Some(Duration::from_secs(1)), ..new("acme", Role::Use) };
    let (_, expiring) = tenants.create_key(soon).await.unwrap();
    let (key, text) = tenants.create_key(new("acme", Role::Use)).await.unwrap();
    let (_, other) = tenants.create_key(new("acme", Role::Use)).await.unwrap();
    let ended = |text: &str| tokio::spawn(tenants.ended(&tenants.authenticate(text).unwrap()));
    let (of_expiring, of_revoked, of_other) = (ended(expiring.as_str()), ended(text.as_str()), ended(other.as_str()));
    tenants.revoke_key(&key.id).await.unwrap();
    let second = Duration::from_secs(1);
    tokio::time::timeout(second, of_revoked).await.unwrap().unwrap();
    tokio::time::timeout(2 * second, of_expiring).await.unwrap().unwrap();
    assert!(is_ended(tenants, expiring.as_str()));
    assert!(!of_other.is_finished());
    tenants.set_disabled(&id("acme"), true).await.unwrap();
    tokio::time::timeout(second, of_other).await.unwrap().unwrap();
    assert!(is_ended(tenants, other.as_str()));
    tenants.set_disabled(&id("acme"), false).await.unwrap();
    tenants.authenticate(other.as_str()).unwrap();
    control.stop(false).await;
}

async fn a_rotation_overlaps_and_keeps_the_rights(home: Home) {
    let control = home.start().await;
    let tenants = control.tenants().unwrap();
    tenants.create(id("acme")).await.unwrap();
    let life = Duration::from_secs(86_400);
    let bound = vec!["a".parse().unwrap(), "team=red".parse().unwrap()];
    let old = NewKey { expires_in: Some(life), bound: bound.clone(), ..new("acme", Role::Manage) };
    let (old, old_text) = tenants.create_key(old).await.unwrap();
    let (new_key, new_text) = tenants.rotate_key(&old.id, Duration::from_millis(300)).await.unwrap();
    assert_eq!((new_key.role, &new_key.bound, &new_key.name), (Role::Manage, &bound, &old.name));
    assert_eq!(Duration::try_from(new_key.expires_at.unwrap().duration_since(new_key.created_at)).unwrap(), life);
    tenants.authenticate(old_text.as_str()).unwrap();
    tenants.authenticate(new_text.as_str()).unwrap();
    tokio::time::sleep(Duration::from_millis(350)).await;
    assert!(is_ended(tenants, old_text.as_str()));
    tenants.authenticate(new_text.as_str()).unwrap();
    assert!(matches!(tenants.rotate_key(&old.id, Duration::ZERO).await, Err(ControlError::KeyEnded { .. })));
    let (_, last) = tenants.rotate_key(&new_key.id, Duration::ZERO).await.unwrap();
    assert!(is_ended(tenants, new_text.as_str()));
    tenants.authenticate(last.as_str()).unwrap();
    control.stop(false).await;
}

async fn requests_that_make_no_sense_are_refused(home: Home) {
    let control = home.start().await;
    let tenants = control.tenants().unwrap();
    let named = |name: &str| NewKey { name: name.to_owned(), ..new("default", Role::Read) };
    let living = |seconds| NewKey { expires_in: Some(Duration::from_secs(seconds)), ..new("default", Role::Read) };
    for bad in [
        named(""),
        named(&"x".repeat(101)),
        named("a\nb"),
        named("a\0b"),
        living(0),
        living(u64::MAX),
        NewKey { operator: true, ..new("default", Role::Manage) },
        NewKey { operator: true, bound: vec!["a".parse().unwrap()], ..new("default", Role::Admin) },
        NewKey { bound: vec!["a".parse().unwrap(); 33], ..new("default", Role::Read) },
    ] {
        assert!(matches!(tenants.create_key(bad).await, Err(ControlError::InvalidKey { .. })));
    }
    assert!(matches!(tenants.create_key(new("absent", Role::Read)).await, Err(ControlError::NoTenant { .. })));
    for odd in ["ünïcode 🗝", "' OR 1=1 --", "\"<script>", "%00", "../../etc"] {
        let (key, _) = tenants.create_key(named(odd)).await.unwrap();
        assert_eq!(tenants.key(&key.id).unwrap().name, odd);
    }
    for bad in ["", "A", "-", "=x", "a\n=b"] {
        assert!(bad.parse::<arenite_control::tenants::Binding>().is_err(), "{bad:?}");
    }
    assert!(matches!(tenants.set_disabled(&id("default"), true).await, Err(ControlError::DefaultTenant)));
    assert!(matches!(tenants.remove(&id("default")).await, Err(ControlError::DefaultTenant)));
    assert!(matches!(tenants.create(id("default")).await, Err(ControlError::TenantExists { .. })));
    control.stop(false).await;
}

async fn a_removed_tenant_leaves_no_keys_and_its_name_stays_taken(home: Home) {
    let control = home.start().await;
    let tenants = control.tenants().unwrap();
    tenants.create(id("acme")).await.unwrap();
    let (_, text) = tenants.create_key(new("acme", Role::Admin)).await.unwrap();
    let ended = tokio::spawn(tenants.ended(&tenants.authenticate(text.as_str()).unwrap()));
    let request = CreateRequest { name: Some("a".parse().unwrap()), ..CreateRequest::default() };
    control.create(&id("acme"), request).await.unwrap();
    assert!(matches!(tenants.remove(&id("acme")).await, Err(ControlError::TenantInUse { sandboxes: 1, .. })));
    control.delete(&id("acme"), &"a".parse().unwrap()).await.unwrap();
    tenants.remove(&id("acme")).await.unwrap();
    tokio::time::timeout(Duration::from_secs(1), ended).await.unwrap().unwrap();
    assert_eq!(tenants.authenticate(text.as_str()).unwrap_err(), Denied::Unknown);
    for _ in 0..2 {
        assert!(matches!(tenants.create(id("acme")).await, Err(ControlError::TenantRemoved { .. })));
        assert!(matches!(tenants.get(&id("acme")), Err(ControlError::NoTenant { .. })));
    }
    control.stop(false).await;
}

async fn limits_outlive_the_server_and_fall_back_to_its_defaults(home: Home) {
    let control = home.start().await;
    let tenants = control.tenants().unwrap();
    tenants.create(id("acme")).await.unwrap();
    let set = |quota, limit| [(quota, limit)].into();
    tenants.set_limits(&id("acme"), &set(Quota::Sandboxes, Some(5))).await.unwrap();
    tenants.set_limits(&id("acme"), &set(Quota::MemoryBytes, Some(1 << 60))).await.unwrap();
    tenants.set_disabled(&id("acme"), true).await.unwrap();
    for bad in [set(Quota::Sandboxes, Some(u64::MAX)), set(Quota::RequestsPerSecond, Some(0))] {
        assert!(matches!(tenants.set_limits(&id("acme"), &bad).await, Err(ControlError::InvalidLimit { .. })));
    }
    assert!(matches!(tenants.set_limits(&id("absent"), &set(Quota::Sandboxes, None)).await, Err(ControlError::NoTenant { .. })));
    control.stop(false).await;

    let mut config = home.config();
    config.tenant_limits = TenantLimits { sandboxes: Some(9), disk_bytes: Some(7), ..TenantLimits::default() };
    let control = home.start_with(config, &FakeEngine::new()).await;
    let limits = control.tenant_limits(&id("acme"));
    assert_eq!((limits.sandboxes, limits.memory_bytes, limits.disk_bytes), (Some(5), Some(1 << 60), Some(7)));
    let tenants = control.tenants().unwrap();
    assert!(tenants.get(&id("acme")).unwrap().disabled);
    tenants.set_limits(&id("acme"), &set(Quota::Sandboxes, None)).await.unwrap();
    assert_eq!(control.tenant_limits(&id("acme")).sandboxes, Some(9));
    control.stop(false).await;
}

fn row(number: u64, tenant: Option<&str>) -> AuditEntry {
    AuditEntry {
        at: Timestamp::from_second(1_000 + number as i64).unwrap(),
        tenant: tenant.map(id),
        key: None,
        action: "request".to_owned(),
        object: format!("GET /{number}"),
        subject: None,
        client: Some("192.0.2.1".to_owned()),
        outcome: "unauthorized".to_owned(),
    }
}

async fn the_stores_audit_log_is_paged_and_bounded(home: Home) {
    let open = home.open().await;
    let store = Arc::clone(&open).tenant_store().unwrap();
    let rows: Vec<AuditEntry> = (0..30).map(|n| row(n, [Some("a"), Some("b"), None][n as usize % 3])).collect();
    store.append_audit(rows.clone()).await.unwrap();
    let query = |tenant: Option<&str>, limit| AuditQuery { tenant: tenant.map(id), limit, ..AuditQuery::default() };
    let all = store.audit(query(None, 100)).await.unwrap();
    assert_eq!(all.iter().rev().map(|row| row.entry.clone()).collect::<Vec<_>>(), rows, "the newest first");
    let first = store.audit(query(Some("a"), 4)).await.unwrap();
    let rest = AuditQuery { before: Some(first[3].number), ..query(Some("a"), 100) };
    let rest = store.audit(rest).await.unwrap();
    assert_eq!((first.len(), rest.len()), (4, 6));
    assert!(first.iter().chain(&rest).all(|row| row.entry.tenant == Some(id("a"))));
    let from = Some(Timestamp::from_second(1_027).unwrap());
    assert_eq!(store.audit(AuditQuery { since: from, ..query(None, 100) }).await.unwrap().len(), 3);
    assert_eq!(store.audit(AuditQuery { until: from, ..query(None, 100) }).await.unwrap().len(), 28);
    store.trim_audit(Some(&id("a")), 3).await.unwrap();
    store.trim_audit(None, 0).await.unwrap();
    let left = store.audit(query(None, 100)).await.unwrap();
    let count = |tenant: Option<&str>| left.iter().filter(|row| row.entry.tenant == tenant.map(id)).count();
    assert_eq!((count(Some("a")), count(Some("b")), count(None)), (3, 10, 0));
    assert!(left.iter().any(|row| row.entry.object == "GET /27"), "the oldest leave");

    let tenant = |name: &str| Tenant {
        name: id(name),
        created_at: Timestamp::UNIX_EPOCH,
        limits: TenantLimits::default(),
        network: TenantNetwork::default(),
        disabled: false,
    };
    store.create_tenant(&tenant("a")).await.unwrap();
    assert!(matches!(store.create_tenant(&tenant("a")).await, Err(StoreError::Taken)));
    assert_eq!(store.remove_tenant(&id("a"), Timestamp::UNIX_EPOCH).await.unwrap(), RemovedTenant::Removed);
    assert!(matches!(store.create_tenant(&tenant("a")).await, Err(StoreError::Taken)));
    assert!(store.tenants().await.unwrap().is_empty());
    open.close().await;
}

async fn a_flood_of_refusals_is_bounded_and_written(home: Home) {
    let control = home.start().await;
    let tenants = control.tenants().unwrap();
    let mut sent = 0;
    // A fast disk keeps up for a while.
    while sent < 10_000 || tenants.dropped_refusals() == 0 && sent < 1_000_000 {
        tenants.audit_refusal(row(sent, None));
        sent += 1;
    }
    let page = tenants.audit_page(AuditQuery { limit: 1000, ..AuditQuery::default() }).await.unwrap();
    assert_eq!(page.len(), 1000);
    assert!(tenants.dropped_refusals() > 0);
    let odd = AuditEntry { object: format!("{}\n\u{1b}[31m", "ä".repeat(1000)), ..row(0, Some("default")) };
    tenants.audit(odd).await;
    let page = tenants.audit_page(AuditQuery { tenant: Some(id("default")), limit: 1, ..AuditQuery::default() }).await.unwrap();
    assert!(page[0].entry.object.chars().count() == 256 && !page[0].entry.object.contains(char::is_control));
    control.stop(false).await;
}

/// With the store closed. Prints the time of one authentication.
async fn authentication_needs_no_store(home: Home) {
    let control = home.start().await;
    let tenants = control.tenants().unwrap();
    let mut texts = Vec::new();
    for _ in 0..50 {
        texts.push(tenants.create_key(new("default", Role::Use)).await.unwrap().1);
    }
    control.stop(false).await;
    let mut times: Vec<Duration> = Vec::new();
    for text in texts.iter().cycle().take(5_000) {
        let begun = Instant::now();
        tenants.authenticate(text.as_str()).unwrap();
        times.push(begun.elapsed());
    }
    times.sort();
    println!("authentication: p50 {:?}, p99 {:?}", times[2_500], times[4_950]);
}
