//! What went wrong, in neutral terms, and how each dialect says it.
//!
//! Handlers return a [`Problem`]; the outermost layer writes it in the words of the path's [`Dialect`]. Clients
//! read these bodies: they compact a conversation when the text says that it outgrew the context.

use axum::body::Body;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use engine::protocol::Failure;
use engine::text::TextError;
use serde_json::{Value, json};

/// Whose wire format a path speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dialect {
    OpenAi,
    Anthropic,
    Ollama,
}

impl Dialect {
    pub fn of(path: &str) -> Self {
        let under = |root: &str| {
            path.strip_prefix(root).is_some_and(|rest| matches!(rest.chars().next(), None | Some('/')))
        };
        match path {
            _ if under("/api") => Self::Ollama,
            _ if under("/v1/messages") => Self::Anthropic,
            _ => Self::OpenAi,
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Kind {
    Invalid,
    /// The prompt alone is over the context; the message is each dialect's own.
    ContextLength {
        prompt: usize,
        context: usize,
    },
    Authentication,
    Permission,
    NotFound,
    Method,
    TooLarge,
    Media,
    Busy,
    Internal,
    /// A known request that this server cannot serve.
    Unsupported,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    pub kind: Kind,
    pub message: String,
    /// The request's field that is at fault.
    pub param: Option<String>,
    pub code: Option<&'static str>,
}

pub type Result<T> = std::result::Result<T, Problem>;

impl Problem {
    pub fn new(kind: Kind, message: impl Into<String>) -> Self {
        Self { kind, message: message.into(), param: None, code: None }
    }

    pub fn invalid(message: impl Into<String>) -> Self {
        Self::new(Kind::Invalid, message)
    }

    /// A field with a value that cannot be.
    pub fn field(name: impl Into<String>, message: impl Into<String>) -> Self {
        Self { param: Some(name.into()), ..Self::invalid(message) }
    }

    pub fn internal(message: impl Into<String>) -> Self {
        Self::new(Kind::Internal, message)
    }

    pub fn no_model(name: &str) -> Self {
        let message = format!("model '{name}' not found");
        Self {
            param: Some("model".into()),
            code: Some("model_not_found"),
            ..Self::new(Kind::NotFound, message)
        }
    }

    pub fn context(prompt: usize, context: usize) -> Self {
        let kind = Kind::ContextLength { prompt, context };
        let param = Some("messages".into());
        Self { param, code: Some("context_length_exceeded"), ..Self::new(kind, "") }
    }

    pub fn status(&self) -> StatusCode {
        match self.kind {
            Kind::Invalid | Kind::ContextLength { .. } => StatusCode::BAD_REQUEST,
            Kind::Authentication => StatusCode::UNAUTHORIZED,
            Kind::Permission => StatusCode::FORBIDDEN,
            Kind::NotFound => StatusCode::NOT_FOUND,
            Kind::Method => StatusCode::METHOD_NOT_ALLOWED,
            Kind::TooLarge => StatusCode::PAYLOAD_TOO_LARGE,
            Kind::Media => StatusCode::UNSUPPORTED_MEDIA_TYPE,
            Kind::Busy => StatusCode::SERVICE_UNAVAILABLE,
            Kind::Internal => StatusCode::INTERNAL_SERVER_ERROR,
            Kind::Unsupported => StatusCode::NOT_IMPLEMENTED,
        }
    }

    pub fn message(&self, dialect: Dialect) -> String {
        match (&self.kind, dialect) {
            (Kind::ContextLength { prompt, context }, Dialect::Anthropic) => {
                format!("prompt is too long: {prompt} tokens > {context} maximum")
            }
            (Kind::ContextLength { prompt, context }, _) => format!(
                "This model's maximum context length is {context} tokens. However, your request has {prompt} input \
                 tokens. Please reduce the length of the messages."
            ),
            _ => self.message.clone(),
        }
    }

    /// The body, without a request id.
    pub fn body(&self, dialect: Dialect) -> Value {
        let message = self.message(dialect);
        match dialect {
            Dialect::OpenAi => json!({"error": self.openai(&message)}),
            Dialect::Anthropic => {
                json!({"type": "error", "error": {"type": self.anthropic_type(), "message": message}})
            }
            Dialect::Ollama => json!({"error": message}),
        }
    }

    fn openai(&self, message: &str) -> Value {
        let kind = match self.kind {
            Kind::Authentication => "authentication_error",
            Kind::Permission => "permission_error",
            Kind::Busy => "unavailable_error",
            Kind::Internal => "server_error",
            _ => "invalid_request_error",
        };
        json!({"message": message, "type": kind, "param": self.param, "code": self.code})
    }

    fn anthropic_type(&self) -> &'static str {
        match self.kind {
            Kind::Authentication => "authentication_error",
            Kind::Permission => "permission_error",
            Kind::NotFound => "not_found_error",
            Kind::TooLarge => "request_too_large",
            Kind::Busy => "overloaded_error",
            Kind::Internal => "api_error",
            _ => "invalid_request_error",
        }
    }

    pub fn render(&self, dialect: Dialect, request_id: &str) -> Response {
        let mut body = self.body(dialect);
        if dialect == Dialect::Anthropic {
            body["request_id"] = json!(request_id);
        }
        let mut response = json_response(self.status(), &body);
        let headers = response.headers_mut();
        match self.kind {
            Kind::Busy => {
                headers.insert(header::RETRY_AFTER, HeaderValue::from_static("1"));
            }
            // Clients repeat what ends in a 5xx, unless they are told that it is no use.
            Kind::Unsupported => {
                headers.insert("x-should-retry", HeaderValue::from_static("false"));
            }
            _ => {}
        }
        response
    }
}

pub fn json_response(status: StatusCode, body: &Value) -> Response {
    let mut response = Response::new(Body::from(body.to_string()));
    *response.status_mut() = status;
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}

/// The bare status with the problem beside it, for the outermost layer to write out.
impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let mut response = self.status().into_response();
        response.extensions_mut().insert(self);
        response
    }
}

impl From<Failure> for Problem {
    fn from(failure: Failure) -> Self {
        match failure {
            Failure::Invalid(message) => Self::invalid(message),
            Failure::Busy(message) => Self::new(Kind::Busy, message),
            Failure::Internal(message) => Self::internal(message),
        }
    }
}

impl From<TextError> for Problem {
    fn from(err: TextError) -> Self {
        match err {
            TextError::Template(_) => Self::field("messages", err.to_string()),
            TextError::NoTemplate => Self::field(
                "messages",
                "the model has no chat template; use /v1/completions, or start the server with --chat-template",
            ),
            _ => Self::invalid(err.to_string()),
        }
    }
}
