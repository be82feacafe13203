//! Recorded requests as an HTTP archive, version 1.2.

use std::collections::HashMap;

use jiff::Timestamp;
use percent_encoding::percent_decode_str;
use serde_json::{Map, Value, json};

use super::events::Timing;
use super::headers::Headers;
use super::traffic::{Exchange, Page, Record, RecordedResponse};

/// Builds the whole archive as JSON. `agent` is the browser's user agent.
pub(super) fn archive(record: &Record, agent: &str) -> Vec<u8> {
    // There can be many entries: each is built and written separately.
    let list = |values: &mut dyn Iterator<Item = Value>| {
        let lines: Vec<String> = values.map(|value| format!("\n      {value}")).collect();
        lines.join(",")
    };
    let wanted: HashMap<u64, &Page> = record.pages.iter().map(|page| (page.number, page)).collect();
    let used: Vec<u64> = record.exchanges.iter().filter_map(|exchange| exchange.page).collect();
    let mut pages = record.pages.iter().filter(|page| used.contains(&page.number)).map(page);
    let mut entries = record.exchanges.iter().map(|exchange| entry(exchange, &wanted));
    let creator = json!({"name": "Arenite", "version": env!("CARGO_PKG_VERSION")});
    let (name, version) = browser(agent);
    let browser = json!({"name": name, "version": version});
    let text = format!(
        "{{\n  \"log\": {{\n    \"version\": \"1.2\",\n    \"creator\": {creator},\n    \"browser\": {browser},\n    \
         \"pages\": [{}\n    ],\n    \"entries\": [{}\n    ]\n  }}\n}}\n",
        list(&mut pages),
        list(&mut entries),
    );
    text.into_bytes()
}

/// Returns name and version from `Chrome/156.0.0.0` in a user agent.
fn browser(agent: &str) -> (&str, &str) {
    let product = agent.split(' ').find(|word| word.starts_with("Chrome/")).or(agent.split(' ').next());
    product.and_then(|product| product.split_once('/')).unwrap_or(("Chromium", ""))
}

fn page(page: &Page) -> Value {
    json!({
        "startedDateTime": time(page.started), "id": page_id(page.number), "title": page.url,
        "pageTimings": {"onContentLoad": -1, "onLoad": -1},
    })
}

fn page_id(number: u64) -> String {
    format!("page_{number}")
}

/// Formats seconds since 1970 as ISO 8601.
fn time(seconds: f64) -> String {
    let milliseconds = Timestamp::from_millisecond((seconds * 1000.0) as i64).unwrap_or(Timestamp::UNIX_EPOCH);
    milliseconds.strftime("%Y-%m-%dT%H:%M:%S%.3fZ").to_string()
}

fn entry(exchange: &Exchange, pages: &HashMap<u64, &Page>) -> Value {
    let answer = exchange.answer.as_ref();
    let timings = timings(exchange);
    let total: f64 = ["blocked", "dns", "connect", "send", "wait", "receive"]
        .iter()
        .filter_map(|part| timings[*part].as_f64())
        .filter(|ms| *ms > 0.0)
        .sum();
    let mut entry = json!({
        "startedDateTime": time(exchange.started),
        "time": total,
        "request": request(exchange),
        "response": response(exchange),
        "cache": {},
        "timings": timings,
        "_resourceType": exchange.kind,
        "_fromCache": exchange.from_cache,
    });
    let mut add = |name: &str, value: Option<Value>| {
        if let Some(value) = value {
            entry[name] = value;
        }
    };
    add("pageref", exchange.page.filter(|number| pages.contains_key(number)).map(|number| page_id(number).into()));
    add(
        "serverIPAddress",
        answer.and_then(|answer| answer.address.as_deref()).map(|address| address.trim_matches(['[', ']']).into()),
    );
    add("connection", answer.and_then(|answer| answer.connection).map(|number| number.to_string().into()));
    entry
}

fn request(exchange: &Exchange) -> Value {
    let mut request = json!({
        "method": exchange.method,
        "url": exchange.url,
        "httpVersion": version(exchange.answer.as_ref()),
        "cookies": cookies_sent(&exchange.headers),
        "headers": headers(&exchange.headers),
        "queryString": query(&exchange.url),
        "headersSize": -1,
        "bodySize": exchange.sent.as_ref().map_or(0, String::len),
    });
    if let Some(sent) = &exchange.sent {
        let kind = exchange.headers.get("content-type").unwrap_or_default();
        let is_form = kind.starts_with("application/x-www-form-urlencoded");
        let params = if is_form { pairs(sent) } else { Vec::new() };
        request["postData"] = json!({"mimeType": kind, "params": params, "text": sent});
    }
    request
}

