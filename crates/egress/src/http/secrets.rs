//! Secrets in requests and answers.

use std::sync::Arc;

use http::header::ACCEPT_ENCODING;
use http::{HeaderValue, Request, Response, StatusCode};
use hyper::body::{Body, Incoming};

use super::{HttpConnection, Refusal};
use crate::policy::{Decision, Reason};
use crate::secrets::{Destination, PassedBody, RefusedBody, SandboxSecrets, SecretRefusal, WholeBodyError};

const IDENTITY: HeaderValue = HeaderValue::from_static("identity");

impl HttpConnection {
    fn destination(&self) -> Destination<'_> {
        match &self.ended {
            Some(ended) => Destination::Tls(&ended.name, self.connection.destination.port()),
            None => Destination::Plain,
        }
    }

    /// Puts values into a request, or refuses one that has placeholders where they may not be.
    pub(super) async fn fill(
        &self,
        request: Request<Incoming>,
        secrets: Option<&Arc<SandboxSecrets>>,
    ) -> Result<(Request<PassedBody>, RefusedBody), Refusal> {
        let refused = RefusedBody::default();
        let Some(secrets) = secrets else {
            return Ok((request.map(PassedBody::Unchanged), refused));
        };
        let (mut parts, body) = request.into_parts();
        let to = self.destination();
        secrets.fill_head(&mut parts, to)?;
        if self.ended.is_some() {
            // Values are looked for in the answer.
            parts.headers.insert(ACCEPT_ENCODING, IDENTITY);
        }
        let replacer = if body.is_end_stream() { None } else { secrets.body_replacer(&parts.headers, to) };
        let Some(replacer) = replacer else {
            return Ok((Request::from_parts(parts, PassedBody::Unchanged(body)), refused));
        };
        let whole = &self.connection.shared.whole_bodies;
        match PassedBody::replace(body, &mut parts.headers, replacer, whole, refused.clone()).await {
            Ok(body) => Ok((Request::from_parts(parts, body), refused)),
            Err(WholeBodyError::Refused(found)) => Err(secrets.body_refusal(found, to).into()),
            Err(WholeBodyError::Broken(error)) => Err(Refusal::Server(error)),
        }
    }

    /// The reason, if a request failed because of what was found in its body.
    pub(super) fn name_body(&self, error: Refusal, secrets: Option<&Arc<SandboxSecrets>>, refused: &RefusedBody) -> Refusal {
        match (secrets, refused.get()) {
            (Some(secrets), Some(found)) => secrets.body_refusal(*found, self.destination()).into(),
            _ => error,
        }
    }

    /// Puts placeholders into an answer that has values.
    pub(super) async fn mask(
        &self,
        response: Response<Incoming>,
        is_encoded: bool,
        secrets: &SandboxSecrets,
    ) -> Result<Response<PassedBody>, Refusal> {
        let (mut parts, body) = response.into_parts();
        if is_encoded && !body.is_end_stream() {
            return Err(Refusal::Decided(Decision::refused(Reason::EncodedAnswer), None));
        }
        secrets.mask_head(&mut parts);
        let has_body = !body.is_end_stream() && parts.status != StatusCode::SWITCHING_PROTOCOLS;
        let Some(replacer) = secrets.answer_replacer().filter(|_| has_body) else {
            return Ok(Response::from_parts(parts, PassedBody::Unchanged(body)));
        };
        let whole = &self.connection.shared.whole_bodies;
        match PassedBody::replace(body, &mut parts.headers, replacer, whole, RefusedBody::default()).await {
            Ok(body) => Ok(Response::from_parts(parts, body)),
            Err(WholeBodyError::Broken(error)) => Err(Refusal::Server(error)),
            Err(WholeBodyError::Refused(_)) => Err(Refusal::Decided(Decision::refused(Reason::SecretLeak), None)),
        }
    }
}

impl From<SecretRefusal> for Refusal {
    fn from(SecretRefusal { reason, text }: SecretRefusal) -> Self {
        Self::Decided(Decision::refused(reason), Some(text))
    }
}
