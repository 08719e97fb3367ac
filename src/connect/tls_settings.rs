//! What is asked for of TLS, as libpq understands it.

use std::path::{Path, PathBuf};

use super::text::Parameters;

/// How far TLS is asked for, and trusted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum TlsMode {
    Disable,
    Prefer,
    Require,
    VerifyCa,
    VerifyFull,
}

/// Whom to trust with certificates.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Roots {
    /// Whom the operating system trusts.
    System,
    File(PathBuf),
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct TlsSettings {
    pub(crate) mode: TlsMode,
    pub(crate) roots: Option<Roots>,
    /// Certificate and key of the client.
    pub(crate) identity: Option<(PathBuf, PathBuf)>,
    pub(crate) only_tls13: bool,
    /// The names of settings that only the built-in TLS can serve.
    pub(crate) files_asked_for: Vec<&'static str>,
}

impl TlsSettings {
    /// Whether the server's certificate has to be one that somebody known signed.
    ///
    /// As libpq does, `require` verifies when it knows whom to trust; `prefer` only when told whom.
    pub(super) fn verifies(&self) -> bool {
        match self.mode {
            TlsMode::Disable => false,
            TlsMode::Prefer => self.files_asked_for.contains(&"sslrootcert"),
            TlsMode::Require | TlsMode::VerifyCa | TlsMode::VerifyFull => self.roots.is_some(),
        }
    }

    /// Takes what is about TLS out of the parameters. `home`: where libpq looks for files that nothing names.
    pub(super) fn take(given: &mut Parameters, home: Option<&Path>) -> Result<Self, String> {
        let in_home = |name: &str| home.map(|home| home.join(name)).filter(|file| file.is_file());
        let mut files_asked_for = Vec::new();
        let roots = match given.remove("sslrootcert") {
            Some(text) => {
                files_asked_for.push("sslrootcert");
                Some(if text == "system" {
                    Roots::System
                } else {
                    Roots::File(text.into())
                })
            }
            None => in_home("root.crt").map(Roots::File),
        };
        let mode = match given.remove("sslmode").as_deref() {
            Some("disable") => TlsMode::Disable,
            Some("prefer") => TlsMode::Prefer,
            Some("require") => TlsMode::Require,
            Some("verify-ca") => TlsMode::VerifyCa,
            Some("verify-full") => TlsMode::VerifyFull,
            Some(other) => {
                return Err(format!(
                    "sslmode {other:?} is none of disable, prefer, require, verify-ca and verify-full"
                ));
            }
            None if roots == Some(Roots::System) => TlsMode::VerifyFull,
            None => TlsMode::Prefer,
        };
        if roots == Some(Roots::System) && !matches!(mode, TlsMode::VerifyFull | TlsMode::Disable) {
            // Anybody can have a certificate from a public authority; only the name tells the server.
            return Err("sslrootcert=system needs sslmode=verify-full".to_string());
        }
        let identity = match (given.remove("sslcert"), given.remove("sslkey")) {
            (None, None) => in_home("postgresql.crt").zip(in_home("postgresql.key")),
            (Some(certificate), Some(key)) => {
                files_asked_for.push("sslcert");
                Some((certificate.into(), key.into()))
            }
            (Some(_), None) => return Err("sslcert is given without sslkey".to_string()),
            (None, Some(_)) => return Err("sslkey is given without sslcert".to_string()),
        };
        let only_tls13 = match given.remove("ssl_min_protocol_version").as_deref() {
            None | Some("" | "TLSv1" | "TLSv1.1" | "TLSv1.2") => false,
            Some("TLSv1.3") => true,
            Some(other) => {
                return Err(format!(
                    "ssl_min_protocol_version {other:?} is neither TLSv1.2 nor TLSv1.3"
                ));
            }
        };
        Ok(Self {
            mode,
            roots,
            identity,
            only_tls13,
            files_asked_for,
        })
    }
}
