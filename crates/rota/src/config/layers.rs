//! Layers: default, file, environment and flags, one over the other.
//!
//! What comes out is text by key, each with where it was given, so that whoever
//! cannot read a value can say whose it is. Nothing is known here of what values
//! mean.

use std::{
    collections::BTreeMap,
    fmt,
    path::{Path, PathBuf},
};

use clap::{Arg, ArgAction, ArgMatches};
use toml::{Table, Value};

use super::settings::{SETTINGS, Setting, Shape};

/// Where a value was given.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
    Default,
    File(PathBuf),
    Variable(String),
    Flag(String),
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Default => f.write_str("default"),
            Self::File(path) => path.display().fmt(f),
            Self::Variable(name) => f.write_str(name),
            Self::Flag(name) => write!(f, "--{name}"),
        }
    }
}

/// A value as given: one text, or the items of a list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Given {
    pub items: Vec<String>,
    pub source: Source,
}

/// What is given for each key that has a value at all.
#[derive(Debug, Default)]
pub struct Layers {
    given: BTreeMap<&'static str, Given>,
    /// What is wrong with the layers themselves.
    pub problems: Vec<String>,
}

/// The flags of every command that needs a configuration.
#[derive(Clone, Debug, Default)]
pub struct Flags {
    config: Option<PathBuf>,
    given: Vec<(&'static Setting, Vec<String>)>,
}

impl Flags {
    /// Whether none was given.
    pub fn is_empty(&self) -> bool {
        self.config.is_none() && self.given.is_empty()
    }

    /// Those of the settings that the command has.
    fn among(matches: &ArgMatches, has: impl Fn(&Setting) -> bool) -> Self {
        let mut flags = Self { config: matches.get_one::<PathBuf>(CONFIG).cloned(), given: Vec::new() };
        for setting in SETTINGS.iter().filter(|setting| has(setting)) {
            if let Some(values) = matches.get_many::<String>(setting.key) {
                flags.given.push((setting, values.cloned().collect()));
            }
        }
        flags
    }
}

const OF_STORES: [&str; 4] = ["store", "data", "postgres.connections", "postgres.schema"];

/// Those that say which store is meant, for commands that work on it themselves.
#[derive(Clone, Debug, Default)]
pub struct StoreFlags(pub Flags);

pub const CONFIG: &str = "config";
pub const CONFIG_VARIABLE: &str = "ROTA_CONFIG";

impl clap::Args for Flags {
    fn augment_args(command: clap::Command) -> clap::Command {
        command.arg(config_flag()).args(SETTINGS.iter().map(flag))
    }

    fn augment_args_for_update(command: clap::Command) -> clap::Command {
        Self::augment_args(command)
    }
}

impl clap::Args for StoreFlags {
    fn augment_args(command: clap::Command) -> clap::Command {
        let settings = SETTINGS.iter().filter(|setting| OF_STORES.contains(&setting.key));
        let flags = std::iter::once(config_flag()).chain(settings.map(flag));
        command.args(flags.map(|flag| flag.help_heading("Store")))
    }

