//! Access: who asks, for which tenant, and whether they may.
//!
//! Every route of the API names what it needs in the type of its first
//! argument, [`May<Permission>`](May), so that none can forget to ask. A caller
//! sees its own tenant and nothing else.

use std::marker::PhantomData;

use axum::{extract::FromRequestParts, http::request::Parts};
use rota_core::ids::TenantId;
use rota_engine::Engine;

use crate::{Node, problem::Problem};

/// Whoever sent a request.
#[derive(Clone, Debug)]
pub struct Caller {
    pub tenant: TenantId,
    /// As it is written into trails, versions and the audit log.
    pub who: String,
}

macro_rules! permissions {
    ($($(#[$doc:meta])* $name:ident = $text:literal),* $(,)?) => {
        $($(#[$doc])*
        #[derive(Clone, Copy, Debug)]
        pub struct $name;

        impl Need for $name {
            const PERMISSION: &'static str = $text;
        })*
    };
}

/// What a route asks of its caller.
pub trait Need: Send + Sync + 'static {
    const PERMISSION: &'static str;
}

permissions! {
    JobRead = "job:read",
    JobWrite = "job:write",
    /// Trigger, pause, resume, backfill.
    JobExecute = "job:execute",
    JobDelete = "job:delete",
    RunRead = "run:read",
    /// Cancel, retry, redrive, discard.
    RunCancel = "run:cancel",
    Admin = "admin",
}

/// A caller who may do what `P` names, and the engine that does it.
pub struct May<P> {
    pub engine: Engine,
    pub caller: Caller,
    permission: PhantomData<P>,
}

impl<P: Need> FromRequestParts<Node> for May<P> {
    type Rejection = Problem;

    async fn from_request_parts(_parts: &mut Parts, node: &Node) -> Result<Self, Problem> {
        let engine = node.engine().ok_or_else(|| Problem::not_ready("the node is starting"))?.clone();
        let caller = Caller { tenant: node.tenant()?, who: "anonymous".to_owned() };
        Ok(Self { engine, caller, permission: PhantomData })
    }
}
