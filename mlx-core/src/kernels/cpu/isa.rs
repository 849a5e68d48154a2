//! Instruction sets, chosen at run time.

use std::sync::OnceLock;

/// What a kernel may use.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Isa {
    Portable,
    /// AVX2, FMA and F16C.
    Avx2,
    /// AVX-512 F, BW, VL, DQ and VNNI.
    Avx512,
}

impl Isa {
    /// The best of this machine.
    pub fn detect() -> Self {
        static BEST: OnceLock<Isa> = OnceLock::new();
        *BEST.get_or_init(|| {
            let best = [Self::Avx512, Self::Avx2].into_iter().find(|isa| isa.available());
            best.unwrap_or(Self::Portable)
        })
    }

    /// Whether this machine has it.
    pub fn available(self) -> bool {
        #[cfg(target_arch = "x86_64")]
        {
            let avx2 = || {
                is_x86_feature_detected!("avx2")
                    && is_x86_feature_detected!("fma")
                    && is_x86_feature_detected!("f16c")
            };
            let avx512 = || {
                is_x86_feature_detected!("avx512f")
                    && is_x86_feature_detected!("avx512bw")
                    && is_x86_feature_detected!("avx512vl")
                    && is_x86_feature_detected!("avx512dq")
                    && is_x86_feature_detected!("avx512vnni")
            };
            match self {
                Self::Portable => true,
                Self::Avx2 => avx2(),
                Self::Avx512 => avx2() && avx512(),
            }
        }
        #[cfg(not(target_arch = "x86_64"))]
        {
            self == Self::Portable
        }
    }

    /// Every one that this machine has, for tests that compare them.
    pub fn all() -> impl Iterator<Item = Self> {
        [Self::Portable, Self::Avx2, Self::Avx512].into_iter().filter(|isa| isa.available())
    }
}

/// Compiles one body for each instruction set and calls the one asked for. The body is plain Rust without
/// reassociation, so all versions give the same bits; the compiler vectorises each as well as it can.
macro_rules! multiversion {
    ($(#[$doc:meta])* $vis:vis fn $name:ident($isa:ident; $($arg:ident: $ty:ty),* $(,)?) $body:block) => {
        $(#[$doc])*
        $vis fn $name($isa: $crate::kernels::cpu::isa::Isa, $($arg: $ty),*) {
            #[inline(always)]
            fn body($($arg: $ty),*) $body
            #[cfg(target_arch = "x86_64")]
            #[target_feature(enable = "avx2,fma")]
            fn avx2($($arg: $ty),*) { body($($arg),*) }
            #[cfg(target_arch = "x86_64")]
            #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx2,fma")]
            fn avx512($($arg: $ty),*) { body($($arg),*) }
            assert!($isa.available(), "{:?} is not available here", $isa);
            match $isa {
                // SAFETY: the instruction set was checked right above.
                #[cfg(target_arch = "x86_64")]
                $crate::kernels::cpu::isa::Isa::Avx512 => unsafe { avx512($($arg),*) },
                // SAFETY: as above.
                #[cfg(target_arch = "x86_64")]
                $crate::kernels::cpu::isa::Isa::Avx2 => unsafe { avx2($($arg),*) },
                _ => body($($arg),*),
            }
        }
    };
}
pub(crate) use multiversion;
