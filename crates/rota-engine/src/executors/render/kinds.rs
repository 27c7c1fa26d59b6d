//! Which texts of each kind of step are filled in.
//!
//! The list is core's (`job::template`): a statement of SQL, a shell's text and
//! an expression over rows are left as they are. A test holds the two together.

use std::collections::BTreeMap;

use rota_core::job::{
    kinds::{
        Approval, Command, File, FilePlace, Handler, Http, HttpAuth, HttpBody, Login, OAuth2, Places, Program, Sftp,
        SftpAction, Signature, Sleep, Sql, SubJob, Tls, Wait,
    },
    step::StepKind,
};
use serde_json::Value;

use super::{RenderError, Rendering, Values, join};

type Rendered<T> = Result<T, RenderError>;

pub(super) fn render<F: FnOnce() -> Values>(kind: &StepKind, to: &mut Rendering<'_, F>) -> Rendered<StepKind> {
    Ok(match kind {
        StepKind::Http(step) => StepKind::Http(Box::new(http(step, to)?)),
        StepKind::Sql(step) => StepKind::Sql(Sql { params: list("sql.params", &step.params, to)?, ..step.clone() }),
        StepKind::File(step) => StepKind::File(Box::new(file(step, to)?)),
        StepKind::Sftp(step) => StepKind::Sftp(Box::new(sftp(step, to)?)),
        StepKind::Command(step) => StepKind::Command(command(step, to)?),
        StepKind::Handler(step) => StepKind::Handler(Handler {
            name: step.name.clone(),
            payload: step.payload.as_ref().map(|payload| to.value("handler.payload", payload)).transpose()?,
        }),
        StepKind::Job(step) => StepKind::Job(SubJob {
            name: step.name.clone(),
            payload: step.payload.as_ref().map(|payload| to.value("job.payload", payload)).transpose()?,
            labels: texts("job.labels", &step.labels, to)?,
        }),
        StepKind::Sleep(step) => StepKind::Sleep(match step {
            Sleep::For(span) => Sleep::For(*span),
            Sleep::Until(instant) => Sleep::Until(to.text("sleep.until", instant)?),
        }),
        StepKind::Approval(step) => StepKind::Approval(Approval {
            message: to.optional("approval.message", step.message.as_ref())?,
            by: words("approval.by", &step.by, to)?,
            within: step.within,
        }),
        StepKind::Wait(step) => {
            StepKind::Wait(Wait { token: to.optional("wait.token", step.token.as_ref())?, within: step.within })
        }
    })
}

fn list<F: FnOnce() -> Values>(field: &str, values: &[Value], to: &mut Rendering<'_, F>) -> Rendered<Vec<Value>> {
    values.iter().enumerate().map(|(index, value)| to.value(&format!("{field}[{index}]"), value)).collect()
}

fn words<F: FnOnce() -> Values>(field: &str, texts: &[String], to: &mut Rendering<'_, F>) -> Rendered<Vec<String>> {
    texts.iter().enumerate().map(|(index, text)| to.text(&format!("{field}[{index}]"), text)).collect()
}

fn texts<F: FnOnce() -> Values>(
    field: &str,
    texts: &BTreeMap<String, String>,
    to: &mut Rendering<'_, F>,
) -> Rendered<BTreeMap<String, String>> {
    texts.iter().map(|(key, text)| Ok((key.clone(), to.text(&join(field, key), text)?))).collect()
}

fn values<F: FnOnce() -> Values>(
    field: &str,
    values: &BTreeMap<String, Value>,
    to: &mut Rendering<'_, F>,
) -> Rendered<BTreeMap<String, Value>> {
    values.iter().map(|(key, value)| Ok((key.clone(), to.value(&join(field, key), value)?))).collect()
}

fn http<F: FnOnce() -> Values>(step: &Http, to: &mut Rendering<'_, F>) -> Rendered<Http> {
    Ok(Http {
        url: to.text("http.url", &step.url)?,
        method: step.method.clone(),
        headers: texts("http.headers", &step.headers, to)?,
        query: values("http.query", &step.query, to)?,
        body: step.body.as_ref().map(|body| http_body(body, to)).transpose()?,
        auth: step.auth.as_ref().map(|auth| http_auth(auth, to)).transpose()?,
        expect: step.expect.clone(),
        response_max: step.response_max,
        tls: step.tls.as_ref().map(|tls| http_tls(tls, to)).transpose()?,
        sign: match &step.sign {
            Some(sign) => {
                Some(Signature { secret: to.text("http.sign.secret", &sign.secret)?, header: sign.header.clone() })
            }
            None => None,
        },
        callback: step.callback.clone(),
    })
}

fn http_body<F: FnOnce() -> Values>(body: &HttpBody, to: &mut Rendering<'_, F>) -> Rendered<HttpBody> {
    Ok(match body {
        HttpBody::Json(json) => HttpBody::Json(to.value("http.json", json)?),
        HttpBody::Form(form) => HttpBody::Form(values("http.form", form, to)?),
        HttpBody::Raw(text) => HttpBody::Raw(to.text("http.body", text)?),
    })
}

