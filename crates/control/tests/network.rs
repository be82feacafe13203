//! Networks of tenants: which creates get the default, and that the engine gets the floor however a sandbox starts.

#![allow(clippy::unwrap_used, reason = "a helper of a test fails its test")]

mod support;

use std::sync::Arc;
use std::time::Duration;

use arenite_control::fake_engine::{EngineCall, FakeEngine};
use arenite_control::tenants::Principal;
use arenite_control::{Control, ControlError, CreateRequest, DefaultNetwork, Sandbox, SandboxChange, SpecOverlay};
use arenite_model::{NetworkMode, NetworkPolicy, PauseKind, SandboxId, TenantId};
use support::home::{Home, on_both_stores};
use support::{name, named, tenant};

on_both_stores! {
    the_engine_gets_the_floor_with_each_start,
    a_floor_is_put_into_effect_again_by_a_restarted_server,
}

fn policy(rule: &str) -> NetworkPolicy {
    NetworkPolicy { allow: vec![rule.into()], ..NetworkPolicy::default() }
}

async fn create(control: &Control, text: &str, spec: SpecOverlay) -> Sandbox {
    control.create(&tenant(), CreateRequest { spec, ..named(text) }).await.unwrap()
}

fn floor_of(engine: &FakeEngine, id: &SandboxId) -> Option<NetworkPolicy> {
    engine.spec(id).unwrap().network_floor
}

async fn the_engine_gets_the_floor_with_each_start(home: Home) {
    let engine = FakeEngine::new();
    let mut config = home.config();
    config.pools = vec![("base".to_owned(), 1)];
    let control = home.start_with(config, &engine).await;
    let [one, other] = [policy("one.example"), policy("other.example")];
    control.set_tenant_network(&tenant(), None, Some(Some(one.clone()))).await.unwrap();
    for _ in 0..500 {
        if control.counters().pooled == 1 {
            break;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    let pooled = create(&control, "pooled", SpecOverlay::default()).await;
    let calls = engine.calls();
    let at = |call: EngineCall| calls.iter().position(|made| format!("{made:?}") == format!("{call:?}"));
    let (set, adopted) = (at(EngineCall::SetNetwork(pooled.id.clone())), at(EngineCall::Adopt(pooled.id.clone())));
    assert!(set.is_some() && set < adopted, "it has the floor before anything of the tenant runs in it: {calls:?}");
    let own = SpecOverlay { network: Some(NetworkMode::Open), network_policy: Some(other.clone()), ..SpecOverlay::default() };
    let policed = create(&control, "policed", SpecOverlay { hostname: Some("x".to_owned()), ..own }).await;
    let closed = create(&control, "closed", SpecOverlay { network: Some(NetworkMode::None), ..SpecOverlay::default() }).await;
    let floors = |engine: &FakeEngine| [&pooled, &policed, &closed].map(|sandbox| floor_of(engine, &sandbox.id));
    assert_eq!(floors(&engine), [Some(one.clone()), Some(one.clone()), None]);
    assert_eq!(control.get(&tenant(), &name("policed")).await.unwrap().spec.network_floor, None, "it is in no row");

    control.set_tenant_network(&tenant(), None, Some(Some(other.clone()))).await.unwrap();
    assert_eq!(floors(&engine), [Some(other.clone()), Some(other.clone()), None], "it is in effect when the call returns");
    control.pause(&tenant(), &name("policed"), PauseKind::Disk).await.unwrap();
    control.set_tenant_network(&tenant(), None, Some(Some(one.clone()))).await.unwrap();
    control.start_sandbox(&tenant(), &name("policed")).await.unwrap();
    assert_eq!(floor_of(&engine, &policed.id), Some(one.clone()));
    let change = SandboxChange { network_policy: Some(None), ..SandboxChange::default() };
    control.change(&Principal::server(tenant()), &name("policed"), change).await.unwrap();
    let spec = engine.spec(&policed.id).unwrap();
    assert_eq!((spec.network_policy, spec.network_floor), (None, Some(one)), "a change keeps it");
    control.set_tenant_network(&tenant(), None, Some(None)).await.unwrap();
    assert_eq!(floors(&engine), [None, None, None]);
    let absent: TenantId = "absent".parse().unwrap();
    let refused = control.set_tenant_network(&absent, None, Some(Some(other))).await;
    assert!(matches!(refused, Err(ControlError::NoTenant { .. })));
    control.stop(false).await;
}

async fn a_floor_is_put_into_effect_again_by_a_restarted_server(home: Home) {
    let engine = FakeEngine::new();
    let control = home.start_with(home.config(), &engine).await;
    let made = create(&control, "old", SpecOverlay::default()).await;
    control.set_tenant_network(&tenant(), None, Some(Some(policy("one.example")))).await.unwrap();
    control.stop(false).await;
    let before = sets(&engine, &made.id);
    let control = home.start_with(home.config(), &engine).await;
    for _ in 0..500 {
        if sets(&engine, &made.id) > before {
            break;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    assert!(sets(&engine, &made.id) > before, "another node may have changed it meanwhile");
    assert_eq!(floor_of(&engine, &made.id), Some(policy("one.example")));
    control.stop(false).await;
}

fn sets(engine: &FakeEngine, id: &SandboxId) -> usize {
    engine.calls().into_iter().filter(|call| matches!(call, EngineCall::SetNetwork(set) if set == id)).count()
}

#[tokio::test]
async fn a_default_is_for_creates_and_templates_that_name_no_network() {
    let home = Home::sqlite();
    let engine: Arc<FakeEngine> = FakeEngine::new();
    let mut config = home.config();
    let templates = home.dir().join("templates");
    std::fs::create_dir(&templates).unwrap();
    std::fs::write(templates.join("silent.toml"), "image = \"base\"\n").unwrap();
    std::fs::write(templates.join("loud.toml"), "image = \"base\"\nnetwork = \"open\"\n").unwrap();
    config.templates_dir = Some(templates);
    let control = home.start_with(config, &engine).await;
    let default = DefaultNetwork { mode: NetworkMode::Open, policy: Some(policy("one.example")) };
    control.set_tenant_network(&tenant(), Some(Some(default)), None).await.unwrap();
    let of = async |text: &str, template: Option<&str>, spec: SpecOverlay| {
        let request = CreateRequest { spec, template: template.map(str::to_owned), ..named(text) };
        control.create(&tenant(), request).await.unwrap().spec.network_policy
    };
    let image = SpecOverlay { image: Some("base".parse().unwrap()), ..SpecOverlay::default() };
    let open = SpecOverlay { network: Some(NetworkMode::Open), ..SpecOverlay::default() };
    assert_eq!(of("a", None, SpecOverlay::default()).await, Some(policy("one.example")));
    assert_eq!(of("b", None, image).await, Some(policy("one.example")));
    assert_eq!(of("c", Some("silent"), SpecOverlay::default()).await, Some(policy("one.example")));
    assert_eq!(of("d", Some("loud"), SpecOverlay::default()).await, None);
    assert_eq!(of("e", None, open).await, None);
    control.stop(false).await;
}