fn response(exchange: &Exchange) -> Value {
    let none = Headers::default();
    let answer = exchange.answer.as_ref();
    let own = answer.map_or(&none, |answer| &answer.headers);
    let mime = own.get("content-type").or(answer.map(|answer| answer.mime_type.as_str())).filter(|mime| !mime.is_empty());
    let mut response = json!({
        "status": answer.map_or(0, |answer| answer.status),
        "statusText": answer.map_or("", |answer| answer.status_text.as_str()),
        "httpVersion": version(answer),
        "cookies": cookies_received(own),
        "headers": headers(own),
        "content": {"size": exchange.received, "mimeType": mime.unwrap_or("x-unknown")},
        "redirectURL": own.get("location").unwrap_or_default(),
        "headersSize": -1,
        "bodySize": -1,
    });
    if let Some(transferred) = exchange.transferred {
        response["_transferSize"] = transferred.into();
    }
    if let Some(error) = &exchange.error {
        response["_error"] = error.as_str().into();
    }
    response
}

fn version(answer: Option<&RecordedResponse>) -> String {
    match answer.map_or("", |answer| answer.protocol.as_str()) {
        "" => "unknown".to_owned(),
        "h2" => "HTTP/2.0".to_owned(),
        "h3" => "HTTP/3.0".to_owned(),
        other => other.to_ascii_uppercase(),
    }
}

/// One entry per line: the browser joins headers of one name with line ends.
fn headers(headers: &Headers) -> Vec<Value> {
    let lines = headers.iter().flat_map(|(name, value)| value.split('\n').map(move |line| (name, line)));
    lines.map(|(name, value)| json!({"name": name, "value": value})).collect()
}

fn cookies_sent(headers: &Headers) -> Vec<Value> {
    let all = headers.get("cookie").unwrap_or_default().split(';').map(str::trim).filter(|pair| !pair.is_empty());
    all.map(|pair| {
        let (name, value) = pair.split_once('=').unwrap_or(("", pair));
        json!({"name": name, "value": value})
    })
    .collect()
}

fn cookies_received(headers: &Headers) -> Vec<Value> {
    let lines =
        headers.iter().filter(|(name, _)| name.eq_ignore_ascii_case("set-cookie")).flat_map(|(_, value)| value.split('\n'));
    lines.map(cookie).collect()
}

fn cookie(line: &str) -> Value {
    let mut parts = line.split(';').map(str::trim);
    let pair = parts.next().unwrap_or_default();
    let (name, value) = pair.split_once('=').unwrap_or(("", pair));
    let mut cookie = Map::from_iter([("name".to_owned(), name.trim().into()), ("value".to_owned(), value.trim().into())]);
    for attribute in parts {
        let (name, value) = attribute.split_once('=').unwrap_or((attribute, ""));
        let (name, value) = match name.to_ascii_lowercase().as_str() {
            "path" => ("path", value.into()),
            "domain" => ("domain", value.into()),
            "httponly" => ("httpOnly", true.into()),
            "secure" => ("secure", true.into()),
            "samesite" => ("sameSite", value.into()),
            "expires" => match jiff::fmt::rfc2822::parse(&value.replace('-', " ")) {
                Ok(expires) => ("expires", time(expires.timestamp().as_second() as f64).into()),
                Err(_) => continue,
            },
            _ => continue,
        };
        cookie.insert(name.to_owned(), value);
    }
    cookie.into()
}

fn query(url: &str) -> Vec<Value> {
    let (before, _) = url.split_once('#').unwrap_or((url, ""));
    before.split_once('?').map_or_else(Vec::new, |(_, query)| pairs(query))
}

/// Parses form-encoded names and values.
fn pairs(text: &str) -> Vec<Value> {
    let read = |text: &str| percent_decode_str(&text.replace('+', " ")).decode_utf8_lossy().into_owned();
    let all = text.split('&').filter(|pair| !pair.is_empty());
    all.map(|pair| {
        let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
        json!({"name": read(name), "value": read(value)})
    })
    .collect()
}

