//! `rota completions`, `rota man`: the command line, told to shells and people.
//!
//! All of it is made from the commands themselves, so it cannot be out of date;
//! `docs/cli.md` is the same as one page, and a test holds it to the program.

use std::path::PathBuf;

use anyhow::Context as _;
use clap::{Arg, Args, Command, ValueEnum};

use crate::{
    config,
    failure::{EXIT_CODES, Failure},
    printer::Printer,
};

#[derive(Args)]
pub struct CompletionsArgs {
    /// The shell
    shell: Shell,
}

#[derive(Clone, Copy, ValueEnum)]
enum Shell {
    Bash,
    Elvish,
    Fish,
    Powershell,
    Zsh,
}

#[derive(Args)]
pub struct ManArgs {
    /// Write one page per command into this directory
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
    /// Print the whole command line as one page of Markdown
    #[arg(long, conflicts_with = "dir")]
    markdown: bool,
}

pub fn completions(args: &CompletionsArgs, mut command: Command, printer: &mut Printer) -> Result<(), Failure> {
    use clap_complete::shells;
    let mut text = Vec::new();
    match args.shell {
        Shell::Bash => clap_complete::generate(shells::Bash, &mut command, "rota", &mut text),
        Shell::Elvish => clap_complete::generate(shells::Elvish, &mut command, "rota", &mut text),
        Shell::Fish => clap_complete::generate(shells::Fish, &mut command, "rota", &mut text),
        Shell::Powershell => clap_complete::generate(shells::PowerShell, &mut command, "rota", &mut text),
        Shell::Zsh => clap_complete::generate(shells::Zsh, &mut command, "rota", &mut text),
    }
    Ok(printer.text(&String::from_utf8_lossy(&text))?)
}

pub fn man(args: &ManArgs, command: Command, printer: &mut Printer) -> Result<(), Failure> {
    if args.markdown {
        return Ok(printer.text(&markdown(command))?);
    }
    let Some(directory) = &args.dir else {
        let mut text = Vec::new();
        clap_mangen::Man::new(command).render(&mut text)?;
        return Ok(printer.text(&String::from_utf8_lossy(&text))?);
    };
    std::fs::create_dir_all(directory).with_context(|| format!("cannot make {}", directory.display()))?;
    clap_mangen::generate_to(command, directory)
        .with_context(|| format!("cannot write pages to {}", directory.display()))?;
    Ok(printer.line(&format!("the pages are in {}; read one with man -l FILE", directory.display()))?)
}

/// What follows the help of `rota` itself.
pub fn exit_codes() -> String {
    let lines: Vec<String> = EXIT_CODES.iter().map(|(code, meaning)| format!("  {code:<8} {meaning}")).collect();
    format!("Exit codes:\n{}", lines.join("\n"))
}

fn markdown(mut command: Command) -> String {
    command.build();
    let mut page = HEAD.to_owned();
    for (code, meaning) in EXIT_CODES {
        page.extend([format!("| {code} | {meaning} |\n")]);
    }
    page.push_str("\n## Flags of every command that uses a server\n\n| flag | meaning |\n|---|---|\n");
    let nouns = command.get_subcommands().find(|command| command.get_name() == "job");
    for arg in nouns.into_iter().flat_map(Command::get_arguments).filter(|arg| arg.is_global_set()) {
        page.push_str(&row(arg));
    }
    for sub in command.get_subcommands().filter(|sub| is_told(sub)) {
        page.extend([format!("\n## rota {}\n\n{}\n", sub.get_name(), about(sub))]);
        section(sub, &mut page);
    }
    page
}

fn is_told(command: &Command) -> bool {
    !command.is_hide_set() && command.get_name() != "help"
}

/// A command with its flags, then those below it.
fn section(command: &Command, page: &mut String) {
    let subs: Vec<&Command> = command.get_subcommands().filter(|sub| is_told(sub)).collect();
    if subs.is_empty() || !command.is_subcommand_required_set() {
        let usage = command.clone().render_usage().to_string();
        let lines = usage.trim_start_matches("Usage: ").lines().map(|line| format!("    {}\n", line.trim()));
        page.extend(std::iter::once("\n".to_owned()).chain(lines));
        arguments(command, page);
    }
    for sub in subs {
        let path = sub.get_bin_name().unwrap_or_else(|| sub.get_name());
        page.extend([format!("\n### {path}\n\n{}\n", about(sub))]);
        section(sub, page);
    }
}

