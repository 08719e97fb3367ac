//! TLS by rustls, with libpq's idea of what is verified.

use std::path::Path;
use std::sync::{Arc, OnceLock};

use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::verify_server_name;
use rustls::crypto::{CryptoProvider, WebPkiSupportedAlgorithms, ring};
use rustls::pki_types::pem::{Error as PemError, PemObject};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::server::ParsedCertificate;
use rustls::{CertificateError, ClientConfig, DigitallySignedStruct, Error, RootCertStore, SignatureScheme};
use tokio_postgres_rustls::MakeRustlsConnect;

use super::tls_settings::{Roots, TlsMode, TlsSettings};

/// What PostgreSQL 17 expects when TLS begins without its own negotiation; others ignore it.
const ALPN: &[u8] = b"postgresql";

/// Reads the files and checks that they fit together.
pub(crate) fn connector(settings: &TlsSettings) -> Result<MakeRustlsConnect, String> {
    // Not the process's default: there may be none, or one that the application chose for something else.
    let provider = Arc::new(ring::default_provider());
    let versions = if settings.only_tls13 {
        vec![&rustls::version::TLS13]
    } else {
        rustls::ALL_VERSIONS.to_vec()
    };
    let verifier = Verifier::new(settings, &provider)?;
    let builder = ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(&versions)
        .map_err(|error| error.to_string())?
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(verifier));
    let mut config = match &settings.identity {
        None => builder.with_no_client_auth(),
        Some((certificate, key)) => builder
            .with_client_auth_cert(certificates("sslcert", certificate)?, private_key(key)?)
            .map_err(|error| {
                format!(
                    "sslcert {} and sslkey {} do not go together: {error}",
                    certificate.display(),
                    key.display()
                )
            })?,
    };
    config.alpn_protocols = vec![ALPN.to_vec()];
    Ok(MakeRustlsConnect::new(config))
}

fn certificates(setting: &str, file: &Path) -> Result<Vec<CertificateDer<'static>>, String> {
    let found = CertificateDer::pem_file_iter(file)
        .and_then(|sections| sections.collect::<Result<Vec<_>, _>>())
        .map_err(|error| unreadable(setting, file, &error))?;
    if found.is_empty() {
        return Err(unreadable(setting, file, &PemError::NoItemsFound));
    }
    Ok(found)
}

fn private_key(file: &Path) -> Result<PrivateKeyDer<'static>, String> {
    PrivateKeyDer::from_pem_file(file).map_err(|error| unreadable("sslkey", file, &error))
}

fn unreadable(setting: &str, file: &Path, error: &PemError) -> String {
    let what = match error {
        PemError::Io(error) => error.to_string(),
        PemError::NoItemsFound if setting == "sslkey" => {
            "it has no private key in PEM format (an encrypted one is not supported)".to_string()
        }
        PemError::NoItemsFound => "it has no certificate in PEM format".to_string(),
        // Others quote the file.
        _ => "it is not in PEM format".to_string(),
    };
    format!("{setting} {}: {what}", file.display())
}

/// Loaded once: the system's store is large.
fn system_roots() -> Result<Arc<RootCertStore>, String> {
    static ROOTS: OnceLock<Arc<RootCertStore>> = OnceLock::new();
    if let Some(roots) = ROOTS.get() {
        return Ok(Arc::clone(roots));
    }
    let loaded = rustls_native_certs::load_native_certs();
    let mut roots = RootCertStore::empty();
    roots.add_parsable_certificates(loaded.certs);
    if roots.is_empty() {
        let problems: Vec<String> = loaded.errors.iter().map(ToString::to_string).collect();
        return Err(format!(
            "sslrootcert=system: the operating system trusts no certificate ({})",
            problems.join("; ")
        ));
    }
    Ok(Arc::clone(ROOTS.get_or_init(|| Arc::new(roots))))
}

#[derive(Debug)]
struct Verifier {
    /// None: whatever certificate the server has.
    authorities: Option<Arc<WebPkiServerVerifier>>,
    /// Those of a file: a server may use one of them itself.
    trusted: Vec<CertificateDer<'static>>,
    checks_name: bool,
    algorithms: WebPkiSupportedAlgorithms,
}

