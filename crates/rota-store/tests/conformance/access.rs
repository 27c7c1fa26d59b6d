//! Tokens, people, sessions and the audit log.

use rota_core::{
    access::{Permission, Role, SecretDigest, Standing},
    ids::{AuditId, TenantId, TokenId, UserId},
    quota::Held,
    store::{AuditEntry, AuditQuery, Guarded, Session, Token, TokenQuery, UserPut, UserQuery, UserWish},
};

use crate::{harness::*, upkeep::tend_all};

const DAY: i64 = 86_400_000;

fn token(h: &Harness, name: &str) -> Token {
    let id = h.run_id().0;
    Token {
        id: TokenId(id),
        tenant: h.tenant,
        installation: false,
        name: name.into(),
        digest: SecretDigest::of(&id.to_string()),
        permissions: [Permission::JobRead, Permission::RunCancel].into_iter().collect(),
        created_at: at(0),
        created_by: "ann".into(),
        expires_at: None,
        revoked_at: None,
        last_used_at: None,
    }
}

fn user(h: &Harness, name: &str) -> UserPut {
    UserPut {
        id: UserId(h.run_id().0),
        tenant: h.tenant,
        name: name.into(),
        role: Role::Viewer,
        installation: false,
        password: Some("$argon2id$first".into()),
        wish: UserWish::New,
    }
}

fn session(of: UserId, name: &str, from: i64, to: i64) -> Session {
    Session { digest: SecretDigest::of(name), user: of, created_at: at(from), expires_at: at(to) }
}

fn entry(h: &Harness, millis: i64, who: &str, action: &str) -> AuditEntry {
    AuditEntry {
        id: AuditId(h.run_id().0),
        at: at(millis),
        tenant: h.tenant,
        who: who.into(),
        action: action.into(),
        object: format!("job/{}", millis % 3),
        before: None,
        after: Some("{\"a\":1}".into()),
        address: Some("10.0.0.7".into()),
    }
}

/// What a token may do must not change on its way through the store.
pub async fn a_token_is_found_by_its_digest_and_comes_back_whole(h: &Harness) {
    let plain = token(h, "ci");
    let rich = Token {
        installation: true,
        permissions: Role::Admin.permissions(),
        expires_at: Some(at(9)),
        revoked_at: Some(at(8)),
        last_used_at: Some(at(7)),
        ..token(h, "boss")
    };
    h.store.put_tokens(&[plain.clone(), rich.clone()]).await.unwrap();
    let found = h.store.find_tokens(&[rich.digest, SecretDigest([0; 32]), plain.digest]).await.unwrap();
    assert_eq!(found, [Some(rich.clone()), None, Some(plain.clone())]);
    assert_eq!(
        h.store.tokens(&[plain.id, TokenId(h.run_id().0), rich.id]).await.unwrap(),
        [Some(plain.clone()), None, Some(rich)]
    );
    assert_eq!(plain.standing(at(5)), Standing::Good);
}

/// A write whose answer was lost is asked again; it must not undo a revocation.
pub async fn a_token_kept_again_is_left_as_it_is(h: &Harness) {
    let token = token(h, "ci");
    h.store.put_tokens(std::slice::from_ref(&token)).await.unwrap();
    h.store.revoke_tokens(&[token.id], at(1)).await.unwrap();
    h.store.put_tokens(&[token.clone(), Token { name: "other".into(), ..token.clone() }]).await.unwrap();
    let found = h.store.find_tokens(&[token.digest]).await.unwrap();
    assert_eq!(found, [Some(Token { revoked_at: Some(at(1)), ..token })]);
}

/// What a tenant may have so many of is counted as it counts now, and up to a bound.
pub async fn tokens_users_and_jobs_of_a_tenant_are_counted(h: &Harness) {
    let held = async |what, most, now| h.store.count_held(h.tenant, what, most, now).await.unwrap();
    let tokens = [
        token(h, "lasting"),
        Token { expires_at: Some(at(5)), ..token(h, "short") },
        token(h, "revoked"),
        Token { tenant: TenantId(-1), ..token(h, "theirs") },
    ];
    h.store.put_tokens(&tokens).await.unwrap();
    h.store.revoke_tokens(&[tokens[2].id], at(1)).await.unwrap();
    assert_eq!(held(Held::Tokens, 10, at(4)).await, 2);
    assert_eq!(held(Held::Tokens, 10, at(5)).await, 1, "one that has expired counts no more");
    assert_eq!(held(Held::Tokens, 1, at(4)).await, 1);
    assert_eq!(held(Held::Users, 10, at(0)).await, 0);
    h.store.put_users(&[user(h, "ann"), user(h, "bob")], at(0)).await.unwrap();
    assert_eq!(held(Held::Users, 10, at(0)).await, 2);
    let jobs = held(Held::Jobs, 100, at(0)).await;
    assert_eq!(held(Held::Jobs, jobs - 1, at(0)).await, jobs - 1);
}

