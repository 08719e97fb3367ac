//! In the place of `tls.rs` where the cargo feature `tls` is off.

use tokio_postgres::NoTls;

use super::tls_settings::{TlsMode, TlsSettings};

pub(crate) fn connector(settings: &TlsSettings) -> Result<NoTls, String> {
    if settings.mode > TlsMode::Prefer || !settings.files_asked_for.is_empty() {
        Err("this build has no TLS: enable the cargo feature `tls`, or give Builder::tls a connector".to_string())
    } else {
        Ok(NoTls)
    }
}

pub(super) fn explain(_: &tokio_postgres::Error, _: &TlsSettings) -> Option<String> {
    None
}
