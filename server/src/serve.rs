//! Listening, and leaving in good order.

use std::sync::Arc;
use std::time::Duration;

use tokio::net::TcpListener;
use tokio::sync::watch;

use crate::app::{App, router};

/// How long answers may still be written after the server was asked to end.
const GRACE: Duration = Duration::from_secs(10);

/// Serves until `stop` is done, then lets running answers end for a while; what runs on is cut off.
pub async fn serve(
    listener: TcpListener,
    app: Arc<App>,
    stop: impl Future<Output = ()> + Send + 'static,
) -> std::io::Result<()> {
    let (stopping, stopped) = watch::channel(false);
    let signal = async move {
        stop.await;
        stopping.send(true).ok();
    };
    let mut asked = stopped.clone();
    let cut = async move {
        // An error means that the server is gone, and this future with it.
        asked.wait_for(|stop| *stop).await.ok();
        tokio::time::sleep(GRACE).await;
    };
    let server = axum::serve(listener, router(app)).with_graceful_shutdown(signal);
    tokio::select! {
        served = server => served,
        () = cut => Ok(()),
    }
}
