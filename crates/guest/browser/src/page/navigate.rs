//! Navigation.

use std::future::poll_fn;
use std::net::IpAddr;
use std::pin::pin;
use std::task::Poll;
use std::time::Duration;

use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::json;
use tokio::time::{Instant, timeout_at};

use super::super::automation::{Stage, TabState};
use super::element::eventually;
use super::types::WaitUntil;
use super::{PageError, PageLocation, Work};
use arenite_guest_cdp::CdpError;

/// Timeout of `back`, `forward`, and `reload`.
const PATIENCE: Duration = Duration::from_secs(30);
/// The longest timeout that a call may set.
pub(super) const MAX_PATIENCE: Duration = Duration::from_secs(600);
/// Maximum bytes of an address.
const MAX_URL: usize = 2 << 20;
/// The browser's error for an empty answer with an error status: the page exists and is empty.
const EMPTY_ERROR: &str = "net::ERR_HTTP_RESPONSE_CODE_FAILURE";

/// Checks a caller's timeout in seconds.
pub(super) fn patience(seconds: f64) -> Result<Duration, PageError> {
    match Duration::try_from_secs_f64(seconds) {
        Ok(patience) if patience <= MAX_PATIENCE => Ok(patience),
        _ => Err(PageError::Bad(format!("timeout is from 0 to {} seconds", MAX_PATIENCE.as_secs()))),
    }
}

/// Completes an address as an address bar would.
pub(super) fn address(url: &str) -> Result<String, PageError> {
    let url = url.trim();
    if url.is_empty() {
        return Err(PageError::Bad("the URL is empty".to_owned()));
    }
    if url.len() > MAX_URL {
        return Err(PageError::Bad(format!("a URL can have {MAX_URL} bytes")));
    }
    let head = url.split(['/', '?', '#']).next().unwrap_or_default();
    if let Some((scheme, rest)) = head.split_once(':') {
        let is_scheme = scheme.starts_with(|c: char| c.is_ascii_alphabetic())
            && scheme.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '+' | '-' | '.'));
        let is_port = !rest.is_empty() && rest.chars().all(|c| c.is_ascii_digit());
        if scheme.eq_ignore_ascii_case("javascript") {
            return Err(PageError::Bad("javascript: is no address: use evaluate".to_owned()));
        }
        if is_scheme && !is_port {
            return Ok(url.to_owned());
        }
    }
    if url.starts_with('/') {
        return Err(PageError::Bad(format!("{url:?} names no host; files are opened by file://{url}")));
    }
    let host = head.rsplit_once(':').filter(|(_, port)| port.chars().all(|c| c.is_ascii_digit())).map_or(head, |(host, _)| host);
    let near = host == "localhost" || host.ends_with(".localhost") || host.trim_matches(['[', ']']).parse::<IpAddr>().is_ok();
    Ok(format!("{}://{url}", if near { "http" } else { "https" }))
}

impl Work {
    /// Opens an address. Returns the HTTP status; `None` if the page did not come over HTTP.
    pub async fn navigate(&self, url: &str, until: WaitUntil, seconds: f64) -> Result<(PageLocation, Option<u16>), PageError> {
        #[derive(Deserialize)]
        #[serde(rename_all = "camelCase")]
        struct Navigated {
            loader_id: Option<String>,
            error_text: Option<String>,
            #[serde(default)]
            is_download: bool,
        }
        let url = address(url)?;
        let patience = patience(seconds)?;
        let begun = Instant::now();
        let deadline = begun + patience;
        let late = |what| PageError::TooSlow { what, seconds: patience.as_secs_f64() };
        let before = self.tab.state().main().map(|main| main.loader.clone());
        // The answer is about the next document, so it is not lost if the page itself navigates meanwhile.
        let session = self.tab.session().await?;
        let asked = session.call_within::<Navigated>("Page.navigate", json!({"url": url}), patience + Duration::from_secs(5));
        let mut asked = pin!(timeout_at(deadline, asked));
        // The browser aborts a navigation when the next begins: the one that was requested later must be the one that stays.
        let mut latest = self.tab.navigation.lock().await;
        if *latest > self.number {
            return Err(PageError::Failed(format!("a later call opened another page than {url}")));
        }
        *latest = self.number;
        let first = poll_fn(|context| Poll::Ready(asked.as_mut().poll(context))).await;
        drop(latest);
        let answered = match first {
            Poll::Ready(answered) => answered,
            Poll::Pending => asked.await,
        };
        let navigated = match answered {
            Ok(Err(CdpError::Refused { message, .. })) => return Err(PageError::Bad(format!("{url}: {message}"))),
            Ok(navigated) => navigated?,
            Err(_) => {
                if *self.tab.navigation.lock().await == self.number {
                    // A late page would surprise the next call.
                    let _: Result<IgnoredAny, _> =
                        self.tab.call_within("Page.stopLoading", json!({}), Duration::from_secs(2)).await;
                }
                return Err(late("the page did not answer"));
            }
        };
        match navigated.error_text.as_deref() {
            None | Some("" | EMPTY_ERROR) => {}
            Some(_) if navigated.is_download => return Ok((self.location(), None)),
            Some(error) => return Err(PageError::Failed(format!("{error} at {url}"))),
        }
        // The answer may arrive before the events of the new document, and pages can go on to others immediately.
        if navigated.loader_id.is_some() {
            let there = |state: &mut TabState| {
                state
                    .main()
                    .is_some_and(|main| Some(&main.loader) != before.as_ref() && main.stage >= until.stage())
                    .then_some(())
            };
            self.tab.until(deadline, there).await?.ok_or_else(|| late("the page was not loaded"))?;
        }
        if until == WaitUntil::NetworkIdle && !self.at_rest(begun, deadline).await? {
            return Err(late("the page's requests did not end"));
        }
        self.titled().await;
        let status = self.tab.state().status();
        Ok((self.location(), status))
    }

