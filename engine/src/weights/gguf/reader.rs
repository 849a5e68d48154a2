//! The header: counts, metadata, tensor infos. A cursor that cannot read past the end.

use std::collections::BTreeMap;

/// A metadata value. Lists are kept by kind, so that 150,000 token strings are one vector.
#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    Unsigned(u64),
    Signed(i64),
    Float(f64),
    Bool(bool),
    String(String),
    Integers(Vec<i64>),
    Floats(Vec<f64>),
    Bools(Vec<bool>),
    Strings(Vec<String>),
    /// A list of lists, or an empty list.
    Lists(Vec<Value>),
}

impl Value {
    pub fn as_u64(&self) -> Option<u64> {
        match *self {
            Self::Unsigned(x) => Some(x),
            Self::Signed(x) => x.try_into().ok(),
            _ => None,
        }
    }

    pub fn as_f64(&self) -> Option<f64> {
        match *self {
            Self::Float(x) => Some(x),
            Self::Unsigned(x) => Some(x as f64),
            Self::Signed(x) => Some(x as f64),
            _ => None,
        }
    }
}

pub(super) struct Header {
    pub(super) metadata: BTreeMap<String, Value>,
    pub(super) tensors: Vec<RawTensor>,
    /// Offset of the first tensor byte.
    pub(super) data_start: usize,
}

pub(super) struct RawTensor {
    pub(super) name: String,
    pub(super) shape: Vec<usize>,
    pub(super) kind: u32,
    pub(super) offset: usize,
}

type Result<T> = std::result::Result<T, String>;

const MAX_DIMS: u32 = 4;
const MAX_NESTING: usize = 4;

pub(super) fn parse(bytes: &[u8]) -> Result<Header> {
    let mut r = Reader { bytes, at: 0 };
    if r.take(4)? != b"GGUF" {
        return Err("it does not begin with `GGUF`".into());
    }
    match r.u32()? {
        2 | 3 => {}
        version if version.swap_bytes() <= 3 => {
            return Err("it is a big-endian file; convert it to little-endian".into());
        }
        version => return Err(format!("version {version} is not 2 or 3")),
    }
    let n_tensors = r.count(MIN_TENSOR_INFO)?;
    let n_metadata = r.count(MIN_METADATA)?;

    let mut metadata = BTreeMap::new();
    for _ in 0..n_metadata {
        let key = r.string()?;
        let kind = r.u32()?;
        let value = r.value(kind, 0).map_err(|err| format!("metadata `{key}`: {err}"))?;
        metadata.insert(key, value);
    }
    let tensors = (0..n_tensors).map(|_| r.tensor()).collect::<Result<Vec<_>>>()?;

    let alignment = metadata.get("general.alignment").and_then(Value::as_u64).unwrap_or(32);
    if !alignment.is_power_of_two() || 1 << 20 < alignment {
        return Err(format!("alignment {alignment} is not a sensible power of two"));
    }
    let data_start = r.at.next_multiple_of(alignment as usize);
    Ok(Header { metadata, tensors, data_start })
}

/// Bytes that the shortest tensor info and the shortest metadata entry take.
const MIN_TENSOR_INFO: usize = 8 + 4 + 4 + 8;
const MIN_METADATA: usize = 8 + 4 + 1;

