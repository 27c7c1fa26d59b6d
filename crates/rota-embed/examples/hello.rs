//! A handler, a schedule of one second and a run by hand, on a store in memory:
//!
//!     cargo run -p rota-embed --example hello
#![expect(clippy::print_stdout, reason = "an example shows what it does")]

use rota_embed::{Call, Event, Job, Rota, Verdict};
use serde::{Deserialize, Serialize};
use serde_json::json;

#[derive(Serialize, Deserialize)]
struct Greeting {
    name: String,
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let rota = Rota::open("sqlite::memory:").handler("greet", greet).start().await?;
    let mut events = rota.subscribe();

    let job = Job::new("greet").handler("greet").payload(json!({ "name": "schedule" })).every("often", "1s");
    rota.save(job).await?;

    let run = rota.enqueue("greet", Greeting { name: "caller".into() }).await?;
    assert_eq!(rota.wait(run).await?, Verdict::Succeeded);

    let mut ended = 0;
    while ended < 3 {
        if let Event::RunEnded { run, verdict, .. } = events.recv().await? {
            ended += 1;
            println!("run {run} {verdict}");
        }
    }
    rota.stop().await?;
    Ok(())
}

async fn greet(call: Call, greeting: Greeting) -> Result<(), rota_embed::HandlerError> {
    println!("hello, {}: attempt {} of run {}", greeting.name, call.attempt, call.run());
    Ok(())
}
