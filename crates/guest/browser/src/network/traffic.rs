//! The recorded requests of pages.
//!
//! Requests are in the order in which they started. The target of a redirect is another request with the same id: all requests
//! with one id form a chain. The headers on the wire arrive in separate events, before or after the rest, and are assigned to a
//! chain's requests in order.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use super::NetworkRequest;
use super::events::*;
use super::headers::{Headers, cut};
use crate::automation::TabId;
use arenite_guest_cdp::Event;

/// Maximum requests that are kept; the oldest are dropped first.
const MAX_REQUESTS: usize = 2000;
/// Maximum bytes of all kept requests.
const MAX_BYTES: usize = 16 << 20;
/// Maximum bytes of a URL.
const MAX_URL: usize = 8192;
/// Maximum bytes of a request's body.
const MAX_POST: usize = 64 << 10;
/// Maximum bytes of normally short values: ids, methods, errors.
const MAX_SHORT: usize = 256;
/// Maximum documents of tabs that are kept.
const MAX_PAGES: usize = 512;
/// Maximum separate headers that are kept for requests without other events yet.
const MAX_EARLY: usize = 64;

#[derive(Debug, Default)]
pub(crate) struct Traffic {
    exchanges: VecDeque<Arc<Exchange>>,
    /// The number of the first kept request.
    first: u64,
    chains: HashMap<String, Chain>,
    early: VecDeque<Early>,
    pages: VecDeque<Page>,
    next_page: u64,
    bytes: usize,
}

/// A request and its answer.
#[derive(Debug, Clone, Default)]
pub(super) struct Exchange {
    pub(super) id: String,
    chain: String,
    /// Number of the document that made the request.
    pub(super) page: Option<u64>,
    pub(super) url: String,
    pub(super) method: String,
    pub(super) kind: String,
    pub(super) headers: Headers,
    pub(super) sent: Option<String>,
    /// Seconds since 1970.
    pub(super) started: f64,
    /// Seconds on the clock of all other times.
    pub(super) begun: f64,
    pub(super) answer: Option<RecordedResponse>,
    /// Headers of the answer on the wire, if they arrived before the rest.
    early: Option<Headers>,
    pub(super) ended: Option<f64>,
    pub(super) error: Option<String>,
    pub(super) from_cache: bool,
    /// Bytes of the body as the page receives it.
    pub(super) received: u64,
    /// Bytes on the network, including the head.
    pub(super) transferred: Option<u64>,
    weight: usize,
}

#[derive(Debug, Clone)]
pub(super) struct RecordedResponse {
    pub(super) status: u16,
    pub(super) status_text: String,
    pub(super) headers: Headers,
    pub(super) mime_type: String,
    pub(super) protocol: String,
    pub(super) address: Option<String>,
    pub(super) connection: Option<u64>,
    pub(super) timing: Option<Timing>,
}

/// A document of a tab.
#[derive(Debug, Clone)]
pub(super) struct Page {
    pub(super) number: u64,
    tab: TabId,
    pub(super) url: String,
    /// Seconds since 1970.
    pub(super) started: f64,
}

/// A snapshot of the recorded requests.
#[derive(Debug)]
pub(super) struct Record {
    pub(super) exchanges: Vec<Arc<Exchange>>,
    pub(super) pages: Vec<Page>,
}

#[derive(Debug, Default)]
struct Chain {
    /// Numbers of its requests.
    numbers: VecDeque<u64>,
    /// The number of its first requests that are no longer kept.
    gone: usize,
    /// The request that gets the next separate headers, for request and answer.
    next: [usize; 2],
}

/// The message that headers belong to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Of {
    Request,
    Answer,
}

#[derive(Debug)]
struct Early {
    chain: String,
    of: Of,
    headers: Headers,
}

fn short(mut text: String) -> String {
    cut(&mut text, MAX_SHORT);
    text
}

/// A chain's key. Ids are unique per tab only.
fn name(id: &str, tab: &TabId) -> String {
    format!("{id:.MAX_SHORT$} {}", tab.as_str())
}

impl From<Response> for RecordedResponse {
    fn from(response: Response) -> Self {
        Self {
            status: response.status,
            status_text: short(response.status_text),
            headers: response.headers.bounded(),
            mime_type: short(response.mime_type),
            protocol: short(response.protocol.unwrap_or_default()),
            address: response.remote_address.filter(|address| !address.is_empty()).map(short),
            connection: response.connection_id.map(|id| id as u64).filter(|id| *id != 0),
            timing: response.timing,
        }
    }
}

