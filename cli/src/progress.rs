//! Bars for work that takes long. They draw on standard error, and only on a terminal.

use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};

/// A bar of bytes.
pub fn download(file: &str, total: Option<u64>) -> ProgressBar {
    let bar = total.map_or_else(ProgressBar::no_length, ProgressBar::new);
    bar.set_style(style("{msg} {wide_bar} {bytes}/{total_bytes} {bytes_per_sec} {eta}"));
    bar.set_message(file.to_owned());
    bar
}

/// A bar of tensors, shown only if loading takes more than a moment.
pub fn load() -> ProgressBar {
    let bar = ProgressBar::new(0);
    bar.set_style(style("loading {wide_bar} {pos}/{len} tensors"));
    bar.enable_steady_tick(Duration::from_millis(200));
    bar
}

fn style(template: &str) -> ProgressStyle {
    ProgressStyle::with_template(template).expect("the templates above are valid")
}
