//! Vectors from a service with OpenAI's `/v1/embeddings`.

use std::fmt;
use std::time::Duration;

use serde::Deserialize;
use serde_json::json;
use ureq::http::{Request, Uri, header};

use super::{Embedder, EmbedderSpec, Prefixes, Reasoned, Role, named, normalise};
use crate::Result;
use crate::service::agent;

/// Maximum number of texts in one request.
const MAX_BATCH: usize = 2048;
const MAX_TIMEOUT: u64 = 3600;
/// Maximum size of an answer, in bytes.
const MAX_BYTES: u64 = 64 << 20;
/// Maximum number of characters of a service's message in an error.
const MAX_WORDS: usize = 300;
/// Total number of attempts for a busy service, with pauses that double, unless the service names the pause.
const TRIES: u32 = 5;
const PAUSE: Duration = Duration::from_millis(500);
const LONGEST_PAUSE: Duration = Duration::from_secs(30);

pub(super) fn default_batch() -> usize {
    64
}

pub(super) fn default_timeout() -> u64 {
    60
}

pub(super) struct Http {
    name: String,
    agent: ureq::Agent,
    url: String,
    model: String,
    key: Option<Key>,
    prefixes: Prefixes,
    dimension: usize,
    batch: usize,
    pause: Duration,
}

/// A secret that can't be printed.
#[derive(Clone)]
struct Key(String);

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("<key>")
    }
}

#[derive(Deserialize)]
struct Answer {
    data: Vec<Item>,
}

#[derive(Deserialize)]
struct Item {
    /// The position of its text in the request. Items come in any order.
    index: Option<usize>,
    embedding: Vec<f32>,
}

/// Why a request failed.
enum Fault {
    /// A retry may succeed, after this pause if the service named one.
    Passing(String, Option<Duration>),
    Lasting(String),
}

impl Http {
    pub(super) fn open(spec: &EmbedderSpec) -> Result<Self> {
        let EmbedderSpec::Http { url, model, api_key_env, dimension, batch, timeout_s, prefixes } = spec else {
            return Err(named("http")("the spec is of another embedder".to_owned()));
        };
        let name = format!("http {model}");
        let key = match api_key_env {
            Some(variable) => Some(key(variable).map_err(named(&name))?),
            None => None,
        };
        if !(1..=MAX_BATCH).contains(batch) || !(1..=MAX_TIMEOUT).contains(timeout_s) || *dimension == Some(0) {
            let reason =
                format!("batch has to be within 1 and {MAX_BATCH}, timeout_s within 1 and {MAX_TIMEOUT}, dimension above 0");
            return Err(named(&name)(reason));
        }
        let mut http = Self {
            // A redirect would become a GET, and might send the key elsewhere.
            agent: agent(Duration::from_secs(*timeout_s)).max_redirects(0).max_redirects_will_error(false).build().into(),
            url: endpoint(url).map_err(named(&name))?,
            name,
            model: model.clone(),
            key,
            prefixes: prefixes.clone().unwrap_or_else(|| Prefixes::of_name(model)),
            dimension: dimension.unwrap_or_default(),
            batch: *batch,
            pause: PAUSE,
        };
        if dimension.is_none() {
            http.dimension = http.ask(&["dimension".to_owned()]).map_err(named(&http.name))?[0].len();
        }
        Ok(http)
    }

    fn all(&self, texts: &[&str], role: Role) -> Reasoned<Vec<Vec<f32>>> {
        // Services refuse an empty text, and with it the entire request.
        let filled = |text: &&str| if text.trim().is_empty() { " ".to_owned() } else { self.prefixes.before(text, role) };
        let mut vectors = Vec::with_capacity(texts.len());
        for batch in texts.chunks(self.batch) {
            let batch: Vec<String> = batch.iter().map(filled).collect();
            for mut vector in self.ask(&batch)? {
                if vector.len() != self.dimension {
                    let (wanted, found) = (self.dimension, vector.len());
                    return Err(format!("the service answered with {found} dimensions, where {wanted} were expected"));
                }
                normalise(&mut vector)?;
                vectors.push(vector);
            }
        }
        Ok(vectors)
    }