pub async fn a_revoked_token_is_revoked_once_and_for_ever(h: &Harness) {
    let (one, two) = (token(h, "one"), token(h, "two"));
    h.store.put_tokens(&[one.clone(), two.clone()]).await.unwrap();
    let ids = [one.id, TokenId(h.run_id().0), one.id];
    assert_eq!(h.store.revoke_tokens(&ids, at(5)).await.unwrap(), [Guarded::Applied, Guarded::Stale, Guarded::Stale]);
    assert_eq!(h.store.revoke_tokens(&[one.id], at(6)).await.unwrap(), [Guarded::Stale]);
    let found = h.second().await.find_tokens(&[one.digest, two.digest]).await.unwrap();
    assert_eq!(found[0].as_ref().unwrap().revoked_at, Some(at(5)), "another node knows at once");
    assert_eq!(found[0].as_ref().unwrap().standing(at(0)), Standing::Revoked);
    assert_eq!(found[1].as_ref().unwrap().standing(at(9)), Standing::Good);
}

pub async fn the_last_use_of_a_token_only_grows(h: &Harness) {
    let token = token(h, "ci");
    h.store.put_tokens(std::slice::from_ref(&token)).await.unwrap();
    for (uses, last) in [(vec![5], 5), (vec![3], 5), (vec![7, 6], 7), (vec![], 7)] {
        let uses: Vec<_> = uses.into_iter().map(|millis| (token.id, at(millis))).collect();
        h.store.touch_tokens(&uses).await.unwrap();
        let found = h.store.tokens(&[token.id]).await.unwrap().remove(0).unwrap();
        assert_eq!(found.last_used_at, Some(at(last)));
    }
}

pub async fn tokens_are_listed_newest_first_within_their_tenant(h: &Harness) {
    let other = h.tenant("other").await;
    let tokens: Vec<Token> = (0..7).map(|n| token(h, &format!("t{n}"))).collect();
    h.store.put_tokens(&tokens).await.unwrap();
    h.store.put_tokens(&[Token { tenant: other, ..token(h, "theirs") }]).await.unwrap();
    let mut query = TokenQuery { tenant: h.tenant, after: None, limit: 3 };
    let mut listed = Vec::new();
    loop {
        let page = h.store.list_tokens(&query).await.unwrap();
        assert!(page.tokens.len() <= 3);
        listed.extend(page.tokens);
        match page.next {
            Some(next) => query.after = Some(next),
            None => break,
        }
    }
    assert_eq!(listed, tokens.into_iter().rev().collect::<Vec<_>>());
    let theirs = h.store.list_tokens(&TokenQuery { tenant: other, after: None, limit: 9 }).await.unwrap();
    assert_eq!(theirs.tokens.len(), 1);
}

pub async fn a_users_name_is_unique_in_its_tenant(h: &Harness) {
    let other = h.tenant("other").await;
    let ann = user(h, "ann");
    let answers = [ann.clone(), user(h, "ann"), UserPut { tenant: other, ..user(h, "ann") }, ann.clone()];
    let answers = h.store.put_users(&answers, at(0)).await.unwrap();
    // Asked again under its own id it is the same one.
    assert_eq!(answers, [Guarded::Applied, Guarded::Stale, Guarded::Applied, Guarded::Applied]);
    let found = h.store.users(&[(h.tenant, "ann".into()), (other, "bob".into())]).await.unwrap();
    assert_eq!(found[0].as_ref().unwrap().id, ann.id);
    assert_eq!(found[1], None);
    let moved = UserPut { wish: UserWish::Known, tenant: other, ..ann };
    assert_eq!(h.store.put_users(&[moved], at(1)).await.unwrap(), [Guarded::Stale], "nobody changes tenants");
}

