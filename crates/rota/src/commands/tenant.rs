//! `rota tenant`: isolated customers, for whoever speaks for the installation.

use std::io;

use clap::{Args, Subcommand};
use jiff::Timestamp;
use rota_api::access::{Tenant, TenantRequest};
use rota_client::Believes;
use rota_core::store::Tier;
use serde_json::{Map, Value};

use super::shown;
use crate::{
    documents,
    failure::Failure,
    printer::Printer,
    session::{ListArgs, Noun, Session},
    table::{Cell, Table},
};

pub type TenantArgs = Noun<Command>;

#[derive(Subcommand)]
pub enum Command {
    /// List tenants by name
    List(ListArgs),
    /// Show a tenant
    #[command(alias = "get")]
    Show {
        /// Its name
        tenant: String,
    },
    /// Create a tenant; fails if it already exists
    Create {
        /// Its name
        name: String,
        /// The tier: free, pro, enterprise or unlimited
        #[arg(long, value_parser = tier, value_name = "TIER")]
        tier: Tier,
        #[command(flatten)]
        quotas: QuotaArgs,
    },
    /// Change a tenant's tier or quotas; what is not given stays as it is
    Set {
        /// Its name
        name: String,
        /// The tier: free, pro, enterprise or unlimited
        #[arg(long, value_parser = tier, value_name = "TIER")]
        tier: Option<Tier>,
        #[command(flatten)]
        quotas: QuotaArgs,
    },
}

/// What differs from the tier's quotas.
#[derive(Args)]
pub struct QuotaArgs {
    /// A quota that differs from the tier's; an empty value restores the tier's; may be
    /// repeated
    #[arg(long = "quota", value_name = "NAME=VALUE")]
    quotas: Vec<String>,
}

impl QuotaArgs {
    /// Those that there were, changed.
    fn over(&self, stored: Option<Value>) -> Result<Option<Value>, Failure> {
        let mut quotas = match stored {
            Some(Value::Object(quotas)) => quotas,
            _ => Map::new(),
        };
        for (name, text) in documents::pairs_of_flag("quota", &self.quotas)? {
            if text.is_empty() {
                quotas.remove(&name);
            } else {
                quotas.insert(name, serde_json::from_str(&text).unwrap_or(Value::String(text)));
            }
        }
        Ok((!quotas.is_empty()).then_some(Value::Object(quotas)))
    }
}

fn tier(text: &str) -> Result<Tier, String> {
    serde_json::from_value(text.into()).map_err(|_| "one of free, pro, enterprise, unlimited".to_owned())
}

pub fn run(args: TenantArgs, printer: &mut Printer) -> Result<(), Failure> {
    args.run(printer, async |session, command| match command {
        Command::List(list) => session.list(&list, &["tenants"], &[], drawn).await,
        Command::Show { tenant } => show(session, &tenant).await,
        Command::Create { name, tier, quotas } => {
            if stored(session, &name).await?.is_some() {
                let message = format!("the tenant `{name}` already exists; `rota tenant set` changes it");
                return Err(Failure::refused(rota_api::problem::Code::Conflict, message));
            }
            let request = TenantRequest { tier: shown::word(&tier), quotas: quotas.over(None)? };
            save(session, &name, &request, "created").await
        }
        Command::Set { name, tier, quotas } => {
            if tier.is_none() && quotas.quotas.is_empty() {
                let message = "nothing to change: give --tier or --quota".to_owned();
                return Err(Failure::bad_input("nothing_named", message));
            }
            let found = stored(session, &name).await?;
            let found = found.ok_or_else(|| {
                Failure::not_found(format!("there is no tenant `{name}`; `rota tenant create` creates one"))
            })?;
            let tier = tier.map_or(found.tier, |tier| shown::word(&tier));
            let request = TenantRequest { tier, quotas: quotas.over(found.quotas)? };
            save(session, &name, &request, "saved").await
        }
    })
}

async fn stored(session: &Session<'_>, name: &str) -> Result<Option<Tenant>, Failure> {
    match session.client.get(&["tenants", name], &[]).await {
        Ok(tenant) => Ok(Some(tenant)),
        Err(error) if error.is_not_found() => Ok(None),
        Err(error) => Err(error.into()),
    }
}

async fn save(session: &mut Session<'_>, name: &str, request: &TenantRequest, what: &str) -> Result<(), Failure> {
    let saved: Tenant = session.client.put(&["tenants", name], request, Believes::Anything).await?;
    session.done(&saved, format_args!("{what} {} (id {}, {})", saved.name, saved.id, saved.tier))
}

async fn show(session: &mut Session<'_>, tenant: &str) -> Result<(), Failure> {
    let tenant: Tenant = session.client.get(&["tenants", tenant], &[]).await?;
    session.answer(&tenant, |printer| {
        let mut fields = Table::fields();
        fields.field("tenant", format!("{} (id {})", tenant.name, tenant.id));
        fields.field("tier", tenant.tier.as_str());
        fields.field("quotas", quotas(&tenant));
        printer.table(fields)
    })
}

fn drawn(tenants: &[Tenant], _: Timestamp, printer: &mut Printer) -> io::Result<()> {
    let mut table = Table::new(&["TENANT", "ID", "TIER", "QUOTAS"]);
    for tenant in tenants {
        table.row([
            tenant.name.clone().into(),
            Cell::number(tenant.id),
            tenant.tier.clone().into(),
            quotas(tenant).into(),
        ]);
    }
    printer.table(table)
}

/// Those of its own, as they are given to `--quota`.
fn quotas(tenant: &Tenant) -> String {
    let own = tenant.quotas.as_ref().and_then(Value::as_object).into_iter().flatten();
    own.map(|(name, value)| format!("{name}={value}")).collect::<Vec<_>>().join(" ")
}
