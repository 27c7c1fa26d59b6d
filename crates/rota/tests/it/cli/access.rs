//! Tokens, people, tenants and the audit log, each verb once, on a server that asks
//! who one is.

use std::process::Command;

use super::{Desk, Said, said};
use crate::node::{Node, Place, ended};

/// A server with a login, and the token of its administrator.
struct Closed {
    desk: Desk,
    root: String,
}

impl Closed {
    fn open() -> Self {
        let place = Place::new();
        let (code, out, error) = ended(&["token", "create", "root", "--admin", "--data", &place.text("data")]);
        assert_eq!((code, error.as_str()), (0, ""));
        let node = Node::ready(&place, &["--auth-login", "required"]);
        Self { desk: Desk { place, node }, root: out.trim_end().to_owned() }
    }

    fn command(&self, token: &str, arguments: &[&str]) -> Command {
        let mut command = self.desk.command(arguments);
        command.env("ROTA_TOKEN", token);
        command
    }

    fn by(&self, token: &str, arguments: &[&str]) -> Said {
        said(self.command(token, arguments))
    }

    fn rota(&self, arguments: &[&str]) -> Said {
        self.by(&self.root, arguments)
    }
}

#[test]
fn a_person_is_made_changed_and_deleted() {
    let closed = Closed::open();
    closed.desk.write("password", "correct horse\n");
    let file = ["--password-file", "password"];
    assert!(closed.rota(&["user", "list"]).err.contains("`rota user create NAME --role viewer` creates one"));
    let create = [&["user", "create", "eve", "--role", "viewer"], &file[..]].concat();
    assert_eq!(closed.rota(&create).ok(), "created eve (viewer)\n");
    assert!(closed.rota(&create).failed(4).contains("a user with this name already exists"));
    assert_eq!(closed.rota(&["user", "set", "eve", "--role", "editor"]).ok(), "eve is editor\n");
    let listed = closed.rota(&["user", "list"]).ok();
    assert!(listed.contains("eve") && listed.contains("editor") && listed.contains("tenant"), "{listed}");
    let shown = closed.rota(&["user", "show", "eve", "-o", "json"]).json();
    assert_eq!((&shown["role"], &shown["installation"]), (&"editor".into(), &false.into()));
    let changed = closed.rota(&[&["user", "password", "eve"], &file[..]].concat()).ok();
    assert_eq!(changed, "the password of eve is changed, and all sessions have ended\n");
    assert!(closed.rota(&["user", "delete", "eve"]).failed(2).contains("Delete eve?"));
    assert_eq!(closed.rota(&["user", "delete", "eve", "--yes"]).ok(), "deleted eve\n");
    assert!(closed.rota(&["user", "show", "eve"]).failed(3).contains("no such user"));
    assert!(closed.desk.node.stop().0.success());
}

/// A password in the list of processes is a password given away.
#[test]
fn a_password_is_not_taken_from_the_command_line() {
    let closed = Closed::open();
    let create = |more: &[&str]| closed.rota(&[&["user", "create", "eve", "--role", "viewer"], more].concat());
    let error = create(&["--password", "s3cret-horse"]).failed(2);
    assert!(error.contains("standard input"), "{error}");
    assert!(create(&[]).failed(2).contains("--password-file"));
    assert!(create(&["--password-file", "absent"]).failed(2).contains("cannot read the password in absent"));
    closed.desk.write("short", "horse\n");
    assert_eq!(create(&["--password-file", "short"]).code, 2);
    assert!(closed.rota(&["user", "create", "eve", "--role", "god", "--password", "-"]).failed(2).contains("god"));
    assert!(closed.rota(&["user", "set", "eve"]).failed(2).contains("--role"));
    assert!(closed.desk.node.stop().0.success());
}

#[test]
fn a_tenant_is_made_once_and_changed_by_what_is_said() {
    let closed = Closed::open();
    let made = closed.rota(&["tenant", "create", "acme", "--tier", "free"]).ok();
    assert!(made.starts_with("created acme (id ") && made.ends_with(", free)\n"), "{made}");
    let again = closed.rota(&["tenant", "create", "acme", "--tier", "pro"]).failed(4);
    assert!(again.contains("the tenant `acme` already exists") && again.contains("[conflict]"), "{again}");
    assert!(closed.rota(&["tenant", "set", "amce", "--tier", "pro"]).failed(3).contains("`rota tenant create`"));
    assert!(closed.rota(&["tenant", "set", "acme"]).failed(2).contains("--tier or --quota"));
    assert!(closed.rota(&["tenant", "set", "acme", "--tier", "gold"]).failed(2).contains("one of free, pro"));
    closed.rota(&["tenant", "set", "acme", "--tier", "pro"]).ok();
    let shown = closed.rota(&["tenant", "show", "acme", "-o", "json"]).json();
    assert_eq!((&shown["name"], &shown["tier"]), (&"acme".into(), &"pro".into()));
    let listed = closed.rota(&["tenant", "list"]).ok();
    assert!(listed.contains("default") && listed.contains("acme"), "{listed}");
    assert!(closed.rota(&["tenant", "show", "nobody"]).failed(3).contains("tenants/nobody"));
    // What the tenant is chosen for is made there and not here.
    let job = ["job", "create", "--name", "theirs", "--handler", "h", "--tenant", "acme"];
    closed.rota(&job).ok();
    assert_eq!(closed.rota(&["job", "show", "theirs"]).code, 3);
    assert_eq!(closed.rota(&["job", "show", "theirs", "--tenant", "acme"]).code, 0);
    assert!(closed.desk.node.stop().0.success());
}

