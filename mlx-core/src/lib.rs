//! placeholder
#[cfg(test)]
mod tests {
    #[test]
    fn adds() {
        let a = mlx_rs::Array::from_slice(&[1f32, 2.0], &[2]);
        let b = &a + &a;
        b.eval().unwrap();
        assert_eq!(b.as_slice::<f32>(), &[2.0, 4.0]);
    }
}
