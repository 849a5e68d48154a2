//! `+ - * /` over arrays and numbers. A number takes the array's type, so bfloat16 stays bfloat16.

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
            fn $method(self, rhs: f32) -> Array { self.$op(&Array::scalar(rhs).astype(self.dtype())) }
        }
        impl $trait<f32> for Array {
            type Output = Array;
            #[track_caller]
            fn $method(self, rhs: f32) -> Array { (&self).$method(rhs) }
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
