//! Layers, mistakes and masks.

use clap::{Args as _, FromArgMatches as _};

use super::{values::masked, *};

fn flags(arguments: &[&str]) -> Flags {
    let command = Flags::augment_args(clap::Command::new("rota").no_binary_name(true));
    Flags::from_arg_matches(&command.try_get_matches_from(arguments).unwrap()).unwrap()
}

fn read_with(arguments: &[&str], variables: &[(&str, &str)]) -> Result<(Config, Layers), String> {
    let variable = |name: &str| variables.iter().find(|(key, _)| *key == name).map(|(_, value)| (*value).to_owned());
    read(&flags(arguments), variable).map_err(|failure| match failure {
        Failure::BadInput { message, .. } => message,
        other => format!("{other:?}"),
    })
}

fn file(text: &str) -> PathBuf {
    let path = std::env::temp_dir().join(format!("rota-config-{}.toml", uuid::Uuid::now_v7()));
    std::fs::write(&path, text).unwrap();
    path
}

#[test]
fn a_flag_counts_before_the_environment_and_that_before_the_file() {
    let path = file("attempts_max = 1\ndrain = \"1s\"\nname = \"file\"\n[egress]\nallow = [\"10.0.0.0/8\"]\n");
    let path = path.to_str().unwrap();
    let variables = [("ROTA_DRAIN", "2s"), ("ROTA_NAME", "variable"), ("ROTA_CONFIG", path)];
    let (config, layers) = read_with(&["--name", "flag"], &variables).unwrap();
    assert_eq!((config.attempts_max, config.drain, config.name.as_str()), (1, Span::secs(2), "flag"));
    assert_eq!(config.egress.allow.len(), 1);
    assert_eq!(config.history_keep, Span::secs(7 * 86_400));
    let sources = ["attempts_max", "drain", "name", "history.keep"].map(|key| layers.get(key).unwrap().source.clone());
    let expected = [
        Source::File(path.into()),
        Source::Variable("ROTA_DRAIN".into()),
        Source::Flag("name".into()),
        Source::Default,
    ];
    assert_eq!(sources, expected);
    std::fs::remove_file(path).unwrap();
}

#[test]
fn every_mistake_is_told_with_its_field_and_source() {
    let path = file("lisen = 1\nroles = \"api\"\n[egress]\nreach = \"all\"\n[nowhere]\nx = 1\n");
    let text = path.to_str().unwrap();
    let arguments = ["--config", text, "--listen", "here", "--attempts-max", "0", "--commands-allow", "/bin/"];
    let told = read_with(&arguments, &[("ROTA_LEASES_NODE", "1ms"), ("ROTA_LOG_LEVEL", "loud=3")]).unwrap_err();
    for expected in [
        format!("lisen: unknown field ({text})"),
        format!("roles: expected a list of texts, found string ({text})"),
        format!("egress.reach: `all` is not one of public, listed, anything ({text})"),
        format!("nowhere: unknown field ({text})"),
        "listen: `here` is not an address and port: write for example 127.0.0.1:7070 (--listen)".into(),
        "attempts_max: 0 is not between 1 and 1000000 (--attempts-max)".into(),
        "commands.allow: a list has an effect only with commands.policy `listed`, not with `off` (--commands-allow)"
            .into(),
        "leases.node: 1ms is too short; the minimum is 500ms (ROTA_LEASES_NODE)".into(),
        "log.level: `loud=3` is not a valid level".into(),
    ] {
        assert!(told.contains(&expected), "{expected}\nin\n{told}");
    }
    std::fs::remove_file(path).unwrap();
}