#[test]
fn tokens_are_made_listed_and_revoked_by_asking() {
    let closed = Closed::open();
    let made = closed.rota(&["token", "create", "ci", "--role", "operator", "--expires", "1h", "-o", "json"]).json();
    let (secret, id) = (made["secret"].as_str().unwrap(), made["token"]["id"].as_str().unwrap());
    assert_eq!(closed.by(secret, &["job", "list", "-o", "json"]).json(), serde_json::json!([]));
    let listed = closed.rota(&["token", "list"]).ok();
    assert!(listed.contains(id) && listed.contains("operator") && listed.contains("ends in "), "{listed}");
    assert!(!listed.contains(&secret[5..]), "{listed}");
    assert!(closed.by(secret, &["token", "list"]).failed(6).contains("`rota whoami`"));
    let plain = closed.rota(&["token", "create", "plain", "--permission", "job:read"]).ok();
    assert!(plain.starts_with("rota_") && plain.len() == 49, "{plain}");
    assert_eq!(closed.rota(&["token", "revoke", id]).ok(), format!("revoked {id}\n"));
    let refused = closed.by(secret, &["job", "list"]).failed(6);
    assert!(refused.contains("[unauthenticated]") && refused.contains("rota login"), "{refused}");
    let listed = closed.rota(&["token", "list", "-o", "yaml"]).ok();
    assert!(listed.contains("revoked_at: "), "{listed}");
    assert!(
        closed.rota(&["token", "revoke", "00000000-0000-0000-0000-000000000000"]).failed(3).contains("no such token")
    );
    assert!(closed.rota(&["token", "revoke", "nonsense"]).failed(3).contains("no valid token `nonsense`"));
    let again = closed.rota(&["token", "revoke", "ci"]).failed(3);
    assert!(again.contains("no valid token `ci`"), "one that is revoked is not meant: {again}");
    for _ in 0..2 {
        closed.rota(&["token", "create", "twin", "--role", "viewer"]).ok();
    }
    assert!(closed.rota(&["token", "revoke", "twin"]).failed(2).contains("2 tokens are named `twin`"));
    assert!(closed.rota(&["token", "revoke", "plain"]).ok().starts_with("revoked "));
    let both = closed.rota(&["token", "list", "--direct", "--server", "localhost:1"]).failed(2);
    assert!(both.contains("cannot be combined with --direct"), "{both}");
    assert!(closed.desk.node.stop().0.success());
}

/// Whoever has no token yet is shown the way to the first one.
#[test]
fn whoever_has_no_token_is_told_how_to_make_one() {
    let closed = Closed::open();
    let refused = closed.desk.rota(&["token", "list"]).failed(6);
    assert!(refused.contains("--direct"), "{refused}");
    let refused = closed.desk.rota(&["job", "list"]).failed(6);
    assert!(refused.contains("rota login URL"), "{refused}");
    let refused = closed.by("rota_nonsense", &["whoami"]).failed(6);
    assert!(refused.contains("[unauthenticated]"), "{refused}");
    let closed_port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string();
    let alone = closed.desk.rota(&["token", "list", "--server", &closed_port]).failed(5);
    assert!(alone.contains("connection refused") && alone.contains("--direct"), "{alone}");
    assert!(closed.desk.node.stop().0.success());
}

#[test]
fn one_is_told_who_one_is() {
    let closed = Closed::open();
    let told = closed.rota(&["whoami"]).ok();
    for words in ["token:root (by token)", "default (id 1)", "admin", "every tenant"] {
        assert!(told.contains(words), "{words}: {told}");
    }
    let viewer = closed.rota(&["token", "create", "v", "--role", "viewer"]).ok();
    let told = closed.by(viewer.trim_end(), &["whoami", "-o", "json"]).json();
    assert_eq!(told["permissions"], serde_json::json!(["job:read", "run:read"]));
    assert!(closed.desk.node.stop().0.success());
}

#[test]
fn the_audit_log_says_who_changed_what_and_how() {
    let closed = Closed::open();
    closed.rota(&["tenant", "create", "acme", "--tier", "free"]).ok();
    closed.rota(&["tenant", "set", "acme", "--tier", "pro"]).ok();
    closed.rota(&["job", "create", "--name", "a", "--handler", "h"]).ok();
    let table = closed.rota(&["audit", "--action", "tenant.save"]).ok();
    assert_eq!(table.lines().count(), 3, "{table}");
    for words in ["WHEN", "token:root", "tenant/acme", "tier: free → pro", "created"] {
        assert!(table.contains(words), "{words}: {table}");
    }
    let entries = closed.rota(&["audit", "--action", "tenant.save", "--limit", "1", "-o", "json"]);
    assert!(entries.err.contains("for more"), "{}", entries.err);
    let entries = entries.json();
    assert_eq!((&entries[0]["before"]["tier"], &entries[0]["after"]["tier"]), (&"free".into(), &"pro".into()));
    assert_eq!(entries[0]["who"], "token:root");
    let all = closed.rota(&["audit", "--all", "-o", "json"]).json();
    assert_eq!(all.as_array().unwrap().len(), 4, "{all}");
    let ours = closed.rota(&["audit", "--who", "command line", "-o", "json"]).json();
    assert_eq!(ours[0]["action"], "token.create");
    assert!(closed.rota(&["audit", "--from", "+1h"]).err.contains("nothing was changed"));
    assert!(closed.rota(&["audit", "--object", "job/1"]).ok().contains("job.save"));
    assert!(closed.rota(&["audit", "--from", "someday"]).failed(2).contains("`someday` is not a valid time"));
    assert!(closed.desk.node.stop().0.success());
}
