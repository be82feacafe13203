//! `/v1/docs`, `/api/v2/docs`, `/docs`, and `/redoc`: the interfaces' OpenAPI documents as one page for people, which starts with
//! the one that the address means. It sends calls as any other client does.
//!
//! Answers come from sandboxes, too, so its script renders them as text and pictures, never as markup. On a sandbox's own host, the
//! page has the sandbox's interface alone, since there are no others.

use super::Page;
use super::built::{DOCS_SCRIPT, DOCS_STYLE};
use super::dashboard::console;
use crate::exchange::{Answered, Exchange};
use crate::guard::HostKind;
use crate::target::SandboxRef;

pub(super) static PAGE: Page =
    Page::built(include_str!("../../../../web/docs.html"), &DOCS_STYLE, &DOCS_SCRIPT).may("img-src data: blob:");

pub(crate) async fn serve(exchange: &mut Exchange) -> Answered {
    let path = exchange.path.decoded.as_str();
    let (dialect, document) = match path {
        "/api/v2/docs" => ("arenite", "api/v2/openapi.json"),
        _ if path.ends_with("/v1/docs") => ("aio", "v1/openapi.json"),
        _ => ("agentflow", "openapi.json"),
    };
    let sandbox = match exchange.target() {
        Ok(target) if path.starts_with("/sandbox/") => match target.sandbox_ref {
            SandboxRef::Name(name) => name.to_string(),
            SandboxRef::Id(id) => id.to_string(),
        },
        _ => String::new(),
    };
    let keys = if exchange.gateway.needs_credentials() { "required" } else { "none" };
    let place = if exchange.host.kind == HostKind::Server { "shared" } else { "own" };
    Ok(PAGE.with(&[
        ("{BASE}", &to_root(&exchange.path.raw)),
        ("{DIALECT}", dialect),
        ("{DOCUMENT}", document),
        ("{SANDBOX}", &sandbox),
        ("{PLACE}", place),
        ("{KEYS}", keys),
        ("{CONSOLE}", &console(&exchange.context, &exchange.host)),
    ]))
}

/// The server's root as seen from a path: the server may be below a proxy's path.
fn to_root(path: &str) -> String {
    match path.matches('/').count() {
        0 | 1 => "./".to_owned(),
        slashes => "../".repeat(slashes - 1),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::harness::Harness;

    #[test]
    fn the_root_is_relative_to_the_page() {
        for (path, wanted) in [
            ("/docs", "./"),
            ("/docs/", "../"),
            ("/v1/docs", "../"),
            ("/api/v2/docs", "../../"),
            ("/sandbox/a/v1/docs", "../../../"),
        ] {
            assert_eq!(to_root(path), wanted, "{path}");
        }
    }

    #[tokio::test]
    async fn it_starts_with_the_interface_of_its_address() {
        let server = Harness::new().await;
        let id =
            server.call("POST", "/api/v2/sandboxes", json!({ "name": "demo" })).await.json["id"].as_str().unwrap().to_owned();
        let host = format!("{id}.localhost");
        for (path, headers, dialect, sandbox, place) in [
            ("/api/v2/docs", vec![], "arenite", "", "shared"),
            ("/v1/docs", vec![], "aio", "", "shared"),
            ("/docs", vec![], "agentflow", "", "shared"),
            ("/redoc", vec![], "agentflow", "", "shared"),
            ("/sandbox/demo/v1/docs", vec![], "aio", "demo", "shared"),
            ("/v1/docs", vec![("host", host.as_str())], "aio", "", "own"),
        ] {
            let answer = server.call_with("GET", path, &headers, json!(null)).await;
            let wanted = format!("data-dialect=\"{dialect}\" data-sandbox=\"{sandbox}\" data-place=\"{place}\"");
            assert!(answer.status == 200 && answer.text.contains(&wanted), "{path}: {}", answer.text);
            assert!(!answer.text.contains("\"{"), "{path}: {}", answer.text);
        }
    }
}
