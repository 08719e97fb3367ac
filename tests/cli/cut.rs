//! Connections that end half-way.

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio_postgres::Config;
use tokio_postgres::config::Host;

use crate::fixtures::create;
use crate::process::{command, finish, user};
use crate::support::TestSchema;

/// Passes on what is said, on any number of connections, until somebody says this: then that connection ends.
async fn cut_at(server: (String, u16), text: &'static str) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let port = listener.local_addr().expect("address").port();
    tokio::spawn(async move {
        loop {
            let (mut near, _) = listener.accept().await.expect("accept");
            let mut far = TcpStream::connect(&server).await.expect("the server");
            tokio::spawn(async move {
                let (mut said, mut answered) = (vec![0; 1 << 16], vec![0; 1 << 16]);
                loop {
                    tokio::select! {
                        Ok(read @ 1..) = near.read(&mut said) => {
                            if String::from_utf8_lossy(&said[..read]).contains(text) || far.write_all(&said[..read]).await.is_err() {
                                break;
                            }
                        }
                        Ok(read @ 1..) = far.read(&mut answered) => {
                            if near.write_all(&answered[..read]).await.is_err() {
                                break;
                            }
                        }
                        else => break,
                    }
                }
            });
        }
    });
    port
}

#[tokio::test]
async fn a_lost_connection_is_a_server_that_cannot_be_reached() {
    let schema = TestSchema::new();
    let store = schema.provider().await;
    create(&*store, "i").await;
    let config: Config = schema.url.parse().expect("DATABASE_URL");
    let [Host::Tcp(host)] = config.get_hosts() else {
        panic!("this needs a server on TCP, and one only");
    };
    let server = (host.clone(), config.get_ports().first().copied().unwrap_or(5432));
    let database = config.get_dbname().expect("a database");
    for (call, arguments) in [
        ("enqueue_for_orchestrator", &["cancel", "i"][..]),
        ("enqueue_for_orchestrator", &["raise", "i", "go"]),
        ("get_instance_info", &["raise", "i", "go"]),
        ("get_queued_messages", &["cancel", "nobody"]),
        ("get_queued_messages", &["show", "nobody"]),
        ("delete_instance", &["delete", "i", "--force"]),
    ] {
        let port = cut_at(server.clone(), call).await;
        let url = format!(
            "host=127.0.0.1 port={port} dbname={database} sslmode=disable user={}",
            user(&schema.url)
        );
        let arguments = [&["--schema", &schema.name], arguments].concat();
        let child = command(&url, &arguments).spawn().expect("start");
        let failed = finish(child).await.fails(3, &["connection closed"]);
        assert!(!failed.err.contains("not found"), "{arguments:?}: {}", failed.err);
        assert_eq!(failed.out, "", "{arguments:?}");
    }
}