pub async fn racing_makers_of_one_user_make_one(h: &Harness) {
    let second = h.second().await;
    let mut makers = tokio::task::JoinSet::new();
    for n in 0..8 {
        let store = if n % 2 == 0 { h.store.clone() } else { second.clone() };
        let put = user(h, "ann");
        makers.spawn(async move { store.put_users(&[put], at(0)).await.unwrap()[0] });
    }
    let answers = makers.join_all().await;
    assert_eq!(answers.iter().filter(|answer| **answer == Guarded::Applied).count(), 1, "{answers:?}");
}

pub async fn a_user_is_changed_by_id_and_keeps_what_is_not_said(h: &Harness) {
    let ann = user(h, "ann");
    h.store.put_users(std::slice::from_ref(&ann), at(0)).await.unwrap();
    let edit = UserPut { role: Role::Admin, installation: true, password: None, wish: UserWish::Known, ..ann.clone() };
    assert_eq!(h.store.put_users(std::slice::from_ref(&edit), at(5)).await.unwrap(), [Guarded::Applied]);
    let found = h.store.users(&[(h.tenant, "ann".into())]).await.unwrap().remove(0).unwrap();
    assert_eq!((found.role, found.installation, found.password.as_str()), (Role::Admin, true, "$argon2id$first"));
    assert_eq!((found.created_at, found.updated_at), (at(0), at(5)));
    let gone = UserPut { id: UserId(h.run_id().0), ..edit };
    assert_eq!(h.store.put_users(&[gone], at(6)).await.unwrap(), [Guarded::Stale]);
    assert_eq!(h.store.delete_users(&[ann.id, ann.id]).await.unwrap(), [Guarded::Applied, Guarded::Stale]);
    assert_eq!(h.store.users(&[(h.tenant, "ann".into())]).await.unwrap(), [None]);
}

pub async fn users_are_listed_by_name_within_their_tenant(h: &Harness) {
    let other = h.tenant("other").await;
    let puts: Vec<UserPut> = ["dan", "ann", "cem", "bob", "Eve"].map(|name| user(h, name)).into();
    h.store.put_users(&puts, at(0)).await.unwrap();
    h.store.put_users(&[UserPut { tenant: other, ..user(h, "zoe") }], at(0)).await.unwrap();
    let first = h.store.list_users(&UserQuery { tenant: h.tenant, after: None, limit: 3 }).await.unwrap();
    let rest = h.store.list_users(&UserQuery { tenant: h.tenant, after: first.next.clone(), limit: 3 }).await.unwrap();
    let names: Vec<_> = first.users.iter().chain(&rest.users).map(|user| user.name.as_str()).collect();
    assert_eq!(names, ["Eve", "ann", "bob", "cem", "dan"]);
    assert_eq!(rest.next, None);
}

/// A role that was taken away must be gone with the next request.
pub async fn a_session_shows_its_user_as_it_is_now(h: &Harness) {
    let ann = user(h, "ann");
    h.store.put_users(std::slice::from_ref(&ann), at(0)).await.unwrap();
    let kept = session(ann.id, "s", 0, 100);
    let strange = session(UserId(h.run_id().0), "x", 0, 100);
    let answers = h.store.put_sessions(&[kept.clone(), strange.clone(), kept.clone()]).await.unwrap();
    assert_eq!(answers, [Guarded::Applied, Guarded::Stale, Guarded::Applied]);
    let edit = UserPut { role: Role::Editor, password: None, wish: UserWish::Known, ..ann };
    h.store.put_users(&[edit], at(5)).await.unwrap();
    let found = h.store.find_sessions(&[strange.digest, kept.digest]).await.unwrap();
    assert_eq!(found[0], None);
    let (found, owner) = found[1].clone().unwrap();
    assert_eq!((found, owner.role), (kept.clone(), Role::Editor));
    h.store.delete_sessions(&[kept.digest, strange.digest]).await.unwrap();
    assert_eq!(h.store.find_sessions(&[kept.digest]).await.unwrap(), [None]);
}

