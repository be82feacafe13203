//! Templates as files, and their overlay by requests.

#![allow(clippy::unwrap_used, reason = "a helper of a test fails its test")]

mod support;

use std::fs;
use std::sync::Arc;

use arenite_control::fake_engine::FakeEngine;
use arenite_control::{Control, ControlConfig, CreateRequest, ResourcesOverlay, SpecOverlay};
use arenite_model::{ErrorCode, IdlePolicy, NetworkMode, SandboxSpec};
use support::{config, start, tenant};

/// A control with a directory of templates and an environments file.
async fn on(dir: &tempfile::TempDir) -> (Arc<FakeEngine>, Arc<Control>) {
    let engine = FakeEngine::new();
    let config = ControlConfig {
        templates_dir: Some(dir.path().to_owned()),
        environments_file: Some(dir.path().join("environments.json")),
        ..config()
    };
    let control = start(config, &engine).await;
    (engine, control)
}

async fn made(control: &Control, template: &str, spec: SpecOverlay) -> Result<SandboxSpec, arenite_control::ControlError> {
    let request = CreateRequest { template: Some(template.to_owned()), spec, ..CreateRequest::default() };
    let made = control.create(&tenant(), request).await?;
    assert_eq!(made.template.as_deref(), Some(template));
    Ok(made.spec)
}

#[tokio::test]
async fn a_template_is_read_again_when_changed_and_requests_are_laid_over_it() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("environments.json"), "[]").unwrap();
    let file = dir.path().join("data.toml");
    fs::write(
        &file,
        r#"
        description = "for data"
        image = "team/data:3"
        workdir = "/data"
        services = ["bash", "file"]
        network = "none"
        idle_timeout_seconds = 600
        idle_policy = "pause"
        [env]
        A = "template"
        B = "template"
        [resources]
        memory_bytes = 536870912
        "#,
    )
    .unwrap();
    let (engine, control) = on(&dir).await;
    let spec = made(
        &control,
        "data",
        SpecOverlay {
            env: Some([("A".to_owned(), "request".to_owned())].into()),
            idle_timeout_seconds: Some(0),
            resources: ResourcesOverlay { pids: Some(100), ..ResourcesOverlay::default() },
            ..SpecOverlay::default()
        },
    )
    .await
    .unwrap();
    assert_eq!(spec.image.as_str(), "team/data:3");
    assert_eq!(spec.workdir.as_deref(), Some("/data"));
    assert_eq!((spec.env["A"].as_str(), spec.env["B"].as_str()), ("request", "template"));
    assert_eq!(spec.network, NetworkMode::None);
    assert_eq!((spec.idle_timeout_seconds, spec.idle_policy), (None, IdlePolicy::Pause));
    assert_eq!((spec.resources.memory_bytes, spec.resources.pids), (512 << 20, 100));
    let id = &control.list(&tenant()).await.unwrap()[0].id;
    assert_eq!(engine.spec(id), Some(spec), "the engine gets the very same");

    // Of another length, so that it is seen within the same tick of the file system's clock too.
    fs::write(&file, "image = \"other\"\nargs = [\"sleep\"]").unwrap();
    let spec = made(&control, "data", SpecOverlay::default()).await.unwrap();
    assert_eq!(spec.image.as_str(), "other");
    assert_eq!(spec.args, ["sleep"]);
    fs::remove_file(&file).unwrap();
    let error = made(&control, "data", SpecOverlay::default()).await.unwrap_err();
    assert_eq!(error.code(), ErrorCode::NotFound);
    assert!(error.hint().unwrap().contains("aio"));
}

#[tokio::test]
async fn a_bad_template_says_why_and_harms_no_other() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(
        dir.path().join("environments.json"),
        r#"[{"name":"python","image":"py:3","description":"Python"},
            {"name":"broken","image":"UPPER","description":""}]"#,
    )
    .unwrap();
    for (name, text, why) in [
        ("typo", "imag = \"x\"", "unknown field"),
        ("host", "network = \"host\"", "host"),
        ("small", "[resources]\nmemory_bytes = 1", "memory_bytes"),
        ("named", "name = \"other\"", "called like its file"),
        ("needy", "services = [\"browser\"]", "no service"),
        ("torn", "image = ", "TOML"),
    ] {
        fs::write(dir.path().join(format!("{name}.toml")), text).unwrap();
        let (_, control) = on(&dir).await;
        let error = made(&control, name, SpecOverlay::default()).await.unwrap_err();
        assert_eq!(error.code(), ErrorCode::InvalidRequest, "{error}");
        assert!(error.to_string().contains(why), "{name}: {error}");
    }
    let (_, control) = on(&dir).await;
    let error = made(&control, "broken", SpecOverlay::default()).await.unwrap_err();
    assert_eq!(error.code(), ErrorCode::InvalidRequest);
    let spec = made(&control, "python", SpecOverlay::default()).await.unwrap();
    assert_eq!(spec.image.as_str(), "py:3");
    let names: Vec<String> = control.templates().into_iter().map(|t| t.name).collect();
    assert_eq!(names, ["aio", "default", "python"]);
    for outside in ["../secret", "", ".hidden", "a/b"] {
        let error = made(&control, outside, SpecOverlay::default()).await.unwrap_err();
        assert_eq!(error.code(), ErrorCode::NotFound);
    }

    // An image alone needs no template; the spec is still checked.
    let mut request = CreateRequest::default();
    request.spec.image = Some("just:this".parse().unwrap());
    let made = control.create(&tenant(), request.clone()).await.unwrap();
    assert_eq!((made.template, made.name.as_str()), (None, made.id.as_str()));
    request.spec.ports = Some(vec![0]);
    let error = control.create(&tenant(), request).await.unwrap_err();
    assert_eq!(error.code(), ErrorCode::InvalidRequest);
}

#[tokio::test]
async fn aio_is_the_image_of_that_name_and_only_the_unnamed_get_the_default() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("environments.json"), "[]").unwrap();
    let (_, control) = on(&dir).await;
    let spec = made(&control, "aio", SpecOverlay::default()).await.unwrap();
    assert_eq!(spec.image.as_str(), "aio", "never silently the default image");
    let unnamed = control.create(&tenant(), CreateRequest::default()).await.unwrap();
    assert_eq!((unnamed.template.as_deref(), unnamed.spec.image.as_str()), (Some("default"), "base"));
    // An operator's own template replaces both.
    fs::write(dir.path().join("aio.toml"), "image = \"team/aio\"").unwrap();
    let unnamed = control.create(&tenant(), CreateRequest::default()).await.unwrap();
    assert_eq!((unnamed.template.as_deref(), unnamed.spec.image.as_str()), (Some("aio"), "team/aio"));
}
