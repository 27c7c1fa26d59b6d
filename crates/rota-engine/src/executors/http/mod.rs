//! `http`: sends a request and judges the answer.
//!
//! One attempt is one request and the redirects it leads to, each hop judged by
//! the egress policy before it is made. Connections are kept and shared between
//! attempts; the addresses they go to are those the policy has seen. A host that
//! keeps failing is left alone for a while by the [`breaker`](super::breaker).
//!
//! Dropping the future closes the connection under it. Time-outs are the
//! stage's; only the time to connect is bounded here, so that a dead address
//! does not use up the whole attempt.
//!
//! Not here yet: `oauth2`, and parking on a 202. A step that asks for one is
//! refused before anything is sent.

mod answer;
mod clients;
mod fault;
mod redirect;
mod request;
mod resolve;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use async_trait::async_trait;
use jiff::Timestamp;
use parking_lot::Mutex;
use reqwest::Response;
use rota_core::{
    duration::Span,
    job::{
        failure::{ErrorKind, Failure, RetryAdvice},
        kinds::{Http, HttpAuth},
        step::StepKind,
    },
    ports::{Attempt, Clock, Context, Executor},
    run::Outcome,
};

pub use self::resolve::{Lookup, SystemLookup};
use self::{clients::Clients, redirect::Hop, request::Call};
use super::{
    breaker::{Admission, Breaker, BreakerOptions, Health, HostKey, spread},
    egress::Egress,
};

/// Most redirects that one request follows.
pub const REDIRECTS_MAX: usize = 5;

/// How requests are made, whatever the step.
#[derive(Clone, Debug)]
pub struct HttpOptions {
    pub egress: Egress,
    pub breaker: BreakerOptions,
    pub connect_timeout: Span,
    pub user_agent: String,
}

impl Default for HttpOptions {
    fn default() -> Self {
        Self {
            egress: Egress::default(),
            breaker: BreakerOptions::default(),
            connect_timeout: Span::secs(10),
            user_agent: concat!("rota/", env!("CARGO_PKG_VERSION")).to_owned(),
        }
    }
}

/// Executes `http` steps.
pub struct HttpExecutor {
    egress: Arc<Egress>,
    clients: Clients,
    breaker: Mutex<Breaker>,
}

impl HttpExecutor {
    pub fn new(options: HttpOptions) -> Self {
        Self::with_lookup(options, Arc::new(SystemLookup))
    }

    /// The same, with names looked up elsewhere than in the system's resolver.
    pub fn with_lookup(options: HttpOptions, lookup: Arc<dyn Lookup>) -> Self {
        let egress = Arc::new(options.egress);
        Self {
            clients: Clients::new(Arc::clone(&egress), lookup, options.connect_timeout, options.user_agent),
            breaker: Mutex::new(Breaker::new(options.breaker)),
            egress,
        }
    }

    async fn call(&self, step: &Http, attempt: &Attempt, context: &Context) -> Result<Outcome, Failure> {
        refuse_what_is_to_come(step)?;
        let call = Call::new(step, attempt, context.clock.now())?;
        let secrets = call.secrets();
        // Judged before the breaker is asked, which would name the host.
        self.egress.judge(&call.url).map_err(|denied| fault::denied(&denied))?;
        let host = HostKey { tenant: attempt.tenant, host: call.authority() };
        let now = context.clock.now();
        let admission = self.breaker.lock().admit(&host, now);
        if let Admission::Defer { until } = admission {
            return Ok(deferred(&host, until, now, attempt));
        }
        let mut watch = Watch { breaker: &self.breaker, host, clock: &*context.clock, attempt, told: false };
        let (outcome, health) = self.follow(step, call, &secrets, context).await;
        watch.tell(health);
        outcome
    }

