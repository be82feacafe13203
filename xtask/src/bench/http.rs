//! A client with little overhead: one kept-alive connection, blocking, only the parsing that is needed.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use serde_json::{Value, json};

use crate::failure::{Attempt, Failure, Outcome};

/// Maximum time of a call.
const LIMIT: Duration = Duration::from_secs(120);

pub(super) struct Connection {
    stream: BufReader<TcpStream>,
    port: u16,
    /// Additional header lines of each request.
    pub(super) headers: String,
}

/// The used parts of an answer's head.
pub(super) struct Head {
    pub(super) status: u16,
    length: Option<u64>,
    chunked: bool,
    /// The session of MCP.
    session: Option<String>,
}

impl Connection {
    pub(super) fn open(port: u16) -> Result<Self, Failure> {
        let stream = TcpStream::connect(("127.0.0.1", port)).attempt(|| format!("could not connect to port {port}"))?;
        stream.set_nodelay(true).attempt(|| "could not set TCP_NODELAY".into())?;
        stream.set_read_timeout(Some(LIMIT)).attempt(|| "could not set a time limit".into())?;
        Ok(Self { stream: BufReader::with_capacity(256 << 10, stream), port, headers: String::new() })
    }

    fn send(&mut self, method: &str, path: &str, body: &[u8]) -> Result<Head, Failure> {
        let mut request = format!("{method} {path} HTTP/1.1\r\nHost: 127.0.0.1:{}\r\n{}", self.port, self.headers).into_bytes();
        // Bytes after the head of another request would be read as the next request.
        let has_body = ["POST", "PUT"].contains(&method);
        let body = if has_body { body } else { b"" };
        if has_body {
            request.extend_from_slice(format!("Content-Type: application/json\r\nContent-Length: {}\r\n", body.len()).as_bytes());
        }
        request.extend_from_slice(b"\r\n");
        request.extend_from_slice(body);
        self.stream.get_mut().write_all(&request).attempt(|| format!("could not send {method} {path}"))?;
        self.head().attempt(|| format!("no answer to {method} {path}"))
    }

    fn line(&mut self) -> std::io::Result<String> {
        let mut line = String::new();
        if self.stream.read_line(&mut line)? == 0 {
            return Err(std::io::ErrorKind::UnexpectedEof.into());
        }
        Ok(line.trim_end().to_owned())
    }

    fn head(&mut self) -> std::io::Result<Head> {
        let first = self.line()?;
        let status = first.get(9..12).and_then(|word| word.parse().ok());
        let status = status.ok_or_else(|| std::io::Error::other(format!("the answer begins with {first:?}")))?;
        let mut head = Head { status, length: None, chunked: false, session: None };
        loop {
            let line = self.line()?;
            let Some((name, value)) = line.split_once(':') else {
                return Ok(head);
            };
            match name.to_ascii_lowercase().as_str() {
                "content-length" => head.length = value.trim().parse().ok(),
                "mcp-session-id" => head.session = Some(value.trim().to_owned()),
                "transfer-encoding" => head.chunked = value.trim().eq_ignore_ascii_case("chunked"),
                _ => {}
            }
        }
    }

    /// Copies the body to `sink`, and returns its length.
    fn body(&mut self, head: &Head, sink: &mut impl Write) -> std::io::Result<u64> {
        if !head.chunked {
            let length = head.length.unwrap_or(0);
            return std::io::copy(&mut (&mut self.stream).take(length), sink);
        }
        let mut total = 0;
        loop {
            let line = self.line()?;
            let size = line.split(';').next().unwrap_or_default();
            let size =
                u64::from_str_radix(size, 16).map_err(|_| std::io::Error::other(format!("a chunk begins with {line:?}")))?;
            total += std::io::copy(&mut (&mut self.stream).take(size), sink)?;
            self.line()?;
            if size == 0 {
                return Ok(total);
            }
        }
    }

    fn call(&mut self, method: &str, path: &str, body: &[u8]) -> Result<(u16, Vec<u8>), Failure> {
        let head = self.send(method, path, body)?;
        let mut answer = Vec::new();
        self.body(&head, &mut answer).attempt(|| format!("the answer to {method} {path} broke off"))?;
        Ok((head.status, answer))
    }

    fn json(&mut self, method: &str, path: &str, body: &Value) -> Result<Value, Failure> {
        let (status, answer) = self.call(method, path, body.to_string().as_bytes())?;
        if !(200..300).contains(&status) {
            return Err(Failure::new(format!("{method} {path} answered {status}: {}", String::from_utf8_lossy(&answer))));
        }
        serde_json::from_slice(&answer).attempt(|| format!("{method} {path} answered no JSON"))
    }

    /// Calls with JSON both ways; the call has to succeed.
    pub(super) fn post(&mut self, path: &str, body: &Value) -> Result<Value, Failure> {
        self.json("POST", path, body)
    }

    /// The same with PUT.
    pub(super) fn put(&mut self, path: &str, body: &Value) -> Result<Value, Failure> {
        self.json("PUT", path, body)
    }

    /// The JSON at a path.
    pub(super) fn get(&mut self, path: &str) -> Result<Value, Failure> {
        self.json("GET", path, &Value::Null)
    }

    /// The unparsed answer, with any content.
    pub(super) fn raw_post(&mut self, path: &str, body: &Value) -> Result<Vec<u8>, Failure> {
        self.call("POST", path, body.to_string().as_bytes()).map(|(_, answer)| answer)
    }

