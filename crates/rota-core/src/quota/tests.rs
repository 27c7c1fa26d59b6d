use serde_json::json;

use super::*;

fn free() -> Quotas {
    Quotas::of(Tier::Free)
}

fn document(more: &Value) -> JobDocument {
    let mut value = json!({ "name": "job", "steps": [{ "id": "only", "handler": { "name": "hello" } }] });
    for (key, field) in more.as_object().unwrap() {
        value[key] = field.clone();
    }
    JobDocument::from_value(value).unwrap()
}

/// The paths and quotas of what a document is refused for.
#[allow(clippy::needless_pass_by_value, reason = "written where it is used")]
fn refused(quotas: &Quotas, more: Value) -> Vec<String> {
    quotas.document(&document(&more)).iter().map(|refusal| format!("{} {}", refusal.path, refusal.quota)).collect()
}

#[test]
fn each_tier_has_the_limits_of_the_table() {
    let numbers = |tier| {
        let quotas = Quotas::of(tier);
        let rate = |n: Option<NonZeroU32>| n.unwrap().get();
        (
            quotas.active_schedules.unwrap(),
            (rate(quotas.runs_per_minute), quotas.payload_bytes.unwrap()),
            (rate(quotas.history_days), quotas.max_retries.unwrap()),
            (quotas.shortest_interval.unwrap(), quotas.best().get()),
            (quotas.dead_letters, rate(quotas.api_requests_per_s)),
        )
    };
    let secs = Span::secs;
    assert_eq!(numbers(Tier::Free), (10_000, (100, 1_000), (30, 3), (secs(60), 8), (false, 10)));
    assert_eq!(numbers(Tier::Pro), (100_000, (1_000, 10_000), (180, 5), (secs(10), 3), (true, 100)));
    assert_eq!(numbers(Tier::Enterprise), (1_000_000, (10_000, 100_000), (365, 10), (secs(1), 1), (true, 1_000)));
    assert_eq!(Quotas::of(Tier::Unlimited), Quotas::NONE);
}

#[test]
fn a_document_is_held_to_every_limit_and_each_refusal_names_its_place() {
    let big = "x".repeat(1_000);
    for (more, expected) in [
        (json!({}), vec![]),
        (json!({ "priority": 8 }), vec![]),
        (json!({ "priority": 7 }), vec!["priority best_priority"]),
        (json!({ "retry": { "max_attempts": 4 } }), vec![]),
        (json!({ "retry": { "max_attempts": 5 } }), vec!["retry.max_attempts max_retries"]),
        (
            json!({ "steps": [
                { "id": "a", "handler": { "name": "h" }, "retry": { "max_attempts": 9 } },
                { "id": "b", "handler": { "name": "h" } },
            ] }),
            vec!["steps[0].retry.max_attempts max_retries"],
        ),
        (json!({ "dead": { "redrive_after": "1h" } }), vec!["dead dead_letters"]),
        (json!({ "input": { "default": { "a": big } } }), vec!["input.default payload_bytes"]),
        (
            json!({ "schedules": [
                { "name": "a", "cron": "* * * * *" },
                { "name": "b", "cron": "*/30 * * * * *" },
                { "name": "c", "every": "59s" },
                { "name": "d", "after_finish": "1m", "payload": { "a": big } },
                { "name": "e", "cron": "@every 30s" },
                { "name": "f", "at": "2030-01-01T00:00:00Z" },
            ] }),
            vec![
                "schedules[1].cron shortest_interval",
                "schedules[2].every shortest_interval",
                "schedules[3].payload payload_bytes",
                "schedules[4].cron shortest_interval",
            ],
        ),
    ] {
        assert_eq!(refused(&free(), more.clone()), expected, "{more}");
        assert!(refused(&Quotas::NONE, more).is_empty());
    }
}

#[test]
fn a_refusal_says_what_was_asked_and_what_is_allowed() {
    let refusal = free().run(None, Priority::new(2)).unwrap();
    let words = "priority: priority 2 is too urgent; the tenant's quota best_priority is 8 (so 8 to 10)";
    assert_eq!(refusal.to_string(), words);
    assert_eq!(refusal.problem().code, "best_priority");
    let refusal = free().run(Some(&json!("x".repeat(999))), None).unwrap();
    let words = "payload: the payload has 1001 bytes; the tenant's quota payload_bytes is 1000";
    assert_eq!(refusal.to_string(), words);
    assert_eq!(free().run(Some(&json!("x".repeat(998))), Priority::new(8)), None);
}

#[test]
fn schedules_are_counted_with_those_to_come() {
    let what = Held::ActiveSchedules;
    assert_eq!(free().more(what, 9_999, 1), None);
    assert_eq!(free().more(what, 20_000, 0), None, "who has too many may still save what adds none");
    assert_eq!(free().more(what, 10_000, 1).unwrap().quota, Quota::ActiveSchedules);
    for what in Held::ALL {
        let most = free().most(what).unwrap();
        assert_eq!(free().more(what, most - 1, 1), None);
        assert_eq!(free().more(what, most, 1).unwrap().limit, most.to_string());
        assert_eq!(Quotas::NONE.more(what, u64::MAX, u64::MAX), None);
    }
}