#[test]
fn what_cannot_confine_commands_is_refused() {
    let refused = |arguments: &[&str], expected: &str| {
        let told = read_with(arguments, &[]).unwrap_err();
        assert!(told.contains(expected), "{arguments:?}: {told}");
    };
    let any = ["--commands-policy", "any"];
    let with = |more: &[&'static str]| [&any[..], more].concat();
    refused(&with(&["--commands-variables", "APP_*"]), "has an effect only with commands.policy `listed`");
    refused(&with(&["--commands-directories", "/srv"]), "has an effect only with commands.policy `listed`");
    refused(&with(&["--commands-user", "nobody-of-that-name"]), "this machine has no user");
    refused(&with(&["--commands-processes", "5"]), "so it needs commands.user");
    refused(&with(&["--commands-memory", "lots"]), "commands.memory");
    refused(&["--commands-user", "65534:65534"], "commands are off");
    let (config, _) = read_with(&with(&["--commands-user", "7:8", "--commands-memory", "1MiB"]), &[]).unwrap();
    assert_eq!(config.commands.user.map(|user| (user.uid, user.gid)), Some((7, 8)));
    assert_eq!(config.commands.limits.unwrap().memory_bytes, Some(1 << 20));
}

/// A tier that was mistyped would otherwise be the table's, and nobody would know.
#[test]
fn what_tiers_allow_is_read_and_told_with_its_place() {
    let path = file("[quotas]\nfree = [\"runs_per_minute=200\", \"payload_bytes=4KB\"]\npro = [\"max_retries=9\"]\n");
    let text = path.to_str().unwrap();
    let arguments = ["--config", text, "--quotas-pro", "shortest_interval=2s,history_days=none,dead_letters=false"];
    let (config, _) = read_with(&arguments, &[]).unwrap();
    let free = config.tiers.of(Tier::Free);
    assert_eq!((free.runs_per_minute.unwrap().get(), free.payload_bytes), (200, Some(4_000)));
    let pro = config.tiers.of(Tier::Pro);
    assert_eq!((pro.shortest_interval, pro.history_days, pro.dead_letters), (Some(Span::secs(2)), None, false));
    assert_eq!(pro.max_retries, Some(5), "the flag stands for the whole list of the file");
    assert_eq!(config.tiers.of(Tier::Enterprise), Tiers::default().of(Tier::Enterprise));
    let told = read_with(
        &["--quotas-free", "runs=1,max_retries,active_schedules=few"],
        &[("ROTA_QUOTAS_ENTERPRISE", "best_priority=0,max_retries=1,max_retries=2")],
    )
    .unwrap_err();
    for expected in [
        "quotas.free: `max_retries` must have the form NAME=VALUE (--quotas-free)",
        "quotas.free: runs: ",
        "quotas.free: active_schedules: ",
        "quotas.enterprise: best_priority: ",
        "quotas.enterprise: max_retries is set twice (ROTA_QUOTAS_ENTERPRISE)",
    ] {
        assert!(told.contains(expected), "{expected}\nin\n{told}");
    }
    std::fs::remove_file(path).unwrap();
}

const ADMIN_TOKEN: (&str, &str) = ("ROTA_ADMIN_TOKEN", "a-token-of-more-than-32-characters");

/// Whoever reaches a port that asks for no login may do anything.
#[test]
fn an_address_that_others_reach_needs_a_login_or_a_word() {
    for address in ["0.0.0.0:7070", "10.0.0.1:7070", "[::]:7070"] {
        for arguments in [&["--listen", address][..], &["--listen", address, "--auth-login", "off"]] {
            let told = read_with(arguments, &[]).unwrap_err();
            assert!(told.contains("listen: ") && told.contains("rota token create"), "{told}");
            let open = read_with(&[arguments, &["--insecure-listen"]].concat(), &[]).unwrap().0;
            assert_eq!(open.access.login, Login::Off);
        }
        let closed = read_with(&["--listen", address, "--auth-login", "required"], &[]).unwrap().0;
        assert_eq!(closed.access.login, Login::Required);
        let bootstrapped = read_with(&["--listen", address], &[ADMIN_TOKEN]).unwrap().0;
        assert_eq!(bootstrapped.access.login, Login::Required);
    }
    for (arguments, login) in [
        (&["--listen", "[::1]:0"][..], Login::Off),
        (&["--listen", "127.0.0.1:0", "--auth-login", "required"], Login::Required),
    ] {
        assert_eq!(read_with(arguments, &[]).unwrap().0.access.login, login);
    }
}

#[test]
fn keys_of_jwts_must_fit_their_algorithms() {
    let secret = ("ROTA_JWT_SECRET", "a secret of at least thirty-two bytes");
    let (config, _) = read_with(&["--jwt-algorithms", "HS256,HS512", "--jwt-tenant-claim", "none"], &[secret]).unwrap();
    let jwt = config.access.jwt.unwrap();
    assert_eq!((jwt.tenant_claim, jwt.role_claim.as_str()), (None, "role"));
    let pem = file("no key");
    let pem = pem.to_str().unwrap();
    for (arguments, variables, expected) in [
        (&["--jwt-algorithms", "HS256"][..], &[][..], "set exactly one of jwt.key_file"),
        (&["--jwt-algorithms", "HS256"], &[("ROTA_JWT_SECRET", "short")], "at least 32 bytes"),
        (&["--jwt-algorithms", "RS256"], &[secret], "need a secret"),
        (&["--jwt-algorithms", "HS256,RS256"], &[secret], "of different kinds"),
        (&["--jwt-algorithms", "none"], &[secret], "is not a JWT algorithm"),
        (&["--jwt-algorithms", "RS256", "--jwt-key-file", pem], &[], "cannot be read as PEM"),
        (&["--jwt-algorithms", "RS256", "--jwt-key-file", "/nowhere/key"], &[], "cannot be read"),
        (&["--jwt-algorithms", "RS256", "--jwt-jwks-url", "http://login.example/keys"], &[], "must be https"),
        (&["--jwt-algorithms", "HS256", "--jwt-jwks-url", "https://login.example/keys"], &[], "need a secret"),
        (&["--jwt-jwks-url", "https://login.example/keys"], &[], "but no algorithm"),
        (&[], &[("ROTA_ADMIN_TOKEN", "short")], "at least 32 characters"),
    ] {
        let told = read_with(arguments, variables).unwrap_err();
        assert!(told.contains(expected) && !told.contains("thirty-two bytes"), "{expected}\nin\n{told}");
    }
    read_with(&["--jwt-algorithms", "RS256", "--jwt-jwks-url", "https://login.example/keys"], &[]).unwrap();
    std::fs::remove_file(pem).unwrap();
}

#[test]
fn roles_that_cannot_work_are_refused() {
    for (roles, fine) in [
        ("api,scheduler,worker", true),
        ("scheduler,worker", true),
        ("worker", true),
        ("api", true),
        ("scheduler", false),
        ("api,boss", false),
        ("", false),
    ] {
        assert_eq!(read_with(&["--roles", roles], &[]).is_ok(), fine, "{roles}");
    }
}

/// A mistyped level must not silence the log.
#[test]
fn a_level_is_a_word_alone_or_after_the_part_it_is_for() {
    for (level, fine) in [
        ("info", true),
        ("WARN,rota::runs=debug", true),
        ("rota_engine=trace", true),
        ("off", true),
        ("inof", false),
        ("info,rota::runs", false),
        ("rota::runs=loud", false),
        ("3", false),
        ("info,", false),
    ] {
        assert_eq!(read_with(&["--log-level", level], &[]).is_ok(), fine, "{level}");
    }
}

#[test]
fn passwords_are_masked_wherever_they_stand() {
    for (url, expected) in [
        ("postgres://ann:s3cret@db/rota", "postgres://ann:***@db/rota"),
        ("postgres://ann:s3@cret@db/rota", "postgres://ann:***@db/rota"),
        ("postgres://ann@db/rota", "postgres://ann@db/rota"),
        ("postgres://db/rota?user=ann&password=s3cret&a=b", "postgres://db/rota?user=ann&password=***&a=b"),
        ("mysql://ann:s3cret@db", "mysql://ann:***@db"),
    ] {
        assert_eq!(masked(url), expected);
        let (refused, shown) = match url.parse::<StoreAddress>() {
            Ok(address) => (String::new(), address.to_string()),
            Err(refused) => (refused, String::new()),
        };
        assert!(!refused.contains("cret") && !shown.contains("cret"), "{refused}{shown}");
    }
}

#[test]
fn data_is_kept_where_its_user_keeps_data() {
    let data = |variables: &[(&str, &str)]| read_with(&[], variables).unwrap().0.data;
    assert_eq!(data(&[("XDG_DATA_HOME", "/d"), ("HOME", "/h")]), PathBuf::from("/d/rota"));
    assert_eq!(data(&[("HOME", "/h")]), PathBuf::from("/h/.local/share/rota"));
    assert_eq!(data(&[]), PathBuf::from("rota-data"));
    assert_eq!(data(&[("ROTA_DATA", "/x"), ("HOME", "/h")]), PathBuf::from("/x"));
}

#[test]
fn a_variable_that_is_no_setting_is_noticed() {
    let names = ["ROTA_LISTEN", "ROTA_LSITEN", "ROTA_CONFIG", "HOME", "ROTA_EGRESS_ALLOW", "ROTA_ADMIN_TOKEN"];
    let names = names.map(str::to_owned);
    assert_eq!(strangers_among(names.into_iter()), ["ROTA_LSITEN"]);
}

#[test]
fn every_setting_has_a_flag_and_a_variable_of_its_own() {
    let mut names: Vec<String> = SETTINGS.iter().flat_map(|setting| [setting.flag(), setting.variable()]).collect();
    names.extend(["config".to_owned(), "ROTA_CONFIG".to_owned()]);
    let count = names.len();
    names.sort();
    names.dedup();
    assert_eq!(names.len(), count);
}