    fn augment_args_for_update(command: clap::Command) -> clap::Command {
        Self::augment_args(command)
    }
}

impl clap::FromArgMatches for StoreFlags {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        Ok(Self(Flags::among(matches, |setting| OF_STORES.contains(&setting.key))))
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

fn config_flag() -> Arg {
    let config = Arg::new(CONFIG).long(CONFIG).value_name("FILE").help("Read settings from this TOML file");
    config.value_parser(clap::value_parser!(PathBuf))
}

fn flag(setting: &'static Setting) -> Arg {
    let arg = Arg::new(setting.key).long(setting.flag()).help(help(setting)).value_name(setting.form);
    match setting.shape {
        Shape::One => arg,
        Shape::Many => arg.action(ArgAction::Append),
        Shape::Switch => {
            arg.num_args(0..=1).require_equals(true).default_missing_value("true").hide_possible_values(true)
        }
    }
}

fn help(setting: &Setting) -> String {
    match setting.default {
        Some("") => setting.about.to_owned(),
        Some(default) => format!("{} [default: {default}]", setting.about),
        None => format!("{} [default: {}]", setting.about, setting.otherwise.replace('`', "")),
    }
}

impl clap::FromArgMatches for Flags {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        Ok(Self::among(matches, |_| true))
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

impl Layers {
    /// All four, the environment being what `variable` answers.
    pub fn read(flags: &Flags, variable: impl Fn(&str) -> Option<String>) -> Self {
        let mut layers = Self::default();
        for setting in SETTINGS {
            if let Some(default) = setting.default {
                layers.put(setting, items(setting, default), Source::Default);
            }
        }
        let file = flags.config.clone().or_else(|| variable(CONFIG_VARIABLE).map(PathBuf::from));
        if let Some(path) = file {
            layers.read_file(&path);
        }
        for setting in SETTINGS {
            let name = setting.variable();
            if let Some(value) = variable(&name) {
                layers.put(setting, items(setting, &value), Source::Variable(name));
            }
        }
        for (setting, values) in &flags.given {
            let items = values.iter().flat_map(|value| items(setting, value)).collect();
            layers.put(setting, items, Source::Flag(setting.flag()));
        }
        layers
    }

    pub fn get(&self, key: &str) -> Option<&Given> {
        self.given.get(key)
    }

    fn put(&mut self, setting: &'static Setting, items: Vec<String>, source: Source) {
        self.given.insert(setting.key, Given { items, source });
    }

    fn read_file(&mut self, path: &Path) {
        let text = match std::fs::read_to_string(path) {
            Ok(text) => text,
            Err(error) => return self.problems.push(format!("{}: {error}", path.display())),
        };
        match text.parse::<Table>() {
            Ok(table) => self.take_table("", &table, path),
            Err(error) => self.problems.push(format!("{}: {}", path.display(), error.to_string().trim_end())),
        }
    }

    fn take_table(&mut self, prefix: &str, table: &Table, path: &Path) {
        for (name, value) in table {
            let key = if prefix.is_empty() { name.clone() } else { format!("{prefix}.{name}") };
            match (Setting::named(&key), value) {
                (Some(setting), value) => match written(setting, value) {
                    Ok(items) => self.put(setting, items, Source::File(path.to_owned())),
                    Err(expected) => {
                        let found = value.type_str();
                        self.problems.push(format!("{key}: expected {expected}, found {found} ({})", path.display()));
                    }
                },
                (None, Value::Table(inner)) if is_section(&key) => self.take_table(&key, inner, path),
                (None, _) => self.problems.push(format!("{key}: unknown field ({})", path.display())),
            }
        }
    }
}

fn is_section(key: &str) -> bool {
    SETTINGS.iter().any(|setting| setting.key.split_once('.').is_some_and(|(section, _)| section == key))
}

/// The items of a value that is written as one text.
fn items(setting: &Setting, value: &str) -> Vec<String> {
    match setting.shape {
        Shape::One | Shape::Switch => vec![value.to_owned()],
        Shape::Many => value.split(',').map(str::trim).filter(|item| !item.is_empty()).map(str::to_owned).collect(),
    }
}

/// The items of a value of the file, or what it should be.
fn written(setting: &Setting, value: &Value) -> Result<Vec<String>, &'static str> {
    let plain = |value: &Value| match value {
        Value::String(text) => Some(text.clone()),
        Value::Integer(number) => Some(number.to_string()),
        Value::Float(_) | Value::Boolean(_) | Value::Datetime(_) | Value::Array(_) | Value::Table(_) => None,
    };
    match (setting.shape, value) {
        (Shape::Switch, Value::Boolean(is)) => Ok(vec![is.to_string()]),
        (Shape::Switch, _) => Err("true or false"),
        (Shape::Many, Value::Array(values)) => values.iter().map(plain).collect::<Option<_>>().ok_or("a list of texts"),
        (Shape::Many, _) => Err("a list of texts"),
        (Shape::One, value) => plain(value).map(|text| vec![text]).ok_or("a text or a whole number"),
    }
}
