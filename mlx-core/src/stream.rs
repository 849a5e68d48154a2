//! Where ops run. MLX keeps streams and their encoders per thread, so handles never leave the thread.

use std::cell::Cell;
use std::marker::PhantomData;

use crate::error::{Error, Result, check, install};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Device {
    Cpu,
    Gpu,
}

impl Device {
    fn raw(self) -> mlx_sys::mlx_device_type {
        match self {
            Self::Cpu => mlx_sys::mlx_device_type__MLX_CPU,
            Self::Gpu => mlx_sys::mlx_device_type__MLX_GPU,
        }
    }

    /// The device of the ops built on this thread: the GPU if MLX has one.
    pub fn default_device() -> Self {
        CHOSEN.get().map_or_else(|| STREAM.with(|s| s.device), |(_, device)| device)
    }

    /// Whether this MLX was built for the device and finds it.
    pub fn is_available(self) -> bool {
        install();
        let mut available = false;
        // SAFETY: the device handle is freed on the same path that made it.
        unsafe {
            let device = mlx_sys::mlx_device_new_type(self.raw(), 0);
            mlx_sys::mlx_device_is_available(&mut available, device);
            mlx_sys::mlx_device_free(device);
        }
        available
    }
}

/// A queue of ops beside the thread's own. Ops of one stream run in order; MLX orders two streams only where
/// one needs the other's results. Each has a system thread until the process ends, so make few.
pub struct Stream {
    raw: mlx_sys::mlx_stream,
    device: Device,
    not_send: PhantomData<*const ()>,
}

impl Stream {
    /// # Errors
    /// If this MLX has no such device.
    pub fn new(device: Device) -> Result<Self> {
        if !device.is_available() {
            return Err(Error::Mlx(format!("this build of MLX finds no {device:?}")));
        }
        // SAFETY: plain constructors; the device handle is freed here, the stream's by `drop`.
        let raw = unsafe {
            let handle = mlx_sys::mlx_device_new_type(device.raw(), 0);
            let raw = mlx_sys::mlx_stream_new_device(handle);
            mlx_sys::mlx_device_free(handle);
            raw
        };
        Ok(Self { raw, device, not_send: PhantomData })
    }

    /// Calls `f`; the ops that it builds run on this stream, whenever they are evaluated.
    pub fn run<R>(&self, f: impl FnOnce() -> R) -> R {
        struct Restore(Option<(mlx_sys::mlx_stream, Device)>);
        impl Drop for Restore {
            fn drop(&mut self) {
                CHOSEN.set(self.0);
            }
        }
        let _restore = Restore(CHOSEN.replace(Some((self.raw, self.device))));
        f()
    }

    /// Waits until everything launched on this stream is done.
    pub fn synchronize(&self) -> Result<()> {
        // SAFETY: the stream is alive for the whole call.
        check(unsafe { mlx_sys::mlx_synchronize(self.raw) })
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        // SAFETY: freed once; MLX keeps the stream itself, which ops not yet evaluated refer to.
        unsafe { mlx_sys::mlx_stream_free(self.raw) };
    }
}

struct ThreadStream {
    raw: mlx_sys::mlx_stream,
    device: Device,
}

thread_local! {
    /// What [`Stream::run`] chose, for as long as it runs.
    static CHOSEN: Cell<Option<(mlx_sys::mlx_stream, Device)>> = const { Cell::new(None) };

    static STREAM: ThreadStream = {
        let device = if Device::Gpu.is_available() { Device::Gpu } else { Device::Cpu };
        // SAFETY: plain constructors; the handle lives as long as the thread.
        let raw = unsafe {
            match device {
                Device::Cpu => mlx_sys::mlx_default_cpu_stream_new(),
                Device::Gpu => mlx_sys::mlx_default_gpu_stream_new(),
            }
        };
        ThreadStream { raw, device }
    };
}

impl Drop for ThreadStream {
    fn drop(&mut self) {
        // SAFETY: made by this thread and not used after it.
        unsafe { mlx_sys::mlx_stream_free(self.raw) };
    }
}

/// The stream that an op built now will run on.
pub(crate) fn current() -> mlx_sys::mlx_stream {
    CHOSEN.get().map_or_else(|| STREAM.with(|s| s.raw), |(raw, _)| raw)
}

/// Waits until everything launched on the current stream is done.
pub fn synchronize() -> Result<()> {
    // SAFETY: the stream is alive for the whole call.
    check(unsafe { mlx_sys::mlx_synchronize(current()) })
}
