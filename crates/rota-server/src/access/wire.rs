//! Who may ask, from the domain to the wire.

use rota_api::access;
use rota_core::store;

use crate::{problem::Problem, wire::json};

pub fn token(token: &store::Token) -> access::Token {
    access::Token {
        id: token.id.0,
        name: token.name.clone(),
        permissions: token.permissions.list().iter().map(ToString::to_string).collect(),
        installation: token.installation,
        created_at: token.created_at,
        created_by: token.created_by.clone(),
        expires_at: token.expires_at,
        revoked_at: token.revoked_at,
        last_used_at: token.last_used_at,
    }
}

pub fn user(user: &store::User) -> access::User {
    access::User {
        name: user.name.clone(),
        role: user.role.to_string(),
        installation: user.installation,
        created_at: user.created_at,
        updated_at: user.updated_at,
    }
}

pub fn tenant(tenant: store::Tenant) -> Result<access::Tenant, Problem> {
    let tier = serde_json::to_value(tenant.tier).ok().and_then(|tier| tier.as_str().map(str::to_owned));
    Ok(access::Tenant {
        id: tenant.id.0,
        name: tenant.name,
        tier: tier.unwrap_or_default(),
        quotas: tenant.quotas.as_deref().map(json).transpose()?,
    })
}

pub fn audit_entry(entry: store::AuditEntry) -> Result<access::AuditEntry, Problem> {
    Ok(access::AuditEntry {
        id: entry.id.0,
        at: entry.at,
        who: entry.who,
        action: entry.action,
        object: entry.object,
        before: entry.before.as_deref().map(json).transpose()?,
        after: entry.after.as_deref().map(json).transpose()?,
        address: entry.address,
    })
}
