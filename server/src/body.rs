//! A request's body: bounded, decompressed, and a JSON object.

use std::io::Read;

use axum::body::{Body, to_bytes};
use axum::extract::{FromRequest, Request};
use axum::http::{HeaderMap, header};
use serde_json::{Map, Value};

use crate::error::{Kind, Problem, Result};
use crate::fields::{Fields, wrong};

/// Conversations with pictures run to tens of megabytes.
pub const LIMIT: usize = 64 << 20;

pub struct JsonBody(pub Map<String, Value>);

impl JsonBody {
    pub fn fields(&self) -> Fields<'_> {
        Fields::root(&self.0)
    }
}

impl<S: Send + Sync> FromRequest<S> for JsonBody {
    type Rejection = Problem;

    /// `Content-Type` is not looked at: several clients leave it out.
    async fn from_request(request: Request, _: &S) -> Result<Self> {
        parse(&read(request).await?).map(Self)
    }
}

async fn read(request: Request) -> Result<Vec<u8>> {
    let (parts, body) = request.into_parts();
    let told = parts.headers.get(header::CONTENT_LENGTH).and_then(|n| n.to_str().ok()?.parse::<u64>().ok());
    if let Some(n) = told.filter(|n| LIMIT as u64 <= *n) {
        return Err(too_large(n));
    }
    decompress(&parts.headers, collect(body).await?)
}

async fn collect(body: Body) -> Result<Vec<u8>> {
    match to_bytes(body, LIMIT).await {
        Ok(bytes) => Ok(bytes.into()),
        Err(err) => {
            let text = std::error::Error::source(&err).map_or_else(|| err.to_string(), ToString::to_string);
            match text.contains("length limit") {
                true => Err(too_large(LIMIT as u64 + 1)),
                false => Err(Problem::invalid(format!("the request's body ended early: {text}"))),
            }
        }
    }
}

fn too_large(n: u64) -> Problem {
    let message = format!("the request's body has {n} bytes or more; at most {LIMIT} are taken");
    Problem::new(Kind::TooLarge, message)
}

fn decompress(headers: &HeaderMap, bytes: Vec<u8>) -> Result<Vec<u8>> {
    let encoding = headers.get(header::CONTENT_ENCODING).and_then(|v| v.to_str().ok()).unwrap_or("identity");
    let encoding = encoding.trim().to_ascii_lowercase();
    let unpacked = match encoding.as_str() {
        "" | "identity" => return Ok(bytes),
        "gzip" | "x-gzip" => unpack(flate2::read::MultiGzDecoder::new(&bytes[..])),
        // Some senders mean the bare stream by `deflate`, others the one with a zlib header.
        "deflate" => unpack(flate2::read::ZlibDecoder::new(&bytes[..]))
            .or_else(|_| unpack(flate2::read::DeflateDecoder::new(&bytes[..]))),
        other => {
            let message = format!("Content-Encoding `{other}` is not known; send gzip, deflate, or none");
            return Err(Problem::new(Kind::Media, message));
        }
    };
    let unpacked = unpacked
        .map_err(|err| Problem::invalid(format!("the request's {encoding} body is damaged: {err}")))?;
    if LIMIT < unpacked.len() { Err(too_large(unpacked.len() as u64)) } else { Ok(unpacked) }
}

fn unpack(reader: impl Read) -> std::io::Result<Vec<u8>> {
    let mut out = Vec::new();
    reader.take(LIMIT as u64 + 1).read_to_end(&mut out)?;
    Ok(out)
}

fn parse(bytes: &[u8]) -> Result<Map<String, Value>> {
    match serde_json::from_slice(bytes) {
        Ok(Value::Object(map)) => Ok(map),
        Ok(other) => {
            let message = wrong("body", "an object", &other).message.replace('`', "");
            Err(Problem::invalid(format!("the request's {message}")))
        }
        Err(err) => Err(Problem::invalid(format!("the request's body is not valid JSON: {err}"))),
    }
}
