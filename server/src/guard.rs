//! What every request passes: a name, the checks of host, origin and key, and a line in the log.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::sync::atomic::{AtomicU16, AtomicU64, Ordering};
use std::time::Instant;

use axum::extract::{FromRequestParts, Request, State};
use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderValue, Method, StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use futures_util::FutureExt;

use crate::app::App;
use crate::error::{Dialect, Kind, Problem, Result};
use crate::ids;

/// One request, as long as its answer is being written. The last copy to go writes the log line.
#[derive(Clone)]
pub struct Call {
    shared: Arc<Shared>,
}

struct Shared {
    id: String,
    method: Method,
    path: String,
    started: Instant,
    status: AtomicU16,
    prompt_tokens: AtomicU64,
    generated_tokens: AtomicU64,
}

impl Call {
    fn new(id: String, request: &Request) -> Self {
        let shared = Shared {
            id,
            method: request.method().clone(),
            path: request.uri().path().to_owned(),
            started: Instant::now(),
            status: AtomicU16::new(0),
            prompt_tokens: AtomicU64::new(0),
            generated_tokens: AtomicU64::new(0),
        };
        Self { shared: Arc::new(shared) }
    }

    pub fn id(&self) -> &str {
        &self.shared.id
    }

    pub fn used(&self, prompt: usize, generated: usize) {
        self.shared.prompt_tokens.fetch_add(prompt as u64, Ordering::Relaxed);
        self.shared.generated_tokens.fetch_add(generated as u64, Ordering::Relaxed);
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        let of = |n: &AtomicU64| n.load(Ordering::Relaxed);
        tracing::info!(
            id = self.id,
            method = %self.method,
            path = self.path,
            status = self.status.load(Ordering::Relaxed),
            ms = self.started.elapsed().as_millis() as u64,
            prompt_tokens = of(&self.prompt_tokens),
            generated_tokens = of(&self.generated_tokens),
            "request"
        );
    }
}

impl<S: Send + Sync> FromRequestParts<S> for Call {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self> {
        parts.extensions.get::<Self>().cloned().ok_or_else(|| Problem::internal("a request without a name"))
    }
}

/// The outermost layer.
pub async fn guard(State(app): State<Arc<App>>, mut request: Request, next: Next) -> Response {
    let dialect = Dialect::of(request.uri().path());
    let call = Call::new(request_id(request.headers()), &request);
    let origin = request.headers().get(header::ORIGIN).cloned();
    request.extensions_mut().insert(call.clone());
    let mut response = match check(&app, &request) {
        Err(problem) => problem.into_response(),
        Ok(()) if request.method() == Method::OPTIONS => StatusCode::NO_CONTENT.into_response(),
        Ok(()) => {
            let answer = AssertUnwindSafe(next.run(request)).catch_unwind().await;
            answer.unwrap_or_else(|_| Problem::internal("the server failed on this request").into_response())
        }
    };
    if let Some(problem) = response.extensions_mut().remove::<Problem>() {
        response = problem.render(dialect, call.id());
    }
    app.metrics.responded(response.status().as_u16());
    call.shared.status.store(response.status().as_u16(), Ordering::Relaxed);
    let headers = response.headers_mut();
    allow_origin(&app.settings.allowed_origins, origin.as_ref(), headers);
    if let Ok(id) = HeaderValue::from_str(call.id()) {
        headers.insert("x-request-id", id.clone());
        headers.insert("request-id", id);
    }
    response
}

/// The client's own, if it can be a header's value and fits in a log.
fn request_id(headers: &HeaderMap) -> String {
    let given = headers.get("x-request-id").and_then(|id| id.to_str().ok());
    match given.filter(|id| (1..=128).contains(&id.len())) {
        Some(id) => id.to_owned(),
        None => ids::fresh("req_"),
    }
}

fn check(app: &App, request: &Request) -> Result<()> {
    let headers = request.headers();
    let host = headers.get(header::HOST).and_then(|host| host.to_str().ok());
    if let Some(host) = host.filter(|host| !app.settings.hosts.allow(host)) {
        let message = format!("host `{host}` is not this server's; allow it with --allowed-hosts");
        return Err(Problem::new(Kind::Permission, message));
    }
    let open = matches!(request.uri().path(), "/health" | "/v1/health" | "/ping");
    match &app.settings.api_key {
        Some(key) if !open && request.method() != Method::OPTIONS => authenticate(key, headers),
        _ => Ok(()),
    }
}

fn authenticate(key: &str, headers: &HeaderMap) -> Result<()> {
    let bearer = headers.get(header::AUTHORIZATION).and_then(|v| v.to_str().ok()).and_then(bearer);
    let plain = headers.get("x-api-key").and_then(|v| v.to_str().ok());
    let given: Vec<&str> = [bearer, plain].into_iter().flatten().collect();
    if given.iter().any(|given| same(given.as_bytes(), key.as_bytes())) {
        return Ok(());
    }
    let message = match given.is_empty() {
        true => "no API key was given; send it as `Authorization: Bearer …` or `x-api-key: …`",
        false => "the API key is wrong",
    };
    Err(Problem { code: Some("invalid_api_key"), ..Problem::new(Kind::Authentication, message) })
}

fn bearer(value: &str) -> Option<&str> {
    let (scheme, key) = value.split_once(' ')?;
    scheme.eq_ignore_ascii_case("bearer").then(|| key.trim())
}

/// Takes as long for any wrong key of the same length.
fn same(a: &[u8], b: &[u8]) -> bool {
    a.len() == b.len() && std::hint::black_box(a.iter().zip(b).fold(0, |d, (x, y)| d | (x ^ y))) == 0
}

fn allow_origin(allowed: &[String], origin: Option<&HeaderValue>, headers: &mut HeaderMap) {
    if allowed.iter().any(|a| a == "*") {
        headers.insert(header::ACCESS_CONTROL_ALLOW_ORIGIN, HeaderValue::from_static("*"));
    } else {
        headers.insert(header::VARY, HeaderValue::from_static("Origin"));
        if let Some(origin) =
            origin.filter(|origin| allowed.iter().any(|a| a.as_bytes() == origin.as_bytes()))
        {
            headers.insert(header::ACCESS_CONTROL_ALLOW_ORIGIN, origin.clone());
        }
    }
    for name in [header::ACCESS_CONTROL_ALLOW_METHODS, header::ACCESS_CONTROL_ALLOW_HEADERS] {
        headers.insert(name, HeaderValue::from_static("*"));
    }
}
