//! The tabs of a VM's Chrome, through its debugger, which is called from inside the VM.

use std::time::Duration;

use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use serde_json::Value;

use super::super::driver::VirtualMachine;
use super::{said, scripts::DEBUGGER};

use crate::error::{SynthesisError, invalid, machine};

/// The debugger's port in OSWorld's images.
pub(in crate::backends::vm) const PORT: u16 = 9222;
/// Seconds until a just started Chrome listens.
const STARTING: u64 = 60;
/// The most tabs that one step opens or closes.
const MAX_TABS: usize = 100;

/// A tab.
#[derive(Debug, Clone, PartialEq)]
pub(in crate::backends::vm) struct Tab {
    pub(in crate::backends::vm) id: String,
    pub(in crate::backends::vm) url: String,
    pub(in crate::backends::vm) title: String,
}

async fn ask(vm: &dyn VirtualMachine, port: u16, method: &str, path: &str, patience: u64) -> Result<String, SynthesisError> {
    let address = format!("http://127.0.0.1:{port}/{path}");
    let patience_text = patience.to_string();
    let command = ["sh", "-c", DEBUGGER, "sh", method, &address, &patience_text].map(str::to_owned);
    let done = vm.run(&command, Duration::from_secs(patience + 30)).await?;
    if done.code == 0 { Ok(done.stdout) } else { Err(machine(format!("Chrome does not answer at port {port}: {}", said(&done)))) }
}

/// The open tabs, with the front one first.
pub(in crate::backends::vm) async fn tabs(vm: &dyn VirtualMachine, port: u16, patience: u64) -> Result<Vec<Tab>, SynthesisError> {
    let told = ask(vm, port, "GET", "json/list", patience).await?;
    let told: Value =
        serde_json::from_str(&told).map_err(|error| machine(format!("Chrome's list of tabs is no JSON: {error}")))?;
    let pages = told.as_array().into_iter().flatten().filter(|page| page["type"] == "page");
    let field = |page: &Value, name: &str| page[name].as_str().unwrap_or_default().to_owned();
    Ok(pages.map(|page| Tab { id: field(page, "id"), url: field(page, "url"), title: field(page, "title") }).collect())
}

async fn close_tab(vm: &dyn VirtualMachine, port: u16, tab: &Tab) -> Result<(), SynthesisError> {
    if tab.id.is_empty() || !tab.id.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-') {
        return Err(machine(format!("Chrome names a tab {:?}", tab.id)));
    }
    ask(vm, port, "GET", &format!("json/close/{}", tab.id), 0).await.map(drop)
}

/// Opens tabs, and closes the tab with which Chrome starts.
pub(super) async fn open(vm: &dyn VirtualMachine, port: u16, urls: &[String]) -> Result<(), SynthesisError> {
    if urls.is_empty() || urls.len() > MAX_TABS {
        return Err(invalid(format!("urls_to_open has to be a list of 1 to {MAX_TABS} addresses")));
    }
    let before = tabs(vm, port, STARTING).await?;
    for url in urls {
        let path = format!("json/new?{}", utf8_percent_encode(url, NON_ALPHANUMERIC));
        ask(vm, port, "PUT", &path, 0).await.map_err(|why| why.within(url))?;
    }
    match before.first() {
        Some(first) => close_tab(vm, port, first).await,
        None => Ok(()),
    }
}

/// Closes the first tab of each address.
pub(super) async fn close(vm: &dyn VirtualMachine, port: u16, urls: &[String]) -> Result<(), SynthesisError> {
    if urls.len() > MAX_TABS {
        return Err(invalid(format!("urls_to_close has to be a list of at most {MAX_TABS} addresses")));
    }
    let mut open = tabs(vm, port, STARTING).await?;
    for url in urls {
        if let Some(at) = open.iter().position(|tab| plain(&tab.url) == plain(url)) {
            close_tab(vm, port, &open.remove(at)).await?;
        }
    }
    Ok(())
}

/// An address normalized for comparison.
fn plain(url: &str) -> String {
    let (scheme, rest) = url.split_once("://").unwrap_or(("http", url));
    let cut = rest.find(['/', '?', '#']).unwrap_or(rest.len());
    let (host, path) = rest.split_at(cut);
    let host = host.to_lowercase().replace("www.", "");
    format!("{}://{host}{}", scheme.to_lowercase(), if path == "/" { "" } else { path })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_that_mean_the_same() {
        assert_eq!(plain("HTTPS://www.Example.org/"), plain("https://example.org"));
        assert_eq!(plain("example.org/A"), plain("http://example.org/A"));
        assert_ne!(plain("https://example.org/A"), plain("https://example.org/a"));
    }
}