#[test]
fn a_tenants_quotas_lower_the_limits_of_the_installation_and_never_raise_them() {
    let limits = Limits::default();
    let lowered = free().limits(limits);
    assert_eq!((lowered.calendars, lowered.tenant_workers), (100, 20));
    assert_eq!(Limits { calendars: limits.calendars, tenant_workers: limits.tenant_workers, ..lowered }, limits);
    let own = Quotas { calendars: Some(u64::MAX), workers: None, ..free() };
    assert_eq!(own.limits(limits), limits);
}

#[test]
fn a_days_budget_of_definitions_is_counted_in_pieces_of_a_kilobyte() {
    assert_eq!([0, 1, 1_024, 1_025, 1 << 20].map(pieces), [1, 1, 1, 2, 1_024]);
    assert_eq!(pieces(u64::MAX), u32::MAX);
    let quotas =
        Quotas { definition_bytes_per_day: Some(10_000), new_lanes_per_day: NonZeroU32::new(3), ..Quotas::NONE };
    assert_eq!(quotas.daily(Daily::DefinitionBytes), Some(Rate { runs: 10, per: Span::secs(86_400) }));
    assert_eq!(quotas.daily(Daily::NewLanes), Some(Rate { runs: 3, per: Span::secs(86_400) }));
    assert_eq!(Quotas::NONE.daily(Daily::NewLanes), None);
    let at = Timestamp::UNIX_EPOCH;
    let refusal = quotas.over_day(Daily::NewLanes, at).unwrap();
    assert_eq!((refusal.quota, refusal.retry_at), (Quota::NewLanesPerDay, Some(at)));
}

#[test]
fn a_tenants_own_quotas_lie_over_its_tiers() {
    let own = json!({ "runs_per_minute": 5, "payload_bytes": "2KB", "shortest_interval": "5s", "history_days": null,
        "best_priority": 1, "dead_letters": true, "max_retries": 0, "active_schedules": 1, "api_requests_per_s": 1 });
    let quotas = free().under(&own).unwrap();
    assert_eq!((quotas.runs_per_minute.unwrap().get(), quotas.payload_bytes), (5, Some(2_000)));
    assert_eq!((quotas.history_days, quotas.shortest_interval), (None, Some(Span::secs(5))));
    assert_eq!((quotas.best(), quotas.dead_letters, quotas.max_retries), (Priority::HIGHEST, true, Some(0)));
    assert_eq!(free().under(&json!({})).unwrap(), free());
    let tenant =
        |quotas: &str| Tenant { id: TenantId(1), name: "t".into(), tier: Tier::Free, quotas: Some(quotas.into()) };
    assert_eq!(Tiers::default().of_tenant(&tenant("{\"max_retries\":0}")).max_retries, Some(0));
    assert_eq!(Tiers::default().of_tenant(&tenant("{\"x\":1}")), free(), "what cannot be read changes nothing");
}

#[test]
fn quotas_that_cannot_be_read_are_refused_by_their_names() {
    let own = json!({ "run_per_minute": 5, "runs_per_minute": 0, "max_retries": "many", "dead_letters": true });
    let problems = free().under(&own).unwrap_err();
    let found: Vec<_> = problems.iter().map(|problem| (problem.path.as_str(), problem.code)).collect();
    let expected =
        [("max_retries", "bad_value"), ("run_per_minute", "unknown_field"), ("runs_per_minute", "bad_value")];
    assert_eq!(found, expected);
    assert!(free().under(&json!([])).is_err());
}

/// What an installation says of a tier holds for its tenants, under what each has of
/// its own, and for no other tier.
#[test]
fn an_installations_own_lies_between_the_table_and_the_tenant() {
    let own = json!({ "runs_per_minute": 7, "max_retries": null });
    let tiers = Tiers::default().with(Tier::Free, &own).unwrap();
    let tenant = |tier, quotas: Option<&str>| Tenant {
        id: TenantId(1),
        name: "acme".into(),
        tier,
        quotas: quotas.map(Into::into),
    };
    let rate = |quotas: Quotas| quotas.runs_per_minute.map(NonZeroU32::get);
    let free = tiers.of_tenant(&tenant(Tier::Free, None));
    assert_eq!((free.max_retries, free.active_schedules, rate(free)), (None, Some(10_000), Some(7)));
    assert_eq!(rate(tiers.of_tenant(&tenant(Tier::Free, Some("{\"runs_per_minute\":9}")))), Some(9));
    assert_eq!(tiers.of_tenant(&tenant(Tier::Pro, None)), Quotas::of(Tier::Pro));
    assert_eq!(tiers.of_tenant(&tenant(Tier::Unlimited, None)), Quotas::NONE);
    let problems = Tiers::default().with(Tier::Pro, &json!({ "runs": 1, "max_retries": "x" })).unwrap_err();
    assert_eq!(problems.iter().map(|problem| problem.path.as_str()).collect::<Vec<_>>(), ["max_retries", "runs"]);
}
