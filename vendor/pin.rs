//! Empty: this package only pins the mlx-c sources.
