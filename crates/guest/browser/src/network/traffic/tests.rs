use serde_json::{Value, json};

use super::*;
use crate::network::har;

const TAB: &str = "TAB";

fn tab(id: &str) -> TabId {
    serde_json::from_value(json!(id)).unwrap()
}

fn tell(traffic: &mut Traffic, method: &str, params: &Value) {
    let params = serde_json::value::to_raw_value(params).unwrap();
    traffic.note(&tab(TAB), &Event { session: Some("S".to_owned()), method: format!("Network.{method}"), params });
}

fn begin(traffic: &mut Traffic, id: &str, url: &str, more: Value) {
    let mut params = json!({
        "requestId": id, "request": {"url": url, "method": "GET", "headers": {"accept": "*/*"}}, "timestamp": 10.0,
        "wallTime": 1_700_000_000.5, "type": "Fetch", "frameId": "F", "redirectHasExtraInfo": false,
    });
    params.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    tell(traffic, "requestWillBeSent", &params);
}

fn response(status: u16) -> Value {
    json!({"status": status, "statusText": "said", "headers": {"told": "plain"}, "mimeType": "text/html", "protocol": "http/1.1"})
}

fn answer(traffic: &mut Traffic, id: &str, status: u16, extra: bool) {
    tell(
        traffic,
        "responseReceived",
        &json!({"requestId": id, "type": "Fetch", "response": response(status), "hasExtraInfo": extra}),
    );
}

fn finish(traffic: &mut Traffic, id: &str) {
    tell(traffic, "loadingFinished", &json!({"requestId": id, "timestamp": 10.25, "encodedDataLength": 300}));
}

fn extra(traffic: &mut Traffic, id: &str, of: &str, value: &str) {
    tell(traffic, &format!("{of}ExtraInfo"), &json!({"requestId": id, "headers": {"told": value}}));
}

fn all(traffic: &Traffic) -> Vec<NetworkRequest> {
    traffic.list(|_| true, usize::MAX)
}

/// The header `told` of each request and answer.
fn told(traffic: &Traffic) -> Vec<(Option<String>, Option<String>)> {
    let get = |headers: &Headers| headers.get("told").map(str::to_owned);
    let both =
        |exchange: &Arc<Exchange>| (get(&exchange.headers), exchange.answer.as_ref().and_then(|answer| get(&answer.headers)));
    traffic.exchanges.iter().map(both).collect()
}

#[test]
fn a_request_is_followed_to_its_end() {
    let mut traffic = Traffic::default();
    begin(&mut traffic, "1", "http://a.example/x", json!({}));
    let begun = all(&traffic).remove(0);
    assert_eq!((begun.status, begun.duration, begun.size, begun.started), (None, None, None, 1_700_000_000.5));
    answer(&mut traffic, "1", 200, false);
    for _ in 0..2 {
        tell(
            &mut traffic,
            "dataReceived",
            &json!({"requestId": "1", "timestamp": 10.1, "dataLength": 21, "encodedDataLength": 9}),
        );
    }
    assert_eq!(all(&traffic)[0].size, None);
    finish(&mut traffic, "1");
    let wanted = NetworkRequest {
        id: "1".to_owned(),
        url: "http://a.example/x".to_owned(),
        method: "GET".to_owned(),
        resource_type: "fetch".to_owned(),
        status: Some(200),
        status_text: Some("said".to_owned()),
        mime_type: Some("text/html".to_owned()),
        started: 1_700_000_000.5,
        duration: Some(0.25),
        size: Some(42),
        error: None,
        from_cache: false,
    };
    assert_eq!(all(&traffic), [wanted]);
}

#[test]
fn failures_and_the_cache_are_told() {
    let mut traffic = Traffic::default();
    begin(&mut traffic, "1", "http://a.example/x", json!({}));
    tell(
        &mut traffic,
        "loadingFailed",
        &json!({"requestId": "1", "timestamp": 11.0, "errorText": "net::ERR_FAILED", "type": "Fetch"}),
    );
    begin(&mut traffic, "2", "http://a.example/y", json!({}));
    tell(&mut traffic, "requestServedFromCache", &json!({"requestId": "2"}));
    answer(&mut traffic, "2", 200, false);
    let list = all(&traffic);
    assert_eq!((list[0].error.as_deref(), list[0].duration, list[0].size), (Some("net::ERR_FAILED"), Some(1.0), None));
    assert_eq!((list[1].from_cache, list[1].status), (true, Some(200)));
}

#[test]
fn redirects_are_requests_of_their_own() {
    let mut traffic = Traffic::default();
    begin(&mut traffic, "1", "http://a.example/1", json!({}));
    begin(&mut traffic, "1", "http://a.example/2", json!({"redirectResponse": response(302), "timestamp": 10.5}));
    answer(&mut traffic, "1", 200, false);
    finish(&mut traffic, "1");
    let list: Vec<_> = all(&traffic).into_iter().map(|request| (request.id, request.url, request.status)).collect();
    let wanted = |id: &str, url: &str, status| (id.to_owned(), format!("http://a.example/{url}"), Some(status));
    assert_eq!(list, [wanted("1", "1", 302), wanted("1.1", "2", 200)]);
    assert!(all(&traffic).iter().all(|request| request.duration.is_some()));
}

