use rota_core::{
    evaluation::templates::SOURCE_BYTES_MAX,
    job::{
        document::JobDocument,
        kinds::{Command, Program},
        template::{TemplateKind, templates},
    },
    run::Outcome,
};
use serde_json::json;

use super::*;

fn values() -> Values {
    Values::new()
        .with(
            "payload",
            json!({ "n": 7, "big": u64::MAX, "f": 0.5, "yes": true, "nothing": null, "name": "Ann", "text": "3",
                    "list": [1, 2], "map": { "a": { "b": "c" } }, "empty": "" }),
        )
        .with("labels", json!({ "scope": "user" }))
        .with("schedule", json!({ "planned_at": "2026-11-15T20:30:00Z", "timezone": "Asia/Ho_Chi_Minh" }))
}

fn rendered(text: &str) -> Value {
    Renderer::new().value(&json!(text), &values()).unwrap_or_else(|error| panic!("{text}: {error}"))
}

fn refusal(text: &str) -> String {
    match Renderer::new().value(&json!(text), &values()) {
        Ok(value) => panic!("{text} yielded {value}"),
        Err(error) => error.to_string(),
    }
}

#[test]
fn one_expression_yields_its_value_and_anything_more_yields_text() {
    for (text, expected) in [
        ("plain", json!("plain")),
        ("{{ payload.n }}", json!(7)),
        ("{{payload.n}}", json!(7)),
        (" {{- payload.n -}}\n", json!(7)),
        ("{{ payload.big }}", json!(u64::MAX)),
        ("{{ payload.f }}", json!(0.5)),
        ("{{ payload.yes }}", json!(true)),
        ("{{ payload.nothing }}", json!(null)),
        ("{{ payload.name }}", json!("Ann")),
        ("{{ payload.list }}", json!([1, 2])),
        ("{{ payload.map }}", json!({ "a": { "b": "c" } })),
        ("{{ payload['map'].a }}", json!({ "b": "c" })),
        ("{{ {'a': {'b': payload.n}} }}", json!({ "a": { "b": 7 } })),
        ("{{ '}}' }}", json!("}}")),
        ("{{ payload.n }}!", json!("7!")),
        ("{{ payload.n }}{{ payload.n }}", json!("77")),
        ("{{ payload.list }} {{ payload.map }} {{ payload.yes }}", json!(r#"[1,2] {"a":{"b":"c"}} true"#)),
        ("<{{ payload.name }}>", json!("<Ann>")),
        ("{% for n in payload.list %}{{ n }};{% endfor %}", json!("1;2;")),
        ("{% if payload.yes %}a{% else %}b{% endif %}", json!("a")),
        ("{# said #}x", json!("x")),
        ("{% raw %}{{ a * b }}{% endraw %}", json!("{{ a * b }}")),
        ("{{ payload.n * 60 }}", json!(420)),
        ("{{ 1 + payload.n * payload.n - 2 }}", json!(48)),
        ("{{ (payload.text | int) * 2 }}", json!(6)),
        ("{{ payload.name ~ '-' ~ payload.n }}", json!("Ann-7")),
        ("{{ payload.list | length }}", json!(2)),
        ("{{ payload.list | map('string') | join('+') }}", json!("1+2")),
        ("{{ payload.gone | default('x') }}", json!("x")),
        ("{{ payload.gone is defined }}", json!(false)),
        ("{{ ('{\"id\": [4]}' | fromjson).id[0] }}", json!(4)),
        ("{{ payload.map | tojson }}", json!(r#"{"a":{"b":"c"}}"#)),
    ] {
        assert_eq!(rendered(text), expected, "{text}");
    }
}

/// A step with statements or comments alone must not reach its target as it is written.
#[test]
fn a_step_is_rendered_whichever_tag_it_has() {
    for (text, is_template) in [
        ("{{ payload.n }}", true),
        ("{% if payload.n %}a{% endif %}", true),
        ("a{# nothing #}", true),
        ("{ plain }", false),
    ] {
        let job = json!({ "name": "a", "steps": [{ "id": "s", "handler": { "name": "h", "payload": [text] } }] });
        let version = crate::catalog::JobVersion::read(rota_core::ids::JobId(1), 1, &job.to_string(), 3).unwrap();
        assert_eq!(version.templated, is_template, "{text}");
    }
}

/// A typo must not become an empty text in somebody's request.
#[test]
fn a_missing_value_is_an_error_that_names_its_path() {
    for (text, path) in [
        ("{{ payload.gone }}", "`payload.gone` has no value"),
        ("{{ payload.map.a.gone }}", "`payload.map.a.gone` has no value"),
        ("{{ payload.gone.deeper }}", "`payload.gone.deeper` has no value"),
        ("{{ secrets.token }}", "`secrets.token` has no value"),
        ("{{ nobody }}", "`nobody` has no value"),
        ("a {{ payload.gone }} b", "`payload.gone` has no value"),
        ("a {{ nobody }} b", "`nobody` has no value"),
        ("a {{ payload.gone.deeper }} b", "`payload.gone.deeper` has no value"),
        ("{{ payload.list[9] }}", "`payload.list[9]` has no value"),
        ("{% for x in payload.gone %}{% endfor %}", "`payload.gone` has no value"),
        ("{{ [payload.gone] }}", "has no value"),
    ] {
        let refusal = refusal(text);
        assert!(refusal.contains(path), "{text}: {refusal}");
    }
}

#[test]
fn null_has_no_text() {
    assert!(refusal("a {{ payload.nothing }}").contains("null"));
    let text = Renderer::new().text("{{ payload.nothing }}", &values()).unwrap_err().to_string();
    assert!(text.contains("null"), "{text}");
    assert_eq!(Renderer::new().text("{{ payload.n }}", &values()).unwrap(), "7");
    assert_eq!(Renderer::new().text("{{ payload.list }}", &values()).unwrap(), "[1,2]");
}

/// One job must not stop a node that runs many tenants'.
#[test]
fn costly_templates_are_refused_before_they_cost() {
    for text in [
        "{{ [0] * 100000000 }}",
        "{{ 100000000 * [0] }}",
        "{{ payload.list * 100000000 }}",
        "{{ 'a' * 100000000 }}",
        "{{ 100000000 * payload.name }}",
        "a {{ [0] * 100000000 }}",
        "{{ ([0] * 100000000) | length }}",
        "{{ [0] * 100000000 == [0] * 100000000 }}",
        "{{ range(99999) | list }}{{ range(99999) | list }}{{ range(99999) | list }}",
        "{% for a in range(1000) %}{% for b in range(1000) %}{% endfor %}{% endfor %}",
        "{% set a = 'aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa' %}\
         {% set a = a ~ a %}{% set a = a ~ a %}{% set a = a ~ a %}{% set a = a ~ a %}{% set a = a ~ a %}\
         {% set a = a ~ a %}{% set a = a ~ a %}{% set a = a ~ a %}{% set a = a ~ a %}{% set a = a ~ a %}\
         {% set a = a ~ a %}{% set a = a ~ a %}{% set a = a ~ a %}{% set a = a ~ a %}{% set a = a ~ a %}\
         {% set a = a ~ a %}{% set a = a ~ a %}{% set a = a ~ a %}{% set a = a ~ a %}{% set a = a ~ a %}",
        "{{ (range(99999) | join('a')) | replace('a', range(99999) | join('b')) }}",
        "{% include 'x' %}",
        "{% macro a() %}{% endmacro %}",
        "{{ namespace() }}",
        "{{ debug() }}",
        "{{ '%1000000000d' | format(1) }}",
    ] {
        refusal(text);
    }
    refusal(&format!("{{{{ {}1{} }}}}", "(".repeat(50_000), ")".repeat(50_000)));
    refusal(&format!("{{{{ {}1{} }}}}", "[".repeat(5_000), "]".repeat(5_000)));
    assert!(refusal(&format!("{{{{ 1 }}}}{}", " ".repeat(SOURCE_BYTES_MAX))).contains("longer than"));
    let wide = format!("{}{{{{ payload.n }}}}", "x".repeat(SOURCE_BYTES_MAX - 20));
    assert_eq!(rendered(&wide).as_str().map(str::len), Some(SOURCE_BYTES_MAX - 19));
}

/// Each of these is few instructions over large texts: 390 bytes held a thread for seconds, and
/// with it everybody's health checks and schedules.
#[test]
fn templates_that_read_and_copy_too_much_are_given_up() {
    let doubled = "{% set a = 'aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa' %}".to_owned()
        + &"{% set a = a ~ a %}".repeat(11);
    for (what, text) in [
        ("filters", format!("{doubled}{{% for i in range(5000) %}}{{% set b = a|upper|lower|title %}}{{% endfor %}}")),
        ("searches", format!("{doubled}{{% for i in range(9000) %}}{{% if 'b' in a %}}{{% endif %}}{{% endfor %}}")),
        (
            "no searches",
            format!("{doubled}{{% for i in range(9000) %}}{{% if 'b' not in a %}}{{% endif %}}{{% endfor %}}"),
        ),
        (
            "comparisons",
            format!("{doubled}{{% for i in range(9000) %}}{{% if a == a ~ '' %}}{{% endif %}}{{% endfor %}}"),
        ),
        ("additions", format!("{doubled}{{% for i in range(9000) %}}{{% set b = 'b' ~ a %}}{{% endfor %}}")),
        ("lists", "{% set l = range(9999) | list %}{% for i in range(999) %}{% set b = l | sort %}{% endfor %}".into()),
        (
            "filters by name",
            format!(
                "{{% set l = range(3000) %}}{doubled}{{% for i in l %}}{{% set b = [a, a, a]|map('upper')|list %}}{{% endfor %}}"
            ),
        ),
    ] {
        let refusal = refusal(&text);
        assert!(refusal.contains("work on more than 32 MiB"), "{what}: {refusal}");
        assert!(!refusal.contains("sought") && !refusal.contains("compared"), "{what}: {refusal}");
    }
    // What is sought in, or sliced, is the caller's own and any size.
    let large = Values::new().with("payload", json!({ "l": vec![1; 100_000], "m": [1, 2, 3] }));
    for text in [
        "{% for i in range(100) %}{% if none in payload.l %}{% endif %}{% endfor %}",
        "{% for i in range(100) %}{% if none not in payload.l %}{% endif %}{% endfor %}",
        &"{% if none in payload.l %}{% endif %}".repeat(100),
        "{% set l = range(99999) | list %}{% for i in range(5000) %}{% if none in l %}{% endif %}{% endfor %}",
        &"{{ payload.l[::-1] | length }} ".repeat(100),
        "{% for i in range(5000) %}{% if none in range(99999) %}{% endif %}{% endfor %}",
        "{% set k = {'if': none} %}{% for i in range(100) %}{% if k.if in payload.l %}{% endif %}{% endfor %}",
        &("{% set t = (1, 2) %}".to_owned() + &"{% set t = t + t %}".repeat(30)),
        &("{% set t = [1, 2] %}".to_owned() + &"{% set t = t + t %}".repeat(30) + "{{ none in t }}"),
    ] {
        let refusal = Renderer::new().value(&json!(text), &large).unwrap_err().to_string();
        assert!(refusal.contains("work on more than 32 MiB"), "{text}: {refusal}");
    }
    // What has no bound is not there.
    for text in [
        "{% for i in range(2) %}{{ payload.m[1:] }}{% endfor %}",
        "{% set x %}{% for i in range(6000) %}{{ payload.l }}{% endfor %}{% endset %}",
        "{% filter upper %}{% for i in range(6000) %}aaaaaaaaaa{% endfor %}{% endfilter %}",
        "{% for i in payload.m recursive %}{{ loop(payload.m) }}{% endfor %}",
    ] {
        let refusal = Renderer::new().value(&json!(text), &large).unwrap_err().to_string();
        assert!(refusal.contains("is not supported"), "{text}: {refusal}");
    }
    // The templates of a step share what there is.
    let loops = json!(vec!["{% for i in range(900) %}{{ i }}{% endfor %}"; 100]);
    let refusal = Renderer::new().value(&loops, &values()).unwrap_err().to_string();
    assert!(refusal.contains("work on more than"), "{refusal}");
    let plain = json!(vec!["{{ payload.name }} {{ payload.n + 1 }}"; 5_000]);
    assert!(Renderer::new().value(&plain, &values()).is_ok(), "as many as a job may have");
}

#[test]
fn operators_mean_what_they_meant() {
    for (text, expected) in [
        ("{{ 1 in payload.list }}", json!(true)),
        ("{{ 9 not in payload.list }}", json!(true)),
        ("{{ 'n' in payload.name and payload.n > 3 }}", json!(true)),
        ("{{ payload.n + 1 == 8 and payload.name != 'Bob' }}", json!(true)),
        ("{{ 'yes' if payload.n >= 7 else 'no' }}", json!("yes")),
        ("{{ payload.n is in([7]) }}", json!(true)),
        ("{% for x in payload.list if x not in [1] %}{{ x }}{% endfor %}", json!("2")),
        ("{% for x in [1, 2] %}{% if x in payload.list and x < 2 %}{{ x }}{% endif %}{% endfor %}", json!("1")),
        ("{{ payload.list | select('>', 1) | list }}", json!([2])),
        ("{{ payload.list == [1, 2] }}", json!(true)),
        ("{{ payload.list[1:] }}", json!([2])),
        ("{% if payload.n %}Deploy {{ payload.name[:2] }} for {{ payload.n }}{% endif %}", json!("Deploy An for 7")),
        ("{% for x in payload.list[:1] %}{{ x }}{% endfor %}", json!("1")),
        ("{{ payload.list + [3] }}", json!([1, 2, 3])),
        ("{{ {'a': [1, 2][:1]} }}", json!({ "a": [1] })),
        ("{% for x in range(1000) %}{% if x in payload.list %}{{ x }}{% endif %}{% endfor %}", json!("12")),
    ] {
        assert_eq!(rendered(text), expected, "{text}");
    }
}

#[test]
fn dates_are_those_of_the_schedules_zone_unless_another_is_asked_for() {
    for (text, expected) in [
        ("{{ schedule.planned_at | date }}", json!("2026-11-16")),
        ("{{ schedule.planned_at | date(timezone='UTC') }}", json!("2026-11-15")),
        ("{{ schedule.planned_at | date('%d.%m.%Y %H:%M') }}", json!("16.11.2026 03:30")),
        ("{{ schedule.planned_at | unix }}", json!(1_794_774_600)),
    ] {
        assert_eq!(rendered(text), expected, "{text}");
    }
    let unscheduled = Values::new().with("payload", json!({ "at": "2026-11-15T20:30:00Z" }));
    let day = Renderer::new().value(&json!("{{ payload.at | date }}"), &unscheduled).unwrap();
    assert_eq!(day, json!("2026-11-15"));
    assert!(refusal("{{ payload.name | date }}").contains("`Ann` is not an instant"));
    assert!(refusal("{{ schedule.planned_at | date(timezone='Mars') }}").contains("`Mars` is not a time zone"));
    refusal("{{ schedule.planned_at | date('%Q%!') }}");
}

#[test]
fn conditions_are_expressions() {
    let renderer = Renderer::new();
    for (expression, expected) in [
        ("payload.n > 3", true),
        ("payload.list | length == 0", false),
        ("payload.empty", false),
        ("not payload.gone is defined", true),
    ] {
        assert_eq!(renderer.condition(expression, &values()), Ok(expected), "{expression}");
    }
    let refusal = renderer.condition("payload.gone", &values()).unwrap_err().to_string();
    assert_eq!(refusal, "`payload.gone` has no value");
    assert!(renderer.condition("payload.n >", &values()).is_err());
}

/// What is kept of the first time must not answer for other values.
#[test]
fn compiled_templates_are_shared_and_values_are_not() {
    let renderer = Renderer::new();
    for n in 0..3 {
        let values = Values::new().with("payload", json!({ "n": n }));
        assert_eq!(renderer.value(&json!("{{ payload.n }}"), &values), Ok(json!(n)));
        assert_eq!(renderer.value(&json!("n={{ payload.n }}"), &values), Ok(json!(format!("n={n}"))));
        assert_eq!(renderer.condition("payload.n == 1", &values), Ok(n == 1));
    }
}

fn job(steps: &Value) -> JobDocument {
    serde_json::from_value(json!({ "name": "a", "steps": steps })).unwrap()
}

/// Every field that a save checks as a template is filled in when it runs, and
/// no other one is.
#[test]
fn the_fields_filled_in_are_those_that_core_lists() {
    let t = "{{ payload.name }}";
    let mut job = job(&json!([
        { "id": "a", "http": { "url": t, "headers": { "A": t }, "query": { "q": [t] }, "json": { "x": [{ "y": t }] },
            "auth": { "basic": { "username": t, "password": t } }, "tls": { "ca": t, "certificate": t, "key": t },
            "sign": { "secret": t } } },
        { "id": "b", "http": { "url": t, "form": { "f": t }, "auth": { "bearer": t } } },
        { "id": "c", "http": { "url": t, "body": t, "auth": { "oauth2": { "token_url": t, "client_id": t,
            "client_secret": t, "scopes": [t], "audience": t } } } },
        { "id": "d", "sql": { "connection": "c", "statement": "select '{{1}}'", "params": [t] } },
        { "id": "e", "file": { "read": { "path": t, "sheet": t }, "write": { "path": t }, "filter": "row.a",
            "columns": [{ "from": t, "to": t }] } },
        { "id": "f", "sftp": { "host": t, "username": t, "key": t, "passphrase": t, "host_key": t, "move": { "from": t, "to": t } } },
        { "id": "g", "sftp": { "host": t, "username": t, "password": t, "host_key": t, "upload": { "from": t, "to": t } } },
        { "id": "h", "sftp": { "host": t, "username": t, "password": t, "host_key": t, "download": { "from": t, "to": t } } },
        { "id": "i", "sftp": { "host": t, "username": t, "password": t, "host_key": t, "list": t } },
        { "id": "j", "sftp": { "host": t, "username": t, "password": t, "host_key": t, "delete": t } },
        { "id": "k", "command": { "program": t, "args": [t], "env": { "A": t }, "stdin": t, "directory": t } },
        { "id": "l", "handler": { "name": "h", "payload": [t] } },
        { "id": "m", "job": { "name": "j", "payload": t, "labels": { "l": t } } },
        { "id": "n", "sleep": { "until": t } },
        { "id": "o", "approval": { "message": t, "by": [t] } },
        { "id": "p", "wait": { "token": t } },
    ]));
    let listed = templates(&job).into_iter().filter(|found| found.kind == TemplateKind::Text).count();
    let written = json!(job.steps).to_string().matches(t).count();
    assert_eq!(listed, written, "core lists each field written above");
    for step in &mut job.steps {
        step.kind = Renderer::new().step(&step.kind, values).unwrap();
    }
    let left: Vec<_> = templates(&job).into_iter().filter(|found| found.kind == TemplateKind::Text).collect();
    assert_eq!(left, []);
    assert!(json!(job.steps[3]).to_string().contains("select '{{1}}'"), "SQL is never filled in");
}

#[test]
fn a_shell_text_is_never_filled_in() {
    let kind = StepKind::Command(Command { program: Program::Shell("echo {{ payload.name }}".to_owned()), ..plain() });
    assert_eq!(Renderer::new().step(&kind, values), Ok(kind));
}

fn plain() -> Command {
    let program = Program::Plain { program: "true".to_owned(), args: Vec::new() };
    Command { program, env: std::collections::BTreeMap::new(), stdin: None, directory: None, expect: None }
}

#[test]
fn a_step_without_templates_asks_for_no_values() {
    let kind = StepKind::Command(plain());
    let asked = || panic!("nothing to fill in");
    assert_eq!(Renderer::new().step(&kind, asked), Ok(kind.clone()));
}

#[test]
fn a_step_that_cannot_be_filled_in_is_invalid_input_and_says_where() {
    let job = job(&json!([{ "id": "a", "http": { "url": "http://x", "json": { "a": ["{{ payload.gone }}"] } } }]));
    let outcome: Outcome = Renderer::new().step(&job.steps[0].kind, values).unwrap_err().into();
    let Outcome::Failed(failure) = outcome else { panic!("{outcome:?}") };
    assert_eq!(failure.kind, ErrorKind::InvalidInput);
    assert_eq!(failure.message, "http.json.a[0]: `payload.gone` has no value");
}
