//! Bodies that grow while they are read.
//!
//! The work that writes a body runs only while the body is polled, and goes away with it: a client that leaves
//! drops the body, the body its work, the work its engine streams, and the engine stops at its next step.
//! Keep-alives go by silence on the wire, not by tokens, since a tool call may be held back for minutes.

use std::convert::Infallible;
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::http::{HeaderValue, header};
use axum::response::Response;
use futures_util::stream::{self, StreamExt};
use serde_json::Value;
use tokio::sync::mpsc;
use tokio::time::timeout;
use tokio_stream::wrappers::ReceiverStream;

/// Where work writes the pieces of a body.
#[derive(Clone)]
pub struct Sink {
    pieces: mpsc::Sender<Bytes>,
}

impl Sink {
    pub async fn write(&self, text: String) {
        // The other end can be gone only if this work is about to be dropped.
        self.pieces.send(text.into()).await.ok();
    }

    /// `data: …`
    pub async fn data(&self, value: &Value) {
        self.write(format!("data: {value}\n\n")).await;
    }

    /// `event: …` and its data.
    pub async fn event(&self, name: &str, value: &Value) {
        self.write(format!("event: {name}\ndata: {value}\n\n")).await;
    }

    /// A line of its own.
    pub async fn line(&self, value: &Value) {
        self.write(format!("{value}\n")).await;
    }
}

pub struct Shape {
    pub content_type: &'static str,
    pub keep_alive: Duration,
    /// What is sent after silence.
    pub beat: String,
}

impl Shape {
    pub fn sse(keep_alive: Duration, beat: &str) -> Self {
        Self { content_type: "text/event-stream", keep_alive, beat: beat.to_owned() }
    }

    pub fn lines(keep_alive: Duration, beat: &Value) -> Self {
        Self { content_type: "application/x-ndjson", keep_alive, beat: format!("{beat}\n") }
    }
}

/// A response whose body is what `work` writes.
pub fn respond<F>(shape: Shape, work: impl FnOnce(Sink) -> F) -> Response
where
    F: Future<Output = ()> + Send + 'static,
{
    let (pieces, written) = mpsc::channel(16);
    let work = work(Sink { pieces });
    let written = ReceiverStream::new(written).map(Some);
    let work = stream::once(work).map(|()| None);
    // `select` ends when both have: after the work, what is left in the channel still goes out.
    let body = stream::select(written, work).filter_map(std::future::ready);
    let body = with_beats(Box::pin(body), shape.keep_alive, shape.beat.into());
    let mut response = Response::new(Body::from_stream(body));
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(shape.content_type));
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    headers.insert("x-accel-buffering", HeaderValue::from_static("no"));
    response
}

fn with_beats(
    body: impl stream::Stream<Item = Bytes> + Unpin + Send,
    silence: Duration,
    beat: Bytes,
) -> impl stream::Stream<Item = Result<Bytes, Infallible>> + Send {
    stream::unfold((body, beat), move |(mut body, beat)| async move {
        match timeout(silence, body.next()).await {
            Ok(None) => None,
            Ok(Some(piece)) => Some((Ok(piece), (body, beat))),
            Err(_) => Some((Ok(beat.clone()), (body, beat))),
        }
    })
}