#[test]
fn headers_of_the_wire_find_their_request() {
    let (sent, received) = ("requestWillBeSent", "responseReceived");
    let both = |a: &str, b: &str| (Some(a.to_owned()), Some(b.to_owned()));
    // The separate headers arrive after the rest.
    let mut traffic = Traffic::default();
    begin(&mut traffic, "1", "http://a.example/1", json!({}));
    extra(&mut traffic, "1", sent, "sent 1");
    extra(&mut traffic, "1", received, "received 1");
    begin(&mut traffic, "1", "http://a.example/2", json!({"redirectResponse": response(302), "redirectHasExtraInfo": true}));
    extra(&mut traffic, "1", sent, "sent 2");
    answer(&mut traffic, "1", 200, true);
    extra(&mut traffic, "1", received, "received 2");
    assert_eq!(told(&traffic), [both("sent 1", "received 1"), both("sent 2", "received 2")]);
    // They arrive before the rest.
    let mut traffic = Traffic::default();
    extra(&mut traffic, "1", sent, "sent 1");
    begin(&mut traffic, "1", "http://a.example/1", json!({}));
    extra(&mut traffic, "1", received, "received 1");
    extra(&mut traffic, "1", sent, "sent 2");
    extra(&mut traffic, "1", received, "received 2");
    begin(&mut traffic, "1", "http://a.example/2", json!({"redirectResponse": response(302), "redirectHasExtraInfo": true}));
    answer(&mut traffic, "1", 200, true);
    assert_eq!(told(&traffic), [both("sent 1", "received 1"), both("sent 2", "received 2")]);
    assert!(traffic.early.is_empty());
    // The first request was answered without the network.
    let mut traffic = Traffic::default();
    begin(&mut traffic, "1", "http://a.example/1", json!({}));
    begin(&mut traffic, "1", "http://a.example/2", json!({"redirectResponse": response(302), "redirectHasExtraInfo": false}));
    extra(&mut traffic, "1", sent, "sent 2");
    extra(&mut traffic, "1", received, "received 2");
    answer(&mut traffic, "1", 200, true);
    assert_eq!(told(&traffic), [(None, Some("plain".to_owned())), both("sent 2", "received 2")]);
}

#[test]
fn sockets_are_requests() {
    let mut traffic = Traffic::default();
    tell(&mut traffic, "webSocketCreated", &json!({"requestId": "1", "url": "ws://a.example/"}));
    let asks =
        json!({"requestId": "1", "timestamp": 10.0, "wallTime": 1_700_000_000.0, "request": {"headers": {"told": "asked"}}});
    tell(&mut traffic, "webSocketWillSendHandshakeRequest", &asks);
    let answered =
        json!({"requestId": "1", "timestamp": 10.1, "response": {"status": 101, "statusText": "S", "headers": {"told": "yes"}}});
    tell(&mut traffic, "webSocketHandshakeResponseReceived", &answered);
    tell(&mut traffic, "webSocketCreated", &json!({"requestId": "2", "url": "ws://b.example/"}));
    tell(&mut traffic, "webSocketFrameError", &json!({"requestId": "2", "timestamp": 12.0, "errorMessage": "refused"}));
    tell(&mut traffic, "webSocketClosed", &json!({"requestId": "2", "timestamp": 12.0}));
    let list = all(&traffic);
    assert_eq!((list[0].status, list[0].resource_type.as_str(), list[0].duration), (Some(101), "websocket", None));
    assert_eq!((list[1].error.as_deref(), list[1].duration), (Some("refused"), Some(0.0)));
    assert_eq!(told(&traffic)[0], (Some("asked".to_owned()), Some("yes".to_owned())));
}

#[test]
fn ids_are_a_tabs_own() {
    let mut traffic = Traffic::default();
    begin(&mut traffic, "1", "http://a.example/x", json!({}));
    let params = serde_json::value::to_raw_value(&json!({"requestId": "1", "timestamp": 11.0, "encodedDataLength": 1})).unwrap();
    traffic.note(&tab("OTHER"), &Event { session: None, method: "Network.loadingFinished".to_owned(), params });
    assert_eq!(all(&traffic)[0].duration, None);
}

#[test]
fn what_is_no_event_changes_nothing() {
    let mut traffic = Traffic::default();
    begin(&mut traffic, "1", "data:text/plain,x", json!({}));
    for method in ["requestWillBeSent", "responseReceived", "dataReceived", "webSocketCreated", "loadingFailed", "unknown"] {
        for params in
            [json!(null), json!([]), json!({}), json!({"requestId": 7}), json!({"requestId": "1", "response": {"status": -1}})]
        {
            tell(&mut traffic, method, &params);
        }
    }
    answer(&mut traffic, "nobody's", 200, false);
    finish(&mut traffic, "nobody's");
    assert!(all(&traffic).is_empty() && traffic.chains.is_empty());
}