impl Exchange {
    fn weigh(&self) -> usize {
        let texts = [&self.id, &self.chain, &self.url, &self.method, &self.kind].map(String::len).iter().sum::<usize>();
        let more = [&self.sent, &self.error].into_iter().flatten().map(String::len).sum::<usize>();
        let answer = self.answer.as_ref().map_or(0, |answer| {
            let texts = [&answer.status_text, &answer.mime_type, &answer.protocol].map(String::len).iter().sum::<usize>();
            answer.headers.weight() + texts
        });
        let early = self.early.as_ref().map_or(0, Headers::weight);
        size_of::<Self>() + texts + more + self.headers.weight() + answer + early
    }

    fn answered(&mut self, response: Response) {
        self.from_cache |= response.from_disk_cache || response.from_prefetch_cache;
        let mut answer = RecordedResponse::from(response);
        if let Some(real) = self.early.take() {
            answer.headers = real;
        }
        self.answer = Some(answer);
    }

    fn summary(&self) -> NetworkRequest {
        let answer = self.answer.as_ref();
        NetworkRequest {
            id: self.id.clone(),
            url: self.url.clone(),
            method: self.method.clone(),
            resource_type: self.kind.clone(),
            status: answer.map(|answer| answer.status),
            status_text: answer.map(|answer| answer.status_text.clone()),
            mime_type: answer.map(|answer| answer.mime_type.clone()),
            started: self.started,
            duration: self.duration(),
            size: self.ended.and(answer).map(|_| self.received),
            error: self.error.clone(),
            from_cache: self.from_cache,
        }
    }

    /// The duration in seconds.
    pub(super) fn duration(&self) -> Option<f64> {
        self.ended.map(|ended| (ended - self.begun).max(0.0))
    }
}

impl Traffic {
    /// Records an event of a tab.
    pub(crate) fn note(&mut self, tab: &TabId, event: &Event) {
        // Unreadable events are of another version of the protocol and are not needed.
        let _ = self.read(tab, event);
    }

    /// The last requests with a wanted URL, the newest last.
    pub(super) fn list(&self, wanted: impl Fn(&str) -> bool, limit: usize) -> Vec<NetworkRequest> {
        let matching: Vec<_> = self.sorted().into_iter().filter(|exchange| wanted(&exchange.url)).collect();
        matching[matching.len().saturating_sub(limit)..].iter().map(|exchange| exchange.summary()).collect()
    }

    pub(super) fn record(&self) -> Record {
        Record { exchanges: self.sorted().into_iter().cloned().collect(), pages: self.pages.iter().cloned().collect() }
    }

    /// Sorted by start time, which differs slightly from the order in which the browser's processes report them.
    fn sorted(&self) -> Vec<&Arc<Exchange>> {
        let mut all: Vec<&Arc<Exchange>> = self.exchanges.iter().collect();
        all.sort_by(|a, b| a.started.total_cmp(&b.started));
        all
    }

