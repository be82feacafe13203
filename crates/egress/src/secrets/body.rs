//! Bodies that are passed on, some of them with replacements.

use std::pin::Pin;
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http::HeaderMap;
use http::header::CONTENT_LENGTH;
use http_body_util::{BodyExt, Full};
use hyper::body::{Body, Frame, Incoming, SizeHint};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::replace::{Refused, Replacer};

/// Bodies up to this size keep a known length: they are read whole.
const MAX_WHOLE: usize = 1 << 20;
/// The size of all bodies that are read whole at the same time. Further ones are passed on in chunks.
const MAX_ALL_WHOLE: usize = 64 << 20;

type BodyError = Box<dyn std::error::Error + Send + Sync>;

/// The memory for bodies that are read whole.
#[derive(Debug)]
pub(crate) struct WholeBodies(Arc<Semaphore>);

impl Default for WholeBodies {
    fn default() -> Self {
        Self(Arc::new(Semaphore::new(MAX_ALL_WHOLE)))
    }
}

impl WholeBodies {
    fn reserve(&self, bytes: u64) -> Option<OwnedSemaphorePermit> {
        let bytes = u32::try_from(bytes).ok().filter(|bytes| *bytes as usize <= MAX_WHOLE)?;
        self.0.clone().try_acquire_many_owned(bytes).ok()
    }
}

/// A body that is passed on.
pub(crate) enum PassedBody {
    Unchanged(Incoming),
    Replaced(ReplacedBody),
    /// Read before, or written here.
    Whole {
        body: Full<Bytes>,
        _permit: Option<OwnedSemaphorePermit>,
    },
}

/// A stream of which texts are replaced. Trailers are left out.
pub(crate) struct ReplacedBody {
    inner: Incoming,
    /// None after the end.
    replacer: Option<Replacer>,
    refused: RefusedBody,
}

/// Set when a text was found in a body that may not be there.
pub(crate) type RefusedBody = Arc<OnceLock<Refused>>;

/// Why a body could not be read whole.
pub(crate) enum WholeBodyError {
    Refused(Refused),
    Broken(hyper::Error),
}

impl PassedBody {
    /// Passes a body on with replacements, and adjusts the headers for its length.
    pub(crate) async fn replace(
        body: Incoming,
        headers: &mut HeaderMap,
        mut replacer: Replacer,
        whole: &WholeBodies,
        refused: RefusedBody,
    ) -> Result<Self, WholeBodyError> {
        if !replacer.only_refuses() && headers.contains_key(CONTENT_LENGTH) {
            if let Some(permit) = body.size_hint().exact().and_then(|bytes| whole.reserve(bytes)) {
                let read = body.collect().await.map_err(WholeBodyError::Broken)?.to_bytes();
                let start = replacer.push(read).map_err(WholeBodyError::Refused)?;
                let end = replacer.finish().map_err(WholeBodyError::Refused)?;
                let all = if end.is_empty() { start } else { [start, end].concat().into() };
                headers.insert(CONTENT_LENGTH, all.len().into());
                return Ok(Self::Whole { body: Full::new(all), _permit: Some(permit) });
            }
            headers.remove(CONTENT_LENGTH);
        }
        Ok(Self::Replaced(ReplacedBody { inner: body, replacer: Some(replacer), refused }))
    }
}

impl From<String> for PassedBody {
    fn from(text: String) -> Self {
        Self::Whole { body: Full::from(text), _permit: None }
    }
}

impl Body for PassedBody {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        match self.get_mut() {
            Self::Unchanged(body) => Pin::new(body).poll_frame(context).map_err(Into::into),
            Self::Replaced(body) => body.poll_replaced(context),
            Self::Whole { body, .. } => Pin::new(body).poll_frame(context).map_err(|never| match never {}),
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Self::Unchanged(body) => body.is_end_stream(),
            Self::Replaced(body) => body.replacer.is_none(),
            Self::Whole { body, .. } => body.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Unchanged(body) => body.size_hint(),
            Self::Replaced(body) => body.size_hint(),
            Self::Whole { body, .. } => body.size_hint(),
        }
    }
}

impl ReplacedBody {
    fn poll_replaced(&mut self, context: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        while let Some(replacer) = &mut self.replacer {
            let replaced = match ready!(Pin::new(&mut self.inner).poll_frame(context)).transpose()? {
                Some(frame) => frame.into_data().map_or(Ok(Bytes::new()), |data| replacer.push(data)),
                None => {
                    let end = replacer.finish();
                    self.replacer = None;
                    end
                }
            };
            match replaced {
                Ok(bytes) if bytes.is_empty() => {}
                Ok(bytes) => return Poll::Ready(Some(Ok(Frame::data(bytes)))),
                Err(refused) => {
                    self.replacer = None;
                    let _ = self.refused.set(refused);
                    return Poll::Ready(Some(Err("a text in the body is refused".into())));
                }
            }
        }
        Poll::Ready(None)
    }

    /// Known if nothing is replaced.
    fn size_hint(&self) -> SizeHint {
        match &self.replacer {
            None => SizeHint::with_exact(0),
            Some(replacer) if replacer.only_refuses() => match self.inner.size_hint().exact() {
                Some(bytes) => SizeHint::with_exact(bytes + replacer.held() as u64),
                None => SizeHint::new(),
            },
            Some(_) => SizeHint::new(),
        }
    }
}