    /// The vectors of a batch in its order, one per text.
    fn ask(&self, texts: &[String]) -> Reasoned<Vec<Vec<f32>>> {
        let body = json!({"model": self.model, "input": texts}).to_string();
        let mut tried = 0;
        loop {
            tried += 1;
            match self.send(&body).and_then(|answer| ordered(&answer, texts.len()).map_err(Fault::Lasting)) {
                Ok(vectors) => return Ok(vectors),
                Err(Fault::Lasting(reason)) => return Err(self.without_key(reason)),
                Err(Fault::Passing(reason, _)) if tried >= TRIES => {
                    return Err(self.without_key(format!("{reason}; asked {TRIES} times")));
                }
                Err(Fault::Passing(reason, pause)) => {
                    let pause = pause.unwrap_or(self.pause * 2u32.pow(tried - 1)).min(LONGEST_PAUSE);
                    tracing::debug!(embedder = self.name, reason = self.without_key(reason), ?pause, "asking again");
                    std::thread::sleep(pause);
                }
            }
        }
    }

    fn send(&self, body: &str) -> std::result::Result<Vec<u8>, Fault> {
        let mut request = Request::post(&self.url).header(header::CONTENT_TYPE, "application/json");
        if let Some(Key(key)) = &self.key {
            request = request.header(header::AUTHORIZATION, format!("Bearer {key}"));
        }
        let request = request.body(body).map_err(|error| Fault::Lasting(error.to_string()))?;
        let mut answer = self.agent.run(request).map_err(fault)?;
        let status = answer.status().as_u16();
        let seconds = answer.headers().get(header::RETRY_AFTER).and_then(|value| value.to_str().ok()?.parse().ok());
        let read = answer.body_mut().with_config().limit(MAX_BYTES).read_to_vec();
        if status == 200 {
            return read.map_err(fault);
        }
        let said = words(&read.unwrap_or_default());
        let reason = format!("the service answered with status {status}{said}");
        Err(match status {
            408 | 429 | 500..=599 => Fault::Passing(reason, seconds.map(Duration::from_secs)),
            401 | 403 => Fault::Lasting(format!("{reason}; api_key_env names the environment variable with the key")),
            _ => Fault::Lasting(reason),
        })
    }

    /// Removes the key from text: a service may repeat it in its message.
    fn without_key(&self, text: String) -> String {
        match &self.key {
            Some(Key(key)) => text.replace(key, "<key>"),
            None => text,
        }
    }
}

impl Embedder for Http {
    fn name(&self) -> &str {
        &self.name
    }

    fn dimension(&self) -> usize {
        self.dimension
    }

    fn embed(&self, texts: &[&str], role: Role) -> Result<Vec<Vec<f32>>> {
        self.all(texts, role).map_err(named(&self.name))
    }
}

fn key(variable: &str) -> Reasoned<Key> {
    let unfit = |why: &str| format!("the environment variable {variable} is to hold the key, and {why}");
    let value = std::env::var(variable).map_err(|_| unfit("is not set"))?;
    let value = value.trim();
    match value.is_empty() || value.chars().any(|c| !c.is_ascii_graphic()) {
        true => Err(unfit("is empty or not of plain characters")),
        false => Ok(Key(value.to_owned())),
    }
}

fn endpoint(given: &str) -> Reasoned<String> {
    let uri: Uri = given.parse().map_err(|error| format!("the url can't be used: {error}"))?;
    let authority = uri.authority().filter(|_| matches!(uri.scheme_str(), Some("http" | "https")));
    let authority = authority.ok_or("the url has to begin with http:// or https:// and a host")?;
    // An index stores the url, and must not contain secrets.
    if authority.as_str().contains('@') || uri.query().is_some() {
        return Err(
            "the url may hold no password and no query; a key belongs into the variable that api_key_env names".to_owned()
        );
    }
    let plain = given.trim_end_matches('/');
    Ok(if plain.ends_with("/embeddings") { plain.to_owned() } else { format!("{plain}/embeddings") })
}

