//! Reading a request's JSON: unknown fields are passed over at every level, known ones are held to their type.
//!
//! `null` is the same as absent, since clients send it for every option that was not set.

use std::fmt::Display;
use std::ops::RangeInclusive;

use serde_json::{Map, Value};

use crate::error::{Problem, Result};

/// An object of the request, and where it stands in it.
#[derive(Clone, Copy)]
pub struct Fields<'a> {
    map: &'a Map<String, Value>,
    path: &'a str,
}

impl<'a> Fields<'a> {
    /// The request itself.
    pub fn root(body: &'a Map<String, Value>) -> Self {
        Self { map: body, path: "" }
    }

    /// An object whose place has a name.
    pub fn at(value: &'a Value, path: &'a str) -> Result<Self> {
        let map = value.as_object().ok_or_else(|| wrong(path, "an object", value))?;
        Ok(Self { map, path })
    }

    pub fn get(&self, name: &str) -> Option<&'a Value> {
        self.map.get(name).filter(|value| !value.is_null())
    }

    /// The field's name from the request's root.
    pub fn name(&self, name: &str) -> String {
        if self.path.is_empty() { name.to_owned() } else { format!("{}.{name}", self.path) }
    }

    pub fn text(&self, name: &str) -> Result<Option<&'a str>> {
        self.read(name, "a string", Value::as_str)
    }

    pub fn boolean(&self, name: &str) -> Result<Option<bool>> {
        self.read(name, "true or false", Value::as_bool)
    }

    pub fn array(&self, name: &str) -> Result<Option<&'a [Value]>> {
        self.read(name, "an array", |value| value.as_array().map(Vec::as_slice))
    }

    pub fn object(&self, name: &str) -> Result<Option<&'a Map<String, Value>>> {
        self.read(name, "an object", Value::as_object)
    }

    /// A whole number; `2.0` is one too, since some languages write it so.
    pub fn integer(&self, name: &str, range: RangeInclusive<i64>) -> Result<Option<i64>> {
        let whole = |value: &Value| {
            value
                .as_i64()
                .or_else(|| value.as_f64().filter(|x| x.fract() == 0.0 && x.abs() < 9e15).map(|x| x as i64))
        };
        match self.read(name, "a whole number", whole)? {
            Some(n) if !range.contains(&n) => {
                Err(self.out_of_range(name, n, &range, range.end() == &i64::MAX))
            }
            found => Ok(found),
        }
    }

    pub fn count(&self, name: &str) -> Result<Option<usize>> {
        Ok(self.integer(name, 0..=i64::MAX)?.map(|n| n as usize))
    }

    pub fn number(&self, name: &str, range: RangeInclusive<f64>) -> Result<Option<f32>> {
        match self.read(name, "a number", Value::as_f64)? {
            Some(x) if !range.contains(&x) => {
                Err(self.out_of_range(name, x, &range, range.end().is_infinite()))
            }
            found => Ok(found.map(|x| x as f32)),
        }
    }

    /// One string, or a list of them.
    pub fn strings(&self, name: &str) -> Result<Vec<String>> {
        let strings = |value: &'a Value| match value {
            Value::String(one) => Some(vec![one.clone()]),
            Value::Array(list) => list.iter().map(|item| item.as_str().map(str::to_owned)).collect(),
            _ => None,
        };
        Ok(self.read(name, "a string or an array of strings", strings)?.unwrap_or_default())
    }

    fn read<T>(&self, name: &str, what: &str, read: impl Fn(&'a Value) -> Option<T>) -> Result<Option<T>> {
        let Some(value) = self.get(name) else { return Ok(None) };
        read(value).map(Some).ok_or_else(|| wrong(&self.name(name), what, value))
    }

    fn out_of_range<T: Display>(
        &self,
        name: &str,
        value: T,
        range: &RangeInclusive<T>,
        open: bool,
    ) -> Problem {
        let name = self.name(name);
        let (min, max) = (range.start(), range.end());
        let message = match open {
            true => format!("`{name}` should be at least {min}, not {value}"),
            false => format!("`{name}` should be between {min} and {max}, not {value}"),
        };
        Problem::field(name, message)
    }
}

/// A value of another type than it should be.
pub fn wrong(name: &str, what: &str, value: &Value) -> Problem {
    let is = match value {
        Value::Null => "null",
        Value::Bool(_) => "a boolean",
        Value::Number(_) => "a number",
        Value::String(_) => "a string",
        Value::Array(_) => "an array",
        Value::Object(_) => "an object",
    };
    match value {
        Value::Number(n) => Problem::field(name, format!("`{name}` should be {what}, not {n}")),
        _ => Problem::field(name, format!("`{name}` should be {what}, not {is}")),
    }
}