/// Whoever changes a password because it leaked wants everybody out.
pub async fn a_new_password_and_a_deletion_end_every_session(h: &Harness) {
    let (ann, bob) = (user(h, "ann"), user(h, "bob"));
    h.store.put_users(&[ann.clone(), bob.clone()], at(0)).await.unwrap();
    let sessions = [session(ann.id, "a1", 0, 99), session(ann.id, "a2", 0, 99), session(bob.id, "b", 0, 99)];
    h.store.put_sessions(&sessions).await.unwrap();
    let digests = sessions.map(|session| session.digest);
    let there = async || {
        let found = h.store.find_sessions(&digests).await.unwrap();
        found.iter().map(Option::is_some).collect::<Vec<_>>()
    };
    let change = UserPut { password: Some("$argon2id$second".into()), wish: UserWish::Known, ..ann };
    h.store.put_users(&[change], at(5)).await.unwrap();
    assert_eq!(there().await, [false, false, true]);
    h.store.delete_users(&[bob.id]).await.unwrap();
    assert_eq!(there().await, [false, false, false]);
}

/// Logging in takes a while; a password that is changed meanwhile must win.
pub async fn a_session_begun_before_a_change_of_its_user_is_stale(h: &Harness) {
    let ann = user(h, "ann");
    h.store.put_users(std::slice::from_ref(&ann), at(10)).await.unwrap();
    let answers = h.store.put_sessions(&[session(ann.id, "old", 9, 99), session(ann.id, "new", 10, 99)]).await.unwrap();
    assert_eq!(answers, [Guarded::Stale, Guarded::Applied]);
    assert_eq!(h.store.find_sessions(&[SecretDigest::of("old")]).await.unwrap(), [None]);
}

async fn listed(h: &Harness, mut query: AuditQuery) -> Vec<AuditEntry> {
    let mut found = Vec::new();
    for _ in 0..1_000 {
        let page = h.store.list_audit(&query).await.unwrap();
        assert!(page.entries.len() <= query.limit as usize);
        found.extend(page.entries);
        match page.next {
            Some(next) => query.after = Some(next),
            None => return found,
        }
    }
    panic!("the list has no end");
}

pub async fn audit_entries_are_listed_newest_first_with_filters_and_pages(h: &Harness) {
    let other = h.tenant("other").await;
    // Several in one instant, so that a page ends between them.
    let mut entries: Vec<AuditEntry> = (0..20)
        .map(|n| {
            entry(h, n / 3, if n % 2 == 0 { "ann" } else { "bob" }, if n % 5 == 0 { "job.save" } else { "run.cancel" })
        })
        .collect();
    h.store.append_audit(&entries).await.unwrap();
    h.store.append_audit(&[AuditEntry { tenant: other, ..entry(h, 3, "ann", "job.save") }]).await.unwrap();
    entries.sort_by_key(|entry| std::cmp::Reverse((entry.at, entry.id)));
    let all = AuditQuery::of(h.tenant, 4);
    assert_same(&listed(h, all.clone()).await, &entries, "the whole log");
    for query in [
        AuditQuery { who: Some("ann".into()), ..all.clone() },
        AuditQuery { action: Some("job.save".into()), ..all.clone() },
        AuditQuery { object: Some("job/1".into()), who: Some("bob".into()), ..all.clone() },
        AuditQuery { who: Some("nobody".into()), ..all.clone() },
        AuditQuery { from: Some(at(2)), to: Some(at(5)), ..all.clone() },
    ] {
        let within = |entry: &AuditEntry| {
            query.from.is_none_or(|from| entry.at >= from) && query.to.is_none_or(|to| entry.at < to)
        };
        let expected: Vec<_> = entries.iter().filter(|entry| query.wants(entry) && within(entry)).cloned().collect();
        assert_same(&listed(h, query.clone()).await, &expected, &format!("{query:?}"));
    }
    assert_eq!(listed(h, AuditQuery::of(other, 4)).await.len(), 1, "each tenant has its own log");
}

pub async fn an_audit_entry_added_again_is_there_once(h: &Harness) {
    let entry = entry(h, 0, "ann", "job.save");
    for _ in 0..2 {
        h.store.append_audit(std::slice::from_ref(&entry)).await.unwrap();
    }
    assert_eq!(listed(h, AuditQuery::of(h.tenant, 10)).await, [entry]);
    h.store.append_audit(&[]).await.unwrap();
}

