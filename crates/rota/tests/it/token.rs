//! `rota token` on the store itself, and a node that asks for one.

use crate::node::{Node, Place, ended};

fn bearer(token: &str) -> String {
    format!("Authorization: Bearer {token}\r\n")
}

/// The way a new installation gets its first token, to its end.
#[test]
fn a_token_made_on_the_store_opens_a_node_until_it_is_revoked() {
    let place = Place::new();
    let data = place.text("data");
    let (code, out, error) = ended(&["token", "create", "ann", "--admin", "--data", &data]);
    assert_eq!((code, error.as_str()), (0, ""));
    let token = out.trim_end().to_owned();
    assert!(token.starts_with("rota_") && token.len() == 48, "{out}");
    let (_, viewer, _) = ended(&["token", "create", "eve", "--role", "viewer", "--expires", "1h", "--data", &data]);
    let mut node = Node::ready(&place, &["--auth-login", "required"]);
    let ask = |node: &mut Node, path: &str, token: Option<&str>| {
        node.get_with(path, &token.map(bearer).unwrap_or_default()).unwrap()
    };
    assert_eq!(ask(&mut node, "/api/v1/whoami", None).0, 401);
    assert_eq!(ask(&mut node, "/metrics", None).0, 401);
    let (status, who) = ask(&mut node, "/api/v1/whoami", Some(&token));
    assert!(status == 200 && who.contains("\"who\":\"token:ann\""), "{who}");
    assert_eq!(ask(&mut node, "/metrics", Some(&token)).0, 200);
    assert_eq!(ask(&mut node, "/api/v1/tokens", Some(viewer.trim_end())).0, 403);
    let (status, audit) = ask(&mut node, "/api/v1/audit", Some(&token));
    assert!(status == 200 && audit.contains("command line") && audit.contains("token.create"), "{audit}");
    // The store is the node's as long as it runs.
    let (code, _, error) = ended(&["token", "list", "--data", &data]);
    assert!(code == 1 && error.contains("is in use by another rota process"), "{error}");
    let (status, _, log) = node.stop();
    assert!(status.success());
    assert!(!log.iter().any(|line| line.contains(&token[5..])), "a token is in the log");
    let (_, listed, _) = ended(&["token", "list", "--data", &data]);
    let line = listed.lines().find(|line| line.contains("  ann  ")).unwrap();
    assert!(line.contains("  installation  ") && !listed.contains(&token[5..]), "{listed}");
    let id = line.split("  ").next().unwrap();
    let (code, said, _) = ended(&["token", "revoke", id, "--data", &data]);
    assert_eq!((code, said), (0, format!("revoked ann ({id})\n")));
    let mut node = Node::ready(&place, &["--auth-login", "required"]);
    assert_eq!(ask(&mut node, "/api/v1/whoami", Some(&token)).0, 401);
    assert!(node.stop().0.success());
}

#[test]
fn a_token_that_may_do_nothing_is_not_made() {
    let place = Place::new();
    let data = place.text("data");
    for (arguments, expected) in [
        (&["ann"][..], "the token has no permissions"),
        (&["a b", "--admin"], "a name may contain only"),
        (&["ann", "--role", "god"], "is not one of"),
    ] {
        let (code, out, error) = ended(&[&["token", "create", "--data", &data], arguments].concat());
        assert!(code == 2 && out.is_empty() && error.contains(expected), "{arguments:?}: {error}");
    }
    let elsewhere = ["token", "create", "ann", "--admin", "--tenant", "nobody", "--data", &data];
    let (code, out, error) = ended(&elsewhere);
    assert!(code == 3 && out.is_empty() && error.contains("there is no tenant `nobody`"), "{error}");
}
