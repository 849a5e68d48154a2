//! `+ - * /` over arrays and numbers. A number takes the array's type, so bfloat16 stays bfloat16; a fraction
//! beside integers is misuse.

use std::ops::{Add, Div, Mul, Neg, Sub};

use crate::array::Array;

macro_rules! operators {
    ($($trait:ident $method:ident $op:ident),*) => { $(
        impl $trait<&Array> for &Array {
            type Output = Array;
            #[track_caller]
            fn $method(self, rhs: &Array) -> Array { self.$op(rhs) }
        }
        impl $trait<Array> for Array {
            type Output = Array;
            #[track_caller]
            fn $method(self, rhs: Array) -> Array { self.$op(&rhs) }
        }
        impl $trait<&Array> for Array {
            type Output = Array;
            #[track_caller]
            fn $method(self, rhs: &Array) -> Array { self.$op(rhs) }
        }
        impl $trait<Array> for &Array {
            type Output = Array;
            #[track_caller]
            fn $method(self, rhs: Array) -> Array { self.$op(&rhs) }
        }
        impl $trait<f32> for &Array {
            type Output = Array;
            #[track_caller]
            fn $method(self, rhs: f32) -> Array { self.$op(&self.constant(rhs)) }
        }
        impl $trait<f32> for Array {
            type Output = Array;
            #[track_caller]
            fn $method(self, rhs: f32) -> Array { (&self).$method(rhs) }
        }
        impl $trait<&Array> for f32 {
            type Output = Array;
            #[track_caller]
            fn $method(self, rhs: &Array) -> Array { rhs.constant(self).$op(rhs) }
        }
    )* };
}
operators!(Add add plus, Sub sub minus, Mul mul times, Div div over);

impl Neg for &Array {
    type Output = Array;
    fn neg(self) -> Array {
        self.negative()
    }
}

impl Neg for Array {
    type Output = Array;
    fn neg(self) -> Array {
        self.negative()
    }
}
