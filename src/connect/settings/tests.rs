use super::*;
use crate::connect::tls_settings::Roots;

fn parsed(text: &str, variables: &[(&str, &str)]) -> Result<Settings, String> {
    let environment = |name: &str| {
        variables
            .iter()
            .find(|(variable, _)| *variable == name)
            .map(|(_, value)| value.to_string())
    };
    Settings::parse(text, &environment).map_err(|error| error.to_string())
}

fn names(settings: &Settings) -> Vec<String> {
    settings.servers.iter().map(Server::name).collect()
}

#[test]
fn a_connection_string_wins_over_the_environment() {
    let variables = [
        ("PGHOST", "env-host"),
        ("PGPORT", "7000"),
        ("PGUSER", "env-user"),
        ("PGPASSWORD", "env-password"),
        ("PGDATABASE", "env-database"),
        ("PGSSLMODE", "require"),
        ("PGAPPNAME", "env-name"),
        ("PGCONNECT_TIMEOUT", "3"),
        ("PGTARGETSESSIONATTRS", "read-write"),
        ("PGCHANNELBINDING", "require"),
    ];
    let settings = parsed("", &variables).expect("the environment is enough");
    assert_eq!(names(&settings), ["env-host:7000"]);
    let config = &settings.config;
    assert_eq!(config.get_dbname(), Some("env-database"));
    assert_eq!(config.get_user(), Some("env-user"));
    assert_eq!(config.get_password(), Some("env-password".as_bytes()));
    assert_eq!(config.get_application_name(), Some("env-name"));
    assert_eq!(config.get_connect_timeout(), Some(&Duration::from_secs(3)));
    assert_eq!(config.get_target_session_attrs(), TargetSessionAttrs::ReadWrite);
    assert_eq!(config.get_channel_binding(), ChannelBinding::Require);
    assert_eq!(settings.tls.mode, TlsMode::Require);

    let url = "postgres://me:mine@here/db?sslmode=disable&application_name=a&connect_timeout=0";
    let settings = parsed(url, &variables).expect(url);
    // What it leaves open still comes from the environment.
    assert_eq!(names(&settings), ["here:7000"]);
    assert_eq!(settings.config.get_dbname(), Some("db"));
    assert_eq!(settings.config.get_user(), Some("me"));
    assert_eq!(settings.config.get_password(), Some("mine".as_bytes()));
    assert_eq!(settings.config.get_application_name(), Some("a"));
    assert_eq!(settings.config.get_connect_timeout(), None);
    assert_eq!(settings.tls.mode, TlsMode::Disable);
}

#[test]
fn hosts_addresses_and_ports_go_together() {
    for (text, expected) in [
        ("postgres://a,b:2,[::1]:3", vec!["a:5432", "b:2", "[::1]:3"]),
        ("host=a,b port=7", vec!["a:7", "b:7"]),
        ("host=a,b port=7,8", vec!["a:7", "b:8"]),
        ("host=/run/pg port=7", vec!["/run/pg/.s.PGSQL.7"]),
        ("postgres://%2Frun%2Fpg/d", vec!["/run/pg/.s.PGSQL.5432"]),
        ("hostaddr=127.0.0.1", vec!["127.0.0.1:5432"]),
    ] {
        assert_eq!(names(&parsed(text, &[]).expect(text)), expected, "{text}");
    }
    let settings = parsed("host=a hostaddr=127.0.0.2", &[]).expect("both");
    assert_eq!(settings.servers[0].address, Some([127, 0, 0, 2].into()));
    for (text, word) in [
        ("user=u", "PGHOST"),
        ("host=a,b hostaddr=127.0.0.1", "1 hostaddrs"),
        ("host=a port=1,2", "2 ports"),
        ("host=a port=hunter2", "port"),
        ("host=a hostaddr=b", "hostaddr"),
        ("host=a connect_timeout=soon", "connect_timeout"),
    ] {
        let error = parsed(text, &[]).err().expect(text);
        assert!(error.contains(word) && !error.contains("hunter2"), "{error}");
    }
}

#[test]
fn what_libpq_knows_keeps_its_meaning_or_is_refused() {
    let settings = parsed(
        "host=h keepalives=0 keepalives_idle=7 keepalives_interval=8 keepalives_count=9 tcp_user_timeout=1500 \
         load_balance_hosts=random gssencmode=prefer sslsni=1 client_encoding=UTF8 fallback_application_name=f",
        &[],
    )
    .expect("libpq's");
    let config = &settings.config;
    assert!(!config.get_keepalives());
    assert_eq!(config.get_keepalives_idle(), Duration::from_secs(7));
    assert_eq!(config.get_keepalives_interval(), Some(Duration::from_secs(8)));
    assert_eq!(config.get_keepalives_retries(), Some(9));
    assert_eq!(config.get_tcp_user_timeout(), Some(&Duration::from_millis(1500)));
    assert_eq!(config.get_application_name(), Some("f"));
    for text in [
        "sslcrl=x",
        "service=x",
        "gssencmode=require",
        "client_encoding=LATIN1",
        "nonsense=x",
    ] {
        let error = parsed(&format!("host=h {text}"), &[]).err().expect(text);
        assert!(error.contains(text.split('=').next().expect("a key")), "{error}");
    }
}

#[test]
fn tls_is_what_libpq_makes_of_it() {
    let mode = |text: &str| parsed(&format!("host=h {text}"), &[]).map(|settings| settings.tls.mode);
    assert_eq!(mode(""), Ok(TlsMode::Prefer));
    assert_eq!(mode("sslrootcert=system"), Ok(TlsMode::VerifyFull));
    assert_eq!(mode("sslmode=verify-ca sslrootcert=/ca"), Ok(TlsMode::VerifyCa));
    // Whether it knows whom to trust is for whoever verifies to say.
    assert_eq!(mode("sslmode=verify-full"), Ok(TlsMode::VerifyFull));
    assert!(mode("sslmode=prefer sslrootcert=system").is_err());
    assert!(mode("sslmode=VERIFY").is_err_and(|error| error.contains("verify-full")));
    let settings = parsed("host=h sslrootcert=/ca sslcert=/c sslkey=/k", &[]).expect("files");
    assert_eq!(settings.tls.roots, Some(Roots::File("/ca".into())));
    assert_eq!(settings.tls.identity, Some(("/c".into(), "/k".into())));
    assert_eq!(settings.tls.files_asked_for, ["sslrootcert", "sslcert"]);
}
