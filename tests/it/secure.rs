//! A server that takes nothing but TLS and passwords, one for the whole test process.

use std::path::PathBuf;
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DnType, ExtendedKeyUsagePurpose, IsCa, KeyPair,
    KeyUsagePurpose,
};

use crate::cluster::{Cluster, Options};
use crate::support::connect;

/// Somebody who signs certificates.
pub struct Authority(CertifiedIssuer<'static, KeyPair>);

/// Certificate and key.
pub struct Identity {
    pub certificate: String,
    pub key: String,
}

impl Authority {
    pub fn new(name: &str) -> Self {
        let mut parameters = CertificateParams::default();
        parameters.distinguished_name.push(DnType::CommonName, name);
        parameters.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        parameters.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        Self(CertifiedIssuer::self_signed(parameters, KeyPair::generate().expect("key")).expect("authority"))
    }

    pub fn certificate(&self) -> String {
        self.0.pem()
    }

    /// For a host, or a role.
    pub fn sign(&self, name: &str) -> Identity {
        self.sign_as(&parameters(name))
    }

    pub fn sign_as(&self, parameters: &CertificateParams) -> Identity {
        let key = KeyPair::generate().expect("key");
        let certificate = parameters.signed_by(&key, &self.0).expect("certificate");
        Identity {
            certificate: certificate.pem(),
            key: key.serialize_pem(),
        }
    }
}

/// What a certificate for this name says.
pub fn parameters(name: &str) -> CertificateParams {
    let mut parameters = CertificateParams::new(vec![name.to_string()]).expect("a name");
    parameters.distinguished_name.push(DnType::CommonName, name);
    parameters.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
    parameters
}

/// The name that the server's certificate is for.
pub const HOST: &str = "localhost";
pub const PASSWORD: &str = "correct horse";
/// A role that shows a certificate instead of a password.
pub const CERTIFIED: &str = "certified";

pub struct SecureServer {
    pub cluster: Cluster,
    /// Who signed its certificate.
    pub authority: Authority,
    /// That one's own certificate.
    pub trusted: PathBuf,
}

/// A server with this certificate that takes no connection unless it is encrypted.
pub fn start(identity: &Identity, trusted: &str) -> Cluster {
    let cluster = Cluster::start(&Options {
        settings: "ssl = on\nssl_cert_file = 'server.crt'\nssl_key_file = 'server.key'\nssl_ca_file = 'ca.crt'\n\
                   password_encryption = 'scram-sha-256'",
        // Last: what is not encrypted is refused.
        authentication: &format!(
            "hostssl all {CERTIFIED} 127.0.0.1/32 cert\nhostssl all all 127.0.0.1/32 scram-sha-256\nhost all all all reject"
        ),
        files: &[
            ("server.crt", &identity.certificate),
            ("server.key", &identity.key),
            ("ca.crt", trusted),
        ],
        ..Options::default()
    });
    cluster.execute(&format!("alter role postgres password '{PASSWORD}'"));
    cluster
}

/// Started when first needed, ends with the process.
pub static SERVER: LazyLock<SecureServer> = LazyLock::new(|| {
    let authority = Authority::new("authority");
    let cluster = start(&authority.sign(HOST), &authority.certificate());
    cluster.execute(&format!("create role {CERTIFIED} superuser login"));
    let trusted = cluster.client_file(&authority.certificate());
    SecureServer {
        cluster,
        authority,
        trusted,
    }
});

impl SecureServer {
    pub fn url(&self, user: &str, password: &str, parameters: &str) -> String {
        let password = password.replace(' ', "%20");
        format!(
            "postgres://{user}:{password}@{HOST}:{}/postgres?hostaddr=127.0.0.1&{parameters}",
            self.cluster.port
        )
    }

    /// Certificate, name and channel are verified.
    pub fn verified_url(&self, user: &str, password: &str) -> String {
        let trusted = self.trusted.display();
        self.url(
            user,
            password,
            &format!("sslmode=verify-full&sslrootcert={trusted}&channel_binding=require"),
        )
    }
}

/// Tokens that last two seconds: the passwords of these roles are changed that often.
pub struct Tokens {
    state: Mutex<TokenState>,
    /// Held while they change.
    changing: Mutex<()>,
}

struct TokenState {
    token: String,
    roles: Vec<String>,
    /// How often somebody asked.
    asked: usize,
}

/// How long a token lasts.
pub const LIFETIME: Duration = Duration::from_secs(2);
/// How much later than the server the issuer of tokens knows: who asks meanwhile gets one that has expired.
const LAG: Duration = Duration::from_millis(40);

/// Started when first needed, ends with the process.
pub static TOKENS: LazyLock<Arc<Tokens>> = LazyLock::new(|| {
    let tokens = Arc::new(Tokens {
        state: Mutex::new(TokenState {
            token: "none yet".to_string(),
            roles: Vec::new(),
            asked: 0,
        }),
        changing: Mutex::default(),
    });
    let rotated = Arc::clone(&tokens);
    let admin = SERVER.cluster.admin_url();
    std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .expect("runtime");
        let client = runtime.block_on(connect(&admin));
        loop {
            let token = uuid::Uuid::new_v4().to_string();
            let changing = rotated.changing.lock();
            let roles = rotated.lock().roles.clone();
            for role in roles {
                let change = format!("alter role {role} password '{token}'");
                if runtime.block_on(client.batch_execute(&change)).is_err() {
                    // It was dropped.
                    rotated.lock().roles.retain(|other| *other != role);
                }
            }
            std::thread::sleep(LAG);
            rotated.lock().token = token;
            drop(changing);
            std::thread::sleep(LIFETIME - LAG);
        }
    });
    tokens
});

impl Tokens {
    fn lock(&self) -> MutexGuard<'_, TokenState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// From now on the role's password is a token.
    pub fn rotate(&self, role: &str) {
        let _unchanged = self.changing.lock().unwrap_or_else(PoisonError::into_inner);
        let token = self.lock().token.clone();
        SERVER.cluster.execute(&format!("alter role {role} password '{token}'"));
        self.lock().roles.push(role.to_string());
    }

    /// What the issuer thinks is good now.
    pub fn current(&self) -> String {
        let mut state = self.lock();
        state.asked += 1;
        state.token.clone()
    }

    pub fn asked(&self) -> usize {
        self.lock().asked
    }
}