fn http_auth<F: FnOnce() -> Values>(auth: &HttpAuth, to: &mut Rendering<'_, F>) -> Rendered<HttpAuth> {
    Ok(match auth {
        HttpAuth::Basic { username, password } => HttpAuth::Basic {
            username: to.text("http.auth.basic.username", username)?,
            password: to.text("http.auth.basic.password", password)?,
        },
        HttpAuth::Bearer(token) => HttpAuth::Bearer(to.text("http.auth.bearer", token)?),
        HttpAuth::OAuth2(oauth) => HttpAuth::OAuth2(OAuth2 {
            token_url: to.text("http.auth.oauth2.token_url", &oauth.token_url)?,
            client_id: to.text("http.auth.oauth2.client_id", &oauth.client_id)?,
            client_secret: to.text("http.auth.oauth2.client_secret", &oauth.client_secret)?,
            scopes: words("http.auth.oauth2.scopes", &oauth.scopes, to)?,
            audience: to.optional("http.auth.oauth2.audience", oauth.audience.as_ref())?,
        }),
    })
}

fn http_tls<F: FnOnce() -> Values>(tls: &Tls, to: &mut Rendering<'_, F>) -> Rendered<Tls> {
    Ok(Tls {
        ca: to.optional("http.tls.ca", tls.ca.as_ref())?,
        certificate: to.optional("http.tls.certificate", tls.certificate.as_ref())?,
        key: to.optional("http.tls.key", tls.key.as_ref())?,
        verify: tls.verify,
    })
}

fn file<F: FnOnce() -> Values>(step: &File, to: &mut Rendering<'_, F>) -> Rendered<File> {
    let mut file = File {
        read: place("file.read", &step.read, to)?,
        write: step.write.as_ref().map(|write| place("file.write", write, to)).transpose()?,
        ..step.clone()
    };
    for (index, column) in file.columns.iter_mut().enumerate() {
        let field = format!("file.columns[{index}]");
        column.from = to.text(&join(&field, "from"), &column.from)?;
        column.to = to.optional(&join(&field, "to"), column.to.as_ref())?;
    }
    Ok(file)
}

fn place<F: FnOnce() -> Values>(field: &str, place: &FilePlace, to: &mut Rendering<'_, F>) -> Rendered<FilePlace> {
    Ok(FilePlace {
        path: to.text(&join(field, "path"), &place.path)?,
        sheet: to.optional(&join(field, "sheet"), place.sheet.as_ref())?,
        ..place.clone()
    })
}

fn sftp<F: FnOnce() -> Values>(step: &Sftp, to: &mut Rendering<'_, F>) -> Rendered<Sftp> {
    let login = match &step.login {
        Login::Password(password) => Login::Password(to.text("sftp.password", password)?),
        Login::Key { key, passphrase } => Login::Key {
            key: to.text("sftp.key", key)?,
            passphrase: to.optional("sftp.passphrase", passphrase.as_ref())?,
        },
    };
    let action = match &step.action {
        SftpAction::Upload(both) => SftpAction::Upload(places("sftp.upload", both, to)?),
        SftpAction::Download(both) => SftpAction::Download(places("sftp.download", both, to)?),
        SftpAction::Move(both) => SftpAction::Move(places("sftp.move", both, to)?),
        SftpAction::List(path) => SftpAction::List(to.text("sftp.list", path)?),
        SftpAction::Delete(path) => SftpAction::Delete(to.text("sftp.delete", path)?),
    };
    Ok(Sftp {
        host: to.text("sftp.host", &step.host)?,
        port: step.port,
        username: to.text("sftp.username", &step.username)?,
        login,
        host_key: to.text("sftp.host_key", &step.host_key)?,
        action,
        recursive: step.recursive,
    })
}

fn places<F: FnOnce() -> Values>(field: &str, places: &Places, to: &mut Rendering<'_, F>) -> Rendered<Places> {
    Ok(Places { from: to.text(&join(field, "from"), &places.from)?, to: to.text(&join(field, "to"), &places.to)? })
}

fn command<F: FnOnce() -> Values>(step: &Command, to: &mut Rendering<'_, F>) -> Rendered<Command> {
    let program = match &step.program {
        Program::Plain { program, args } => {
            Program::Plain { program: to.text("command.program", program)?, args: words("command.args", args, to)? }
        }
        // Never filled in: what is put into a shell's text becomes code.
        Program::Shell(text) => Program::Shell(text.clone()),
    };
    Ok(Command {
        program,
        env: texts("command.env", &step.env, to)?,
        stdin: to.optional("command.stdin", step.stdin.as_ref())?,
        directory: to.optional("command.directory", step.directory.as_ref())?,
        expect: step.expect.clone(),
    })
}
