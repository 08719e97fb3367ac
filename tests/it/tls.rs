//! Encryption, and who is who: what libpq's users write into URLs means the same here.

mod files;

use duroxide_postgres::{Error, ErrorKind, PostgresProvider};
use rcgen::{BasicConstraints, IsCa, KeyPair, date_time_ymd};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use crate::fixtures::{LOCK, start, turn};
use crate::secure::{self, Authority, CERTIFIED, HOST, Identity, PASSWORD, SERVER};
use crate::support::{TestSchema, connect, database_url};

/// Connects, works, and looks whether all of its connections are encrypted.
async fn works(url: &str) -> bool {
    let schema = TestSchema::on(SERVER.cluster.admin_url());
    works_on(&schema, url).await
}

async fn works_on(schema: &TestSchema, url: &str) -> bool {
    use duroxide::providers::Provider;
    let name = &schema.name;
    let provider = PostgresProvider::builder(&format!("{url}&application_name={name}"))
        .schema(name)
        .connect()
        .await
        .expect(url);
    provider
        .enqueue_for_orchestrator(start("i"), None)
        .await
        .expect("enqueue");
    turn(&provider, LOCK).await;
    let row = connect(&schema.url)
        .await
        .query_one(
            "select count(*), bool_and(ssl) from pg_stat_activity join pg_stat_ssl using (pid) where application_name = $1",
            &[name],
        )
        .await
        .expect("pg_stat_ssl");
    assert!(row.get::<_, i64>(0) > 0);
    row.get(1)
}

async fn refused(url: &str) -> Error {
    let result = PostgresProvider::builder(url).schema("no_such_schema").connect().await;
    result.expect_err(url)
}

/// The error is of this kind and has these words, and no password.
fn assert_says(error: &Error, kind: ErrorKind, words: &[&str]) {
    let text = error.to_string();
    assert_eq!(error.kind(), kind, "{text}");
    for word in words {
        assert!(text.contains(word), "{word:?} is not in: {text}");
    }
    assert!(!text.contains(PASSWORD), "{text}");
}

#[tokio::test]
async fn every_mode_encrypts_as_much_as_it_says() {
    let trusted = SERVER.trusted.display();
    for parameters in [
        // As libpq, whatever can be had.
        "sslmode=prefer".to_string(),
        "sslmode=require".to_string(),
        format!("sslmode=verify-ca&sslrootcert={trusted}"),
        format!("sslmode=verify-full&sslrootcert={trusted}"),
        format!("sslmode=verify-full&sslrootcert={trusted}&channel_binding=require"),
        format!("sslmode=verify-full&sslrootcert={trusted}&ssl_min_protocol_version=TLSv1.3"),
    ] {
        assert!(
            works(&SERVER.url("postgres", PASSWORD, &parameters)).await,
            "{parameters}"
        );
    }
    let error = refused(&SERVER.url("postgres", PASSWORD, "sslmode=disable")).await;
    assert_says(&error, ErrorKind::Connect, &["pg_hba.conf", "no encryption"]);
}

#[tokio::test]
async fn a_certificate_for_another_name_is_refused_by_verify_full_alone() {
    let url = |mode: &str| {
        format!(
            "postgres://postgres:{}@db.example:{}/postgres?hostaddr=127.0.0.1&sslmode={mode}&sslrootcert={}",
            PASSWORD.replace(' ', "%20"),
            SERVER.cluster.port,
            SERVER.trusted.display()
        )
    };
    let error = refused(&url("verify-full")).await;
    assert_says(&error, ErrorKind::Connect, &["is not for db.example", HOST]);
    assert!(works(&url("verify-ca")).await);
}

#[tokio::test]
async fn a_certificate_of_an_unknown_authority_is_refused() {
    let stranger = SERVER.cluster.client_file(&Authority::new("stranger").certificate());
    let stranger = stranger.display().to_string();
    // Whoever names an authority wants to see its signature, in every mode.
    for mode in ["prefer", "require", "verify-ca", "verify-full"] {
        let parameters = format!("sslmode={mode}&sslrootcert={stranger}");
        let error = refused(&SERVER.url("postgres", PASSWORD, &parameters)).await;
        assert_says(&error, ErrorKind::Connect, &[HOST, "not signed by", &stranger]);
    }
    // Nor has the operating system heard of a test's authority.
    let error = refused(&SERVER.url("postgres", PASSWORD, "sslrootcert=system")).await;
    let text = error.to_string();
    assert!(text.contains("operating system trusts"), "{text}");
}

