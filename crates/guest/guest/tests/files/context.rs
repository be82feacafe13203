use http::StatusCode;
use serde_json::Value;

use crate::guest::{Guest, Scratch};

async fn get(guest: &Guest, path: &str) -> Value {
    let (status, _, body) = guest.get(path, &[]).await;
    assert_eq!(status, StatusCode::OK);
    serde_json::from_slice(&body).unwrap()
}

#[tokio::test]
async fn the_context_has_every_required_field_and_real_data() {
    let dir = Scratch::new();
    let guest = Guest::start(&dir.0);
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port().to_string();
    let context = get(&guest, "/v1/sandbox").await;
    assert_eq!(context["success"], true);
    assert!(context["home_dir"].as_str().unwrap().starts_with('/'));
    assert_eq!(context["workspace"], dir.path("").trim_end_matches('/'));
    let version = context["version"].as_str().unwrap().strip_prefix('v').unwrap();
    assert!(version.split('.').count() == 4 && version.split('.').all(|n| n.parse::<u32>().is_ok()), "{version}");
    let system = &context["detail"]["system"];
    for field in ["os", "os_version", "arch", "user", "home_dir", "timezone"] {
        assert!(system[field].is_string(), "{field}: {system}");
    }
    assert_eq!(system["timezone"], "Europe/Zurich");
    assert!(system["occupied_ports"].as_array().unwrap().contains(&Value::from(port.as_str())), "{system}");
    assert!(
        context["detail"]["utils"]
            .as_array()
            .unwrap()
            .iter()
            .all(|c| c["category"].is_string() && c["tools"][0]["name"].is_string())
    );
    let runtime = &context["detail"]["runtime"];
    assert!(runtime["nodejs"].is_array());
    let text = context["data"].as_str().unwrap();
    assert!(text.contains(&format!("v{version}")) && text.contains(&port) && text.contains("Europe/Zurich"), "{text}");
    let told = std::process::Command::new("python3").arg("--version").output();
    if let Ok(told) = told {
        let told = String::from_utf8(told.stdout).unwrap();
        let told = told.trim().trim_start_matches("Python ");
        let ours =
            runtime["python"].as_array().unwrap().iter().find(|p| p["alias"].as_array().unwrap().contains(&"python3".into()));
        assert!(ours.is_some(), "{runtime}");
        // The search path of the guest's commands differs from this process's.
        if std::path::Path::new("/usr/bin/python3").exists() && !std::path::Path::new("/usr/local/bin/python3").exists() {
            assert!(ours.unwrap()["ver"].is_string(), "{runtime} {told}");
        }
    }
    let again = get(&guest, "/v1/sandbox").await;
    assert_eq!(again["detail"]["runtime"], *runtime);
}

#[tokio::test]
async fn packages_are_lists_that_name_their_versions() {
    let dir = Scratch::new();
    let guest = Guest::start(&dir.0);
    for (language, joint) in [("python", "=="), ("nodejs", "@")] {
        let answer = get(&guest, &format!("/v1/sandbox/packages/{language}")).await;
        assert_eq!(answer["success"], true);
        for package in answer["data"].as_array().unwrap() {
            let (name, version) = (package["name"].as_str().unwrap(), package["version"].as_str().unwrap());
            assert_eq!(package["spec"], format!("{name}{joint}{version}"));
        }
    }
    assert_eq!(get(&guest, "/v1/ping").await["data"], "pong");
    assert!(get(&guest, "/v1/capabilities").await["data"]["services"].is_array());
}
