//! The client against a fake agent.

use super::fake::{FakeAgent, PNG};
use super::*;
use crate::error::{SynthesisError, machine};
use crate::sandboxes::{Caller, GuestAnswer, GuestRequest, SandboxHandle, SandboxRequest, Sandboxes};

async fn vm() -> (OsWorld, FakeAgent) {
    let agent = FakeAgent::start().await;
    (OsWorld::new(Box::new(http::Tcp { address: agent.address.clone() })), agent)
}

fn words(text: &str) -> Vec<String> {
    text.split(' ').map(str::to_owned).collect()
}

#[tokio::test]
async fn it_looks_and_reads_and_writes() {
    let (vm, agent) = vm().await;
    assert!(vm.is_ready(MOMENT).await);
    assert_eq!(vm.size().await.unwrap(), (1920, 1080));
    assert_eq!(vm.screenshot().await.unwrap(), PNG);
    assert!(vm.tree().await.unwrap().unwrap().contains("push-button\tSave & go"));
    assert_eq!(vm.terminal().await.unwrap().as_deref(), Some("$ ls"));
    let content = b"\x00--\r\n\r\n--arenite\xff";
    vm.write("/home/user/a b+&\u{e9}.bin", content).await.unwrap();
    assert_eq!(vm.read("/home/user/a b+&\u{e9}.bin").await.unwrap(), content);
    assert!(vm.read("/nothing").await.unwrap_err().to_string().contains("there is no file \"/nothing\""));
    assert!(vm.write("/a\r\nb", b"").await.is_err());
    vm.record(Recording::Start).await.unwrap();
    assert_eq!(vm.record(Recording::Stop).await.unwrap(), b"film");
    assert!(vm.reset().await.is_err());
    assert_eq!(agent.state.lock().unwrap().files.len(), 1);
}

#[tokio::test]
async fn commands_have_an_end_in_the_machine_too() {
    let (vm, agent) = vm().await;
    let done = vm.run(&words("ls -l"), Duration::from_secs(5)).await.unwrap();
    assert_eq!(done.stdout, r#"["timeout","-k","2","5.000","ls","-l"]"#);
    let done = vm.run(&words("ls it's"), Duration::from_secs(500)).await.unwrap();
    assert_eq!((done.stdout.as_str(), done.code), (r"exec 'ls' 'it'\''s'", 3));
    agent.state.lock().unwrap().instead.insert("/run_bash_script".to_owned(), (404, Vec::new()));
    let done = vm.run(&words("ls"), Duration::from_secs(500)).await.unwrap();
    assert_eq!(done.stdout, r#"["timeout","-k","2","115.000","ls"]"#);
    vm.launch(&words("google-chrome --x")).await.unwrap();
    let posted = agent.state.lock().unwrap().posted.pop().unwrap();
    assert_eq!(posted, ("/setup/launch".to_owned(), json!({"command": ["google-chrome", "--x"], "shell": false})));
}

#[tokio::test]
async fn what_the_machine_can_not_do_is_said_in_its_words() {
    let (vm, agent) = vm().await;
    let say = |path: &str, status: u16, body: &[u8]| {
        agent.state.lock().unwrap().instead.insert(path.to_owned(), (status, body.to_vec()));
    };
    say("/execute", 500, br#"{"status": "error", "message": "no such\nprogram"}"#);
    let error = vm.run(&words("nope"), MOMENT).await.unwrap_err().to_string();
    assert_eq!(error, "the VM refused the command (status 500): no suchprogram");
    say("/execute", 200, br#"{"output": "", "error": "Traceback\nthere is no key 'warp'\n", "returncode": 1}"#);
    let error = vm.act(&Action::KeyDown { key: "warp".to_owned() }).await.unwrap_err().to_string();
    assert_eq!(error, "the VM could not do it: there is no key 'warp'");
    say("/screenshot", 200, b"<html>");
    assert!(vm.screenshot().await.unwrap_err().to_string().contains("no PNG"));
    say("/screen_size", 200, br#"{"width": 0, "height": -1}"#);
    assert!(vm.size().await.is_err());
    say("/accessibility", 200, br#"{"AT": "<!DOCTYPE a []><a/>"}"#);
    assert!(vm.tree().await.unwrap_err().to_string().contains("document type"));
    say("/accessibility", 404, b"");
    assert_eq!(vm.tree().await.unwrap(), None);
    say("/platform", 200, &vec![b'x'; 2 << 10]);
    let other = OsWorld::new(Box::new(http::Tcp { address: agent.address.clone() }));
    assert!(other.platform().await.unwrap_err().to_string().contains("is over"));
    let away = OsWorld::new(Box::new(http::Tcp { address: "127.0.0.1:1".to_owned() }));
    assert!(away.size().await.unwrap_err().to_string().contains("can't be reached"));
}

/// Fake sandboxes that only record requests.
#[derive(Default)]
struct FakeSandboxes(std::sync::Mutex<Vec<String>>);

#[async_trait]
impl Sandboxes for FakeSandboxes {
    async fn make(
        &self,
        _: &Caller,
        _: &SandboxRequest,
        _: std::collections::BTreeMap<String, String>,
    ) -> Result<String, SynthesisError> {
        Err(machine("there are none"))
    }
    async fn remove(&self, _: &Caller, _: &str) {}
    async fn is_there(&self, _: &Caller, _: &str) -> bool {
        true
    }
    async fn tenants(&self) -> Vec<arenite_model::TenantId> {
        Vec::new()
    }

    async fn labelled(&self, _: &arenite_model::TenantId, _: &str) -> Vec<String> {
        Vec::new()
    }
    async fn call(&self, _: &Caller, _: &str, _: &str, _: Option<&Value>) -> Result<GuestAnswer, SynthesisError> {
        Err(machine("there are none"))
    }
    async fn send(&self, _: &Caller, name: &str, request: GuestRequest<'_>) -> Result<(u16, Vec<u8>), SynthesisError> {
        self.0.lock().unwrap().push(format!("{name}:{} {} {}", request.port, request.method, request.path));
        Ok((200, if request.path.ends_with("screenshot") { PNG.to_vec() } else { vec![b' '; 2 << 20] }))
    }
}

#[tokio::test]
async fn an_agent_in_a_sandbox_is_reached_by_its_port() {
    let sandboxes = std::sync::Arc::new(FakeSandboxes::default());
    let caller = Caller { tenant: arenite_model::TenantId::default_tenant(), request_id: String::new(), origin: None };
    let handle = SandboxHandle { sandboxes: sandboxes.clone(), caller, name: "box".to_owned() };
    let vm = OsWorld::new(Box::new(http::InSandbox { handle, port: 5000 }));
    assert_eq!(vm.screenshot().await.unwrap(), PNG);
    assert_eq!(vm.size().await.unwrap_err().to_string(), "the answer is over 64 KiB");
    assert_eq!(*sandboxes.0.lock().unwrap(), ["box:5000 GET /screenshot", "box:5000 POST /screen_size"]);
}