    /// Starts a session of MCP at a path; later requests use it.
    pub(super) fn begin_session(&mut self, path: &str) -> Outcome {
        self.headers = "Accept: application/json, text/event-stream\r\n".to_owned();
        let hello =
            json!({ "protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": { "name": "bench", "version": "1" } });
        let hello = json!({ "jsonrpc": "2.0", "id": 0, "method": "initialize", "params": hello });
        let head = self.send("POST", path, hello.to_string().as_bytes())?;
        self.body(&head, &mut std::io::sink()).attempt(|| "the session's beginning broke off".into())?;
        let session = head.session.ok_or_else(|| Failure::new(format!("{path} began no session: {}", head.status)))?;
        self.headers.push_str(&format!("Mcp-Session-Id: {session}\r\n"));
        let (status, _) = self.call("POST", path, br#"{"jsonrpc":"2.0","method":"notifications/initialized"}"#)?;
        if status == 202 { Ok(()) } else { Err(Failure::new(format!("a session's beginning was answered {status}"))) }
    }

    /// Downloads a path's body into `sink`.
    pub(super) fn download(&mut self, path: &str, sink: &mut impl Write) -> Result<u64, Failure> {
        let head = self.send("GET", path, b"")?;
        if head.status != 200 {
            return Err(Failure::new(format!("GET {path} answered {}", head.status)));
        }
        self.body(&head, sink).attempt(|| format!("the answer to GET {path} broke off"))
    }

    /// Uploads a file into a sandbox.
    pub(super) fn upload(&mut self, sandbox: &str, path: &str, file: &std::path::Path) -> Outcome {
        const BOUNDARY: &str = "a-line-that-no-file-here-has";
        let mut content = std::fs::File::open(file).attempt(|| format!("could not open {}", file.display()))?;
        let length = content.metadata().attempt(|| format!("could not look at {}", file.display()))?.len();
        let head = format!(
            "--{BOUNDARY}\r\nContent-Disposition: form-data; name=\"path\"\r\n\r\n{path}\r\n\
             --{BOUNDARY}\r\nContent-Disposition: form-data; name=\"file\"; filename=\"file\"\r\n\r\n"
        );
        let tail = format!("\r\n--{BOUNDARY}--\r\n");
        let request = format!(
            "POST /sandbox/{sandbox}/v1/file/upload HTTP/1.1\r\nHost: 127.0.0.1:{}\r\n\
             Content-Type: multipart/form-data; boundary={BOUNDARY}\r\nContent-Length: {}\r\n\r\n{head}",
            self.port,
            head.len() as u64 + length + tail.len() as u64,
        );
        let stream = self.stream.get_mut();
        let mut send = || {
            stream.write_all(request.as_bytes())?;
            // The kernel copies it.
            std::io::copy(&mut content, stream)?;
            stream.write_all(tail.as_bytes())
        };
        send().attempt(|| format!("could not send {}", file.display()))?;
        let answer = self.head().attempt(|| "no answer to an upload".into())?;
        let mut said = Vec::new();
        self.body(&answer, &mut said).attempt(|| "the answer to an upload broke off".into())?;
        if answer.status == 200 {
            return Ok(());
        }
        Err(Failure::new(format!("an upload was answered {}: {}", answer.status, String::from_utf8_lossy(&said))))
    }

    pub(super) fn create(&mut self, name: &str) -> Outcome {
        self.json("POST", "/api/v2/sandboxes", &json!({ "name": name })).map(drop)
    }

    pub(super) fn create_of(&mut self, name: &str, image: &str) -> Outcome {
        self.json("POST", "/api/v2/sandboxes", &json!({ "name": name, "image": image })).map(drop)
    }

    /// Creates one of the image `code`; with `own` limits it can't come from a pool.
    pub(super) fn create_for_code(&mut self, name: &str, own: bool) -> Outcome {
        let mut request = json!({ "name": name, "image": "code" });
        if own {
            request["resources"] = json!({ "memory_bytes": 3u64 << 30 });
        }
        self.json("POST", "/api/v2/sandboxes", &request).map(drop)
    }

    /// Executes Python that has to succeed.
    pub(super) fn python(&mut self, sandbox: &str, code: &str) -> Outcome {
        let body = json!({ "language": "python", "code": code });
        let answer = self.json("POST", &format!("/sandbox/{sandbox}/v1/code/execute"), &body)?;
        if answer["data"]["status"] == "ok" {
            Ok(())
        } else {
            Err(Failure::new(format!("{code} in {sandbox} answered {answer}")))
        }
    }

    /// A metric of the server.
    pub(super) fn metric(&mut self, name: &str) -> Result<f64, Failure> {
        let mut page = Vec::new();
        self.download("/metrics", &mut page)?;
        let page = String::from_utf8_lossy(&page).into_owned();
        let value = page.lines().find_map(|line| line.strip_prefix(name)?.trim().parse().ok());
        value.ok_or_else(|| Failure::new(format!("/metrics has no {name}")))
    }

    pub(super) fn delete(&mut self, name: &str) -> Outcome {
        self.json("DELETE", &format!("/api/v2/sandboxes/{name}"), &Value::Null).map(drop)
    }

    pub(super) fn sandboxes(&mut self) -> Result<Vec<String>, Failure> {
        let answer = self.json("GET", "/api/v2/sandboxes", &Value::Null)?;
        let names = answer["sandboxes"].as_array().into_iter().flatten();
        Ok(names.filter_map(|sandbox| sandbox["name"].as_str().map(str::to_owned)).collect())
    }

    /// Standard output of a command, which has to succeed.
    pub(super) fn bash(&mut self, sandbox: &str, command: &str) -> Result<String, Failure> {
        let answer = self.json("POST", &format!("/sandbox/{sandbox}/v1/bash/exec"), &json!({ "command": command }))?;
        if answer["data"]["exit_code"] != 0 {
            return Err(Failure::new(format!("{command} in {sandbox} answered {answer}")));
        }
        Ok(answer["data"]["stdout"].as_str().unwrap_or_default().to_owned())
    }
}