/// A filter that finds little must neither read a whole year at once nor end
/// before the year does.
pub async fn an_audit_page_bounds_its_look_and_misses_nothing(h: &Harness) {
    let many: Vec<AuditEntry> =
        (0..20_500).map(|n| entry(h, n, if n % 20_400 == 50 { "ann" } else { "bob" }, "job.save")).collect();
    for some in many.chunks(2_000) {
        h.store.append_audit(some).await.unwrap();
    }
    let query = AuditQuery { who: Some("ann".into()), ..AuditQuery::of(h.tenant, 1_000) };
    let first = h.store.list_audit(&query).await.unwrap();
    assert!(first.entries.len() == 1 && first.next.is_some(), "the look is bounded");
    let found: Vec<_> = listed(h, query).await.iter().map(|entry| entry.at).collect();
    assert_eq!(found, [at(20_450), at(50)]);
    assert_eq!(listed(h, AuditQuery::of(h.tenant, 1_000)).await.len(), many.len());
}

/// One broken stretch must neither end the log nor be read for ever.
pub async fn an_audit_page_that_cannot_be_read_goes_on(h: &Harness) {
    let entries: Vec<AuditEntry> =
        (0..20).map(|n| entry(h, n, ["ann", "late", "strange", "early"][n as usize / 5], "job.save")).collect();
    h.store.append_audit(&entries).await.unwrap();
    // Times that are none, before and behind all others.
    assert!(h.place.sql("UPDATE audit SET at = 9000000000000000000 WHERE who = 'late'").await);
    assert!(h.place.sql("UPDATE audit SET at = -9000000000000000000 WHERE who = 'early'").await);
    let mut readable = entries[..5].to_vec();
    if h.store.kind() == "sqlite" {
        assert!(h.place.sql("UPDATE audit SET who = x'ff' WHERE who = 'strange'").await);
    } else {
        readable.extend_from_slice(&entries[10..15]);
    }
    readable.sort_by_key(|entry| std::cmp::Reverse(entry.at));
    for limit in [1, 2, 5, 7, 100] {
        assert_same(&listed(h, AuditQuery::of(h.tenant, limit)).await, &readable, &format!("pages of {limit}"));
    }
    let bounded = AuditQuery { from: Some(at(0)), to: Some(at(100)), ..AuditQuery::of(h.tenant, 3) };
    assert_same(&listed(h, bounded).await, &readable, "within times");
}

/// What one store takes the other must take.
pub async fn a_nul_in_a_name_is_refused(h: &Harness) {
    let token = Token { name: "a\0b".into(), ..token(h, "x") };
    assert!(not_applied(&h.store.put_tokens(&[token]).await));
    assert!(not_applied(&h.store.put_users(&[user(h, "a\0b")], at(0)).await));
    assert!(not_applied(&h.store.append_audit(&[entry(h, 0, "a\0b", "x")]).await));
}

pub async fn upkeep_takes_what_no_longer_counts(h: &Harness) {
    let ann = user(h, "ann");
    h.store.put_users(std::slice::from_ref(&ann), at(0)).await.unwrap();
    let sessions = [session(ann.id, "short", 0, DAY), session(ann.id, "long", 0, 90 * DAY)];
    h.store.put_sessions(&sessions).await.unwrap();
    let entries = [entry(h, 0, "ann", "old"), entry(h, 25 * DAY, "ann", "young")];
    h.store.append_audit(&entries).await.unwrap();
    let kept = token(h, "kept");
    let expired = Token { expires_at: Some(at(DAY)), ..token(h, "expired") };
    let revoked = Token { revoked_at: Some(at(DAY)), expires_at: Some(at(90 * DAY)), ..token(h, "revoked") };
    let lately = Token { revoked_at: Some(at(25 * DAY)), ..token(h, "lately") };
    h.store.put_tokens(&[kept.clone(), expired.clone(), revoked.clone(), lately.clone()]).await.unwrap();
    tend_all(h, at(40 * DAY)).await;
    let found = h.store.find_sessions(&sessions.map(|session| session.digest)).await.unwrap();
    assert_eq!(found.iter().map(Option::is_some).collect::<Vec<_>>(), [false, true]);
    assert_eq!(listed(h, AuditQuery::of(h.tenant, 10)).await, entries[1..]);
    let found = h.store.tokens(&[kept.id, expired.id, revoked.id, lately.id]).await.unwrap();
    assert_eq!(found.iter().map(Option::is_some).collect::<Vec<_>>(), [true, false, false, true]);
    assert_ne!(h.tenant, TenantId(0));
}