impl Verifier {
    fn new(settings: &TlsSettings, provider: &Arc<CryptoProvider>) -> Result<Self, String> {
        let mut verifier = Self {
            authorities: None,
            trusted: Vec::new(),
            checks_name: settings.mode == TlsMode::VerifyFull,
            algorithms: provider.signature_verification_algorithms,
        };
        let verifies = settings.verifies();
        let roots = match &settings.roots {
            Some(Roots::System) if verifies => system_roots()?,
            Some(Roots::File(file)) if verifies => {
                verifier.trusted = certificates("sslrootcert", file)?;
                let mut roots = RootCertStore::empty();
                roots.add_parsable_certificates(verifier.trusted.iter().cloned());
                Arc::new(roots)
            }
            _ => return Ok(verifier),
        };
        let authorities = WebPkiServerVerifier::builder_with_provider(roots, Arc::clone(provider)).build();
        verifier.authorities = Some(authorities.map_err(|error| format!("sslrootcert: {error}"))?);
        Ok(verifier)
    }
}

impl ServerCertVerifier for Verifier {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        let Some(authorities) = &self.authorities else {
            return Ok(ServerCertVerified::assertion());
        };
        match authorities.verify_server_cert(end_entity, intermediates, server_name, ocsp_response, now) {
            // The name is checked last: everything else is in order.
            Err(Error::InvalidCertificate(
                CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. },
            )) if !self.checks_name => Ok(ServerCertVerified::assertion()),
            // A self-signed certificate that calls itself an authority must not be used by a server, strictly, but is
            // what many servers have. This very one is trusted.
            Err(Error::InvalidCertificate(CertificateError::UnknownIssuer | CertificateError::Other(_)))
                if self.trusted.iter().any(|trusted| trusted == end_entity) =>
            {
                if self.checks_name {
                    verify_server_name(&ParsedCertificate::try_from(end_entity)?, server_name)?;
                }
                Ok(ServerCertVerified::assertion())
            }
            result => result,
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        rustls::crypto::verify_tls12_signature(message, cert, dss, &self.algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        rustls::crypto::verify_tls13_signature(message, cert, dss, &self.algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.algorithms.supported_schemes()
    }
}

/// What went wrong with a certificate, in words that name whose. None: it was something else.
pub(super) fn explain(error: &tokio_postgres::Error, settings: &TlsSettings) -> Option<String> {
    let error = rustls_error(error)?;
    let roots = || match &settings.roots {
        Some(Roots::File(file)) => format!("in sslrootcert {}", file.display()),
        Some(Roots::System) => "that the operating system trusts".to_string(),
        None => "that is known here".to_string(),
    };
    Some(match error {
        Error::InvalidCertificate(CertificateError::NotValidForNameContext { expected, presented }) => format!(
            "its certificate is not for {}, but for {}: connect by a name that it has",
            expected.to_str(),
            if presented.is_empty() {
                "no name at all".to_string()
            } else {
                presented.join(", ")
            }
        ),
        Error::InvalidCertificate(CertificateError::UnknownIssuer | CertificateError::BadSignature) => {
            format!("its certificate is not signed by an authority {}", roots())
        }
        Error::InvalidCertificate(CertificateError::Expired | CertificateError::ExpiredContext { .. }) => {
            format!("its certificate, or one {}, has expired", roots())
        }
        Error::InvalidCertificate(problem) => format!("its certificate is not acceptable: {problem}"),
        Error::AlertReceived(alert) => match &settings.identity {
            Some((file, _)) => format!(
                "it refused TLS ({alert:?}); perhaps it does not trust sslcert {}",
                file.display()
            ),
            None => {
                format!("it refused TLS ({alert:?}); perhaps it wants a client certificate: set sslcert and sslkey")
            }
        },
        other => format!("TLS failed: {other}"),
    })
}

fn rustls_error(error: &tokio_postgres::Error) -> Option<&Error> {
    let mut next = std::error::Error::source(error);
    while let Some(current) = next {
        if let Some(found) = current.downcast_ref::<Error>() {
            return Some(found);
        }
        // Its `source` would be the cause of what it contains.
        if let Some(found) = current
            .downcast_ref::<std::io::Error>()
            .and_then(std::io::Error::get_ref)
            && let Some(found) = found.downcast_ref::<Error>()
        {
            return Some(found);
        }
        next = current.source();
    }
    None
}
