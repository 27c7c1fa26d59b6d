//! Metrics: what the engine counts, as Prometheus reads it.
//!
//! The engine counts in plain atomics; they are read when somebody asks and
//! kept nowhere else. Counters begin at 0 with each process, as Prometheus
//! expects. Names are part of the product: they change only with a new major
//! version.

use std::sync::atomic::Ordering;

use axum::{
    http::header,
    response::{IntoResponse, Response},
};
use jiff::Timestamp;
use prometheus_client::{
    collector::Collector,
    encoding::{DescriptorEncoder, EncodeMetric, text::encode},
    metrics::{MetricType, counter::ConstCounter, gauge::ConstGauge},
    registry::{Registry, Unit},
};
use rota_core::run::Verdict;
use rota_engine::{
    Engine,
    stats::{Histogram, Stats},
};

use crate::{
    access::{May, NodeRead},
    problem::Problem,
};

const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

pub async fn scrape(may: May<NodeRead>) -> Response {
    match text_of(Counted(may.engine().clone())) {
        Some(text) => ([(header::CONTENT_TYPE, CONTENT_TYPE)], text).into_response(),
        None => Problem::not_ready("the metrics could not be written").into_response(),
    }
}

fn text_of(collector: impl Collector) -> Option<String> {
    let mut registry = Registry::with_prefix("rota");
    registry.register_collector(Box::new(collector));
    let mut text = String::with_capacity(16 << 10);
    encode(&mut text, &registry).is_ok().then_some(text)
}

/// An engine as a collector.
struct Counted(Engine);

impl std::fmt::Debug for Counted {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Counted").field(&self.0.node().id).finish()
    }
}

impl Collector for Counted {
    fn encode(&self, mut encoder: DescriptorEncoder) -> std::fmt::Result {
        let options = &self.0.node().options;
        let mut out = Out(&mut encoder);
        out.build(&options.name)?;
        out.gauge("attempts_max", "Maximum number of attempts in flight", options.slots as i64)?;
        out.stats(self.0.stats(), self.0.now())
    }
}

/// Upper bounds in seconds, and which of the engine's buckets, powers of two of
/// a microsecond, lie below each: enough to tell 1 ms from 10 ms and a second
/// from five without a series per bucket of the engine.
const BOUNDS: [usize; 13] = [8, 10, 12, 13, 14, 16, 18, 19, 20, 21, 22, 23, 25];

struct Out<'a, 'e>(&'a mut DescriptorEncoder<'e>);

impl Out<'_, '_> {
    fn build(&mut self, name: &str) -> std::fmt::Result {
        let labels = [("version", env!("CARGO_PKG_VERSION")), ("node", name)];
        let mut metric = self.0.encode_descriptor("build", "Version and name of this node", None, MetricType::Info)?;
        metric.encode_info(&labels)
    }

    fn stats(&mut self, stats: &Stats, now: Timestamp) -> std::fmt::Result {
        self.verdicts(stats)?;
        self.counter("fires", "Planned instants that fired", stats.fired.get())?;
        self.counter("skips", "Planned instants that were skipped", stats.skipped.get())?;
        self.counter("enqueues", "Runs created by hand, by programs or from the inbox", stats.enqueued.get())?;
        self.counter("inbox_refusals", "Inbox requests that were refused", stats.refused.get())?;
        self.counter("promotions", "Delayed runs that became due", stats.promoted.get())?;
        self.counter("attempts_started", "Attempts that started", stats.started.get())?;
        self.counter("retries", "Attempts that failed and are retried", stats.retried.get())?;
        self.counter("dead_letters", "Runs that used up their attempts", stats.ended_as(Verdict::Dead))?;
        self.counter("claims", "Claims of runs in claimed lanes", stats.claims.get())?;
        self.counter("settle_batches", "Writes that settled runs", stats.settle_batches.get())?;
        self.counter("store_batches", "Writes of settlements, fires and new runs", stats.store_batches.get())?;
        self.counter("store_batch_items", "Items in these writes", stats.store_items.get())?;
        self.counter("lease_losses", "Attempts stopped because their lease was lost", stats.lost.get())?;
        self.counter("settlements_refused", "Settlements refused because the lease was lost", stats.stale.get())?;
        self.counter("reaps", "Runs whose worker was lost", stats.reaped.get())?;
        self.counter("sweeps", "Runs whose deadline or wait was over", stats.swept.get())?;
        self.counter("store_errors", "Passes that failed because of the store", stats.store_errors.get())?;
        self.gauge("attempts_executing", "Attempts in flight", stats.executing.get())?;
        self.gauge("backlog", "Ready runs in this node's memory", stats.backlog.get())?;
        self.gauge("partitions_owned", "Partitions that this node owns, of 256", stats.partitions.get())?;
        let text = "Rows in the store that cannot be read and are left out";
        self.gauge("unreadable_rows", text, stats.unreadable.get())?;
        self.gauge("scan_findings", "Inconsistencies found by the last scan", stats.findings.get())?;
        self.gauge("schedules_overdue", "Schedules that did not fire in time", stats.overdue.get())?;
        let open = stats.dead_open.get();
        self.gauge(
            "dead_letters_open",
            "Dead letters that nobody has dealt with, up to 100,000; one node reports them",
            open,
        )?;
        let oldest = stats.oldest_dead.age(now).as_secs_f64();
        self.seconds("oldest_dead_letter_age", "Time since the oldest open dead letter died", oldest)?;
        let offset = stats.clock_offset.load(Ordering::Relaxed) as f64 / 1e6;
        self.seconds(
            "clock_offset",
            "How far the machine's clock was ahead of the store's when last measured",
            offset,
        )?;
        let error = stats.clock_error.load(Ordering::Relaxed) as f64 / 1e6;
        self.seconds("clock_error", "How far the time that this node uses may be behind the real one", error)?;
        self.counter("clock_steps", "How often the clock that this node follows was set", stats.clock_steps.get())?;
        let oldest = stats.oldest_queued.age(now).as_secs_f64();
        self.seconds(
            "oldest_queued_age",
            "How long the oldest queued run of all nodes has been waiting; one node reports it",
            oldest,
        )?;
        self.histogram(
            "store_latency",
            "Time from a write of settlements, fires or new runs to its answer",
            &stats.store_latency,
        )?;
        self.histogram("fire_lateness", "Time from a planned instant to the commit of its run", &stats.lateness)?;
        self.histogram("start_delay", "Time from ready to started", &stats.start_delay)?;
        self.histogram("run_duration", "Time from the start of a run's last attempt to its end", &stats.duration)
    }