    /// Waits for the page's resources, such as images. Returns false if some are still loading.
    pub async fn complete(&self, patience: Duration) -> Result<bool, PageError> {
        let loaded = |state: &mut TabState| state.main().is_none_or(|main| main.stage == Stage::Load).then_some(());
        let there = self.tab.until(Instant::now() + patience, loaded).await?.is_some();
        self.titled().await;
        Ok(there)
    }

    /// Waits until no request was pending for half a second, counted from `since`. Returns false after the deadline.
    pub(super) async fn at_rest(&self, since: Instant, deadline: Instant) -> Result<bool, PageError> {
        loop {
            let Some(rest) = self.tab.until(deadline, |state| state.rest(since)).await? else { return Ok(false) };
            if Instant::now() >= rest {
                return Ok(true);
            }
            let disturbed = |state: &mut TabState| (state.rest(since) != Some(rest)).then_some(());
            if rest > deadline {
                return Ok(false);
            }
            if self.tab.until(rest, disturbed).await?.is_none() {
                return Ok(true);
            }
        }
    }

    /// Updates the title from the page: the browser reports it slightly later.
    pub(super) async fn titled(&self) {
        if let Ok(Ok(title)) = tokio::time::timeout(Duration::from_secs(1), self.tab.ours("document.title")).await
            && let Some(title) = title.as_str()
        {
            self.tab.note(|state| state.title = title.to_owned());
        }
    }

    /// One step in the tab's history; `by` is -1 or 1.
    pub async fn history(&self, by: i64) -> Result<PageLocation, PageError> {
        #[derive(Deserialize)]
        #[serde(rename_all = "camelCase")]
        struct History {
            current_index: i64,
            entries: Vec<Entry>,
        }
        #[derive(Deserialize)]
        struct Entry {
            id: i64,
        }
        let history: History = self.tab.call("Page.getNavigationHistory", json!({})).await?;
        let wanted = usize::try_from(history.current_index + by).ok().and_then(|index| history.entries.get(index));
        let Some(Entry { id }) = wanted else {
            let way = if by < 0 { "back" } else { "forward" };
            return Err(PageError::Failed(format!("there is no page to go {way} to")));
        };
        self.going("Page.navigateToHistoryEntry", json!({"entryId": id})).await
    }

    pub(super) async fn reload(&self) -> Result<PageLocation, PageError> {
        self.going("Page.reload", json!({})).await
    }

    async fn going(&self, method: &'static str, params: serde_json::Value) -> Result<PageLocation, PageError> {
        let deadline = Instant::now() + PATIENCE;
        let before = self.tab.state().navigations;
        self.tab.effect(method, params).await?;
        let there = |state: &mut TabState| {
            let loaded = state.main().is_some_and(|main| main.stage == Stage::Load);
            (state.navigations > before && loaded).then(|| state.main().and_then(|main| main.unreachable.clone()))
        };
        let late = || PageError::TooSlow { what: "the page was not loaded", seconds: PATIENCE.as_secs_f64() };
        if let Some(unreachable) = self.tab.until(deadline, there).await?.ok_or_else(late)? {
            return Err(PageError::Failed(format!("{unreachable} could not be loaded")));
        }
        self.titled().await;
        Ok(self.location())
    }

    /// Returns our world in the main frame's document, once it exists.
    pub(super) async fn document(&self) -> Result<super::super::automation::World, PageError> {
        let deadline = Instant::now() + super::AUTO_WAIT;
        let late = || PageError::TooSlow { what: "the page has no document yet", seconds: super::AUTO_WAIT.as_secs_f64() };
        let world = |state: &mut TabState| state.main().and_then(|main| main.world.clone());
        self.tab.until(deadline, world).await?.ok_or_else(late)
    }

    /// Calls a function of our library in the main frame's document, and again if the document changes meanwhile.
    pub(super) async fn read<R: serde::de::DeserializeOwned>(
        &self,
        name: &str,
        arguments: serde_json::Value,
    ) -> Result<R, PageError> {
        let arguments = &arguments;
        eventually(Instant::now() + super::AUTO_WAIT, || async {
            let world = self.document().await?;
            self.tab.library(&world, name, arguments.clone()).await.map(Ok)
        })
        .await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_those_of_an_address_bar() {
        for (given, meant) in [
            ("example.com", "https://example.com"),
            ("example.com:8443/a?b#c", "https://example.com:8443/a?b#c"),
            ("localhost:3000", "http://localhost:3000"),
            ("a.localhost/x", "http://a.localhost/x"),
            ("127.0.0.1/x", "http://127.0.0.1/x"),
            ("[::1]:80/x", "http://[::1]:80/x"),
            (" https://a/ ", "https://a/"),
            ("about:blank", "about:blank"),
            ("data:text/html,<p>1:2/3", "data:text/html,<p>1:2/3"),
            ("file:///etc/hosts", "file:///etc/hosts"),
            ("chrome://version", "chrome://version"),
        ] {
            assert_eq!(address(given).unwrap(), meant, "{given}");
        }
        for nonsense in ["", "  ", "javascript:alert(1)", "JavaScript:1", "/etc/hosts"] {
            assert!(matches!(address(nonsense), Err(PageError::Bad(_))), "{nonsense}");
        }
    }

    #[test]
    fn times_have_bounds() {
        assert_eq!(patience(1.5).unwrap(), Duration::from_millis(1500));
        for seconds in [-1.0, 1e9, f64::NAN, f64::INFINITY] {
            assert!(patience(seconds).is_err(), "{seconds}");
        }
    }
}
