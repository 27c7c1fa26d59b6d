//! Tokens: no more than the rate, whoever asks.

use rota_core::{
    duration::Span,
    rate::{Rate, Taken},
    store::TokenAsk,
};

use crate::harness::*;

fn ask_for(key: &str, want: u32) -> TokenAsk {
    TokenAsk { key: key.into(), rate: Rate { runs: 10, per: Span::secs(1) }, want, ahead: false }
}

/// The answers are those of the pure code, one bucket per key.
pub async fn tokens_are_given_as_the_rate_decides(h: &Harness) {
    let rate = Rate { runs: 10, per: Span::secs(1) };
    let mut bucket = None;
    for (now, want) in [(0, 5), (0, 100), (100, 3), (150, 1), (5_000, 50), (4_000, 1)] {
        let (next, expected) = rate.take(bucket, want, at(now));
        bucket = Some(next);
        let taken = h.store.take_tokens(&[ask_for("k", want), ask_for("other", 0)], at(now)).await.unwrap();
        assert_eq!(taken[0], expected, "{want} at {now}");
        assert_eq!(taken[1].tokens, 0);
    }
}

/// What is over a quota is made for later, and what it takes ahead nobody else gets.
pub async fn tokens_that_are_not_there_yet_can_be_reserved(h: &Harness) {
    let rate = Rate { runs: 10, per: Span::secs(1) };
    let ahead = |want| TokenAsk { ahead: true, ..ask_for("k", want) };
    let (bucket, expected) = rate.reserve(None, 50, at(0));
    assert_eq!(h.store.take_tokens(&[ahead(50)], at(0)).await.unwrap(), [expected]);
    let (bucket, expected) = rate.reserve(Some(bucket), 5, at(100));
    assert_eq!(h.store.take_tokens(&[ahead(5)], at(100)).await.unwrap(), [expected]);
    let (_, expected) = rate.take(Some(bucket), 1, at(200));
    assert_eq!(expected.tokens, 0);
    assert_eq!(h.store.take_tokens(&[ask_for("k", 1)], at(200)).await.unwrap(), [expected]);
}

/// A key named twice in a batch has one bucket.
pub async fn a_key_named_twice_in_a_batch_has_one_bucket(h: &Harness) {
    let asks = [ask_for("k", 15), ask_for("k", 15), ask_for("l", 15)];
    let taken = h.store.take_tokens(&asks, at(0)).await.unwrap();
    assert_eq!(taken.iter().map(|taken| taken.tokens).collect::<Vec<_>>(), [15, 5, 15]);
}

/// Else N nodes allow N times the rate.
pub async fn many_takers_at_once_never_exceed_the_rate(h: &Harness) {
    let second = h.second().await;
    let mut takers = tokio::task::JoinSet::new();
    for n in 0..8 {
        let store = if n % 2 == 0 { h.store.clone() } else { second.clone() };
        takers.spawn(async move {
            let mut total = 0;
            for round in 0..10 {
                let asks =
                    if n % 2 == 0 { [ask_for("a", 3), ask_for("b", 3)] } else { [ask_for("b", 3), ask_for("a", 3)] };
                let taken: Vec<Taken> = store.take_tokens(&asks, at(round * 10)).await.unwrap();
                total += taken.iter().map(|taken| taken.tokens).sum::<u32>();
            }
            total
        });
    }
    let total: u32 = takers.join_all().await.iter().sum();
    // Two keys, a burst of 20 each, and what came back within 90 ms.
    assert_eq!(total, 2 * 20, "{total} tokens were given");
}