fn fault(error: ureq::Error) -> Fault {
    match error {
        ureq::Error::Timeout(_) => Fault::Lasting("the service took too long; raise timeout_s or lower batch".to_owned()),
        ureq::Error::BodyExceedsLimit(_) => {
            Fault::Lasting(format!("the answer is larger than {} MiB; lower batch", MAX_BYTES >> 20))
        }
        ureq::Error::Io(_) | ureq::Error::ConnectionFailed | ureq::Error::HostNotFound | ureq::Error::Protocol(_) => {
            Fault::Passing(error.to_string(), None)
        }
        other => Fault::Lasting(other.to_string()),
    }
}

/// A service's error message, shortened to one line.
fn words(body: &[u8]) -> String {
    let text = String::from_utf8_lossy(&body[..body.len().min(16 << 10)]);
    let value: serde_json::Value = serde_json::from_str(&text).unwrap_or_default();
    let said = [&value["error"]["message"], &value["error"], &value["message"], &value["detail"]];
    let said = said.iter().find_map(|one| one.as_str()).unwrap_or(&text);
    let line = said.split_whitespace().collect::<Vec<_>>().join(" ");
    let short: String = line.chars().take(MAX_WORDS).collect();
    if short.is_empty() { short } else { format!(": {short}") }
}

