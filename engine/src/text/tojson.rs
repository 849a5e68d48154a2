//! JSON as Python's `json.dumps` writes it, which is what templates were trained with.

use minijinja::value::{Kwargs, Value};
use minijinja::{Error, ErrorKind};
use serde_json::Value as Json;

/// The `tojson` filter of transformers: no HTML escapes, spaces after separators.
pub(super) fn tojson(value: &Value, options: Kwargs) -> Result<String, Error> {
    let json = serde_json::to_value(value)
        .map_err(|err| Error::new(ErrorKind::InvalidOperation, format!("tojson: {err}")))?;
    let indent: Option<Value> = options.get("indent")?;
    let indent = match indent.filter(|v| !v.is_none()) {
        None => None,
        Some(v) => Some(match v.as_str() {
            Some(text) => text.to_owned(),
            None => " ".repeat(usize::try_from(v).map_err(|_| bad("indent should be a number"))?.min(64)),
        }),
    };
    let separators: Option<Vec<String>> = options.get("separators")?;
    let (item, key) = match separators.as_deref() {
        None => (if indent.is_some() { "," } else { ", " }.to_owned(), ": ".to_owned()),
        Some([item, key]) => (item.clone(), key.clone()),
        Some(_) => return Err(bad("separators should be two strings")),
    };
    let style = Style {
        ascii: options.get::<Option<bool>>("ensure_ascii")?.unwrap_or(false),
        sort: options.get::<Option<bool>>("sort_keys")?.unwrap_or(false),
        indent,
        item,
        key,
    };
    options.assert_all_used()?;
    let mut out = String::new();
    style.write(&json, 0, &mut out);
    Ok(out)
}

fn bad(message: &'static str) -> Error {
    Error::new(ErrorKind::InvalidOperation, message)
}

struct Style {
    ascii: bool,
    sort: bool,
    indent: Option<String>,
    item: String,
    key: String,
}

impl Style {
    fn write(&self, json: &Json, depth: usize, out: &mut String) {
        match json {
            Json::Null => out.push_str("null"),
            Json::Bool(b) => out.push_str(if *b { "true" } else { "false" }),
            Json::Number(n) => number(n, out),
            Json::String(s) => self.string(s, out),
            Json::Array(list) => {
                self.block(('[', ']'), list.iter(), depth, out, |x, out| self.write(x, depth + 1, out))
            }
            Json::Object(map) => {
                let mut entries: Vec<_> = map.iter().collect();
                if self.sort {
                    entries.sort_by_key(|(key, _)| *key);
                }
                self.block(('{', '}'), entries.into_iter(), depth, out, |(key, value), out| {
                    self.string(key, out);
                    out.push_str(&self.key);
                    self.write(value, depth + 1, out);
                });
            }
        }
    }

    fn block<I>(
        &self,
        (open, close): (char, char),
        items: impl ExactSizeIterator<Item = I>,
        depth: usize,
        out: &mut String,
        mut write: impl FnMut(I, &mut String),
    ) {
        out.push(open);
        let empty = items.len() == 0;
        for (i, item) in items.enumerate() {
            if i != 0 {
                out.push_str(&self.item);
            }
            self.newline(depth + 1, out);
            write(item, out);
        }
        if !empty {
            self.newline(depth, out);
        }
        out.push(close);
    }

    fn newline(&self, depth: usize, out: &mut String) {
        if let Some(indent) = &self.indent {
            out.push('\n');
            (0..depth).for_each(|_| out.push_str(indent));
        }
    }

    fn string(&self, s: &str, out: &mut String) {
        out.push('"');
        for c in s.chars() {
            match c {
                '"' => out.push_str("\\\""),
                '\\' => out.push_str("\\\\"),
                '\n' => out.push_str("\\n"),
                '\r' => out.push_str("\\r"),
                '\t' => out.push_str("\\t"),
                '\u{8}' => out.push_str("\\b"),
                '\u{c}' => out.push_str("\\f"),
                c if (c as u32) < 0x20 || (self.ascii && 0x7e < c as u32) => {
                    let mut units = [0; 2];
                    for unit in c.encode_utf16(&mut units) {
                        out.push_str(&format!("\\u{unit:04x}"));
                    }
                }
                c => out.push(c),
            }
        }
        out.push('"');
    }
}

/// Python's `repr` of a number: a float always shows that it is one.
fn number(n: &serde_json::Number, out: &mut String) {
    let Some(x) = n.as_f64().filter(|_| n.is_f64()) else {
        out.push_str(&n.to_string());
        return;
    };
    let exponent = if x == 0.0 { 0 } else { x.abs().log10().floor() as i32 };
    if (-4..16).contains(&exponent) {
        out.push_str(&format!("{x:?}"));
        return;
    }
    let text = format!("{x:e}");
    let (mantissa, exponent) = text.split_once('e').unwrap_or((&text, "0"));
    let (sign, digits) = exponent.strip_prefix('-').map_or(('+', exponent), |d| ('-', d));
    out.push_str(&format!("{mantissa}e{sign}{digits:0>2}"));
}