/// The duration of each phase in milliseconds; -1 if it did not happen.
fn timings(exchange: &Exchange) -> Value {
    let whole = exchange.duration().unwrap_or_default() * 1000.0;
    let Some(timing) =
        exchange.answer.as_ref().and_then(|answer| answer.timing).filter(|timing| timing.receive_headers_end >= 0.0)
    else {
        return json!({"blocked": -1, "dns": -1, "connect": -1, "ssl": -1, "send": 0, "wait": whole, "receive": 0});
    };
    let Timing { request_time, dns_start, connect_start, ssl_start, ssl_end, send_start, send_end, receive_headers_end } = timing;
    // Times of skipped phases are below 0: a phase ends where the next existing one starts.
    let first = |times: &[f64]| times.iter().copied().find(|time| *time >= 0.0).unwrap_or_default();
    let part = |start: f64, end: f64| if start >= 0.0 { (end - start).max(0.0) } else { -1.0 };
    let queued = ((request_time - exchange.begun) * 1000.0).max(0.0);
    let received = exchange.ended.map_or(0.0, |ended| (ended - request_time) * 1000.0 - receive_headers_end);
    json!({
        "blocked": queued + first(&[dns_start, connect_start, send_start]),
        "dns": part(dns_start, first(&[connect_start, send_start])),
        "connect": part(connect_start, first(&[send_start])),
        "ssl": part(ssl_start, ssl_end),
        "send": part(send_start, send_end).max(0.0),
        "wait": (receive_headers_end - send_end.max(0.0)).max(0.0),
        "receive": received.max(0.0),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cookies_are_read_as_they_are_written() {
        let mut set = Headers::default();
        set.push(
            "Set-Cookie",
            "a=b=c; Path=/x; HttpOnly; Expires=Wed, 21-Oct-2015 07:28:00 GMT\nd=e; Secure; SameSite=Lax; Expires=never",
        );
        let wanted = json!([
            {"name": "a", "value": "b=c", "path": "/x", "httpOnly": true, "expires": "2015-10-21T07:28:00.000Z"},
            {"name": "d", "value": "e", "secure": true, "sameSite": "Lax"},
        ]);
        assert_eq!(Value::from(cookies_received(&set)), wanted);
        assert_eq!(headers(&set).len(), 2);
        let mut sent = Headers::default();
        sent.push("cookie", "a=b; c; ");
        assert_eq!(Value::from(cookies_sent(&sent)), json!([{"name": "a", "value": "b"}, {"name": "", "value": "c"}]));
    }

    #[test]
    fn queries_are_read() {
        let wanted = json!([{"name": "a b", "value": "ä=1"}, {"name": "c", "value": ""}, {"name": "c", "value": "%zz"}]);
        assert_eq!(Value::from(query("http://a.example/x?a+b=%C3%A4=1&c&&c=%zz#?d=e")), wanted);
        assert!(query("http://a.example/x#?a=b").is_empty());
    }

    #[test]
    fn parts_of_the_time_are_told_apart() {
        let timing = Timing {
            request_time: 100.01,
            dns_start: 1.0,
            connect_start: 3.0,
            ssl_start: 4.0,
            ssl_end: 9.0,
            send_start: 10.0,
            send_end: 11.0,
            receive_headers_end: 31.0,
        };
        let exchange = |timing| {
            let mut exchange = Exchange::default();
            (exchange.begun, exchange.ended) = (100.0, Some(100.1));
            exchange.answer = Some(RecordedResponse {
                status: 200,
                status_text: String::new(),
                headers: Headers::default(),
                mime_type: String::new(),
                protocol: "h2".to_owned(),
                address: None,
                connection: None,
                timing,
            });
            exchange
        };
        let part = |exchange: &Exchange, name: &str| (timings(exchange)[name].as_f64().unwrap() * 1000.0).round() / 1000.0;
        let connected = exchange(Some(timing));
        for (name, wanted) in
            [("blocked", 11.0), ("dns", 2.0), ("connect", 7.0), ("ssl", 5.0), ("send", 1.0), ("wait", 20.0), ("receive", 59.0)]
        {
            assert_eq!(part(&connected, name), wanted, "{name}");
        }
        let entry = entry(&connected, &HashMap::new());
        assert!((entry["time"].as_f64().unwrap() - 100.0).abs() < 0.001, "{entry}");
        assert_eq!(entry["request"]["httpVersion"], "HTTP/2.0");
        let reused = exchange(Some(Timing { dns_start: -1.0, connect_start: -1.0, ssl_start: -1.0, ssl_end: -1.0, ..timing }));
        for (name, wanted) in [("blocked", 20.0), ("dns", -1.0), ("connect", -1.0), ("ssl", -1.0)] {
            assert_eq!(part(&reused, name), wanted, "{name}");
        }
        assert_eq!(part(&exchange(None), "wait"), 100.0);
    }

    #[test]
    fn an_empty_record_is_an_archive() {
        let record = Record { exchanges: Vec::new(), pages: Vec::new() };
        let archive: Value = serde_json::from_slice(&archive(&record, "Mozilla/5.0 (X11) Chrome/156.0.0.0 Safari/1")).unwrap();
        assert_eq!(archive["log"]["version"], "1.2");
        assert_eq!(archive["log"]["browser"], json!({"name": "Chrome", "version": "156.0.0.0"}));
        assert_eq!((&archive["log"]["pages"], &archive["log"]["entries"]), (&json!([]), &json!([])));
    }
}
