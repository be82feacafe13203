//! AIO's `browser_cookies` service: cookies of the person's profile, in Playwright's shape.

use axum::Router;
use axum::extract::State;
use axum::routing::get;
use serde::de::IgnoredAny;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};
use std::sync::Arc;
use utoipa::{IntoParams, OpenApi, ToSchema};

use super::automation::Automation;
use super::page::PageError;
use super::types::Items;
use crate::BrowserService;
use arenite_guest_cdp::CdpError;
use arenite_guest_runtime::http::{Body, Envelope, QueryArgs, Reply, ok, ok_message, whole};

/// Maximum cookies per call.
const MAX_COOKIES: usize = 3000;

/// The service's part of the OpenAPI document.
#[derive(Debug, OpenApi)]
#[openapi(paths(get_all, set, clear))]
pub struct CookiesApi;

pub(super) fn router() -> Router<Arc<BrowserService>> {
    Router::new().route("/v1/browser/cookies", get(get_all).post(set).delete(clear))
}

/// A cookie, as callers and state files have it.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Cookie {
    name: String,
    value: String,
    #[serde(default)]
    domain: String,
    #[serde(default)]
    path: String,
    /// Seconds since 1970; -1: until the browser ends.
    #[serde(default = "session")]
    expires: f64,
    #[serde(default)]
    http_only: bool,
    #[serde(default)]
    secure: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    same_site: Option<String>,
    /// Replaces domain and path when a cookie is set.
    #[serde(default, skip_serializing)]
    url: Option<String>,
}

fn session() -> f64 {
    -1.0
}

#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
struct CookieQuery {
    /// Addresses that the cookies would be sent to, separated by commas. Absent: all cookies.
    urls: Option<String>,
}

#[derive(Debug, Deserialize, ToSchema)]
pub(super) struct CookieSetRequest {
    /// Each with `name`, `value`, and `url` or `domain` and `path`.
    pub(super) cookies: Vec<Map<String, Value>>,
}

/// Returns all cookies of the profile.
pub(super) async fn all(automation: &Automation) -> Result<Vec<Cookie>, PageError> {
    #[derive(Deserialize)]
    struct CookieList {
        cookies: Vec<Cookie>,
    }
    let CookieList { mut cookies } = automation.client().call("Storage.getCookies", json!({})).await?;
    for cookie in &mut cookies {
        // Browsers treat cookies without the attribute as `Lax`.
        cookie.same_site.get_or_insert_with(|| "Lax".to_owned());
    }
    Ok(cookies)
}

/// Sets all cookies, or none if one is invalid.
pub(super) async fn put(automation: &Automation, cookies: Vec<Cookie>) -> Result<(), PageError> {
    if cookies.len() > MAX_COOKIES {
        return Err(PageError::Bad(format!("one call sets up to {MAX_COOKIES} cookies")));
    }
    let params: Vec<Value> = cookies.into_iter().map(Cookie::into_params).collect::<Result<_, _>>()?;
    let set: Result<IgnoredAny, _> = automation.client().call("Storage.setCookies", json!({"cookies": params})).await;
    match set {
        Err(CdpError::Refused { message, .. }) => Err(PageError::Bad(format!("a cookie can't be set: {message}"))),
        set => Ok(set.map(drop)?),
    }
}

impl Cookie {
    fn read(number: usize, given: Map<String, Value>) -> Result<Self, PageError> {
        serde_json::from_value(Value::Object(given)).map_err(|error| PageError::Bad(format!("cookies[{number}]: {error}")))
    }

    fn into_params(self) -> Result<Value, PageError> {
        let name = self.name.clone();
        let bad = |why: &str| PageError::Bad(format!("the cookie {name:?} {why}"));
        if self.name.is_empty() {
            return Err(bad("has no name"));
        }
        let mut params = json!({
            "name": self.name, "value": self.value, "httpOnly": self.http_only, "secure": self.secure,
        });
        match self.url {
            Some(url) if !self.domain.is_empty() => return Err(bad(&format!("has both a url, {url}, and a domain"))),
            Some(url) if url.starts_with("http://") || url.starts_with("https://") => params["url"] = json!(url),
            Some(_) => return Err(bad("has a url that is not http or https")),
            None if self.domain.is_empty() => return Err(bad("needs a url or a domain")),
            None => {
                params["domain"] = json!(self.domain);
                params["path"] = json!(if self.path.is_empty() { "/" } else { &self.path });
            }
        }
        if self.expires >= 0.0 {
            params["expires"] = json!(self.expires);
        }
        match self.same_site.as_deref() {
            None | Some("") => {}
            Some(word) => {
                let known = ["Strict", "Lax", "None"].into_iter().find(|known| known.eq_ignore_ascii_case(word));
                params["sameSite"] = json!(known.ok_or_else(|| bad("has a sameSite that is not Strict, Lax or None"))?);
            }
        }
        Ok(params)
    }