    /// Makes the request and follows where it is sent on to.
    async fn follow(
        &self,
        step: &Http,
        mut call: Call,
        secrets: &[String],
        context: &Context,
    ) -> (Result<Outcome, Failure>, Health) {
        let mut hops = 0;
        loop {
            let response = match self.send(step, &call).await {
                Ok(response) => response,
                Err(failure) => return (Err(failure.clone()), health_of(&failure)),
            };
            let status = response.status();
            if step.expects(status.as_u16()) {
                let taken = answer::take(step, response).await;
                let health = taken.as_ref().map_or_else(health_of, |_| Health::Up);
                return (taken, health);
            }
            match redirect::next(&mut call, &response) {
                Ok(Hop::Follow) if hops == REDIRECTS_MAX => {
                    let failure = Failure::http(status.as_u16(), format!("redirected more than {hops} times"));
                    return (Err(failure.advising(RetryAdvice::Never)), Health::Up);
                }
                Ok(Hop::Follow) => hops += 1,
                Ok(Hop::None) => {
                    let health = if status.is_server_error() { Health::Down } else { Health::Up };
                    return (Err(answer::refuse(response, secrets, &*context.clock).await), health);
                }
                Err(failure) => return (Err(failure), Health::Up),
            }
        }
    }

    async fn send(&self, step: &Http, call: &Call) -> Result<Response, Failure> {
        let clearance = self.egress.judge(&call.url).map_err(|denied| fault::denied(&denied))?;
        let client = self.clients.get(step.tls.as_ref(), clearance)?;
        client.execute(call.request()).await.map_err(|error| fault::failure_of(&error))
    }
}

#[async_trait]
impl Executor for HttpExecutor {
    fn kind(&self) -> &'static str {
        "http"
    }

    async fn execute(&self, attempt: &Attempt, context: &Context) -> Outcome {
        let StepKind::Http(step) = &attempt.step else {
            return Outcome::Failed(Failure::new(ErrorKind::InvalidInput, "not a step of kind http"));
        };
        self.call(step, attempt, context).await.unwrap_or_else(Outcome::Failed)
    }
}

fn refuse_what_is_to_come(step: &Http) -> Result<(), Failure> {
    let asked = match (&step.auth, &step.callback) {
        (Some(HttpAuth::OAuth2(_)), _) => "auth.oauth2",
        (_, Some(_)) => "callback",
        (None | Some(HttpAuth::Basic { .. } | HttpAuth::Bearer(_)), None) => return Ok(()),
    };
    Err(Failure::new(ErrorKind::InvalidInput, format!("http.{asked} is not supported by this release")))
}

fn deferred(host: &HostKey, until: Timestamp, now: Timestamp, attempt: &Attempt) -> Outcome {
    let draw = attempt.lease.run.0.as_u64_pair().1;
    let reason = format!("{} keeps failing, so no requests are sent to it for a while", host.host);
    Outcome::Deferred { until: spread(until, now, draw), reason }
}

/// What a failure says about the host.
fn health_of(failure: &Failure) -> Health {
    match failure.kind {
        ErrorKind::Timeout
        | ErrorKind::ConnectionRefused
        | ErrorKind::ConnectionReset
        | ErrorKind::Dns
        | ErrorKind::Tls => Health::Down,
        ErrorKind::HttpStatus => Health::Up,
        ErrorKind::EgressDenied
        | ErrorKind::ExitCode
        | ErrorKind::Signal
        | ErrorKind::Panic
        | ErrorKind::Lost
        | ErrorKind::InvalidInput
        | ErrorKind::Handler
        | ErrorKind::Sql
        | ErrorKind::File
        | ErrorKind::Sftp
        | ErrorKind::OutputTooLarge => Health::Unknown,
    }
}

/// Tells the breaker how a call went, also when the call is dropped.
struct Watch<'a> {
    breaker: &'a Mutex<Breaker>,
    host: HostKey,
    clock: &'a dyn Clock,
    attempt: &'a Attempt,
    told: bool,
}

impl Watch<'_> {
    fn tell(&mut self, health: Health) {
        self.told = true;
        let now = self.clock.now();
        self.breaker.lock().record(&self.host, health, now);
    }
}

impl Drop for Watch<'_> {
    fn drop(&mut self) {
        if !self.told {
            // Whoever was dropped at the deadline waited for the host in vain;
            // anyone else was called off.
            let late = self.attempt.deadline_at.is_some_and(|deadline_at| deadline_at <= self.clock.now());
            self.tell(if late { Health::Down } else { Health::Unknown });
        }
    }
}