fn arguments(command: &Command, page: &mut String) {
    // A command that takes them all is not to repeat the page that explains them.
    let settings = command.get_arguments().any(|arg| arg.get_id() == "listen");
    let is_setting = |arg: &Arg| settings && config::is_setting(arg.get_id().as_str());
    let told = |arg: &&Arg| !arg.is_global_set() && !arg.is_hide_set() && arg.get_id() != "help" && !is_setting(arg);
    let rows: Vec<String> = command.get_arguments().filter(told).map(row).collect();
    if !rows.is_empty() {
        page.extend([format!("\n| | meaning |\n|---|---|\n{}", rows.concat())]);
    }
    if settings {
        page.push_str("\nAccepts every setting in [config.md](config.md) as a flag, and `--config FILE`.\n");
    }
}

fn about(command: &Command) -> String {
    command.get_about().map(|about| format!("{about}.")).unwrap_or_default()
}

fn row(arg: &Arg) -> String {
    let mut help = arg.get_help().map(ToString::to_string).unwrap_or_default();
    let choices: Vec<String> = arg.get_possible_values().iter().map(|value| value.get_name().to_owned()).collect();
    if !choices.is_empty() && arg.get_action().takes_values() {
        help.extend([format!(" ({})", choices.join(", "))]);
    }
    let values: Vec<String> =
        arg.get_default_values().iter().map(|value| value.to_string_lossy().into_owned()).collect();
    if !values.is_empty() && arg.get_action().takes_values() && !arg.is_hide_default_value_set() {
        help.extend([format!(" [default: {}]", values.join(" "))]);
    }
    format!("| `{}` | {} |\n", name(arg).replace('|', "\\|"), help.replace('|', "\\|").replace('<', "\\<"))
}

/// `-f, --file PATH`, or `JOB…` for what stands without a flag.
fn name(arg: &Arg) -> String {
    let values =
        arg.get_value_names().unwrap_or_default().iter().map(ToString::to_string).collect::<Vec<_>>().join(" ");
    let many = if arg.get_num_args().is_some_and(|range| range.max_values() > 1) { "…" } else { "" };
    let optional = arg.get_num_args().is_some_and(|range| range.min_values() == 0 && range.takes_values());
    let value = match (arg.get_action().takes_values(), optional) {
        (false, _) => String::new(),
        (true, true) => format!("[={values}]"),
        (true, false) => format!(" {values}{many}"),
    };
    match (arg.get_short(), arg.get_long()) {
        (Some(short), Some(long)) => format!("-{short}, --{long}{value}"),
        (None, Some(long)) => format!("--{long}{value}"),
        (Some(short), None) => format!("-{short}{value}"),
        (None, None) => format!("{values}{many}"),
    }
}

const HEAD: &str = "\
# The command line

*Generated by `rota man --markdown`; a test compares this page with the program.*

`rota help COMMAND` prints the same in the terminal, `rota completions SHELL` prints completions
for a shell, and `rota man --dir DIR` writes man pages.

Commands that use a server take its address from the first of these that is given: `--server`,
`--context`, `ROTA_SERVER`, the current context (`rota login URL` creates one), and otherwise
http://127.0.0.1:7070. The token comes from `--token-file`, then `ROTA_TOKEN`, then
the context; the token of a context is sent only to the server of that context.
Contexts are stored in `~/.config/rota/contexts.toml`, which only its owner can read.

Output is a table for people: as wide as the terminal, in colour, with relative times. Piped
output is not truncated and has no colours; `NO_COLOR` is respected. `-o json`
and `-o yaml` print every field, with exact times. Before a command deletes something or changes
many objects, it asks for confirmation in a terminal; without a terminal it needs `--yes`.

A time is an instant (`2030-01-01T09:00:00Z`), a local time or date in this machine's time zone,
`2h` for two hours ago, or `+2h` for two hours from now.

## Exit codes

| code | meaning |
|---|---|
";