    /// Whether the cookie would be sent to a URL.
    fn goes_to(&self, url: &str) -> bool {
        let Some((scheme, rest)) = url.split_once("://") else { return false };
        let place = rest.split(['?', '#']).next().unwrap_or_default();
        let (host, path) = place.split_once('/').map_or((place, "/".to_owned()), |(host, path)| (host, format!("/{path}")));
        let host = host.rsplit_once('@').map_or(host, |(_, host)| host);
        let host =
            host.rsplit_once(':').filter(|(_, port)| port.chars().all(|c| c.is_ascii_digit())).map_or(host, |(host, _)| host);
        let host = host.to_ascii_lowercase();
        let local = host == "localhost" || host.ends_with(".localhost") || host.starts_with("127.");
        let domain = match self.domain.strip_prefix('.') {
            Some(domain) => host == domain || host.ends_with(&format!(".{domain}")),
            None => host == self.domain,
        };
        let below = path == self.path
            || path.strip_prefix(&self.path).is_some_and(|rest| self.path.ends_with('/') || rest.starts_with('/'));
        domain && below && (!self.secure || scheme.eq_ignore_ascii_case("https") || local)
    }
}

/// The cookies of the profile, or those that would be sent to the given addresses.
#[utoipa::path(get, path = "/v1/browser/cookies", tag = "browser", operation_id = "get_cookies_v1_browser_cookies_get",
    params(CookieQuery), responses((status = 200, body = Envelope<Items>)))]
async fn get_all(State(service): State<Arc<BrowserService>>, QueryArgs(query): QueryArgs<CookieQuery>) -> Reply<Vec<Value>> {
    let urls: Vec<&str> =
        query.urls.as_deref().unwrap_or_default().split(',').map(str::trim).filter(|url| !url.is_empty()).collect();
    if let Some(wrong) = urls.iter().find(|url| !url.contains("://")) {
        return Err(PageError::Bad(format!("{wrong:?} is no URL")).into());
    }
    let meant = |cookie: &Cookie| urls.is_empty() || urls.iter().any(|url| cookie.goes_to(url));
    let cookies = whole(async move { all(&*service.automation().await?).await });
    ok(cookies.await?.into_iter().filter(meant).map(|cookie| json!(cookie)).collect())
}

/// Sets cookies.
#[utoipa::path(post, path = "/v1/browser/cookies", tag = "browser", operation_id = "set_cookies_v1_browser_cookies_post",
    request_body = CookieSetRequest, responses((status = 200, body = Envelope<serde_json::Value>)))]
async fn set(State(service): State<Arc<BrowserService>>, Body(request): Body<CookieSetRequest>) -> Reply<Value> {
    let cookies: Vec<Cookie> =
        request.cookies.into_iter().enumerate().map(|(number, cookie)| Cookie::read(number, cookie)).collect::<Result<_, _>>()?;
    let count = cookies.len();
    whole(async move { put(&*service.automation().await?, cookies).await }).await?;
    ok_message(json!({"count": count}), "Set the cookies")
}

/// Removes all cookies of the profile.
#[utoipa::path(delete, path = "/v1/browser/cookies", tag = "browser",
    operation_id = "clear_cookies_v1_browser_cookies_delete", responses((status = 200, body = Envelope<serde_json::Value>)))]
async fn clear(State(service): State<Arc<BrowserService>>) -> Reply<Value> {
    let count = whole(async move {
        let automation = service.automation().await?;
        let count = all(&automation).await?.len();
        let _: IgnoredAny = automation.client().call("Storage.clearCookies", json!({})).await?;
        Ok::<_, PageError>(count)
    });
    ok_message(json!({"count": count.await?}), "Removed the cookies")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cookie(value: Value) -> Result<Value, PageError> {
        let Value::Object(given) = value else { panic!("no object") };
        Cookie::read(0, given)?.into_params()
    }

    #[test]
    fn cookies_are_told_what_is_wrong_with_them() {
        let good = json!({"name": "a", "value": "b", "domain": "example.com", "sameSite": "lax"});
        let wanted = json!({"name": "a", "value": "b", "domain": "example.com", "path": "/", "sameSite": "Lax", "httpOnly": false, "secure": false});
        assert_eq!(cookie(good).unwrap(), wanted);
        for bad in [
            json!({"name": "a", "value": "b"}),
            json!({"name": "", "value": "b", "domain": "x"}),
            json!({"name": "a", "value": 1, "domain": "x"}),
            json!({"name": "a", "value": "b", "url": "ftp://x"}),
            json!({"name": "a", "value": "b", "url": "http://x", "domain": "x"}),
            json!({"name": "a", "value": "b", "domain": "x", "sameSite": "Sometimes"}),
        ] {
            assert!(matches!(cookie(bad.clone()), Err(PageError::Bad(_))), "{bad}");
        }
    }

    #[test]
    fn addresses_choose_cookies() {
        let of = |domain: &str, path: &str, secure: bool| -> Cookie {
            serde_json::from_value(json!({"name": "a", "value": "", "domain": domain, "path": path, "secure": secure})).unwrap()
        };
        for (cookie, url, goes) in [
            (of("example.com", "/", false), "http://example.com", true),
            (of("example.com", "/", false), "http://example.com:8080/x?y", true),
            (of("example.com", "/", false), "http://www.example.com/", false),
            (of(".example.com", "/", false), "http://www.Example.com/", true),
            (of(".example.com", "/", false), "http://badexample.com/", false),
            (of("example.com", "/a", false), "http://example.com/a/b", true),
            (of("example.com", "/a", false), "http://example.com/ab", false),
            (of("example.com", "/", true), "http://example.com/", false),
            (of("example.com", "/", true), "https://example.com/", true),
            (of("localhost", "/", true), "http://localhost/", true),
            (of("example.com", "/", false), "nonsense", false),
        ] {
            assert_eq!(cookie.goes_to(url), goes, "{cookie:?} {url}");
        }
    }
}