/// The vectors in the order of their texts, one for each text, all of the same length.
fn ordered(answer: &[u8], count: usize) -> Reasoned<Vec<Vec<f32>>> {
    let Answer { data } =
        serde_json::from_slice(answer).map_err(|error| format!("the answer is not what /v1/embeddings gives: {error}"))?;
    if data.len() != count {
        return Err(format!("the service answered with {} vectors for {count} texts", data.len()));
    }
    let numbered = data.iter().any(|item| item.index.is_some());
    let mut vectors = vec![Vec::new(); count];
    for (at, item) in data.into_iter().enumerate() {
        let index = if numbered { item.index } else { Some(at) };
        let place = index.and_then(|index| vectors.get_mut(index)).filter(|place| place.is_empty());
        let place = place.ok_or("the vectors of the answer are not numbered as the texts are")?;
        if item.embedding.is_empty() || item.embedding.iter().any(|one| !one.is_finite()) {
            return Err("the answer has a vector that is empty or not of finite numbers".to_owned());
        }
        *place = item.embedding;
    }
    match vectors.iter().all(|vector| vector.len() == vectors[0].len()) {
        true => Ok(vectors),
        false => Err("the vectors of the answer are not as long as each other".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead, BufReader, Read, Write};
    use std::net::{TcpListener, TcpStream};
    use std::thread::JoinHandle;

    use serde_json::Value;

    use super::*;

    /// A service that answers each request with the next of its answers, and then reports its requests.
    struct Service {
        url: String,
        thread: JoinHandle<Vec<(String, Value)>>,
    }

    type Reply = Box<dyn Fn(&Value, &mut TcpStream) + Send>;

    fn service(replies: Vec<Reply>) -> Service {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}/v1", listener.local_addr().unwrap());
        let thread = std::thread::spawn(move || {
            let mut asked = Vec::new();
            for reply in replies {
                let (mut stream, _) = listener.accept().unwrap();
                let (mut head, mut length) = (String::new(), 0);
                let mut reader = BufReader::new(stream.try_clone().unwrap());
                loop {
                    let mut line = String::new();
                    reader.read_line(&mut line).unwrap();
                    if line.trim().is_empty() {
                        break;
                    }
                    if let Some(told) = line.to_lowercase().strip_prefix("content-length:") {
                        length = told.trim().parse().unwrap();
                    }
                    head += &line;
                }
                let mut body = vec![0; length];
                reader.read_exact(&mut body).unwrap();
                let body = serde_json::from_slice(&body).unwrap();
                reply(&body, &mut stream);
                asked.push((head, body));
            }
            asked
        });
        Service { url, thread }
    }

    fn send(stream: &mut TcpStream, head: &str, body: &str) {
        let head = format!("HTTP/1.1 {head}\r\nconnection: close\r\ncontent-length: {}\r\n\r\n", body.len());
        // The client may have closed the connection.
        let _ = stream.write_all(head.as_bytes()).and_then(|()| stream.write_all(body.as_bytes()));
    }

    fn says(head: &'static str, body: impl Into<String>) -> Reply {
        let body = body.into();
        Box::new(move |_, stream| send(stream, head, &body))
    }

    /// Vectors that identify their text: its length, and 1. In reverse order.
    fn embeds() -> Reply {
        Box::new(|asked, stream| {
            let vector = |(at, text): (usize, &Value)| json!({"index": at, "embedding": [text.as_str().unwrap().len(), 1]});
            let data: Vec<Value> = asked["input"].as_array().unwrap().iter().enumerate().map(vector).rev().collect();
            send(stream, "200 OK", &json!({"object": "list", "data": data, "usage": {"total_tokens": 1}}).to_string());
        })
    }

    fn spec(url: &str, dimension: Option<usize>) -> EmbedderSpec {
        let (url, model) = (url.to_owned(), "tiny-e5".to_owned());
        EmbedderSpec::Http { url, model, api_key_env: None, dimension, batch: 2, timeout_s: 20, prefixes: None }
    }

    fn open(url: &str) -> Http {
        Http { pause: Duration::from_millis(1), ..Http::open(&spec(url, Some(2))).unwrap() }
    }

    /// The outcome for a text with these answers of the service.
    fn outcome(replies: Vec<Reply>) -> std::result::Result<Vec<Vec<f32>>, String> {
        let service = service(replies);
        let outcome = open(&service.url).embed(&["a"], Role::Query).map_err(|error| error.to_string());
        service.thread.join().unwrap();
        outcome
    }

    #[test]
    fn texts_are_sent_in_batches_and_come_back_in_order() {
        let service = service((0..3).map(|_| embeds()).collect());
        let http = Http::open(&spec(&service.url, None)).unwrap();
        assert_eq!((http.name(), http.dimension()), ("http tiny-e5", 2));
        let vectors = http.embed(&["", "abc", "abcdefg"], Role::Passage).unwrap();
        let slopes: Vec<f32> = vectors.iter().map(|vector| (vector[0] / vector[1]).round()).collect();
        assert_eq!(slopes, [1.0, 12.0, 16.0]);
        assert!(vectors.iter().all(|vector| (vector[0].hypot(vector[1]) - 1.0).abs() < 1e-6));
        let asked = service.thread.join().unwrap();
        assert!(asked[1].0.starts_with("POST /v1/embeddings HTTP/1.1"), "{}", asked[1].0);
        assert_eq!(asked[1].1, json!({"model": "tiny-e5", "input": [" ", "passage: abc"]}));
        assert_eq!(asked[2].1["input"], json!(["passage: abcdefg"]));
    }

    #[test]
    fn a_busy_service_is_asked_again() {
        let busy = || says("429 Too Many Requests\r\nretry-after: 0", "{}");
        let cut: Reply = Box::new(|_, stream| {
            let _ = stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 400\r\n\r\n{\"data\": [");
        });
        let gone: Reply = Box::new(|_, _| {});
        assert_eq!(outcome(vec![busy(), says("503 Busy", ""), cut, gone, embeds()]).unwrap().len(), 1);
        let error = outcome((0..TRIES).map(|_| busy()).collect()).unwrap_err();
        assert!(error.contains("status 429") && error.contains("asked 5 times"), "{error}");
    }

    #[test]
    fn what_is_wrong_is_told_and_not_asked_again() {
        let item = |vector: &str| format!(r#"{{"index": 0, "embedding": {vector}}}"#);
        let data = |items: &str| format!(r#"{{"data": [{items}]}}"#);
        for (body, told) in [
            ("no json".to_owned(), "not what /v1/embeddings gives"),
            ("{}".to_owned(), "missing field `data`"),
            (data(&item("\"AACAPw==\"")), "not what /v1/embeddings gives"),
            (data(""), "0 vectors for 1 texts"),
            (data(&[item("[1, 2]"), item("[1, 2]")].join(",")), "2 vectors for 1 texts"),
            (data(r#"{"index": 1, "embedding": [1, 2]}"#), "not numbered"),
            (data(&item("[]")), "empty or not of finite numbers"),
            (data(&item("[1, 1e39]")), "finite"),
            (data(&item("[1, null]")), "not what /v1/embeddings gives"),
            (data(&item("[1, 2, 3]")), "3 dimensions, where 2 were expected"),
        ] {
            let error = outcome(vec![says("200 OK", body.clone())]).unwrap_err();
            assert!(error.contains(told), "{body}: {error}");
        }
        let error = outcome(vec![says("400 Bad", r#"{"error": {"message": "too\nlong"}}"#)]).unwrap_err();
        assert!(error.ends_with("status 400: too long"), "{error}");
        let error = outcome(vec![says("302 Found\r\nlocation: http://127.0.0.1:9/", "")]).unwrap_err();
        assert!(error.ends_with("status 302"), "{error}");
        assert!(ordered(br#"{"data": [{"index": 0, "embedding": [1]}, {"index": 0, "embedding": [1]}]}"#, 2).is_err());
        assert!(ordered(br#"{"data": [{"embedding": [1]}, {"embedding": [1, 2]}]}"#, 2).unwrap_err().contains("as long as"));
        assert_eq!(ordered(br#"{"data": [{"embedding": [1]}, {"embedding": [2]}]}"#, 2).unwrap(), [[1.0], [2.0]]);
    }

    #[test]
    fn an_answer_has_bounds() {
        let endless: Reply = Box::new(|_, stream| {
            let _ = stream.write_all(b"HTTP/1.1 200 OK\r\nconnection: close\r\n\r\n");
            let spaces = vec![b' '; 1 << 20];
            while stream.write_all(&spaces).is_ok() {}
        });
        let error = outcome(vec![endless]).unwrap_err();
        assert!(error.contains("larger than 64 MiB"), "{error}");
        // It never answers; the thread of the service ends when the connection does.
        let silent: Reply = Box::new(|_, stream| drop(stream.read(&mut [0; 1])));
        let service = service(vec![silent]);
        let http = Http { agent: agent(Duration::from_millis(200)).build().into(), ..open(&service.url) };
        let error = http.embed(&["a"], Role::Query).unwrap_err().to_string();
        assert!(error.contains("took too long; raise timeout_s"), "{error}");
        drop(http);
        service.thread.join().unwrap();
    }

    #[test]
    fn the_key_goes_to_the_service_and_nowhere_else() {
        let service = service(vec![says("401 Unauthorized", r#"{"error": "sk-secret is no key"}"#)]);
        let http = Http { key: Some(Key("sk-secret".to_owned())), ..open(&service.url) };
        let error = http.embed(&["a"], Role::Query).unwrap_err();
        assert!(!format!("{error} {error:?} {:?}", http.key).contains("sk-secret"), "{error:?}");
        assert!(error.to_string().contains("<key> is no key"), "{error}");
        let asked = service.thread.join().unwrap();
        assert!(asked[0].0.to_lowercase().contains("authorization: bearer sk-secret"), "{}", asked[0].0);
    }

    #[test]
    fn a_spec_that_makes_no_sense_is_refused() {
        for url in ["", "host", "ftp://h/v1", "http://user:pw@h/v1", "https://h/v1?key=s", "/v1"] {
            assert!(endpoint(url).is_err(), "{url}");
        }
        assert_eq!(endpoint("https://h/v1/").unwrap(), "https://h/v1/embeddings");
        assert_eq!(endpoint("https://h/v1/embeddings").unwrap(), "https://h/v1/embeddings");
        let EmbedderSpec::Http { url, model, dimension, .. } = spec("http://127.0.0.1:9/v1", Some(2)) else { unreachable!() };
        let of = |api_key_env: Option<&str>, batch, timeout_s| {
            let (url, model, api_key_env) = (url.clone(), model.clone(), api_key_env.map(str::to_owned));
            Http::open(&EmbedderSpec::Http { url, model, api_key_env, dimension, batch, timeout_s, prefixes: None })
        };
        assert!(of(None, 1, 1).is_ok());
        assert!(of(None, 0, 1).is_err() && of(None, MAX_BATCH + 1, 1).is_err() && of(None, 1, 0).is_err());
        let error = of(Some("ARENITE_NO_SUCH_KEY"), 1, 1).map(|_| ()).unwrap_err().to_string();
        assert!(error.contains("ARENITE_NO_SUCH_KEY is to hold the key, and is not set"), "{error}");
    }
}