#[test]
fn what_is_kept_has_bounds() {
    let mut traffic = Traffic::default();
    let long = "ä".repeat(50_000);
    let huge =
        json!({"url": format!("http://a.example/{long}"), "method": long, "postData": long, "headers": {"a": long, "b": long}});
    for n in 0..500 {
        let id = format!("{n} {long}");
        begin(&mut traffic, &id, "", json!({"request": huge}));
        for of in ["requestWillBeSent", "responseReceived"] {
            extra(&mut traffic, &id, of, &long);
            extra(&mut traffic, &format!("{n} early {long}"), of, &long);
        }
        if n == 0 {
            assert!(traffic.bytes < 256 << 10, "{}", traffic.bytes);
        }
    }
    assert!(traffic.bytes <= MAX_BYTES && traffic.exchanges.len() > 50, "{}", traffic.exchanges.len());
    assert_eq!(traffic.bytes, traffic.exchanges.iter().map(|exchange| exchange.weigh()).sum::<usize>());
    assert_eq!((traffic.chains.len(), traffic.early.len()), (traffic.exchanges.len(), MAX_EARLY));
    for n in 0..3 * MAX_REQUESTS {
        begin(&mut traffic, &format!("short {n}"), "http://a.example/", json!({"type": "Document", "frameId": TAB}));
    }
    assert_eq!((traffic.exchanges.len(), traffic.chains.len(), traffic.pages.len()), (MAX_REQUESTS, MAX_REQUESTS, MAX_PAGES));
    // An endless chain.
    for n in 0..3 * MAX_REQUESTS {
        begin(
            &mut traffic,
            "1",
            &format!("http://a.example/{n}"),
            json!({"redirectResponse": response(302), "redirectHasExtraInfo": true}),
        );
        extra(&mut traffic, "1", "requestWillBeSent", &n.to_string());
    }
    assert_eq!((traffic.exchanges.len(), traffic.chains.len()), (MAX_REQUESTS, 1));
    let last = format!("{}", 3 * MAX_REQUESTS - 1);
    assert_eq!(told(&traffic).last().unwrap().0, Some(last));
}

#[test]
fn the_last_ones_are_listed() {
    let mut traffic = Traffic::default();
    for n in 0..10 {
        begin(&mut traffic, &n.to_string(), &format!("http://a.example/{}", n % 2), json!({}));
    }
    let ids: Vec<String> = traffic.list(|url| url.ends_with('1'), 3).into_iter().map(|request| request.id).collect();
    assert_eq!(ids, ["5", "7", "9"]);
}

#[test]
fn an_archive_has_pages_and_their_requests() {
    let mut traffic = Traffic::default();
    let document = json!({"type": "Document", "frameId": TAB});
    begin(&mut traffic, "1", "http://a.example/old", document.clone());
    let mut moved = document.clone();
    moved["redirectResponse"] = response(302);
    begin(&mut traffic, "1", "http://a.example/new", moved);
    begin(&mut traffic, "2", "http://a.example/frame", json!({"type": "Document", "frameId": "F"}));
    begin(&mut traffic, "3", "http://b.example/?q=1", document);
    let post = json!({"url": "http://b.example/f", "method": "POST", "postData": "a=b+c", "headers": {"Content-Type": "application/x-www-form-urlencoded"}});
    begin(&mut traffic, "4", "", json!({"request": post}));
    answer(&mut traffic, "4", 201, false);
    finish(&mut traffic, "4");
    let archive: Value = serde_json::from_slice(&har::archive(&traffic.record(), "Chrome/1")).unwrap();
    let log = &archive["log"];
    let titles: Vec<&str> = log["pages"].as_array().unwrap().iter().map(|page| page["title"].as_str().unwrap()).collect();
    assert_eq!(titles, ["http://a.example/new", "http://b.example/?q=1"]);
    let entries = log["entries"].as_array().unwrap();
    let of: Vec<&str> = entries.iter().map(|entry| entry["pageref"].as_str().unwrap()).collect();
    assert_eq!(of, ["page_1", "page_1", "page_1", "page_2", "page_2"]);
    let last = &entries[4];
    assert_eq!(last["startedDateTime"], "2023-11-14T22:13:20.500Z");
    assert_eq!((last["time"].as_f64(), last["response"]["status"].as_u64()), (Some(250.0), Some(201)));
    let sent = json!({
        "mimeType": "application/x-www-form-urlencoded", "text": "a=b+c", "params": [{"name": "a", "value": "b c"}],
    });
    assert_eq!(last["request"]["postData"], sent);
    assert_eq!(entries[3]["request"]["queryString"], json!([{"name": "q", "value": "1"}]));
    assert_eq!(entries[3]["response"]["status"], 0);
}
