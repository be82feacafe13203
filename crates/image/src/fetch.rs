//! ADD of addresses: downloads one file for a build.
//!
//! The address is the Dockerfile's, which may be a stranger's, and its server may send whatever it wants. Each address is checked
//! right before it is dialled, also those of redirects. The size and every wait are bounded.

use std::fs::{File, Permissions};
use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime};

use sha2::{Digest, Sha256};
use ureq::http::{Response, StatusCode, Uri, header};
use ureq::{Agent, Body};

use crate::build::Downloads;
use crate::copy::CopyError;
use crate::registry::web;

/// The largest file, in bytes.
const MAX_BYTES: u64 = 8 << 30;
/// Of the whole download.
const TIME_LIMIT: Duration = Duration::from_secs(30 * 60);
const MAX_REDIRECTS: usize = 10;

/// A file to download.
#[derive(Debug, Clone)]
pub(crate) struct Download {
    pub(crate) address: String,
    /// That it must have, in hexadecimal digits.
    pub(crate) sha256: Option<String>,
    pub(crate) permitted: Downloads,
}

/// A file that was downloaded. It has the time that its server gives, and permissions for its owner alone, as in Docker.
#[derive(Debug)]
pub(crate) struct Downloaded {
    pub(crate) file: OwnedFd,
    pub(crate) sha256: String,
}

/// How far a download is.
#[derive(Debug, Default)]
pub(crate) struct Meter {
    bytes: AtomicU64,
    /// 0 if the server does not say it.
    of: AtomicU64,
    is_stopped: AtomicBool,
}

impl Meter {
    /// Such as `3.1 of 20.0 MB`; None before the first byte.
    pub(crate) fn text(&self) -> Option<String> {
        let (bytes, of) = (self.bytes.load(Ordering::Relaxed), self.of.load(Ordering::Relaxed));
        let mb = |bytes: u64| format!("{}.{}", bytes / 1_000_000, bytes / 100_000 % 10);
        match of {
            _ if bytes == 0 => None,
            0 => Some(format!("{} MB", mb(bytes))),
            of => Some(format!("{} of {} MB", mb(bytes), mb(of))),
        }
    }

    /// Ends the download soon, with an error.
    pub(crate) fn stop(&self) {
        self.is_stopped.store(true, Ordering::Relaxed);
    }
}

/// Whether a source of ADD is an address to download from. Repositories of git are not.
pub(crate) fn is_address(source: &str) -> bool {
    let lower = source.to_ascii_lowercase();
    let is_repository = lower.split('#').next().is_some_and(|address| address.ends_with(".git"));
    (lower.starts_with("http://") || lower.starts_with("https://")) && !is_repository
}

/// The name of the file that an address leads to: the last part of its path.
pub(crate) fn file_name(address: &str) -> Option<String> {
    let uri: Uri = address.parse().ok()?;
    let last = uri.path().rsplit('/').next()?;
    let name = percent_encoding::percent_decode_str(last).decode_utf8().ok()?.into_owned();
    let is_name = !name.is_empty() && name.len() <= 255 && !name.contains(['/', '\0']) && name != "." && name != "..";
    is_name.then_some(name)
}

