//! Certificates and keys come from files, which can be missing, wrong, or replaced.

use std::fs;
use std::time::Duration;

use duroxide_postgres::{ErrorKind, PostgresProvider};

use super::{assert_says, refused};
use crate::secure::{CERTIFIED, Identity, PASSWORD, SERVER};
use crate::support::{TestSchema, connect};

/// As parameters of a URL.
pub fn parameters(identity: &Identity) -> String {
    format!(
        "sslcert={}&sslkey={}",
        SERVER.cluster.client_file(&identity.certificate).display(),
        SERVER.cluster.client_file(&identity.key).display()
    )
}

#[tokio::test]
async fn what_is_wrong_with_settings_and_files_is_said_before_connecting() {
    let trusted = SERVER.trusted.display().to_string();
    let nonsense = SERVER.cluster.client_file("nonsense").display().to_string();
    let [one, other] = [SERVER.authority.sign("one"), SERVER.authority.sign("other")];
    let swapped = parameters(&Identity {
        certificate: one.certificate,
        key: other.key,
    });
    let both = "sslmode=verify-full&sslrootcert=";
    for (parameters, words) in [
        (
            "sslmode=verfy-full".to_string(),
            vec!["sslmode", "verfy-full", "verify-full"],
        ),
        ("sslmode=allow".to_string(), vec!["sslmode", "allow", "prefer"]),
        ("sslmode=verify-full".to_string(), vec!["sslrootcert", "system"]),
        (
            "sslmode=require&sslrootcert=system".to_string(),
            vec!["system", "verify-full"],
        ),
        (
            format!("{both}/no/such/ca.pem"),
            vec!["sslrootcert", "/no/such/ca.pem", "No such file"],
        ),
        (
            format!("{both}{nonsense}"),
            vec!["sslrootcert", &nonsense, "no certificate"],
        ),
        ("sslcert=/a/cert.pem".to_string(), vec!["sslcert", "sslkey"]),
        ("sslkey=/a/key.pem".to_string(), vec!["sslcert", "sslkey"]),
        (
            format!("{both}{trusted}&sslcert=/no/such/cert.pem&sslkey={nonsense}"),
            vec!["sslcert", "/no/such/cert.pem", "No such file"],
        ),
        (
            format!("{both}{trusted}&sslcert={trusted}&sslkey={nonsense}"),
            vec!["sslkey", &nonsense, "no private key"],
        ),
        (format!("{both}{trusted}&{swapped}"), vec!["do not go together"]),
        ("sslcrl=/a/crl.pem".to_string(), vec!["sslcrl", "not supported"]),
        (
            "target_session_attrs=standby".to_string(),
            vec!["target_session_attrs", "standby"],
        ),
        ("sslrotcert=/a/ca.pem".to_string(), vec!["sslrotcert", "unknown"]),
        ("channel_binding=maybe".to_string(), vec!["channel_binding", "maybe"]),
    ] {
        // Nobody listens there: had it tried to connect, the error would be another.
        let error = refused(&format!(
            "postgres://u:{}@127.0.0.1:1/d?{parameters}",
            PASSWORD.replace(' ', "%20")
        ))
        .await;
        assert_says(&error, ErrorKind::Config, &words);
    }
}

#[tokio::test]
async fn an_own_connector_and_files_exclude_each_other() {
    let error = PostgresProvider::builder(&SERVER.verified_url("postgres", PASSWORD))
        .tls(tokio_postgres::NoTls)
        .connect()
        .await
        .expect_err("both");
    assert_says(&error, ErrorKind::Config, &["sslrootcert", "Builder::tls"]);
}

/// Whoever renews certificates replaces files; the process goes on.
#[tokio::test]
async fn files_are_read_for_every_connection() {
    let schema = TestSchema::on(SERVER.cluster.admin_url());
    let identity = SERVER.authority.sign(CERTIFIED);
    let certificate = SERVER.cluster.client_file(&identity.certificate);
    let key = SERVER.cluster.client_file(&identity.key);
    let url = SERVER.url(
        CERTIFIED,
        "",
        &format!(
            "sslmode=verify-full&sslrootcert={}&sslcert={}&sslkey={}&application_name={}",
            SERVER.trusted.display(),
            certificate.display(),
            key.display(),
            schema.name
        ),
    );
    let provider = PostgresProvider::builder(&url)
        .schema(&schema.name)
        .connect()
        .await
        .expect("connect");
    let admin = connect(&schema.url).await;
    let cut = || async {
        admin
            .execute(
                "select pg_terminate_backend(pid, 5000) from pg_stat_activity where application_name = $1",
                &[&schema.name],
            )
            .await
            .expect("terminate")
    };

    fs::remove_file(&certificate).expect("remove");
    cut().await;
    let error = loop {
        // The first may still have got a connection that was on its way out.
        match provider.health_check().await {
            Err(error) if error.to_string().contains("sslcert") => break error,
            _ => tokio::time::sleep(Duration::from_millis(10)).await,
        }
    };
    assert_says(
        &error,
        ErrorKind::Connect,
        &["No such file", &certificate.display().to_string()],
    );

    let renewed = SERVER.authority.sign(CERTIFIED);
    fs::write(&certificate, &renewed.certificate).expect("write");
    fs::write(&key, &renewed.key).expect("write");
    provider.health_check().await.expect("the new certificate");
}
