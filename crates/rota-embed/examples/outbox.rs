//! An order and the mail about it commit together, or not at all:
//!
//!     DATABASE_URL=postgres://… cargo run -p rota-embed --example outbox
//!
//! Rota's tables are in the schema `rota_example`; the order's own is temporary.
#![expect(clippy::print_stdout, reason = "an example shows what it does")]

use rota_embed::{Call, Event, HandlerError, Job, Rota};
use serde::{Deserialize, Serialize};
use tokio_postgres::NoTls;

#[derive(Serialize, Deserialize)]
struct Mail {
    order: i32,
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let url = std::env::var("DATABASE_URL").map_err(|_| "DATABASE_URL names no PostgreSQL database")?;
    let rota = Rota::open(&url).schema("rota_example").handler("mail", mail).start().await?;
    rota.save(Job::new("mail").handler("mail")).await?;
    let mut events = rota.subscribe();

    let (mut client, connection) = tokio_postgres::connect(&url, NoTls).await?;
    tokio::spawn(connection);
    client.batch_execute("CREATE TEMPORARY TABLE orders (id int PRIMARY KEY)").await?;

    for (order, paid) in [(1, false), (2, true)] {
        let transaction = client.transaction().await?;
        transaction.execute("INSERT INTO orders VALUES ($1)", &[&order]).await?;
        rota.enqueue_in(&transaction, "mail", Mail { order }, None).await?;
        if paid {
            transaction.commit().await?;
            rota.look_into_inbox();
        } else {
            transaction.rollback().await?;
            println!("order {order} was rolled back, and its mail with it");
        }
    }

    loop {
        if let Event::RunEnded { run, verdict, .. } = events.recv().await? {
            println!("run {run} {verdict}");
            break;
        }
    }
    rota.stop().await?;
    Ok(())
}

async fn mail(call: Call, mail: Mail) -> Result<(), HandlerError> {
    println!("mail about order {}, in run {}", mail.order, call.run());
    Ok(())
}