/// Downloads into a new file at `to`, and compares its SHA-256 if one is given.
pub(crate) fn fetch(download: &Download, to: &Path, meter: &Meter) -> Result<Downloaded, CopyError> {
    let deadline = Instant::now() + TIME_LIMIT;
    let answer = call(download, deadline)?;
    if answer.status() != StatusCode::OK {
        return refuse(format!("its server answers with {}", answer.status()));
    }
    if let Some(length) = answer.body().content_length() {
        if length > MAX_BYTES {
            return refuse(format!("it has more than {MAX_BYTES} bytes"));
        }
        meter.of.store(length, Ordering::Relaxed);
    }
    let modified = answer.headers().get(header::LAST_MODIFIED).and_then(|value| value.to_str().ok()).and_then(time);
    let written = |e| CopyError { reason: format!("could not write it: {e}"), hint: None, source: Some(e) };
    let mut file = File::options().read(true).write(true).create_new(true).open(to).map_err(written)?;
    let mut hash = Sha256::new();
    let mut body = answer.into_body().into_reader();
    let mut buffer = vec![0; 128 << 10];
    let mut bytes = 0;
    loop {
        let n = body.read(&mut buffer).or_else(|error| refuse(format!("the download broke off: {error}")))?;
        if n == 0 {
            break;
        }
        bytes += n as u64;
        if bytes > MAX_BYTES {
            return refuse(format!("it has more than {MAX_BYTES} bytes"));
        }
        if meter.is_stopped.load(Ordering::Relaxed) || Instant::now() > deadline {
            return refuse(format!("the download did not end within {} minutes", TIME_LIMIT.as_secs() / 60));
        }
        hash.update(&buffer[..n]);
        file.write_all(&buffer[..n]).map_err(written)?;
        meter.bytes.store(bytes, Ordering::Relaxed);
    }
    let sha256 = hex::encode(hash.finalize());
    if let Some(wanted) = download.sha256.as_ref().filter(|wanted| **wanted != sha256) {
        return Err(CopyError {
            reason: format!("it has the SHA-256 {sha256}, and --checksum wants {wanted}"),
            hint: Some("if this is the file that you want, change --checksum".to_owned()),
            source: None,
        });
    }
    file.set_permissions(Permissions::from_mode(0o600)).map_err(written)?;
    file.set_modified(modified.unwrap_or(SystemTime::UNIX_EPOCH)).map_err(written)?;
    Ok(Downloaded { file: file.into(), sha256 })
}

/// Sends the request, and follows redirects.
fn call(download: &Download, deadline: Instant) -> Result<Response<Body>, CopyError> {
    let Ok(first) = download.address.parse::<Uri>() else { return refuse("the address is malformed") };
    let mut uri = first.clone();
    for _ in 0..=MAX_REDIRECTS {
        if uri.authority().is_none_or(|authority| authority.as_str().contains('@')) {
            return refuse("the address has a user, which the image's history would show");
        }
        // A builder on the host may name any server, and a redirect may not lead to another one that is not public.
        let is_named = uri.authority() == first.authority();
        let is_public_only = match download.permitted {
            Downloads::Refused => return refuse("this build may not download; a RUN step can, on its own network"),
            Downloads::Public => true,
            Downloads::Any => !is_named,
        };
        if is_public_only && web::is_closed(&uri) {
            return Err(not_public(&uri));
        }
        let agent: Agent = web::agent(&uri, is_public_only);
        let left = deadline.saturating_duration_since(Instant::now());
        let answer = match agent.get(uri.clone()).config().timeout_global(Some(left)).build().call() {
            Ok(answer) => answer,
            Err(error) if web::is_not_public(&error) => return Err(not_public(&uri)),
            Err(error) => return refuse(format!("{} can't be reached: {error}", host(&uri))),
        };
        let location = answer.headers().get(header::LOCATION).and_then(|value| value.to_str().ok());
        let Some(location) = location.filter(|_| answer.status().is_redirection()) else { return Ok(answer) };
        let next = web::join(&uri, location).and_then(|text| text.parse::<Uri>().ok());
        let Some(next) = next.filter(|next| matches!(next.scheme_str(), Some("https" | "http"))) else {
            return refuse("it redirects to a malformed address");
        };
        if uri.scheme_str() == Some("https") && next.scheme_str() == Some("http") {
            return refuse("it redirects to an address without TLS");
        }
        uri = next;
    }
    refuse(format!("it redirects more than {MAX_REDIRECTS} times"))
}

fn host(uri: &Uri) -> &str {
    uri.host().unwrap_or_default()
}

fn not_public(uri: &Uri) -> CopyError {
    CopyError {
        reason: format!("it leads to {}, which is not on the public internet", host(uri)),
        hint: Some("COPY the file from the context".to_owned()),
        source: None,
    }
}

fn refuse<T>(reason: impl Into<String>) -> Result<T, CopyError> {
    Err(CopyError { reason: reason.into(), hint: None, source: None })
}

/// The time of a header.
fn time(text: &str) -> Option<SystemTime> {
    let time = jiff::fmt::rfc2822::parse(text).ok()?;
    u64::try_from(time.timestamp().as_second()).ok().map(|seconds| SystemTime::UNIX_EPOCH + Duration::from_secs(seconds))
}

#[cfg(test)]
mod tests;
