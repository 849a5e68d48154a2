//! Where ops run. MLX keeps streams and their encoders per thread, so handles never leave the thread.

use crate::error::{Result, check, install};

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
        STREAM.with(|s| s.device)
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

struct ThreadStream {
    raw: mlx_sys::mlx_stream,
    device: Device,
}

thread_local! {
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

/// The stream that every op of this thread is built on.
pub(crate) fn current() -> mlx_sys::mlx_stream {
    STREAM.with(|s| s.raw)
}

/// Waits until everything launched on this thread's stream is done.
pub fn synchronize() -> Result<()> {
    // SAFETY: the stream is alive for the whole call.
    check(unsafe { mlx_sys::mlx_synchronize(current()) })
}