    fn read(&mut self, tab: &TabId, event: &Event) -> Result<(), serde_json::Error> {
        match event.method.as_str() {
            "Network.requestWillBeSent" => self.begin(tab, event.read()?),
            "Network.requestWillBeSentExtraInfo" => {
                let ExtraInfo { request_id, headers } = event.read()?;
                self.told(name(&request_id, tab), Of::Request, headers.bounded());
            }
            "Network.responseReceivedExtraInfo" => {
                let ExtraInfo { request_id, headers } = event.read()?;
                self.told(name(&request_id, tab), Of::Answer, headers.bounded());
            }
            "Network.responseReceived" => {
                let Received { request_id, response, r#type, has_extra_info } = event.read()?;
                let chain = name(&request_id, tab);
                if !has_extra_info {
                    self.skip(&chain);
                }
                self.change(&chain, |exchange| {
                    if !r#type.is_empty() {
                        exchange.kind = short(r#type).to_ascii_lowercase();
                    }
                    exchange.answered(response);
                });
            }
            "Network.requestServedFromCache" => {
                let OfRequest { request_id } = event.read()?;
                self.change(&name(&request_id, tab), |exchange| exchange.from_cache = true);
            }
            "Network.dataReceived" => {
                let Data { request_id, data_length } = event.read()?;
                self.change(&name(&request_id, tab), |exchange| {
                    exchange.received = exchange.received.saturating_add(data_length)
                });
            }
            "Network.loadingFinished" => {
                let Finished { request_id, timestamp, encoded_data_length } = event.read()?;
                self.change(&name(&request_id, tab), |exchange| {
                    exchange.ended = Some(timestamp);
                    exchange.transferred = Some(encoded_data_length as u64);
                });
            }
            "Network.loadingFailed" => {
                let Failed { request_id, timestamp, error_text } = event.read()?;
                let error = if error_text.is_empty() { "net::ERR_FAILED".to_owned() } else { short(error_text) };
                self.change(&name(&request_id, tab), |exchange| {
                    exchange.ended = Some(timestamp);
                    exchange.error = Some(error);
                });
            }
            _ => self.read_socket(tab, event)?,
        }
        Ok(())
    }

    fn read_socket(&mut self, tab: &TabId, event: &Event) -> Result<(), serde_json::Error> {
        match event.method.as_str() {
            "Network.webSocketCreated" => {
                let SocketCreated { request_id, mut url } = event.read()?;
                cut(&mut url, MAX_URL);
                let (chain, page) = (name(&request_id, tab), self.page_of(tab));
                let (method, kind) = ("GET".to_owned(), "websocket".to_owned());
                let started = jiff::Timestamp::now().as_millisecond() as f64 / 1000.0;
                self.push(Exchange { id: short(request_id), chain, page, url, method, kind, started, ..Exchange::default() });
            }
            "Network.webSocketWillSendHandshakeRequest" => {
                let SocketAsks { request_id, timestamp, wall_time, request } = event.read()?;
                self.change(&name(&request_id, tab), |exchange| {
                    (exchange.begun, exchange.started) = (timestamp, wall_time);
                    exchange.headers = request.headers.bounded();
                });
            }
            "Network.webSocketHandshakeResponseReceived" => {
                let SocketAnswered { request_id, response } = event.read()?;
                self.change(&name(&request_id, tab), |exchange| exchange.answered(response));
            }
            "Network.webSocketFrameError" => {
                let SocketFailed { request_id, error_message } = event.read()?;
                self.change(&name(&request_id, tab), |exchange| exchange.error = Some(short(error_message)));
            }
            "Network.webSocketClosed" => {
                let SocketClosed { request_id, timestamp } = event.read()?;
                self.change(&name(&request_id, tab), |exchange| {
                    exchange.ended = Some(timestamp);
                    // The request was never sent.
                    if exchange.begun == 0.0 {
                        exchange.begun = timestamp;
                    }
                });
            }
            _ => {}
        }
        Ok(())
    }

    fn begin(&mut self, tab: &TabId, event: WillBeSent) {
        let WillBeSent { request_id, request, timestamp, wall_time, redirect_response, r#type, frame_id, .. } = event;
        // The content of a `data:` URL is in the URL itself, so there is no request.
        if request.url.starts_with("data:") {
            return;
        }
        let chain = name(&request_id, tab);
        let is_redirected = redirect_response.is_some();
        if let Some(response) = redirect_response {
            if !event.redirect_has_extra_info {
                self.skip(&chain);
            }
            self.change(&chain, |exchange| {
                exchange.answered(response);
                exchange.ended = Some(timestamp);
            });
        }
        let Request { mut url, method, headers, post_data } = request;
        cut(&mut url, MAX_URL);
        // The main frame's document.
        if r#type == "Document" && frame_id == tab.as_str() {
            self.navigated(tab, &url, wall_time, is_redirected);
        }
        let sent = post_data.map(|mut text| {
            cut(&mut text, MAX_POST);
            text
        });
        self.push(Exchange {
            id: short(request_id),
            chain,
            page: self.page_of(tab),
            url,
            method: short(method),
            kind: short(r#type).to_ascii_lowercase(),
            headers: headers.bounded(),
            sent,
            started: wall_time,
            begun: timestamp,
            ..Exchange::default()
        });
    }

    fn navigated(&mut self, tab: &TabId, url: &str, started: f64, is_redirected: bool) {
        let mut url = url.to_owned();
        cut(&mut url, MAX_URL / 4);
        match self.pages.iter_mut().rev().find(|page| page.tab == *tab) {
            Some(page) if is_redirected => page.url = url,
            _ => {
                if self.pages.len() == MAX_PAGES {
                    self.pages.pop_front();
                }
                self.next_page += 1;
                self.pages.push_back(Page { number: self.next_page, tab: tab.clone(), url, started });
            }
        }
    }

    /// The document that a tab shows or navigates to.
    fn page_of(&self, tab: &TabId) -> Option<u64> {
        self.pages.iter().rev().find(|page| page.tab == *tab).map(|page| page.number)
    }

    fn push(&mut self, mut exchange: Exchange) {
        let number = self.first + self.exchanges.len() as u64;
        let early = |of| self.early.iter().filter(|early| early.of == of && early.chain == exchange.chain).count();
        let told = [early(Of::Request), early(Of::Answer)];
        let chain = self.chains.entry(exchange.chain.clone()).or_insert(Chain { next: told, ..Chain::default() });
        chain.numbers.push_back(number);
        let last = chain.gone + chain.numbers.len() - 1;
        if last > 0 {
            exchange.id = format!("{}.{last}", exchange.id);
        }
        let [sent, received] = chain.next.map(|next| next > last);
        if sent && let Some(headers) = self.take_early(&exchange.chain, Of::Request) {
            exchange.headers = headers;
        }
        if received {
            exchange.early = self.take_early(&exchange.chain, Of::Answer);
        }
        exchange.weight = exchange.weigh();
        self.bytes += exchange.weight;
        self.exchanges.push_back(Arc::new(exchange));
        self.trim();
    }

    fn trim(&mut self) {
        while self.exchanges.len() > MAX_REQUESTS || self.bytes > MAX_BYTES {
            let Some(oldest) = self.exchanges.pop_front() else { return };
            self.first += 1;
            self.bytes = self.bytes.saturating_sub(oldest.weight);
            if let Some(chain) = self.chains.get_mut(&oldest.chain) {
                chain.numbers.pop_front();
                chain.gone += 1;
                if chain.numbers.is_empty() {
                    self.chains.remove(&oldest.chain);
                }
            }
        }
    }

    /// Changes the last request of a chain, if it is recorded.
    fn change(&mut self, chain: &str, change: impl FnOnce(&mut Exchange)) {
        if let Some(number) = self.chains.get(chain).and_then(|chain| chain.numbers.back().copied()) {
            self.change_one(number, change);
        }
    }

    fn change_one(&mut self, number: u64, change: impl FnOnce(&mut Exchange)) {
        let at = number.checked_sub(self.first).and_then(|at| usize::try_from(at).ok());
        let Some(exchange) = at.and_then(|at| self.exchanges.get_mut(at)) else { return };
        let exchange = Arc::make_mut(exchange);
        change(exchange);
        let weight = exchange.weigh();
        self.bytes = (self.bytes + weight).saturating_sub(exchange.weight);
        exchange.weight = weight;
        self.trim();
    }

    /// The last request of a chain gets no separate headers.
    fn skip(&mut self, chain: &str) {
        if let Some(chain) = self.chains.get_mut(chain) {
            let next = chain.gone + chain.numbers.len();
            chain.next = chain.next.map(|known| known.max(next));
        }
    }

    /// Assigns headers on the wire to the next request of a chain that lacks them.
    fn told(&mut self, name: String, of: Of, headers: Headers) {
        let number = self.chains.get_mut(&name).map(|chain| {
            let next = &mut chain.next[of as usize];
            let at = next.checked_sub(chain.gone);
            *next += 1;
            at.map(|at| chain.numbers.get(at).copied())
        });
        match number {
            Some(Some(Some(number))) => self.change_one(number, |exchange| match (of, &mut exchange.answer) {
                (Of::Request, _) => exchange.headers = headers,
                (Of::Answer, Some(answer)) => answer.headers = headers,
                (Of::Answer, None) => exchange.early = Some(headers),
            }),
            // That request is no longer kept.
            Some(None) => {}
            None | Some(Some(None)) => {
                if self.early.len() == MAX_EARLY {
                    self.early.pop_front();
                }
                self.early.push_back(Early { chain: name, of, headers });
            }
        }
    }

    fn take_early(&mut self, chain: &str, of: Of) -> Option<Headers> {
        let at = self.early.iter().position(|early| early.of == of && early.chain == chain)?;
        self.early.remove(at).map(|early| early.headers)
    }
}

#[cfg(test)]
mod tests;