struct Reader<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Reader<'a> {
    fn take(&mut self, n: usize) -> Result<&'a [u8]> {
        let end = self.at.checked_add(n).filter(|end| *end <= self.bytes.len());
        let end = end.ok_or_else(|| format!("it ends inside its header, at byte {}", self.bytes.len()))?;
        let taken = &self.bytes[self.at..end];
        self.at = end;
        Ok(taken)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N]> {
        Ok(self.take(N)?.try_into().expect("N bytes were taken"))
    }

    fn u32(&mut self) -> Result<u32> {
        Ok(u32::from_le_bytes(self.array()?))
    }

    fn u64(&mut self) -> Result<u64> {
        Ok(u64::from_le_bytes(self.array()?))
    }

    /// A count of things that take at least `size` bytes each, checked against what is left.
    fn count(&mut self, size: usize) -> Result<usize> {
        let n = self.u64()?;
        let left = (self.bytes.len() - self.at) / size;
        usize::try_from(n)
            .ok()
            .filter(|n| *n <= left)
            .ok_or_else(|| format!("a count of {n} at byte {} exceeds the file", self.at - 8))
    }

    fn string(&mut self) -> Result<String> {
        let n = self.count(1)?;
        let bytes = self.take(n)?;
        Ok(String::from_utf8_lossy(bytes).into_owned())
    }

    fn tensor(&mut self) -> Result<RawTensor> {
        let name = self.string()?;
        let n_dims = self.u32()?;
        if MAX_DIMS < n_dims {
            return Err(format!("tensor `{name}` has {n_dims} dimensions"));
        }
        let too_large = |_| format!("tensor `{name}` has a dimension that does not fit this machine");
        let mut shape = Vec::new();
        for _ in 0..n_dims {
            shape.push(usize::try_from(self.u64()?).map_err(too_large)?);
        }
        // The file lists the contiguous axis first.
        shape.reverse();
        let kind = self.u32()?;
        let offset = usize::try_from(self.u64()?).map_err(too_large)?;
        Ok(RawTensor { name, shape, kind, offset })
    }

    fn value(&mut self, kind: u32, depth: usize) -> Result<Value> {
        Ok(match kind {
            0 => Value::Unsigned(self.array::<1>()?[0].into()),
            1 => Value::Signed(i8::from_le_bytes(self.array()?).into()),
            2 => Value::Unsigned(u16::from_le_bytes(self.array()?).into()),
            3 => Value::Signed(i16::from_le_bytes(self.array()?).into()),
            4 => Value::Unsigned(self.u32()?.into()),
            5 => Value::Signed(i32::from_le_bytes(self.array()?).into()),
            6 => Value::Float(f32::from_le_bytes(self.array()?).into()),
            7 => Value::Bool(self.array::<1>()?[0] != 0),
            8 => Value::String(self.string()?),
            9 => return self.list(depth),
            10 => Value::Unsigned(self.u64()?),
            11 => Value::Signed(i64::from_le_bytes(self.array()?)),
            12 => Value::Float(f64::from_le_bytes(self.array()?)),
            other => return Err(format!("unknown value type {other}")),
        })
    }

    fn list(&mut self, depth: usize) -> Result<Value> {
        if MAX_NESTING <= depth {
            return Err("lists nest too deep".into());
        }
        let kind = self.u32()?;
        let size = match kind {
            0 | 1 | 7 => 1,
            2 | 3 => 2,
            4..=6 => 4,
            8 | 10..=12 => 8,
            9 => 12,
            other => return Err(format!("a list of unknown type {other}")),
        };
        let n = self.count(size)?;
        if kind == 8 {
            return Ok(Value::Strings((0..n).map(|_| self.string()).collect::<Result<_>>()?));
        }
        let values = (0..n).map(|_| self.value(kind, depth + 1)).collect::<Result<Vec<_>>>()?;
        let integer = |v: &Value| match *v {
            Value::Signed(x) => Some(x),
            // Token ids and types fit; a larger number has no meaning in a list.
            Value::Unsigned(x) => i64::try_from(x).ok(),
            _ => None,
        };
        Ok(match kind {
            0..=5 | 10 | 11 => {
                let list = values.iter().map(integer).collect::<Option<_>>();
                Value::Integers(list.ok_or("a list holds a number past 2^63")?)
            }
            6 | 12 => Value::Floats(values.iter().filter_map(Value::as_f64).collect()),
            7 => Value::Bools(values.iter().map(|v| *v == Value::Bool(true)).collect()),
            _ => Value::Lists(values),
        })
    }
}