    fn verdicts(&mut self, stats: &Stats) -> std::fmt::Result {
        let mut metric = self.0.encode_descriptor("runs_ended", "Ended runs by verdict", None, MetricType::Counter)?;
        for verdict in Verdict::ALL {
            let labels = [("verdict", verdict.as_str())];
            ConstCounter::new(stats.ended_as(verdict)).encode(metric.encode_family(&labels)?)?;
        }
        Ok(())
    }

    fn counter(&mut self, name: &str, help: &str, value: u64) -> std::fmt::Result {
        ConstCounter::new(value).encode(self.0.encode_descriptor(name, help, None, MetricType::Counter)?)
    }

    fn gauge(&mut self, name: &str, help: &str, value: i64) -> std::fmt::Result {
        ConstGauge::new(value).encode(self.0.encode_descriptor(name, help, None, MetricType::Gauge)?)
    }

    fn seconds(&mut self, name: &str, help: &str, value: f64) -> std::fmt::Result {
        let metric = self.0.encode_descriptor(name, help, Some(&Unit::Seconds), MetricType::Gauge)?;
        ConstGauge::new(value).encode(metric)
    }

    fn histogram(&mut self, name: &str, help: &str, histogram: &Histogram) -> std::fmt::Result {
        let counts = histogram.buckets();
        let mut left = counts.iter().copied().enumerate().peekable();
        let mut upto = |bound: usize| {
            std::iter::from_fn(|| left.next_if(|(n, _)| *n <= bound)).map(|(_, count)| count).sum::<u64>()
        };
        let mut buckets: Vec<(f64, u64)> =
            BOUNDS.iter().map(|bound| ((1_u64 << bound) as f64 / 1e6, upto(*bound))).collect();
        buckets.push((f64::INFINITY, upto(usize::MAX)));
        let (sum, count) = (histogram.sum_micros() as f64 / 1e6, counts.iter().sum());
        let mut metric = self.0.encode_descriptor(name, help, Some(&Unit::Seconds), MetricType::Histogram)?;
        metric.encode_histogram::<prometheus_client::encoding::NoLabelSet>(sum, count, &buckets, None)
    }
}

#[cfg(test)]
mod tests {
    use jiff::SignedDuration;

    use super::*;

    #[derive(Debug)]
    struct Alone(Stats);

    impl Collector for Alone {
        fn encode(&self, mut encoder: DescriptorEncoder) -> std::fmt::Result {
            Out(&mut encoder).stats(&self.0, Timestamp::from_second(100).unwrap())
        }
    }

    fn text(stats: Stats) -> String {
        text_of(Alone(stats)).unwrap()
    }

    #[test]
    fn runs_are_counted_by_verdict() {
        let stats = Stats::default();
        stats.count_end(Verdict::Dead);
        stats.store_batches.add(2);
        stats.store_items.add(700);
        stats.oldest_queued.set(Timestamp::from_second(70).ok());
        stats.dead_open.set(3);
        stats.oldest_dead.set(Timestamp::from_second(40).ok());
        stats.count_end(Verdict::Succeeded);
        stats.count_end(Verdict::Succeeded);
        let text = text(stats);
        for line in [
            "# TYPE rota_runs_ended counter",
            "rota_runs_ended_total{verdict=\"succeeded\"} 2",
            "rota_runs_ended_total{verdict=\"expired\"} 0",
            "rota_dead_letters_total 1",
            "rota_scan_findings 0",
            "rota_store_batches_total 2",
            "rota_store_batch_items_total 700",
            "rota_oldest_queued_age_seconds 30.0",
            "rota_dead_letters_open 3",
            "rota_oldest_dead_letter_age_seconds 60.0",
            "rota_clock_offset_seconds 0.0",
        ] {
            assert!(text.lines().any(|found| found == line), "{line}\n{text}");
        }
        assert!(text.ends_with("# EOF\n"));
    }

    /// A bound that counted too little would show a service as faster than it is.
    #[test]
    fn buckets_add_up_and_hold_what_lies_below_their_bound() {
        let stats = Stats::default();
        for micros in [0, 200, 900, 2_000, 1_000_000, 3_000_000, 300_000_000] {
            stats.lateness.add(SignedDuration::from_micros(micros));
        }
        let text = text(stats);
        for (bound, count) in [("0.000256", 2), ("0.001024", 3), ("1.048576", 5), ("4.194304", 6), ("+Inf", 7)] {
            let line = format!("rota_fire_lateness_seconds_bucket{{le=\"{bound}\"}} {count}");
            assert!(text.lines().any(|found| found == line), "{line}\n{text}");
        }
        assert!(text.contains("rota_fire_lateness_seconds_count 7"), "{text}");
    }
}