/// What many servers have, and what strict readers of the standard refuse: a certificate that signed itself.
#[tokio::test]
async fn a_servers_own_certificate_can_be_trusted_until_it_expires() {
    let key = KeyPair::generate().expect("key");
    let mut own = secure::parameters(HOST);
    own.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let itself = Identity {
        certificate: own.self_signed(&key).expect("certificate").pem(),
        key: key.serialize_pem(),
    };
    let cluster = secure::start(&itself, &itself.certificate);
    let url = |trusted: &str| {
        format!(
            "postgres://postgres:{}@{HOST}:{}/postgres?hostaddr=127.0.0.1&sslmode=verify-full&sslrootcert={}",
            PASSWORD.replace(' ', "%20"),
            cluster.port,
            cluster.client_file(trusted).display()
        )
    };
    let schema = TestSchema::on(cluster.admin_url());
    assert!(works_on(&schema, &url(&itself.certificate)).await);
    let error = refused(&url(&itself.certificate).replace(HOST, "db.example")).await;
    assert_says(&error, ErrorKind::Connect, &["is not for db.example"]);

    let mut old = secure::parameters(HOST);
    old.not_before = date_time_ymd(2020, 1, 1);
    old.not_after = date_time_ymd(2021, 1, 1);
    let expired = SERVER.authority.sign_as(&old);
    cluster.write("server.crt", &expired.certificate);
    cluster.write("server.key", &expired.key);
    cluster.execute("select pg_reload_conf()");
    let words = ["has expired", HOST];
    // The server reads its files some time after it was told to.
    loop {
        let error = refused(&url(&SERVER.authority.certificate())).await;
        if !error.to_string().contains("not signed by") {
            break assert_says(&error, ErrorKind::Connect, &words);
        }
    }
}

#[tokio::test]
async fn a_client_can_show_a_certificate() {
    let trusted = SERVER.trusted.display();
    let url = |identity: Option<&Identity>| {
        let identity = identity.map_or(String::new(), files::parameters);
        SERVER.url(
            CERTIFIED,
            "",
            &format!("sslmode=verify-full&sslrootcert={trusted}&{identity}"),
        )
    };
    assert!(works(&url(Some(&SERVER.authority.sign(CERTIFIED)))).await);

    let error = refused(&url(None)).await;
    assert_says(&error, ErrorKind::Connect, &["client certificate"]);
    let error = refused(&url(Some(&SERVER.authority.sign("somebody_else")))).await;
    assert_says(
        &error,
        ErrorKind::Connect,
        &["certificate authentication failed", CERTIFIED],
    );
    let error = refused(&url(Some(&Authority::new("stranger").sign(CERTIFIED)))).await;
    assert_says(&error, ErrorKind::Connect, &["sslcert"]);
}

/// Accepts one connection, answers the request for TLS, and says nothing that makes sense.
async fn answer(listener: &TcpListener, answer: &[u8]) {
    let (mut client, _) = listener.accept().await.expect("accept");
    let mut request = [0; 8];
    client.read_exact(&mut request).await.expect("a request for TLS");
    client.write_all(answer).await.expect("an answer");
}

#[tokio::test]
async fn a_server_without_tls_is_refused_where_it_is_required() {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("listen");
    let port = listener.local_addr().expect("address").port();
    let url = format!("postgres://u@127.0.0.1:{port}/d?sslmode=require");
    let (error, ()) = tokio::join!(refused(&url), answer(&listener, b"N"));
    assert_says(&error, ErrorKind::Connect, &["does not support TLS", &port.to_string()]);
    let (error, ()) = tokio::join!(refused(&url), answer(&listener, b"Snot what TLS looks like"));
    assert_says(&error, ErrorKind::Connect, &["TLS failed", &port.to_string()]);
}

/// As libpq: who prefers TLS and cannot have it, does without.
#[tokio::test]
async fn a_server_whose_tls_does_not_work_is_connected_to_without_it() {
    let config: tokio_postgres::Config = database_url().parse().expect("DATABASE_URL");
    let server = ("127.0.0.1", config.get_ports().first().copied().unwrap_or(5432));
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("listen");
    let port = listener.local_addr().expect("address").port();
    let proxy = tokio::spawn(async move {
        answer(&listener, b"Snot what TLS looks like").await;
        let (mut client, _) = listener.accept().await.expect("accept");
        let mut server = TcpStream::connect(server).await.expect("the server");
        let _ = tokio::io::copy_bidirectional(&mut client, &mut server).await;
    });
    let password = config.get_password().map_or(String::new(), |password| {
        format!("password='{}'", String::from_utf8_lossy(password))
    });
    let error = refused(&format!(
        "host=127.0.0.1 port={port} user={} dbname=no_such_database sslmode=prefer {password}",
        config.get_user().expect("user")
    ))
    .await;
    // The real server said so.
    assert_says(&error, ErrorKind::Connect, &["no_such_database", "3D000"]);
    proxy.await.expect("both connections");
}
